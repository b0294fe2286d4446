"""The best of k drafted programs against the tuned program.

    python -m experiments.zero_trial.run                     from the tables of other experiments
    python -m experiments.zero_trial.run runs=DIR/tune       and from run folders of a GPU
    python -m experiments.zero_trial.run live=[dcgan]        and from networks that are tuned now

The first programs of a search are those that the draft ranks first: nothing is learned before they
are measured. So the best of the first k = 1, 8, 16 of them is what k measurements without any
learning give. k = 1 is the first trial of a search that measures, the program that the draft ranks
first. Beside it: the final latency of the same search, and the best of the first k programs of a
random search.

With runs= pairs of run folders ``X-ours`` and ``X-random`` are read, as far as the first batch of a
task reaches. With live= three runs of every network are made (under work=): tuned by the defaults
with 20 trials a task; 16 drafted programs of every task, without a model; 16 random ones. The
latency is the sum over tasks of calls times the best latency. Finished runs are skipped. Rows that
are not made again stay.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from experiments.common.comparison import Comparison, Step
from experiments.live.live import LiveRun, read_points
from pruner.cli.shared.output import as_table, say
from pruner.cli.shared.script import run_script
from pruner.errors import DataError
from pruner.files import load_metrics, merged_table, read_table, write_table
from pruner.tune.run.journal import JOURNAL_FILE, Trial, read_trials

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
AFTER = (1, 8, 16)
LIVE_PARTS = ("rounds", "systems")
OURS, RANDOM = "pruner_live", "random"
KEY = ("source", "device", "workload", "seed", "k")
Best = Mapping[int, float]  # best latency in seconds by number of programs


@dataclass(kw_only=True)
class Options:
    """Options of the script, explained above."""

    runs: str | None = None
    device: str = "h200"  # of runs=
    live: list[str] = field(default_factory=list)
    tasks: dict[str, int] = field(default_factory=lambda: {"dcgan": 5, "squeezenet1_1": 20})
    seeds: list[int] = field(default_factory=lambda: [0])
    work: str = str(ROOT / "outputs" / "experiments-zero-trial")
    out: str = str(HERE)


def rows_of(
    source: str,
    device: str,
    workload: str,
    seed: int,
    *,
    drafted_s: Best,
    tuned_s: float,
    trials: int | None,
    random_s: Best | None = None,
) -> Iterator[dict[str, Any]]:
    """A row a number k: drafted and random over tuned; above 1 is slower than tuned."""
    for k in AFTER:
        if k not in drafted_s:
            continue
        chance_s = None if random_s is None else random_s.get(k)
        yield {
            **dict(zip(KEY, (source, device, workload, seed, k), strict=True)),
            "drafted_s": drafted_s[k],
            "tuned_s": tuned_s,
            "trials": trials,
            "random_s": chance_s,
            "drafted_over_tuned": drafted_s[k] / tuned_s,
            "random_over_tuned": None if chance_s is None else chance_s / tuned_s,
        }


def best_of(run: LiveRun) -> dict[int, float]:
    """Best latency of a run after k trials, for the k at which it has a program."""
    last = {k: int(np.searchsorted(run.trials, k, side="right")) - 1 for k in AFTER}
    return {k: float(run.best_s[at]) for k, at in last.items() if at >= 0}


def from_points(name: str) -> Iterator[dict[str, Any]]:
    """Operators of experiments/live or live_systems: our rounds and random search."""
    found: dict[tuple[str, str, int], dict[str, LiveRun]] = defaultdict(dict)
    for run in read_points(ROOT / "experiments" / name / "points.csv"):
        if run.part in LIVE_PARTS and run.method in (OURS, RANDOM):
            found[run.target, run.workload, run.seed][run.method] = run
    for (target, workload, seed), runs in found.items():
        if OURS not in runs:
            continue
        ours, rand = runs[OURS], runs.get(RANDOM)
        yield from rows_of(
            name,
            target,
            workload,
            seed,
            drafted_s=best_of(ours),
            tuned_s=float(ours.best_s[-1]),
            trials=int(ours.trials[-1]),
            random_s=None if rand is None else best_of(rand),
        )


def from_tune() -> Iterator[dict[str, Any]]:
    """Operators of experiments/tune, which has no random search."""
    curves: dict[tuple[str, int], dict[int, float]] = defaultdict(dict)
    for row in read_table(ROOT / "experiments" / "tune" / "curves.csv"):
        if row["policy"] == "ours":
            curve = curves[row["operator"], int(row["seed"])]
            curve[int(row["trials"])] = float(row["latency_s"])
    for (operator, seed), curve in curves.items():
        last = max(curve)
        yield from rows_of(
            "tune", "cpu-avx512", operator, seed,
            drafted_s=curve, tuned_s=curve[last], trials=last,
        )  # fmt: skip


def from_networks() -> Iterator[dict[str, Any]]:
    """Built networks of experiments/networks, timed in turns: one drafted program a task."""
    folder = ROOT / "experiments" / "networks"
    trials = {
        row["network"]: int(float(row["trials"]))
        for row in read_table(folder / "summary.csv")
        if row["policy"] == "ours"
    }
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for row in read_table(folder / "contenders.csv"):
        if row["median_s"]:
            found[row["network"]][row["contender"]] = float(row["median_s"])
    for network, medians in found.items():
        if {"ours", DRAFTED} <= medians.keys():
            yield from rows_of(
                "networks", "cpu-avx512", network, 0,
                drafted_s={1: medians[DRAFTED]}, tuned_s=medians["ours"],
                trials=trials.get(network),
            )  # fmt: skip


DRAFTED = "TVM, drafted only"  # in contenders.csv


def by_task(folder: Path) -> dict[str, list[Trial]]:
    """The trials of every task of a run, in order."""
    found: dict[str, list[Trial]] = defaultdict(list)
    for trial in read_trials(folder / JOURNAL_FILE):
        found[trial.task].append(trial)
    return found


def first_best(trials: Sequence[Trial], *, batches: int | None = 1) -> dict[int, float]:
    """Best of the first k trials within a number of batches (None: all of them)."""
    numbers = list(dict.fromkeys(trial.batch for trial in trials))[:batches]
    inside = [trial.latency_s for trial in trials if trial.batch in numbers]
    best_s = np.minimum.accumulate(inside) if inside else np.zeros(0)
    return {k: float(best_s[k - 1]) for k in AFTER if k <= len(best_s) and best_s[k - 1] < np.inf}


def from_runs(folder: Path, device: str) -> Iterator[dict[str, Any]]:
    """Operators of pairs of run folders."""
    for ours in sorted(folder.glob("*-ours")):
        other = ours.with_name(ours.name.removesuffix("ours") + "random")
        rivals = by_task(other)
        for task, trials in by_task(ours).items():
            random_s = first_best(rivals[task], batches=None) if task in rivals else None
            yield from rows_of(
                "gpu", device, task, 0,
                drafted_s=first_best(trials), tuned_s=min(t.latency_s for t in trials),
                trials=len(trials), random_s=random_s,
            )  # fmt: skip


class NetworkRuns(Comparison):
    """Three runs a network and seed: tuned, drafted alone, random."""

    def __init__(self, options: Options) -> None:
        self.options = options
        if unknown := sorted(set(options.live) - options.tasks.keys()):
            raise DataError(f"live={unknown}: give the number of tasks, +tasks.{unknown[0]}=N")
        super().__init__(Path(options.work).resolve(), ROOT, {"trial": 0.8})

    def steps(self) -> Iterator[Step]:
        """The runs of a network follow each other."""
        for network, seed in product(self.options.live, self.options.seeds):
            number = self.options.tasks[network]
            for way, (words, each) in WAYS.items():
                trials = each * number
                yield self.tuned(
                    f"{network}-{way}-{seed}",
                    [f"network={network}", "deploy=false", "measure.finalists=0", *words,
                     f"budget.trials={trials}", f"seed={seed}"],
                    kind="trial", size=trials,
                )  # fmt: skip

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows of finished networks."""
        for network, seed in product(self.options.live, self.options.seeds):
            folders = {way: self.runs / "tune" / f"{network}-{way}-{seed}" for way in WAYS}
            if not all((folder / "metrics.json").is_file() for folder in folders.values()):
                continue
            tuned, drafted, rand = (by_task(folders[way]) for way in WAYS)
            weights = {
                task: float(row["weight"])
                for task, row in (load_metrics(folders[TUNED]) or {})["tasks"].items()
            }
            lines = (folders[TUNED] / "config.yaml").read_text(encoding="utf-8").splitlines()
            device = (line.split(": ")[1] for line in lines if line.startswith("  name: cpu-"))
            drafted_s, random_s = (network_best(runs, weights) for runs in (drafted, rand))
            yield from rows_of(
                "network tasks", next(device, "cpu"), network, seed,
                drafted_s=drafted_s, random_s=random_s,
                tuned_s=sum(
                    weight * min(trial.latency_s for trial in tuned[task])
                    for task, weight in weights.items()
                ),
                trials=sum(map(len, tuned.values())),
            )  # fmt: skip


