"""What a data set of TenSet's size costs: features, disk, and training without a feature cache.

    python benchmarks/tenset_size.py --root DATA_ROOT

Synthetic decision vectors of some record files, 4,000 a task. From their measured rate: time to
featurise TenSet's 8.6 million GPU programs of 2,308 tasks on one core, and the disk that all of it
takes as decision vectors. Then PaCM from cached features against PaCM that computes them task by
task on the way, on one thread, in CPU seconds: with every task's features serving one pass over its
programs, and two. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.synthetic import largest_group, records_of, vectors  # noqa: E402
from pruner.features import featurize_vectors  # noqa: E402
from pruner.files import write_json  # noqa: E402
from pruner.models.networks.pacm import PaCM  # noqa: E402
from pruner.models.programs.store import ProgramStore, TaskPrograms  # noqa: E402
from pruner.models.ranker import NeuralRanker  # noqa: E402
from pruner.models.training.losses import LambdaRank  # noqa: E402
from pruner.program.dag.task_index import find_dag  # noqa: E402

TENSET_PROGRAMS, TENSET_TASKS = 8_600_000, 2_308
TASK_PROGRAMS = 4000
BATCH = 512
PASSES = 2  # how often a stream of features may serve before it is computed anew


class SyntheticTask:
    """One task as it would lie on disk: its operator, its skeleton, its decision vectors."""

    def __init__(self, path: Path, rng: np.random.Generator) -> None:
        records = records_of(path)
        self.key = records.key
        self.group = largest_group(records)
        self.template = records.steps[int(self.group.rows[0])]
        self.vectors = vectors(self.group, TASK_PROGRAMS, rng)
        self.latency_s = rng.uniform(1e-3, 1e-2, TASK_PROGRAMS)
        self.dag = find_dag(records.workload_key, records.fused)

    def disk_bytes(self) -> int:
        """Size of the compressed decision vectors with one step list and the latencies."""
        stream = io.BytesIO()
        small = self.vectors.astype(np.min_scalar_type(int(self.vectors.max())))
        latency = self.latency_s.astype(np.float32)
        np.savez_compressed(stream, vectors=small, latency_s=latency)
        return len(stream.getvalue()) + len(json.dumps(self.template))

    def programs(self) -> TaskPrograms:
        """Features straight from the decision vectors, as the training loop takes them."""
        found = featurize_vectors(self.dag, self.group.skeleton, self.vectors)
        return TaskPrograms.of(self.key, found, self.latency_s, np.arange(len(found)))


def nbytes(part: TaskPrograms) -> int:
    """Memory that the features of a task take."""
    return part.features.statement.nbytes + part.features.dataflow.nbytes


def files(root: Path) -> list[Path]:
    """Record files of the families in about the share that they have among the V100 tasks."""
    found = sorted((root / "measure_records" / "v100").glob("*.json.gz"))
    tiled = [f for f in found if not f.name.startswith(("relu", "reduction"))]
    return tiled[::16]


def train(
    ranker: NeuralRanker, stores: Iterable[ProgramStore], passes: int = 1
) -> tuple[float, int]:
    """``passes`` over every store in turn; CPU seconds and programs."""
    loss_of = LambdaRank(lists="batch")
    optimizer = torch.optim.Adam(ranker.parameters(), lr=7e-4)
    order = torch.Generator().manual_seed(0)
    ranker.train()
    programs, start = 0, time.process_time()
    for store in (store for fresh in stores for store in [fresh] * passes):
        for index in torch.randperm(store.num_programs, generator=order).split(BATCH):
            batch = store.batch(index)
            optimizer.zero_grad()
            loss_of(ranker(batch.programs), batch.label, batch.task).backward()
            optimizer.step()
            programs += len(index)
    return time.process_time() - start, programs


def main() -> None:
    """Measure, print the last line."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--root", type=Path, required=True)
    chosen = options.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    tasks = [SyntheticTask(path, rng) for path in files(chosen.root)]
    start = time.process_time()
    parts = [task.programs() for task in tasks]
    featurising = time.process_time() - start
    programs = TASK_PROGRAMS * len(tasks)
    disk = sum(task.disk_bytes() for task in tasks)
    cached = [ProgramStore.build([part]) for part in parts]
    scaler = ProgramStore.build(parts).fit_scaler(torch.arange(programs))

    def streamed() -> Iterator[ProgramStore]:
        return (ProgramStore.build([task.programs()]) for task in tasks)

    train(NeuralRanker(PaCM(), scaler), cached[:1])  # warms up
    with_cache, count = train(NeuralRanker(PaCM(), scaler), cached, PASSES)
    once, once_count = train(NeuralRanker(PaCM(), scaler), streamed())
    on_the_fly, _ = train(NeuralRanker(PaCM(), scaler), streamed(), PASSES)
    rate = programs / featurising
    result: dict[str, Any] = {
        "tasks": len(tasks),
        "programs": programs,
        "featurise_programs_per_cpu_second": round(rate),
        "tenset_featurise_core_hours": round(TENSET_PROGRAMS / rate / 3600, 3),
        "bytes_per_program": round(disk / programs, 1),
        "tenset_disk_gb": round(disk / programs * TENSET_PROGRAMS / 1e9, 3),
        "tenset_features_gb": round(
            sum(p.features.statement.nbytes + p.features.dataflow.nbytes for p in parts)
            / programs
            * TENSET_PROGRAMS
            / 1e9
        ),
        "train_cached_programs_per_cpu_second": round(count / with_cache),
        "train_on_the_fly_programs_per_cpu_second": round(count / on_the_fly),
        "slowdown": round(on_the_fly / with_cache - 1, 3),
        "slowdown_one_pass": round(once / once_count / (with_cache / count) - 1, 3),
    }
    kept = Path(__file__).parent / "results" / "tenset_size.json"
    kept.parent.mkdir(exist_ok=True)
    write_json(kept, result, indent=1)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
