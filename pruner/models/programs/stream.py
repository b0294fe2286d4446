"""Batches of programs whose features are computed on the way, task by task.

The batches of an epoch are known before the first: so is when a task is first needed, and when it
is not needed any more. Tasks are computed in the order of the first, each once, only those of its
programs that the epoch visits; behind the last batch that has one of them they are dropped.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from pruner.features.primitives import PrimitiveTokens
from pruner.models.programs.batch import (
    NUM_DATAFLOW_COLUMNS,
    NUM_STATEMENT_COLUMNS,
    LabelledBatch,
    ProgramBatch,
)
from pruner.models.programs.loading import Share, as_is
from pruner.models.programs.relative import places as places_of
from pruner.models.programs.store import ProgramStore, TaskPrograms
from pruner.models.programs.table import ProgramTable
from pruner.models.programs.tokens import ProgramTokens

_AHEAD = 8  # parts that a worker may have computed and nobody has asked for yet


class Worked:
    """What `compute` makes of parts of tasks, in their order, ahead of who asks for them.

    In `num_workers` forked processes, which share what this one has in memory; with 0 in this one.
    With `stays` they live on between calls, with what they have found out about tasks.
    """

    def __init__(
        self,
        compute: Callable[[np.ndarray], TaskPrograms],
        num_workers: int,
        *,
        stays: bool = False,
    ) -> None:
        self._parts = _Parts()
        self._loader: DataLoader[TaskPrograms] = DataLoader(
            _Computed(compute),
            sampler=self._parts,
            batch_size=None,
            collate_fn=as_is,
            num_workers=num_workers,
            prefetch_factor=_AHEAD if num_workers else None,
            persistent_workers=stays and num_workers > 0,
            multiprocessing_context="fork" if num_workers else None,
            generator=torch.Generator(),  # the default one belongs to the fit
        )

    def __call__(self, parts: Sequence[np.ndarray]) -> Iterator[TaskPrograms]:
        """One after another; a call ends the one before it."""
        self._parts.now = parts
        return iter(self._loader)


class _Parts(Sampler[np.ndarray]):
    """The parts of the present call."""

    def __init__(self) -> None:
        self.now: Sequence[np.ndarray] = ()

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter(self.now)

    def __len__(self) -> int:
        return len(self.now)


class _Computed(Dataset[TaskPrograms]):
    """Arrays, not tensors: they come through a pipe, so that no shared memory is needed."""

    def __init__(self, compute: Callable[[np.ndarray], TaskPrograms]) -> None:
        self._compute = compute

    def __getitem__(self, programs: np.ndarray) -> TaskPrograms:
        return self._compute(programs)


@dataclass(frozen=True, slots=True)
class Needs:
    """`parts`: the programs of every task, in the order in which tasks are first needed.

    `last`: the number of the last batch that needs a task, by the number of the task.
    """

    parts: list[np.ndarray]
    last: dict[int, int]


def needs_of(task: Tensor, indices: Sequence[Tensor]) -> Needs:
    """Of the batches of an epoch; `task` [N] is that of every program of the table."""
    if not indices:
        return Needs([], {})
    programs, order = torch.cat(list(indices)).sort()
    sizes = torch.tensor([len(index) for index in indices])
    batch = torch.repeat_interleave(torch.arange(len(indices)), sizes)[order]
    numbers, which, counts = torch.unique_consecutive(
        task[programs], return_inverse=True, return_counts=True
    )
    last = torch.zeros(len(numbers), dtype=torch.long).scatter_reduce(0, which, batch, "amax")
    first = torch.full((len(numbers),), len(indices)).scatter_reduce(0, which, batch, "amin")
    parts = programs.split(counts.tolist())
    return Needs(
        [parts[place].numpy() for place in first.argsort(stable=True).tolist()],
        dict(zip(numbers.tolist(), last.tolist(), strict=True)),
    )


@dataclass(frozen=True, slots=True)
class _Alive:
    """The programs of a task that an epoch visits, and their features."""

    programs: Tensor
    store: ProgramStore


def batches_of(
    table: ProgramTable, worked: Worked, indices: Sequence[Tensor], share: Share
) -> Iterator[LabelledBatch]:
    """The batches of an epoch; those of a share have the features of its programs alone."""
    own = [share(index) for index in indices]
    needs = needs_of(table.task, own)
    arriving = zip(needs.parts, worked(needs.parts), strict=True)
    alive: dict[int, _Alive] = {}
    for number, (index, mine) in enumerate(zip(indices, own, strict=True)):
        tasks = table.task[mine]
        present = tasks.unique().tolist()
        while not alive.keys() >= set(present):
            programs, found = next(arriving)
            came = int(table.task[int(programs[0])])
            alive[came] = _Alive(torch.from_numpy(programs), ProgramStore.build([found]))
        parts = []
        for task in present:
            where = (tasks == task).nonzero().squeeze(1)
            there = torch.searchsorted(alive[task].programs, mine[where])
            parts.append((where, alive[task].store.programs(there)))
        yield LabelledBatch(
            programs=scattered(parts, table, mine),
            label=table.label[index],
            task=table.task[index],
            index=index,
            first=share.bounds(len(index))[0],
        )
        for task in present:
            if needs.last[task] == number:
                del alive[task]


def scattered(
    parts: Sequence[tuple[Tensor, ProgramBatch]], table: ProgramTable, index: Tensor
) -> ProgramBatch:
    """Programs `index` of a table from parts, each at the given places."""
    num = len(index)
    counts = torch.zeros(num, dtype=torch.long)
    for where, part in parts:
        counts[where] = torch.bincount(part.program, minlength=part.num_programs)
    start, end = counts.cumsum(0) - counts, int(counts.sum())
    statement = torch.empty((end, NUM_STATEMENT_COLUMNS))
    dataflow = torch.empty((num, table.num_dataflow_rows, NUM_DATAFLOW_COLUMNS))
    for where, part in parts:
        statement[start[where][part.program] + places_of(part.program)] = part.statement
        dataflow[where] = part.dataflow
    return ProgramBatch(
        statement=statement,
        program=torch.repeat_interleave(torch.arange(num), counts),
        dataflow=dataflow,
        platform=table.platform[table.task[index]],
        platforms=table.platforms,
        tokens=_tokens(parts),
        draft=_draft(parts, num),
    )


def _draft(parts: Sequence[tuple[Tensor, ProgramBatch]], num: int) -> Tensor | None:
    draft: Tensor | None = None
    for where, part in parts:
        if part.draft is None:
            return None
        draft = torch.empty((num, part.draft.shape[1])) if draft is None else draft
        draft[where] = part.draft
    return draft


def _tokens(parts: Sequence[tuple[Tensor, ProgramBatch]]) -> ProgramTokens | None:
    found = [part.tokens for _, part in parts if part.tokens is not None]
    if not found or len(found) < len(parts):
        return None
    joined = PrimitiveTokens.join([tokens.arrays() for tokens in found])
    return ProgramTokens.of(joined).take(torch.cat([where for where, _ in parts]).argsort())
