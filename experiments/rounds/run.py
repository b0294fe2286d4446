"""Compare rounds as published and ours, from scratch, on recorded pools.

    python -m experiments.rounds.run data.root=DIR [platforms=[v100]] [method=[random,ansor]]

Each contestant has its own draft and model. Five tasks of a platform take turns with ten programs
per round, 200 programs in all. The clock is simulated: it adds the recorded cost of building and
measuring to our own CPU seconds. `ansor` is the release's: a new TenSetMLP in every round, and
Ansor's evolution. `ansor_longer` has four times the trials (Table 5 of the paper), on platforms
whose pools allow them. Finished cells (under runs=) are not run again. Output: results.csv and
curves.csv here, or in out=DIR.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch

from experiments.common.contest import (
    Contestant,
    Ground,
    budget_of,
    contest_rows,
    curve_rows,
    policy,
    run_contest,
)
from pruner.cli.shared.output import say
from pruner.cli.shared.script import Data, keep_tables, run_script
from pruner.data.root import RecordRoot
from pruner.errors import check_chosen
from pruner.files import merged_table, write_table
from pruner.models.adaptation.base import Adaptation, Setting
from pruner.models.adaptation.fitting import official_fit
from pruner.models.adaptation.warm import Scratch
from pruner.models.model import RankingNetwork
from pruner.models.networks.mlp import TenSetMLP
from pruner.models.networks.pacm import PaCM
from pruner.search.offline.adaptation_run import MethodRun, affordable, without_draft

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BASELINE, LONGER = "ansor", "ansor_longer"
EVERY = 20  # trials between two points of a curve
EIGHTH, BESIDE = 100, 25  # of a pool: the paper's 512 of 4,000, and our 128 random ones beside
PRIOR = 20.0  # as in experiments/replay
KEY = ("platform", "method", "seed")  # of rows that a new run replaces
AGAINST = "against"


@dataclass(kw_only=True)
class Options:
    """Options of the script, explained above."""

    data: Data = field(default_factory=Data)
    platforms: list[str] = field(default_factory=lambda: ["k80", "v100"])
    method: list[str] | None = None
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    budget: str = "default"
    runs: str = str(ROOT / "outputs" / "rounds")
    out: str = str(HERE)


def published(network: Callable[[], RankingNetwork], seed: int) -> Adaptation:
    """As released: column maxima, a new network a round, 50 epochs, lists of 512."""
    setting = Setting(make_network=network, relative=False, standard=False, seed=seed)
    return Scratch(setting, fit=official_fit())


def ours(seed: int) -> Adaptation:
    """The model that tune.py learns from scratch."""
    return Scratch(Setting(make_network=PaCM, seed=seed))


def contestants() -> Mapping[str, Contestant]:
    """Everything that is compared."""
    paper = Contestant(
        settings=policy("pruner_paper"), form="paper", model=partial(published, PaCM)
    )
    assert paper.settings.draft is not None
    kept = replace(paper.settings.draft, keep=EIGHTH)
    eighth = replace(paper, settings=replace(paper.settings, draft=kept, random_sample=BESIDE))
    released = partial(PaCM, num_dataflow_rows=8, norm_statistics="batch")
    ansor = Contestant(settings=policy("ansor"), model=partial(published, TenSetMLP))
    return {
        "random": Contestant(),
        BASELINE: ansor,
        LONGER: replace(ansor, times=4),
        "pruner_paper": paper,
        "pruner_paper_eighth": eighth,
        "pruner_release": Contestant(
            settings=policy("pruner_official"),
            form="official",
            dataflow="official",
            model=partial(published, released),
        ),
        "without_draft": replace(eighth, settings=without_draft(eighth.settings)),
        "without_dataflow": replace(
            eighth, model=partial(published, partial(PaCM, use_dataflow=False))
        ),
        "without_statement": replace(
            eighth, model=partial(published, partial(PaCM, use_statement=False))
        ),
        "ours": Contestant(settings=replace(policy("pool"), prior=PRIOR), model=ours),
    }


def run(options: Options) -> dict:
    """Run the missing cells, then write the tables."""
    keep_tables(options, HERE, "budget")
    torch.set_num_threads(1)
    known = contestants()
    names = list(dict.fromkeys([BASELINE, *(options.method or known)]))
    check_chosen("method", names, known)
    budget = budget_of(options.budget)
    out, num = Path(options.out), 0
    for platform in options.platforms:
        ground = Ground(root=RecordRoot(options.data.root), platform=platform, budget=budget)
        folder = Path(options.runs) / f"{platform}-{options.budget}"
        here = [name for name in names if enough(known[name], ground)]
        for name in sorted({*names} - {*here}):
            say(f"{platform}: {name} is left out, its trials are more than half of a pool")
        cells = run_contest({n: known[n] for n in here}, ground, folder, seeds=options.seeds)
        for name, rows, key in (
            ("results.csv", result_rows(cells, platform), (*KEY, AGAINST)),
            ("curves.csv", curve_rows(cells, EVERY, platform=platform), KEY),
        ):
            write_table(out / name, merged_table(out / name, rows, key), floats=".6g")
        num += len(cells)
    return {"cells": num, "out": str(out)}


def enough(one: Contestant, ground: Ground) -> bool:
    """Check that the pools allow the trials of a contestant that has more than the others."""
    trials = one.times * ground.budget.trials
    return one.times == 1 or affordable(ground.pools(one.form, one.dataflow), trials) == trials


def result_rows(cells: Sequence[MethodRun], platform: str) -> list[dict]:
    """All against Ansor with equal trials, then against Ansor with more."""
    equal = [cell for cell in cells if cell.method != LONGER]
    rows = contest_rows(equal, BASELINE, platform=platform, **{AGAINST: BASELINE})
    if len(equal) < len(cells):
        rows += contest_rows(cells, LONGER, platform=platform, **{AGAINST: LONGER})
    return rows


if __name__ == "__main__":
    run_script(Options, run, __doc__)
