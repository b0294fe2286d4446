"""Evaluate AdaTune's two parts on recorded pools: repeats and search.

    python -m experiments.adatune.run data.root=DIR     writes repeats.csv and search.csv here

`repeats.csv` counts the saved repeats on CPUs. It needs only `datasets/ansor`, which has five
timings per program. `search.csv` has the search by expected improvement on pools of the GPU logs,
which have one timing per program. out=DIR names another folder.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pruner.arrays import Floats
from pruner.cli.shared.script import Data, run_script
from pruner.data.quarantine import Quarantine
from pruner.data.root import RecordRoot
from pruner.data.tasks import TaskRecords
from pruner.files import write_table
from pruner.search.adatune import AdaTuneSettings
from pruner.search.offline.recorded import decision_rows
from pruner.search.offline.recorded_run import Clock, RecordedMeasurer, RecordedSpace, run_session
from pruner.search.policy import RandomDraws
from pruner.tune.measure.jobs import AdaptiveRepeats

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LIMITS = (0.02, 0.05, 0.1, 0.2)
CHECKPOINTS = (10, 20, 40, 60)
SEEDS, TASKS, LEAST = 5, 6, 800


@dataclass(kw_only=True)
class Options:
    """Records of GPUs, and where the tables go."""

    data: Data = field(default_factory=Data)
    out: str = str(HERE)


def repeats_made(rule: AdaptiveRepeats, costs_s: Floats) -> Floats:
    """The recorded repeats, seconds [R], that a rule makes: it sees them as live ones."""
    return np.array(rule.measured(iter(costs_s.tolist()).__next__, len(costs_s)))


def mean_s(made_s: Floats) -> float:
    """AdaTune's mean of repeats, seconds [R], without the extremes of three and more."""
    made = np.sort(made_s)
    return float((made[1:-1] if len(made) > 2 else made).mean())


def repeat_rows(root: RecordRoot) -> Iterator[dict[str, object]]:
    """A row a platform and limit: share of repeats made, cost of the timings."""
    for platform in root.platforms:
        tasks = [t.select(t.valid) for t in root.read(Quarantine(), platform)]
        for limit in LIMITS:
            rule = AdaptiveRepeats(cv_limit=limit)
            made, planned, change, best = 0, 0, [], []
            for records in tasks:
                costs = [np.array(c) for c in records.costs_s]
                shorter = [repeats_made(rule, c) for c in costs]
                short_s = np.array([mean_s(c) for c in shorter])
                made += sum(len(c) for c in shorter)
                planned += sum(len(c) for c in costs)
                change.extend(np.abs(short_s / records.latency_s - 1))
                best.append(records.latency_s.min() / records.latency_s[short_s.argmin()])
            yield {
                "platform": platform, "cv_limit": limit, "repeats_made": made / planned,
                "median_change_of_latency": float(np.median(change)),
                "best_by_short_timing": float(np.mean(best)),
            }  # fmt: skip


def search_rows(root: RecordRoot, platform: str) -> Iterator[dict[str, object]]:
    """Best found after some trials, against random, for some large pools."""
    tasks = [t for t in root.read(Quarantine(), platform) if t.valid.sum() >= LEAST]
    tiled = [t for t in tasks if "conv2d" in t.key.task or "matmul" in t.key.task]
    for records in tiled[:: max(1, len(tiled) // TASKS)][:TASKS]:
        yield from task_rows(records.select(records.valid), platform)


def task_rows(records: TaskRecords, platform: str) -> Iterator[dict[str, object]]:
    """All seeds of one pool."""
    space = RecordedSpace(decision_rows(records))

    for seed in range(SEEDS):
        policies = {
            "adatune": AdaTuneSettings().make(space, None, None, np.random.default_rng(seed)),
            "random": RandomDraws(draws=512).make(space, None, None, np.random.default_rng(seed)),
        }
        for name, policy in policies.items():
            measurer = RecordedMeasurer(space, records.latency_s, records.all_cost_s, Clock())
            curve = run_session(policy, measurer, trials=CHECKPOINTS[-1])
            for trials in CHECKPOINTS:
                yield {
                    "platform": platform, "task": records.key.task, "seed": seed, "policy": name,
                    "trials": trials, "thinking_s": measurer.clock.thinking_s,
                    "relative_performance": records.latency_s.min() / curve.best_s[trials - 1],
                }  # fmt: skip


def run(options: Options) -> dict[str, object]:
    """Write both tables."""
    repeats = list(repeat_rows(RecordRoot(ROOT / "datasets/ansor")))
    write_table(Path(options.out) / "repeats.csv", repeats, floats=".6g")
    search = list(search_rows(RecordRoot(options.data.root), "v100"))
    write_table(Path(options.out) / "search.csv", search, floats=".6g")
    means = {
        f"{policy} at {trials}": float(
            np.mean(
                [
                    row["relative_performance"]
                    for row in search
                    if (row["policy"], row["trials"]) == (policy, trials)
                ]
            )
        )
        for policy in ("adatune", "random")
        for trials in CHECKPOINTS
    }
    return {"search": means, "repeats": repeats}


if __name__ == "__main__":
    run_script(Options, run, __doc__)
