"""Measure training at TenSet's size: disk, memory, time.

    python benchmarks/tenset_size.py --root DATA_ROOT
    python benchmarks/tenset_size.py --root DATA_ROOT --tasks 2308 --programs 8600000

The script makes tasks from the tasks of the V100 records: with their skeletons in the same shares,
and with decision vectors whose tiles are of different records. It writes their features once, in
the form of the cache (``--folder``); a second start finds them. Then PaCM learns for one epoch with
features from disk. On as many tasks as ``--in-memory`` states, it also learns with features in
memory and with features from disk. Both have the same batches. They have the same loss, too, if
they learn from at most 100,000 programs; for more programs, the normalisation from disk uses a
sample. The memory is the highest PSS of all processes: their own pages, and their part of the
shared pages. The last line is one JSON object. Times are wall-clock times, so the machine must be
idle.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import Memory, proportional
from synthetic import as_steps, records_of, vectors

from pruner import features
from pruner.data.splits import TaskSplit
from pruner.data.tasks import TaskRecords
from pruner.files import write_json
from pruner.models.networks.pacm import PaCM
from pruner.models.programs.cache import read_entry, write_entry
from pruner.models.programs.dataset import example
from pruner.models.programs.program_table import ProgramTable, TaskPrograms
from pruner.models.programs.reading import FilePrograms, Tally
from pruner.models.training.fit import fit
from pruner.models.training.recipe import Recipe
from pruner.models.training.sampler import TaskBatches
from pruner.program.replay import find_dag
from pruner.program.te.skeleton import group_programs

HERE = Path(__file__).resolve().parent
KEY = "made"  # of the entries
VALIDATED = 8  # tasks: what is measured is training


def files(root: Path) -> list[Path]:
    """Record files of tiled programs; most of TenSet is tiled."""
    found = sorted((root / "measure_records" / "v100").glob("*.json.gz"))
    return [file for file in found if not file.name.startswith(("relu", "reduction"))]


def made_task(number: int, records: TaskRecords, programs: int) -> TaskPrograms:
    """`programs` programs like some records'; programs without features are left out."""
    rng = np.random.default_rng(number)
    groups, _ = group_programs(records.steps)
    measured = sum(len(group.rows) for group in groups)
    counts = [max(1, len(group.rows) * programs // measured) for group in groups]
    counts[0] += programs - sum(counts)  # the largest
    steps: list[Any] = []
    for group, count in zip(groups, counts, strict=True):
        steps += as_steps(group, records.steps[int(group.rows[0])], vectors(group, count, rng))
    found = features.featurize(find_dag(records.workload_key, records.fused), steps)
    key = replace(records.key, task=f"{records.key.task}-{number}")
    return TaskPrograms.of(key, found, rng.lognormal(-8, 0.7, programs), np.arange(programs))


def write_task(number: int, *, sources: list[Path], folder: Path, sizes: list[int]) -> int:
    """Write a task unless its file exists; returns the file's bytes."""
    path = folder / f"{number:05d}-{sizes[number]}.npz.zst"
    if not path.is_file():
        part = made_task(number, records_of(sources[number % len(sources)]), sizes[number])
        write_entry(path, KEY, FilePrograms(tasks=[part], tally=Tally(), quarantined=[]))
    return path.stat().st_size


def read_task(path: Path) -> TaskPrograms:
    """Read the file of `write_task`."""
    found = read_entry(path, KEY)
    assert found is not None, path
    return found.tasks[0]


def streamed(paths: list[Path]) -> ProgramTable:
    """A table of the tasks in files, whose features stay on disk."""
    parts = [example(read_task(path)) for path in paths]
    return ProgramTable.build(parts, load=lambda n: ProgramTable.build([read_task(paths[n])]))


def learn(programs: ProgramTable, options: argparse.Namespace, *, window: int | None) -> Any:
    """Fit PaCM for an epoch on one thread; returns its numbers."""
    keys = programs.keys
    split = TaskSplit(name="made", seed=0, train=keys[VALIDATED:], valid=keys[:VALIDATED], test=())
    recipe = Recipe(
        model=PaCM,
        batches=TaskBatches(per_task=options.per_task, window=window),
        trainer={"accelerator": "cpu"},
        epochs=1,
    )
    with tempfile.TemporaryDirectory() as folder:
        fitted = fit(recipe, programs, split, folder=Path(folder))
    return fitted.numbers


def compared(store: ProgramTable, options: argparse.Namespace) -> dict[str, Any]:
    """The same tasks with features in memory and from disk, in turns."""
    held = store.in_memory()
    rates: dict[str, list[float]] = {"in_memory": [], "from_disk": []}
    losses = set()
    for _ in range(options.repeats):
        for name, programs in (("in_memory", held), ("from_disk", store)):
            numbers = learn(programs, options, window=options.window)
            rates[name].append(numbers["train_programs_per_second"])
            losses.add(numbers["best_valid"])
    best = {name: max(found) for name, found in rates.items()}
    return {
        "compared_programs": held.num_programs,
        "programs_per_second": rates,
        "slowdown": round(best["in_memory"] / best["from_disk"] - 1, 3),
        "same_result": len(losses) == 1,
    }


def main() -> None:
    """Measure, print the last line."""
    options = arguments()
    torch.set_num_threads(1)
    sources = files(options.root)
    folder = options.folder / sha256(str(options.root.resolve()).encode()).hexdigest()[:8]
    folder.mkdir(parents=True, exist_ok=True)
    each, more = divmod(options.programs, options.tasks)
    sizes = [each + (number < more) for number in range(options.tasks)]
    paths = [folder / f"{number:05d}-{size}.npz.zst" for number, size in enumerate(sizes)]
    is_new = not any(path.exists() for path in paths)
    start = time.perf_counter()
    write = partial(write_task, sources=sources, folder=folder, sizes=sizes)
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        disk = sum(pool.map(write, range(options.tasks), chunksize=4))
    written = time.perf_counter() - start
    memory = Memory(proportional, 1.0)
    start = time.perf_counter()
    store = streamed(paths)
    read = time.perf_counter() - start
    numbers = learn(store, options, window=options.window)
    result: dict[str, Any] = {
        "tasks": options.tasks,
        "programs": store.num_programs,
        "per_task": options.per_task,
        "window": options.window,
        "build_seconds": round(written, 1) if is_new else None,
        "disk_bytes_per_program": round(disk / store.num_programs, 1),
        "disk_gb": round(disk / 1e9, 3),
        "read_seconds": round(read, 1),
        "train_programs_per_second": numbers["train_programs_per_second"],
        "fit_seconds": numbers["fit_seconds"],
        "memory_gb": round(memory.end() / 1e9, 2),
    }
    result |= compared(streamed(paths[: options.in_memory]), options) if options.in_memory else {}
    kept = HERE / "results" / f"tenset_size_{options.programs}.json"
    kept.parent.mkdir(exist_ok=True)
    write_json(kept, result, indent=1)
    print(json.dumps(result))


def arguments() -> argparse.Namespace:
    """Options of the command line."""
    found = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    found.add_argument("--root", type=Path, required=True)
    found.add_argument("--tasks", type=int, default=40)
    found.add_argument("--programs", type=int, default=150_000)
    found.add_argument("--per-task", type=int, default=1024, help="programs of a task an epoch")
    found.add_argument("--window", type=int, default=32, help="tasks whose features are alive")
    found.add_argument("--in-memory", type=int, default=40, help="tasks to compare with; 0: none")
    found.add_argument("--repeats", type=int, default=2, help="of the comparison")
    found.add_argument("--folder", type=Path, default=Path("outputs/tenset_size"))
    return found.parse_args()


if __name__ == "__main__":
    main()