TUNED, DRAFT_ALONE, AT_RANDOM = "tuned", "drafted", "random"
FULL = ["task_order=round_robin", "budget.patience=1000000", "policy.epsilon=0"]
WAYS: dict[str, tuple[list[str], int]] = {
    TUNED: ([], 20),
    DRAFT_ALONE: (["verify=false", *FULL], max(AFTER)),
    AT_RANDOM: (["policy=random", *FULL[:2]], max(AFTER)),
}


def network_best(runs: Mapping[str, Sequence[Trial]], weights: Mapping[str, float]) -> Best:
    """Calls times the best of the first k programs, summed over tasks."""
    found = {}
    for k in AFTER:
        best_s = {
            task: min((trial.latency_s for trial in runs.get(task, [])[:k]), default=np.inf)
            for task in weights
        }
        total_s = sum(weight * best_s[task] for task, weight in weights.items())
        if total_s < np.inf:
            found[k] = float(total_s)
    return found


def summary_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Geometric means over workloads, of each the mean over seeds."""
    groups: dict[tuple[str, str, int], dict[str, list[Mapping[str, Any]]]] = {}
    for row in rows:
        key = (str(row["source"]), str(row["device"]), int(row["k"]))
        groups.setdefault(key, defaultdict(list))[str(row["workload"])].append(row)
    out = []
    for (source, device, k), workloads in groups.items():
        line: dict[str, Any] = {
            "source": source,
            "device": device,
            "k": k,
            "workloads": len(workloads),
            "seeds": max(map(len, workloads.values())),
        }
        for column in ("drafted_over_tuned", "random_over_tuned"):
            logs = [
                np.mean([np.log(float(row[column])) for row in members])
                for members in workloads.values()
                if all(row.get(column) not in (None, "") for row in members)
            ]
            complete = len(logs) == len(workloads)
            line[column] = float(np.exp(np.mean(logs))) if complete else None
        over = [float(row["drafted_over_tuned"]) for some in workloads.values() for row in some]
        line["worst"] = max(over)
        out.append(line)
    return out


def run(options: Options) -> dict[str, Any]:
    """Make the missing runs, then the tables."""
    out = Path(options.out)
    rows = [*from_points("live"), *from_points("live_systems"), *from_tune(), *from_networks()]
    if options.runs is not None:
        rows += from_runs(Path(options.runs), options.device)
    if options.live:
        networks = NetworkRuns(options)
        networks.run_all()
        rows += networks.rows()
    merged = merged_table(out / "results.csv", rows, KEY)
    write_table(out / "results.csv", merged, floats=".6g")
    summary = summary_rows(merged)
    write_table(out / "summary.csv", summary, floats=".4g")
    say(as_table(summary))
    return {"rows": len(merged), "out": str(out)}


if __name__ == "__main__":
    run_script(Options, run, __doc__)
