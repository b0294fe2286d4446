"""From record files to a store of featurised programs, and from a split to its programs."""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from pruner import features
from pruner.data.frozen import SIDES, Side
from pruner.data.quarantine import Quarantine
from pruner.data.root import RecordRoot
from pruner.data.splits import Split
from pruner.data.tasks import Duplicates, TaskRecords
from pruner.errors import UnsupportedProgram
from pruner.models.programs.store import ProgramStore, TaskPrograms
from pruner.program.dag.task_index import TaskIndex, task_index_of

log = logging.getLogger(__name__)

Dataflow = Literal["paper", "official"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What happened to the records on the way: nothing is dropped without being counted here.

    `counts` has the "records" read and those "measured" without error; `failures` the measured
    programs that could not be featurised, by reason.
    """

    failures: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def num_failed(self) -> int:
        """Measured programs without features."""
        return self.failures.total()


def featurize_task(
    records: TaskRecords, dataflow: Dataflow, tally: Tally, tasks: TaskIndex | None = None
) -> TaskPrograms | None:
    """Featurise the measured programs of one task; None when there are none or none can be.

    `tasks` has the operators of TenSet's own tasks.
    """
    measured = records.select(records.valid)
    tally.counts["records"] += len(records)
    tally.counts["measured"] += len(measured)
    if not len(measured):
        return None
    try:
        batch = features.featurize_records(
            records.workload_key,
            records.fused,
            measured.steps,
            tasks=tasks,
            dataflow=dataflow,
        )
    except UnsupportedProgram as error:
        tally.failures[error.reason] += len(measured)
        log.warning("%s left out (%d programs): %s", records.file, len(measured), error)
        return None
    tally.failures.update(batch.failures.values())
    part = TaskPrograms.of(records.key, batch, measured.latency_s, measured.line, measured.digest)
    return part if len(part.latency_s) else None


def featurized_tasks(
    root: RecordRoot,
    platforms: Sequence[str],
    *,
    quarantine: Quarantine,
    tally: Tally,
    dataflow: Dataflow,
    duplicates: Duplicates = "drop",
) -> Iterator[TaskPrograms]:
    """Read and featurise task after task of the given platforms."""
    index = task_index_of(root.path)
    for records in root.read(quarantine, list(platforms), duplicates=duplicates):
        part = featurize_task(records, dataflow, tally, index)
        if part is not None:
            yield part


def programs_on_side(store: ProgramStore, split: Split, side: Side) -> Int[Tensor, " program"]:
    """Programs of the store that `split` puts on `side`, in store order."""
    parts = []
    for number, key in enumerate(store.keys):
        programs = store.programs_of([number])
        rows = split.rows(side, key, store.digest[programs.numpy()])
        parts.append(programs[torch.from_numpy(np.ascontiguousarray(rows))])
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.long)


def divide(store: ProgramStore, split: Split) -> dict[Side, Int[Tensor, " program"]]:
    """Programs of every side."""
    return {side: programs_on_side(store, split, side) for side in SIDES}


def small_tasks_removed(
    store: ProgramStore, index: Int[Tensor, " program"], least: int
) -> Int[Tensor, " kept"]:
    """Keep programs whose task has at least `least` of them in `index`."""
    kept = [programs for programs in store.by_task(index) if len(programs) >= least]
    return torch.cat(kept) if kept else index[:0]


def sampled(
    store: ProgramStore, index: Int[Tensor, " program"], share: float, seed: int
) -> Int[Tensor, " kept"]:
    """Draw this share of the programs of every task in `index`, at least two of each.

    Draws are nested: with the same seed a smaller share is part of a larger one.
    """
    if share >= 1:
        return index
    generator = torch.Generator().manual_seed(seed)
    kept = []
    for programs in store.by_task(index):
        order = torch.randperm(len(programs), generator=generator)
        kept.append(programs[order[: max(2, round(share * len(programs)))]].sort().values)
    return torch.cat(kept) if kept else index[:0]


def sampled_tasks(
    store: ProgramStore, index: Int[Tensor, " program"], share: float, seed: int
) -> Int[Tensor, " kept"]:
    """Draw this share of the tasks in `index`, at least two, with all their programs; nested."""
    tasks = store.by_task(index)
    order = torch.randperm(len(tasks), generator=torch.Generator().manual_seed(seed))
    chosen = order[: max(2, round(share * len(tasks)))].sort().values.tolist()
    return torch.cat([tasks[number] for number in chosen]) if tasks else index


def seen_tasks(store: ProgramStore, parts: Iterable[Tensor]) -> dict[str, list[str]]:
    """Platform to sorted task names of all programs in `parts`."""
    seen: dict[str, set[str]] = {}
    for number in torch.unique(torch.cat([store.task[part] for part in parts])).tolist():
        key = store.keys[number]
        seen.setdefault(key.platform, set()).add(key.task)
    return {platform: sorted(tasks) for platform, tasks in sorted(seen.items())}
