"""Draft-then-verify against random and model-only search on recorded pools, at equal trials.

    python experiments/replay/run.py [data.root]     writes results.csv and summary.json here
"""

import csv
import itertools
import json
import sys
from pathlib import Path

import numpy as np

from pruner.data.quarantine import Quarantine
from pruner.data.store import RecordRoot
from pruner.data.tasks import TaskRecords
from pruner.features.draft import DraftPlan
from pruner.models.symbolic.analyzer import load_analyzer
from pruner.program.skeleton import group_programs
from pruner.program.task_index import find_dag
from pruner.search.draft import DraftScore
from pruner.search.explorer import ExplorerSettings
from pruner.search.learners import TreeLearner
from pruner.search.policy import DraftThenVerify, Policy, RandomPolicy, RoundSettings
from pruner.search.pool import Clock, PoolMeasurer, PoolSpace
from pruner.search.session import run_session

Pool = tuple[PoolSpace, np.ndarray, np.ndarray, DraftScore, np.ndarray]
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SEEDS, TRIALS, CHECKPOINTS = 12, 60, (10, 20, 40, 60)
TASKS_PER_PLATFORM, LEAST = 9, 800
DRAFTED = RoundSettings(  # a third of 1,536 is drafted in the release, a quarter of 1,000 here
    draft=ExplorerSettings(population=512, generations=2, keep=256),
    verify=ExplorerSettings(population=256, generations=1, keep=32),
    random_sample=64,
    redraft_period=1,
)
MODEL_ONLY = RoundSettings(
    verify=ExplorerSettings(population=256, generations=4, keep=32), random_sample=256
)


def pool_of(records: TaskRecords, platform: str) -> Pool:
    """Space, latencies, costs, draft score and feature rows of one task."""
    records = records.select(records.valid)
    dag = find_dag(records.workload_key, records.fused)
    group = group_programs(records.steps)[0][0]
    space = PoolSpace(group.decisions)
    draft = DraftScore(dag, group.skeleton, load_analyzer(ROOT / "conf", platform))
    values = DraftPlan(dag, group.skeleton).symbols(group.decisions).values
    features = np.log2(np.moveaxis(values, -1, 0).reshape(len(group.rows), -1) + 1)
    features = np.concatenate([features, np.log2(group.decisions + 1)], axis=1)
    cost_s = records.all_cost_s[group.rows]
    return space, records.latency_s[group.rows], cost_s, draft, features


def policies(
    space: PoolSpace, draft: DraftScore, features: np.ndarray, seed: int
) -> dict[str, Policy]:
    """The three competitors with equal seeds."""
    learner = TreeLearner(space, features, seed=seed)
    # the verifier of a draft may look at the draft's own score
    score = draft(space.decisions)
    known = np.where(np.isfinite(score), score, -99.0)[:, None]
    informed = TreeLearner(space, np.concatenate([features, known], axis=1), seed=seed)

    def rng() -> np.random.Generator:
        return np.random.default_rng(seed)

    return {
        "random": RandomPolicy(space, rng()),
        "model_only": DraftThenVerify(space, None, learner, MODEL_ONLY, rng()),
        "draft_then_verify": DraftThenVerify(space, draft, informed, DRAFTED, rng()),
    }


def sign_flip_p(differences: np.ndarray) -> float:
    """One-sided exact test that the mean difference is above 0: all sign flips of the pairs."""
    flips = np.array(list(itertools.product((1, -1), repeat=len(differences))))
    return float((flips @ differences >= differences.sum() - 1e-12).mean())


def main() -> None:
    """Run all pools, seeds and policies."""
    data = sys.argv[1] if len(sys.argv) > 1 else str(ROOT.parent / "shared/data/gpu-records")
    platforms = (sys.argv[2] if len(sys.argv) > 2 else "k80,v100,mi50").split(",")
    root, rows = RecordRoot(data), []
    for platform in platforms:
        usable = [t for t in root.read(Quarantine(), platform) if t.valid.sum() >= LEAST]
        tiled = [t for t in usable if "conv2d" in t.key.task or "matmul" in t.key.task]
        for records in tiled[:: max(1, len(tiled) // TASKS_PER_PLATFORM)][:TASKS_PER_PLATFORM]:
            space, latency_s, cost_s, draft, features = pool_of(records, platform)
            for seed in range(SEEDS):
                for name, policy in policies(space, draft, features, seed).items():
                    clock = Clock()
                    measurer = PoolMeasurer(space, latency_s, cost_s, clock)
                    curve = run_session(policy, measurer, trials=TRIALS)
                    rows.extend(
                        {
                            "platform": platform, "task": records.key.task, "seed": seed,
                            "policy": name, "trials": trials,
                            "relative_performance": latency_s.min() / curve.best_s[trials - 1],
                            "elapsed_s": curve.elapsed_s[trials - 1],
                            "thinking_s": clock.thinking_s,
                        }
                        for trials in CHECKPOINTS
                    )  # fmt: skip
        print(platform, "done", file=sys.stderr)
    with (HERE / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    summary = summarise(rows)
    (HERE / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(json.dumps(summary))


def summarise(rows: list[dict]) -> dict:
    """Mean over tasks by seed, then the paired tests over seeds."""
    out: dict = {}
    for trials in CHECKPOINTS:
        by_seed = {
            name: np.array([
                np.mean([
                    r["relative_performance"] for r in rows
                    if r["policy"] == name and r["trials"] == trials and r["seed"] == seed
                ])
                for seed in range(SEEDS)
            ])
            for name in ("random", "model_only", "draft_then_verify")
        }  # fmt: skip
        ours = by_seed["draft_then_verify"]
        out[str(trials)] = {name: float(v.mean()) for name, v in by_seed.items()} | {
            f"p_against_{name}": sign_flip_p(ours - by_seed[name])
            for name in ("random", "model_only")
        }
    return out


if __name__ == "__main__":
    main()
