"""Score measured records with the released weights; write results.csv.

    pruner import_checkpoint pam_k80_1500.npz run_id=k80_1500
    python -m experiments.official_weights.score data.root=DIR \
        checkpoint=outputs/import_checkpoint/k80_1500/best.safetensors
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from omegaconf import MISSING

from pruner import features
from pruner.cli.shared.output import say
from pruner.cli.shared.script import Data, run_script
from pruner.data.quarantine import Quarantine
from pruner.data.root import RecordRoot
from pruner.files import write_table
from pruner.models.checkpoint.checkpoint import load_checkpoint
from pruner.models.judging.judge import random_report
from pruner.models.judging.metrics import ScoredTask, pairwise_accuracy, top_k
from pruner.models.programs.program_table import ProgramTable, TaskPrograms
from pruner.models.programs.reading import Tally, featurize_task
from pruner.models.ranker import Ranker

HERE = Path(__file__).parent
SAMPLE = 200  # measured programs a task and draw
LEAST = 20  # tasks with fewer are left out
FLAGS = ("as_printed", "zero", "tenset_names")


@dataclass(kw_only=True)
class Options:
    """Options: records, checkpoint, variants of the workload flags, draws of pools."""

    data: Data = field(default_factory=Data)
    checkpoint: str = MISSING
    platforms: list[str] = field(default_factory=lambda: ["k80", "v100"])
    flags: list[str] = field(default_factory=lambda: list(FLAGS))
    draws: int = 10
    out: str = str(HERE)


def programs(root: RecordRoot, platform: str, tally: Tally) -> Iterator[TaskPrograms]:
    """Every task with enough measured programs."""
    with Quarantine() as quarantine:
        for records in root.read(quarantine, platform):
            part = featurize_task(records, "official", tally)
            if part is not None and len(part.latency_s) >= LEAST:
                yield part


def families(names: list[str]) -> dict[str, list[int]]:
    """Task numbers by family, and all tasks."""
    groups: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        groups.setdefault(name, []).append(number)
    return dict(sorted(groups.items())) | {"all": list(range(len(names)))}


def sample(store: ProgramTable, rng: np.random.Generator) -> torch.Tensor:
    """At most SAMPLE programs of every task, drawn independent of log order."""
    tasks = store.by_task(torch.arange(store.num_programs))
    return torch.cat([t[torch.from_numpy(rng.permutation(len(t))[:SAMPLE])] for t in tasks])


def figures(scored: list[ScoredTask]) -> dict[str, float]:
    """Metrics of one draw."""
    return {
        "top1": top_k(scored, 1),
        "top5": top_k(scored, 5),
        "pairwise": pairwise_accuracy(scored),
    }


def rows(
    ranker: Ranker, platform: str, flags: str, store: ProgramTable, draws: int
) -> Iterator[dict[str, object]]:
    """A row for every family: means over draws; random of the first."""
    names = [key.task.split("_")[0] for key in store.keys]
    rngs = [np.random.default_rng(seed) for seed in range(draws)]
    scored = [ranker.score_tasks(store, sample(store, rng)) for rng in rngs]
    for family, numbers in families(names).items():
        found = [figures([draw[n] for n in numbers]) for draw in scored]
        chance = random_report([scored[0][n] for n in numbers], ks=())
        yield {
            "platform": platform,
            "flags": flags,
            "family": family,
            "tasks": len(numbers),
            "programs": sum(scored[0][n].num_programs for n in numbers),
            **{name: round(float(np.mean([f[name] for f in found])), 4) for name in found[0]},
            "top1_std": round(float(np.std([f["top1"] for f in found])), 4),
            "random_top1": round(chance["top1"], 4),
            "random_top5": round(chance["top5"], 4),
        }


def with_flags(store: ProgramTable, variant: str) -> ProgramTable:
    """The store with other workload flags."""
    flags = store.flags.clone()
    if variant == "zero":
        flags[:] = 0
    if variant == "ones":
        flags[:, :9] = 1
    if variant == "tenset_names":  # as if the operators were TenSet's NHWC ones
        for row, key in zip(flags, store.keys, strict=True):
            if key.task.startswith("conv2d"):
                row[2] = row[3] = 1  # PaddedInput holds "add"; Conv2dOutput
            if "matmul" in key.task:
                row[6] = 1  # dense
    fields = {f.name: getattr(store, f.name) for f in dataclasses.fields(store) if f.init}
    return ProgramTable(**{**fields, "flags": flags})


def run(options: Options) -> dict[str, object]:
    """Write the table."""
    torch.set_num_threads(1)
    path = Path(options.checkpoint)
    ranker, _ = load_checkpoint(path, feature_version=features.FEATURE_SET_VERSION)
    root, table = RecordRoot(options.data.root), []
    for platform in options.platforms:
        tally = Tally()
        store = ProgramTable.build(programs(root, platform, tally))
        for flags in options.flags:
            table += rows(ranker, platform, flags, with_flags(store, flags), options.draws)
            say(" ".join(f"{k}={v}" for k, v in table[-1].items()))
        say(f"{platform}: not featurised {dict(tally.failures)}")
    out = Path(options.out) / "results.csv"
    write_table(out, table)
    return {"rows": len(table), "out": str(out)}


if __name__ == "__main__":
    run_script(Options, run, __doc__)
