"""Rank live runs' programs with a source model, by number of trials.

    python -m experiments.live_ranking.run [runs=DIR] [num_workers=2]

Each adaptation method gets the measurements of every run of the paper's rounds (`pruner_paper` of
``experiments/live``) in their order, batch by batch, so all methods learn from the same programs.
After a number of trials, each method ranks unseen programs that other runs of the workload
measured: random programs, and programs that searches found. Nothing is measured, so other work may
run at the same time. runs= is the out= of ``experiments/live/run.py``, with the folders of its
runs.

The script writes two tables here or to out=DIR. results.csv has the pairwise accuracy on random and
on searched programs, and the best latency of all programs over the best latency of the ten
best-scored programs. tests.csv has the differences of two methods over all pairs of workload and
seed, with the one-sided p of flipped signs. Finished rankings (runs/ranking) are not made again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise, permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf

from pruner.arrays import Decisions
from pruner.cli.shared.known import chosen
from pruner.cli.shared.options import plain
from pruner.cli.shared.output import say
from pruner.cli.shared.runs import rename_options
from pruner.cli.shared.script import run_script
from pruner.cli.tuning.read_options import tune_options
from pruner.data.tasks import TaskKey
from pruner.errors import PrunerError, check_chosen
from pruner.features.batch import ProgramFeatures
from pruner.files import write_table
from pruner.models.judging.judge import expected_ratio
from pruner.models.judging.metrics import ScoredTask, pair_agreement, top_k_task_mean
from pruner.models.programs.program_table import ProgramTable, TaskPrograms
from pruner.search.offline.adaptation_run import sign_flip_p
from pruner.search.space import unique_rows
from pruner.study.grid import Job, results
from pruner.tune.phases import Phases
from pruner.tune.run.journal import JOURNAL_FILE, read_trials
from pruner.tune.run.learning import OnlineModel, live_features
from pruner.tune.run.tune_options import TuneOptions
from pruner.tune.spaces.design import design_spaces
from pruner.tune.spaces.opening import open_spaces
from pruner.tune.spaces.union import UnionSpace
from pruner.tune.workloads import Workload, load_workloads

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLLOWED = "pruner_paper"  # of experiments/live: all learn from its measurements
# As in experiments/adaptation: a smaller rate, no decay, at most 40 steps.
GENTLE = "{fit: {_target_: pruner.models.adaptation.fitting.gentle_fit}}"
# A way to adapt: the cells of experiments/live that are configured like it, the entry of
# conf/adaptation where no cell has it, and what is set in that.
WAYS = {
    "scratch": (FOLLOWED, None, "{}"),
    "none": ("moa", "none", "{}"),
    "moa": ("moa", None, "{}"),
    "moa_official": ("moa", "moa_official", "{}"),
    "moa_gentle": ("moa", "moa", GENTLE),
    "finetune": ("finetune", None, "{}"),
    "finetune_gentle": ("finetune", "finetune", GENTLE),
    "distill": ("distill", None, "{}"),
    "residual": ("moa", "residual", "{}"),
    # ours: another recipe and source, the analyzer's opinion among its inputs
    "pretrained": ("pretrained", None, "{}"),
    "pretrained_frozen": ("pretrained", "none", "{}"),
}
# Runs whose programs judge: their spaces are ours, so a vector of one is a vector of all.
RANDOM = "random"
SEARCHED = ["ansor", "pruner_live", "pruner_live_without_pacm", FOLLOWED]
TRIALS = [0, 10, 20, 50, 100, 200]  # after which models are judged
KEPT = 10  # programs of a round
METRICS = ("pairwise_random", "pairwise_searched", "best_of_10")


@dataclass(kw_only=True)
class Options:
    """Options of the script; ``target``: platform of the runs, ``trials`` of each."""

    target: str = "cpu-epyc"
    operators: list[str] = field(
        default_factory=lambda: ["matmul", "conv2d_3x3", "depthwise_3x3", "layer_norm"]
    )
    ways: list[str] = field(default_factory=lambda: list(WAYS))
    trials: int = 200
    seeds: int = 3
    num_workers: int = 1
    runs: str = str(ROOT / "outputs" / "experiments-live")
    out: str = str(HERE)

    def folder(self, workload: str, method: str, seed: int) -> Path:
        """The run folder of a cell."""
        name = f"{self.target}-{workload}-{method}-{self.trials}-{seed}"
        return Path(self.runs).resolve() / "tune" / name


@dataclass(frozen=True, kw_only=True, eq=False)
class Measured:
    """Rows int64 [N, d], seconds [N] (infinite: failed) and batches, in order."""

    rows: Decisions
    latency_s: NDArray[np.float64]
    batch: NDArray[np.int64]

    @property
    def rounds(self) -> list[slice]:
        """The rows of each batch, as slices."""
        edges = [0, *(np.flatnonzero(np.diff(self.batch)) + 1), len(self.batch)]
        return [slice(low, high) for low, high in pairwise(edges)]


def read_measured(folder: Path, space: UnionSpace) -> Measured:
    """Read the journal of a run; raises PrunerError without a journal."""
    trials = sorted(read_trials(folder / JOURNAL_FILE), key=lambda t: (t.batch, t.position))
    if not trials:
        raise PrunerError(
            f"{folder}: no run there; experiments/live/run.py makes it, runs= says where"
        )
    rows = np.zeros((len(trials), space.num_slots), np.int64)
    for row, trial in zip(rows, trials, strict=True):
        row[: 1 + len(trial.decisions)] = [trial.space, *trial.decisions]
    return Measured(
        rows=rows,
        latency_s=np.array([trial.latency_s for trial in trials]),
        batch=np.array([trial.batch for trial in trials]),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Judges:
    """Rows [N, d], seconds [N], whether drawn at random, of programs to judge by."""

    rows: Decisions
    latency_s: NDArray[np.float64]
    random: NDArray[np.bool_]

    @staticmethod
    def of(runs: Iterable[tuple[bool, Measured]], space: UnionSpace, seen: Decisions) -> "Judges":
        """The programs of `runs` (random or not), each once, without `seen`."""
        parts = list(runs)
        rows = np.concatenate([run.rows for _, run in parts])
        latency_s = np.concatenate([run.latency_s for _, run in parts])
        random = np.repeat([drawn for drawn, _ in parts], [len(run.rows) for _, run in parts])
        keys = space.keys(rows)
        ran = np.isfinite(latency_s) & ~np.isin(keys, space.keys(seen))
        rows, latency_s, random = rows[ran], latency_s[ran], random[ran]
        first = unique_rows(keys[ran])
        return Judges(rows=rows[first], latency_s=latency_s[first], random=random[first])

    def judge(self, score: NDArray[np.float64]) -> dict[str, float]:
        """The metrics of scores [N]."""
        every = ScoredTask(name="", latency_s=self.latency_s, score=score)
        random, searched = [
            pair_agreement(ScoredTask(name="", latency_s=self.latency_s[of], score=score[of]))
            for of in (self.random, ~self.random)
        ]
        return dict(zip(METRICS, (random, searched, top_k_task_mean([every], KEPT)), strict=True))

    def chance(self) -> dict[str, float]:
        """The metrics of random scores."""
        every = ScoredTask(name="", latency_s=self.latency_s, score=np.zeros(len(self.rows)))
        return dict(zip(METRICS, (0.5, 0.5, expected_ratio(every, KEPT)), strict=True))


def judged_rows(
    about: Mapping[str, Any],
    make: Callable[[], OnlineModel],
    key: TaskKey,
    features: Sequence[ProgramFeatures],
    followed: Measured,
    judges: Judges,
) -> list[dict[str, Any]]:
    """Adapt a model on a run; a row for each of `TRIALS` with a usable model.

    `features`: of a reference population, the run's programs and those that judge.
    """
    model, (population, learned, judged) = make(), features
    model.set_reference_population(key, population)
    rows = []
    for end in [0, *(part.stop for part in followed.rounds)]:
        if end:
            line = np.arange(end)
            part = TaskPrograms.of(key, learned.take(line), followed.latency_s[:end], line)
            model.learn(ProgramTable.build([part]))
        if end in TRIALS and model.ranker is not None:
            score = model.ranker.score(judged, key)
            rows.append({**about, "trials": end, **judges.judge(score.astype(np.float64))})
    return rows


def configured(options: Options, workload: str, way: str, seed: int) -> DictConfig:
    """The configuration of a cell that adapts this way."""
    cell, other, more = WAYS[way]
    path = options.folder(workload, cell, seed) / "config.yaml"
    if not path.is_file():
        raise PrunerError(
            f"{path.parent}: no run there; experiments/live/run.py makes it, runs= says where"
        )
    config = OmegaConf.load(path)
    assert isinstance(config, DictConfig)
    rename_options(config)
    if other is not None:
        entry = chosen("adaptation", other)
        config.adaptation = OmegaConf.merge(entry, OmegaConf.create(more))
    return config


def opened(workload: Workload, asked: TuneOptions) -> UnionSpace:
    """The space of a workload, as the runs have it."""
    return open_spaces(
        design_spaces(workload.module, asked.platform.target),
        name=workload.name,
        analyzer=asked.analyzer,
        learns=True,
        phases=Phases(),
        log=say,
    )


def jobs_of(options: Options, workload: str) -> tuple[list[Job], list[dict[str, Any]]]:
    """The ranking jobs of a workload, and rows of chance and analyzer."""
    config = configured(options, workload, "scratch", 0)
    asked = tune_options(config)
    made = load_workloads(plain(config.workload))[0]
    space, seeds = opened(made, asked), range(options.seeds)
    runs = {
        (method, seed): read_measured(options.folder(workload, method, seed), space)
        for method, seed in product([RANDOM, *SEARCHED], seeds)
    }
    about = f"{options.target}-{options.trials}-{options.seeds}"  # all runs of a seed judge others
    place = Path(options.runs).resolve() / "ranking" / about
    key = TaskKey(platform=asked.platform.name, task=made.name, workload_key=made.key, target="")
    jobs, rows = [], []
    for seed in seeds:
        followed = runs[FOLLOWED, seed]
        others = [
            (method == RANDOM, run)
            for (method, its), run in runs.items()
            if (method, its) != (FOLLOWED, seed)
        ]
        judges = Judges.of(others, space, followed.rows)
        about = {"workload": workload, "seed": seed, "trials": 0}
        rows.append(about | {"method": "chance"} | judges.chance())
        rows.append(about | {"method": "draft"} | judges.judge(space.draft_score(judges.rows)))
        for way in options.ways:
            way_options = tune_options(configured(options, workload, way, seed))
            assert way_options.make_model is not None
            model = way_options.make_model()
            population = space.sample(way_options.num_reference, np.random.default_rng(seed))
            features = [
                live_features(space, vectors, model, key)
                for vectors in (population, followed.rows, judges.rows)
            ]
            known = {"workload": workload, "seed": seed, "method": way}
            what = known, way_options.make_model, key, features, followed, judges
            name = f"{workload}-{way}-{seed}"
            work = partial(judged_rows, *what)
            jobs.append(Job(name=name, leaves=place / f"{name}.json", run=work))
        say(f"{workload} {seed}: {len(judges.rows)} programs judge, {judges.random.sum()} random")
    return jobs, rows


def test_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Differences of two methods after equal trials, over pairs of workload and seed.

    Chance and the analyzer, which learn nothing, are compared with every number of trials.
    """
    wide = table.pivot(
        index=["workload", "seed"], columns=["method", "trials"], values=list(METRICS)
    )
    methods = list(dict.fromkeys(table.method))
    found = []
    for trials, (method, other) in product(TRIALS, permutations(methods, 2)):
        at = [(one, 0 if one in ("chance", "draft") else trials) for one in (method, other)]
        if method in ("chance", "draft") or any((METRICS[0], *one) not in wide for one in at):
            continue
        row: dict[str, Any] = {"trials": trials, "method": method, "other": other}
        for metric in METRICS:
            gain = (wide[metric, *at[0]] - wide[metric, *at[1]]).to_numpy()
            row |= {f"{metric}_gain": gain.mean(), f"{metric}_p": sign_flip_p(gain)}
        found.append(row | {"pairs": len(wide)})
    return found


def run(options: Options) -> Mapping[str, Any]:
    """Follow all runs; the object of the last line."""
    check_chosen("ways", options.ways, WAYS)
    torch.set_num_threads(1)  # as the runs learned; several processes need it
    jobs, rows = [], []
    for workload in options.operators:
        found, fixed = jobs_of(options, workload)
        jobs += found
        rows += fixed
    again = "the same command goes on"
    for found in results(jobs, num_workers=options.num_workers, log=say, again=again):
        rows += found
    out = Path(options.out).resolve()
    write_table(out / "results.csv", rows, floats=".4f")
    write_table(out / "tests.csv", test_rows(pd.DataFrame(rows)), floats=".4g")
    return {"runs": len(jobs), "out": str(out)}


if __name__ == "__main__":
    run_script(Options, run, __doc__)
