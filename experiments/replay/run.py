"""Replay searches on recorded pools: draft-then-verify, random, and model-only.

    python -m experiments.replay.run data.root=DIR [platforms=[k80,v100]] [policies=[random]]

Draft-then-verify verifies with PaCM. Output: results.csv and summary.json here, or in out=DIR. New
rows replace earlier rows of the same platform and policy, so you can run them one by one. Further
options: seeds=12; tasks=9 per platform, from position offset=2 on; prior=20, the number of
measurements after which the draft's score and PaCM's score have equal weights.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from pruner.cli.shared.script import Data, run_script
from pruner.data.quarantine import Quarantine
from pruner.data.root import RecordRoot
from pruner.files import merged_table, read_table, write_json, write_table
from pruner.models.adaptation.base import Setting
from pruner.models.adaptation.fitting import official_fit
from pruner.models.adaptation.warm import Scratch
from pruner.models.analyzer.analyzer import load_analyzer
from pruner.models.networks.pacm import PaCM
from pruner.search.explorer import ExplorerSettings
from pruner.search.offline.adaptation_run import Reach, first_reach, restricted_mean, sign_flip_p
from pruner.search.offline.recorded import (
    RecordedLearner,
    RecordedModel,
    RecordedTask,
    recorded_task,
    table,
)
from pruner.search.offline.recorded_run import Clock, Curve, RecordedMeasurer, run_session
from pruner.search.policy import DraftThenVerify, Learner, Policy, RandomDraws, RoundSettings

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TRIALS, CHECKPOINTS = 60, (10, 20, 30, 40, 60)
TARGET = 0.98  # of the pool's best performance
LEAST = 800  # programs of a pool
POLICIES = ("random", "model_only", "draft_then_verify")
VERIFY = ExplorerSettings(population=256, generations=4, keep=32)  # the same with and without draft
MODEL_ONLY = RoundSettings(draft=None, verify=VERIFY, random_sample=256)


@dataclass(kw_only=True)
class Options:
    """Options of the script, explained above."""

    data: Data = field(default_factory=Data)
    platforms: list[str] = field(default_factory=lambda: ["k80", "v100", "mi50"])
    policies: list[str] = field(default_factory=lambda: list(POLICIES))
    seeds: int = 12
    tasks: int = 9
    offset: int = 2
    prior: float = 20.0
    out: str = str(HERE)


def drafted(prior: float) -> RoundSettings:
    """Draft, then verify."""
    return RoundSettings(
        draft=ExplorerSettings(population=512, generations=2, keep=128),
        verify=VERIFY,
        random_sample=128,
        redraft_period=1,
        prior=prior,
    )


def pacm(pool: RecordedTask, seed: int) -> Learner:
    """A new PaCM after every batch: 30 epochs, Adam 7e-4, a quarter as wide."""
    setting = Setting(
        make_network=lambda: PaCM(width=64, dataflow_hidden=32, dataflow_width=64), seed=seed
    )
    model = RecordedModel([pool], Scratch(setting, fit=official_fit(epochs=30)))
    return RecordedLearner(model, 0)


def policy_of(name: str, pool: RecordedTask, seed: int, prior: float) -> Policy:
    """A competitor; equal seeds for all."""
    rng = np.random.default_rng(seed)
    if name == "random":
        return RandomDraws(draws=512).make(pool.space, None, None, rng)
    if name == "model_only":
        return DraftThenVerify(pool.space, None, pacm(pool, seed), MODEL_ONLY, rng)
    assert pool.draft is not None, pool.key
    draft = table(pool.space, pool.draft)
    return DraftThenVerify(pool.space, draft, pacm(pool, seed), drafted(prior), rng)


def rows_of(platform: str, pool: RecordedTask, seed: int, name: str, prior: float) -> list[dict]:
    """A row a checkpoint; target: the share `TARGET` of the best performance."""
    clock = Clock()
    measurer = RecordedMeasurer(pool.space, pool.latency_s, pool.cost_s, clock)
    curve: Curve = run_session(policy_of(name, pool, seed, prior), measurer, trials=TRIALS)
    target = pool.latency_s.min() / TARGET
    in_trials = first_reach(curve.best_s, np.arange(1.0, len(curve.best_s) + 1), target)
    in_seconds = first_reach(curve.best_s, curve.elapsed_s, target)
    relative = pool.latency_s.min() / curve.best_s
    return [
        {
            "platform": platform, "task": pool.key.task, "seed": seed, "policy": name,
            "trials": trials, "relative_performance": round(relative[trials - 1], 6),
            "mean_relative_performance": round(relative[:trials].mean(), 6),
            "elapsed_s": round(curve.elapsed_s[trials - 1], 3),
            "thinking_s": round(clock.thinking_s, 3),
            "trials_to_target": int(in_trials.at), "seconds_to_target": round(in_seconds.at, 3),
            "reached": int(in_trials.reached),
        }
        for trials in CHECKPOINTS
    ]  # fmt: skip


def run(options: Options) -> dict:
    """Run all pools, seeds and policies; the summary."""
    torch.set_num_threads(1)
    results = Path(options.out) / "results.csv"
    for platform in options.platforms:
        analyzer = load_analyzer(ROOT / "conf", platform)
        usable = [
            task
            for task in RecordRoot(options.data.root).read(Quarantine(), platform)
            if task.valid.sum() >= LEAST and {"conv2d", "matmul"} & set(task.key.task.split("_"))
        ]
        step = max(1, len(usable) // options.tasks)
        rows: list[dict] = []
        for records in usable[options.offset :: step][: options.tasks]:
            pool = recorded_task(records, analyzer=analyzer)
            for seed in range(options.seeds):
                for name in options.policies:
                    rows.extend(rows_of(platform, pool, seed, name, options.prior))
        write_table(results, merged_table(results, rows, ("platform", "policy")))
    summary = summarise(results)
    write_json(Path(options.out) / "summary.json", summary, indent=1)
    return summary


def summarise(results: Path) -> dict:
    """Means over tasks by seed, paired tests, and censored times.

    Tests are one-sided and over seeds; times are those to the target. Of the policies in the file,
    on the platforms and with the seeds that all of them have.
    """
    rows = read_table(results)
    policies = [name for name in POLICIES if any(row["policy"] == name for row in rows)]
    rows = _shared(_shared(rows, "platform", policies), "seed", policies)
    out: dict = {"platforms": sorted({row["platform"] for row in rows})}
    for column in ("relative_performance", "mean_relative_performance"):
        for trials in CHECKPOINTS:
            if column == "mean_relative_performance" and trials != TRIALS:
                continue
            found = {name: _by_seed(rows, name, trials, column) for name in policies}
            means = {name: round(float(v.mean()), 6) for name, v in found.items()}
            ours = found.pop(POLICIES[-1], None)
            tests = {} if ours is None else {
                f"p_against_{name}": sign_flip_p(ours - theirs) for name, theirs in found.items()
            }  # fmt: skip
            out[f"{column}_at_{trials}"] = means | tests
    last = [row for row in rows if int(row["trials"]) == TRIALS]
    for unit in ("trials", "seconds"):
        out[f"{unit}_to_{TARGET}"] = {name: _mean_to_target(last, name, unit) for name in policies}
    out["share_reached"] = {
        name: round(float(np.mean([int(r["reached"]) for r in last if r["policy"] == name])), 4)
        for name in policies
    }
    return out


def _shared(rows: list[dict], column: str, policies: list[str]) -> list[dict]:
    of = [{row[column] for row in rows if row["policy"] == name} for name in policies]
    return [row for row in rows if row[column] in set.intersection(*of)]


def _by_seed(rows: list[dict], name: str, trials: int, column: str) -> np.ndarray:
    """Means over platforms and tasks, in the order of the seeds."""
    chosen = [r for r in rows if r["policy"] == name and int(r["trials"]) == trials]
    return np.array([
        np.mean([float(r[column]) for r in chosen if r["seed"] == seed])
        for seed in sorted({r["seed"] for r in rows}, key=int)
    ])  # fmt: skip


def _mean_to_target(rows: list[dict], name: str, unit: str) -> float:
    """Restricted mean (Kaplan-Meier) up to each task's horizon, averaged over tasks."""
    means = []
    for task in sorted({(r["platform"], r["task"]) for r in rows}):
        of_task = [r for r in rows if (r["platform"], r["task"]) == task]
        horizon = TRIALS if unit == "trials" else min(float(r["elapsed_s"]) for r in of_task)
        runs = [
            Reach(at=float(r[f"{unit}_to_target"]), reached=r["reached"] == "1")
            for r in of_task
            if r["policy"] == name
        ]
        means.append(restricted_mean(runs, horizon))
    return round(float(np.mean(means)), 3)


if __name__ == "__main__":
    run_script(Options, run, __doc__)
