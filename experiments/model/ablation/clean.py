"""A clean held-out protocol: test tasks, with rates of the analyzer fitted inside each split.

Every row is of one platform and seed. The analyzer and the models that read it have two rows: with
the shipped rates, which were chosen with the test tasks in view, and with nested rates
(`ablation/rates.py`). Both are fitted and judged here, on equal splits and by one recipe. Rows of
models that do not read the analyzer are taken from an earlier table where chance and the analyzer
have the same values there as now (so records, split and symbols are the same), and else fitted.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from experiments.model.ablation.cells import NESTED, SHIPPED, AblationCell, Setting, planned
from experiments.model.ablation.fits import ANALYZER, CHANCE, references
from experiments.model.ablation.rates import FOLDER, RATES_S, NestedRates
from experiments.model.ablation.run import Ablation
from pruner.study.grid import Job, results
from pruner.study.markdown import markdown_table, mean_text

Row = dict[str, Any]
Variant = tuple[str, str]  # model, rates
READERS = ("draft", "residual", "draft_residual")  # the first is compared first
NO_RATES = "none"  # of a model that does not read the analyzer
SHOWN = {"top1_task_mean": "Top-1", "pairwise_accuracy": "pairwise"}
SAME = 1e-5  # of an earlier number: less than a pair of programs more or less


@dataclass(frozen=True, slots=True, kw_only=True)
class Clean:
    """The work of the stage; every setting has one platform.

    `readers`: models that read the analyzer, the most important first; `rivals`: models that do
    not; `earlier`: rows of an earlier table of test tasks.
    """

    ablation: Ablation
    settings: Sequence[Setting]
    seeds: Sequence[int]
    readers: Sequence[str]
    rivals: Sequence[str]
    earlier: Sequence[Mapping[str, str]] = ()

    def run(self, write: Callable[[Sequence[Row]], None]) -> list[Row]:
        """Fit and judge step by step; `write` gets all rows after each step."""
        self.ablation.check([cell for step in self.expected() for cell in step])
        found: list[Row] = []
        for setting in self.settings:
            found += self.analyzers(setting)
            write(found)
        chance = {_pair(row): row for row in found if row["model"] == CHANCE}
        taken = self._taken(found)
        found += [_row(row, NO_RATES, chance, "earlier") for row in taken]
        steps = self.steps({(*_pair(row), row["model"]) for row in taken})
        every = [cell for step in steps for cell in step]
        for step in steps:
            self.ablation.fit(step, every)
            for cell in step:
                rates = cell.rates if cell.model in self.readers else NO_RATES
                tested = self.ablation.test_rows([cell])
                found += [_row(row, rates, chance, "here") for row in tested]
            write(found)
        return found

    def steps(self, taken: Iterable[tuple[str, int, str]]) -> list[list[AblationCell]]:
        """The cells in the order of the work, without the rows `taken` (platform, seed, model).

        First the most important model with both rates, seed by seed; then the other models that
        read the analyzer; last the missing rivals, a platform at a time.
        """
        found, have, both = list[list[AblationCell]](), set(taken), (NESTED, SHIPPED)
        for models in (self.readers[:1], self.readers[1:]):
            found += [
                AblationCell.product([setting], models, [seed], both)
                for seed in self.seeds
                for setting in self.settings
            ]
        for setting in self.settings:
            cells = AblationCell.product([setting], self.rivals, self.seeds)
            found.append([c for c in cells if (setting.name, c.seed, c.model) not in have])
        return [step for step in found if step]

    def expected(self) -> list[list[AblationCell]]:
        """The steps if every earlier row can be taken."""
        return self.steps(
            (row["platform"], int(row["seed"]), row["model"])
            for row in self.earlier
            if row["setting"] == row["platform"]
        )

    def planned(self) -> list[Row]:
        """The fits in the order of the work, a row a setting and model, with minutes left."""
        nested, found = self._nested, list[Row]()
        for setting in self.settings:
            paths = [nested.path(setting, seed, setting.name) for seed in self.seeds]
            made = sum(path.is_file() for path in paths)
            each = RATES_S.get(setting.name, max(RATES_S.values()))
            row = {"seeds": list(self.seeds), "setting": setting.name, "model": FOLDER}
            row |= {"cells": len(paths), "made": made}
            found.append({**row, "minutes left": (len(paths) - made) * each / 60})
        for step in self.expected():
            seeds = list(dict.fromkeys(cell.seed for cell in step))
            rows = planned(step, self.ablation.folder, self.ablation.guess)
            found += [{"seeds": seeds, **row} for row in rows]
        return found

    @property
    def _nested(self) -> NestedRates:
        assert self.ablation.nested is not None, "rates"
        return self.ablation.nested

    def analyzers(self, setting: Setting) -> list[Row]:
        """Rows of chance and of the analyzer with both rates, for all seeds."""
        cells = AblationCell.product([setting], self.readers[:1], self.seeds, [NESTED])
        jobs = [
            Job(
                name=f"{setting.name}/{ANALYZER}/seed-{cell.seed}",
                leaves=self.ablation.folder / FOLDER / setting.name / f"seed-{cell.seed}.json",
                run=partial(self._references, cell),
                about=self.ablation.about(cell),
            )
            for cell in cells
        ]
        if any(job.result is None for job in jobs):
            programs = self.ablation.read(self.ablation.source(cells[0]))
            self._nested.fit(cells, programs, self.ablation.num_workers)
        return [row for found in results(jobs) for row in found["rows"]]

    def _references(self, cell: AblationCell) -> dict[str, Any]:
        programs = self.ablation.read(self.ablation.source(cell))
        rows = []
        for rates in (NESTED, SHIPPED):
            one = replace(cell, rates=rates)
            each = references(one, self.ablation.with_rates(one, programs), "test")
            chance = {_pair(row): row for row in each if row["model"] == CHANCE}
            rows += [_row(row, rates, chance, "here") for row in each if row["model"] == ANALYZER]
        return {"rows": [*(_row(row, NO_RATES, chance, "here") for row in chance.values()), *rows]}

    def _taken(self, found: Sequence[Row]) -> list[Row]:
        """Earlier rows of rivals, for platforms and seeds whose references are the same now."""
        now = {
            (*_pair(row), row["model"]): row for row in found if row["rates"] in (SHIPPED, NO_RATES)
        }
        alone = [row for row in self.earlier if row["setting"] == row["platform"]]
        before = {(row["platform"], int(row["seed"]), row["model"]): row for row in alone}
        other = {
            key[:2]
            for key, row in now.items()
            if key not in before
            or any(abs(float(before[key][name]) - row[name]) > SAME for name in SHOWN)
        }
        for platform, seed in sorted(other) if before else ():
            self.ablation.log(f"{platform}, seed {seed}: earlier rows are not taken")
        numbers = dict.fromkeys(SHOWN, float) | {"num_tasks": int}
        return [
            {**row, "seed": int(row["seed"])} | {n: kind(row[n]) for n, kind in numbers.items()}
            for key, row in before.items()
            if key[2] in self.rivals and key[:2] not in other and key[1] in self.seeds
            if key[0] in {setting.name for setting in self.settings}
        ]


def _pair(row: Mapping[str, Any]) -> tuple[str, int]:
    return row["platform"], int(row["seed"])


def _row(
    row: Mapping[str, Any], rates: str, chance: Mapping[tuple[str, int], Row], fitted: str
) -> Row:
    return {
        "platform": row["platform"],
        "seed": row["seed"],
        "model": row["model"],
        "rates": rates,
        **{name: row[name] for name in SHOWN},
        **{f"chance_{name}": chance[_pair(row)][name] for name in SHOWN},
        "num_tasks": row["num_tasks"],
        "fitted": fitted,
    }


def report(rows: Sequence[Row], first: str = READERS[0]) -> str:
    """The table as Markdown: means over platforms, then mean and deviation over seeds.

    Below it, differences on equal platforms and seeds: of the model `first` with nested rates from
    all others, and of shipped from nested rates.
    """
    by: dict[Variant, dict[tuple[str, int], Row]] = {}
    for row in rows:
        by.setdefault((row["model"], row["rates"]), {})[_pair(row)] = row
    lines = [
        [*variant, len(found), *(mean_text(_over_seeds(found, name)) for name in SHOWN)]
        for variant, found in by.items()
    ]
    table = markdown_table(["model", "rates", "pairs", *SHOWN.values()], lines)
    ours = (first, NESTED)
    compared = [(ours, other) for other in by if ours in by and other != ours]
    compared += [
        ((model, SHIPPED), (model, rates))
        for model, rates in by
        if rates == NESTED and (model, SHIPPED) in by
    ]
    lines = [
        [" ".join(one), " ".join(other), *_differences(by[one], by[other])]
        for one, other in compared
    ]
    head = ["first", "second", "pairs"]
    head += [f"{shown} {of}" for shown in SHOWN.values() for of in ("difference", "first ahead")]
    return f"{table}\n\n{markdown_table(head, lines)}\n"


def _over_seeds(found: Mapping[tuple[str, int], Mapping[str, Any]], name: str) -> list[float]:
    """Means over the platforms, one a seed."""
    seeds = sorted({seed for _, seed in found})
    return [
        float(np.mean([row[name] for (_, own), row in found.items() if own == seed]))
        for seed in seeds
    ]


def _differences(
    one: Mapping[tuple[str, int], Row], other: Mapping[tuple[str, int], Row]
) -> list[object]:
    """Number of common pairs; of each metric the difference, and the pairs where `one` is ahead."""
    shared = [pair for pair in one if pair in other]
    found: list[object] = [len(shared)]
    for name in SHOWN:
        each = {pair: {name: one[pair][name] - other[pair][name]} for pair in shared}
        ahead = sum(row[name] > 0 for row in each.values())
        found += [mean_text(_over_seeds(each, name)), ahead]
    return found
