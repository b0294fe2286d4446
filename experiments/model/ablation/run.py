"""Run all cells of a stage, several fits at a time, source by source."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from experiments.model.ablation.candidates import Change
from experiments.model.ablation.cells import SHIPPED, AblationCell, Guess, planned
from experiments.model.ablation.fits import TEST, fit_cell, judge_cell, references
from experiments.model.ablation.rates import NestedRates
from pruner.data.frozen import Side
from pruner.errors import PrunerError
from pruner.files import METRICS_FILE, jsonable, read_json, write_json
from pruner.models.programs.program_table import ProgramTable
from pruner.models.programs.reading import ReadSpec
from pruner.models.training.recipe import Recipe
from pruner.progress import Log, silent
from pruner.study.grid import Job, results
from pruner.study.model_table import Source

ReadPrograms = Callable[[Source], ProgramTable]
ABOUT = "cell.json"  # what a cell is of, in its folder from before it is fitted


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """The common settings of all stages' cells.

    `changes`: models by name; `basis`: the recipe of a setting that the changes are of; `read`
    loads programs; `folder` holds every cell. `known`: further settings that determine all cells,
    such as the folder of the records. `nested`: makes the analyzer's columns of cells with nested
    rates.
    """

    folder: Path
    changes: Mapping[str, Change]
    basis: Callable[[AblationCell], Recipe]
    read: ReadPrograms
    guess: Guess
    num_workers: int = 1
    log: Log = silent
    known: Mapping[str, Any] = field(default_factory=dict)
    nested: NestedRates | None = None

    def about(self, cell: AblationCell) -> dict[str, Any]:
        """The settings that determine a cell besides its name, as JSON."""
        setting, change = cell.setting, self.changes[cell.model]
        own: dict[str, Any] = {
            "learned": setting.learned,
            "judged": setting.judged,
            "split": setting.split,
            "of": change.of,
            "epochs": self.basis(cell).epochs,
        }
        if cell.rates != SHIPPED:
            assert self.nested is not None, cell
            own["rates"] = self.nested.about
        found: dict[str, Any] = jsonable(own | dict(self.known))
        return found

    def source(self, cell: AblationCell) -> Source:
        """The programs that a cell reads."""
        change = self.changes[cell.model]
        spec = ReadSpec(draft=change.reads_draft(), failures=change.failures)
        return cell.setting.platforms, spec

    def with_rates(self, cell: AblationCell, programs: ProgramTable) -> ProgramTable:
        """The programs with the analyzer's columns by the rates of a cell."""
        if cell.rates == SHIPPED:
            return programs
        assert self.nested is not None, cell
        return self.nested(cell, programs)

    def check(self, cells: Sequence[AblationCell]) -> None:
        """Raise PrunerError where a folder has a cell of other options."""
        for cell in cells:
            path = self.folder / cell.name / ABOUT
            before, now = read_json(path, dict) if path.is_file() else {}, self.about(cell)
            for name, was in before.items():
                if now.get(name) != was:
                    raise PrunerError(
                        f"{path.parent} was fitted with {name}={was}, not {now.get(name)}: give "
                        "another folder for other options (work=), or delete this one"
                    )

    def fit(
        self, cells: Sequence[AblationCell], stage: Sequence[AblationCell] | None = None
    ) -> None:
        """Fit the missing cells, grouped by source.

        `stage`: all cells of the stage, if these are a part; the minutes left are those of all.

        Raises PrunerError where some fits failed (all others are done), and, before any fit, where
        a folder has a cell of other options.
        """
        self.check(stage or cells)
        for source, own in self._by_source(cells, made=False):
            programs = self.read(source)
            jobs = [
                Job(
                    name=cell.name,
                    leaves=self.folder / cell.name / METRICS_FILE,
                    run=partial(self._fit_one, cell, self.with_rates(cell, programs)),
                )
                for cell in own
            ]
            try:
                list(results(jobs, num_workers=self.num_workers, log=self.log))
            except PrunerError as error:  # other sources may have better luck
                self.log(f"error: {error}")
            rows = planned(stage or cells, self.folder, self.guess)
            left = sum(row["minutes left"] for row in rows) / self.num_workers
            self.log(f"about {left:.0f} minutes left")
        lacking = [cell.name for cell in cells if cell.done(self.folder) is None]
        if lacking:
            raise PrunerError(
                f"{len(lacking)} fits failed, the first {lacking[0]}; the same command tries again"
            )

    def _fit_one(self, cell: AblationCell, programs: ProgramTable) -> Mapping[str, Any]:
        (self.folder / cell.name).mkdir(parents=True, exist_ok=True)
        write_json(self.folder / cell.name / ABOUT, self.about(cell))
        recipe = self.changes[cell.model].recipe(self.basis(cell))
        found = fit_cell(cell, recipe, programs, self.folder)
        self.log(f"{cell.name}: {found['fit_seconds']:.0f} s")
        return found

    def _by_source(
        self, cells: Sequence[AblationCell], *, made: bool
    ) -> Iterator[tuple[Source, list[AblationCell]]]:
        """Cells by source; `made`: only finished cells, or only unfinished."""
        groups: dict[Source, list[AblationCell]] = {}
        for cell in cells:
            if made == (cell.done(self.folder) is not None):
                groups.setdefault(self.source(cell), []).append(cell)
        yield from groups.items()

    def valid_rows(self, cells: Sequence[AblationCell]) -> list[dict[str, Any]]:
        """Results of finished cells on validation tasks, a row a platform."""
        rows = []
        for cell in cells:
            found = cell.done(self.folder)
            if found is not None:
                rows += rows_of(cell, found["valid"], found)
        return rows

    def test_rows(self, cells: Sequence[AblationCell]) -> list[dict[str, Any]]:
        """Results on test tasks, which are judged now where missing."""
        rows = []
        for _, own in self._by_source(cells, made=True):
            for cell in own:
                run = partial(self._judge_one, cell)  # programs are read where a result is missing
                (tested,) = results(
                    [Job(name=cell.name, leaves=self.folder / cell.name / TEST, run=run)]
                )
                rows += rows_of(cell, tested, cell.done(self.folder) or {})
        return rows

    def _judge_one(self, cell: AblationCell) -> Mapping[str, Any]:
        programs = self.with_rates(cell, self.read(self.source(cell)))
        return judge_cell(cell, programs, self.folder)

    def reference_rows(self, cells: Sequence[AblationCell], side: Side) -> list[dict[str, Any]]:
        """References on the cells' tasks: chance, analyzer, second timing."""
        one_each = {(cell.setting.name, cell.seed): cell for cell in cells}
        groups: dict[Source, list[AblationCell]] = {}
        for cell in one_each.values():
            source = cell.setting.platforms, ReadSpec(draft=True)
            groups.setdefault(source, []).append(cell)
        return [
            row
            for source, own in groups.items()
            for programs in [self.read(source)]
            for cell in own
            for row in references(cell, programs, side)
        ]


def rows_of(
    cell: AblationCell, numbers: Mapping[str, Mapping[str, Any]], found: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Rows of a cell, one a platform."""
    about = {"setting": cell.setting.name, "model": cell.model, "seed": cell.seed}
    more = {name: found.get(name) for name in ("fit_seconds", "best_epoch", "num_train_programs")}
    return [{**about, "platform": name, **own, **more} for name, own in numbers.items()]
