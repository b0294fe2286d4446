"""Programs as decision vectors: features are computed where they are read.

A task is a few skeletons, the decisions of its programs (some 30 bytes each, where features are
3,400), and the mean of its features, which relative features need and which takes all programs to
know. So millions of programs fit into memory. Worker processes compute the features of a task's
programs in one go and send them; the fit goes on meanwhile.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from pruner import features
from pruner.data.tasks import TaskKey
from pruner.errors import DataError, PrunerError
from pruner.features.dataflow import NUM_ROWS, DataflowKind
from pruner.models.analyzer.columns import draft_columns
from pruner.models.programs.loading import Arriving, EpochIndices, Loader, Share
from pruner.models.programs.relative import Center
from pruner.models.programs.scaler import ColumnScaler
from pruner.models.programs.store import ProgramStore, TaskPrograms
from pruner.models.programs.stream import Worked, batches_of
from pruner.models.programs.table import ProgramTable, Scale, TaskView
from pruner.models.together import processes
from pruner.program.replay import Definition, Definitions, find_definition
from pruner.program.te.skeleton import SkeletonGroup, group_programs
from pruner.program.te.steps import parse_steps

SCALER_PROGRAMS, SCALER_TASKS = 100_000, 512
"""Of so many programs of so many tasks the normalisation is computed, as many of every task; of all
where there are fewer."""


@dataclass(frozen=True, slots=True, eq=False)
class SkeletonVectors:
    """Programs of one skeleton: the `steps` of one of them, and the `decisions` of all, [n, d].

    Decisions are whole numbers of as few bytes as hold them.
    """

    steps: list[list[Any]]
    decisions: np.ndarray

    @staticmethod
    def of(steps: list[list[Any]], decisions: np.ndarray) -> "SkeletonVectors":
        """The same in as few bytes as it takes."""
        low, high = int(decisions.min(initial=0)), int(decisions.max(initial=0))
        small = np.min_scalar_type(high if low >= 0 else min(low, -high - 1))
        return SkeletonVectors(steps, decisions.astype(small))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskVectors:
    """The programs of one task: of which `skeletons` each is, and at which `place` there, [N].

    `center` is the mean of the features of all of them.
    """

    skeletons: tuple[SkeletonVectors, ...]
    skeleton: np.ndarray
    place: np.ndarray
    center: Center

    @staticmethod
    def of(
        skeletons: Sequence[SkeletonVectors], skeleton: np.ndarray, center: Center
    ) -> "TaskVectors":
        """The decisions of a skeleton are in the order of its programs."""
        place = np.zeros(len(skeleton), np.int32)
        for number, one in enumerate(skeletons):
            place[skeleton == number] = np.arange(len(one.decisions))
        return TaskVectors(
            skeletons=tuple(skeletons),
            skeleton=skeleton.astype(np.int32),
            place=place,
            center=center,
        )

    @staticmethod
    def of_steps(steps: list[list[list[Any]]], center: Center) -> "TaskVectors":
        """From the step lists of the programs, all of which can be replayed."""
        skeleton = np.zeros(len(steps), np.int32)
        groups, _ = group_programs(steps)
        for number, group in enumerate(groups):
            skeleton[group.rows] = number
        made = [SkeletonVectors.of(steps[int(g.rows[0])], g.decisions) for g in groups]
        return TaskVectors.of(made, skeleton, center)

    def groups(self, chosen: np.ndarray) -> list[SkeletonGroup]:
        """The chosen programs by skeleton, the rows being places in `chosen`."""
        out, skeleton_of = [], self.skeleton[chosen]
        for number, one in enumerate(self.skeletons):
            rows = np.flatnonzero(skeleton_of == number)
            if len(rows):
                decisions = one.decisions[self.place[chosen[rows]]].astype(np.int64)
                skeleton, _ = parse_steps(one.steps)
                out.append(SkeletonGroup(skeleton=skeleton, rows=rows, decisions=decisions))
        return out


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredVectors:
    """The programs of one task that have features, as decision vectors, and what is known of them.

    The columns of :class:`~pruner.models.programs.store.TaskPrograms`.
    """

    key: TaskKey
    vectors: TaskVectors
    latency_s: np.ndarray
    line: np.ndarray
    digest: np.ndarray
    timed_s: np.ndarray
    num_failed: int = 0

    @staticmethod
    def of(part: TaskPrograms, steps: list[list[list[Any]]]) -> "MeasuredVectors":
        """Programs whose features were computed, with their step lists in the same order."""
        center = ProgramStore.build([part]).center()
        return MeasuredVectors(
            key=part.key,
            vectors=TaskVectors.of_steps(steps, center),
            latency_s=part.latency_s,
            line=part.line,
            digest=part.digest,
            timed_s=part.timed_s,
            num_failed=part.num_failed,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class VectorStore(ProgramTable):
    """Programs of many tasks as decision vectors; features are those of a ``ProgramStore``.

    `definitions` say what the programs are of, `dataflow` which rows they have, `tokens` whether
    their schedule primitives are wanted. With `num_workers` processes features are computed beside
    this one, with 0 in it. `is_relative`: they are relative to the task's mean.
    """

    vectors: tuple[TaskVectors, ...]
    definitions: Definitions
    dataflow: DataflowKind = "paper"
    tokens: bool = True
    num_workers: int = 0
    is_relative: bool = False
    _defined: dict[int, Definition] = field(init=False, default_factory=dict)

    @staticmethod
    def build(
        tasks: Iterable[MeasuredVectors], definitions: Definitions, **settings: Any
    ) -> "VectorStore":
        """Concatenate tasks; raises DataError when no task has a program."""
        parts = [part for part in tasks if len(part.latency_s)]
        if not parts:
            raise DataError(
                "no task has a program that could be featurised; see the failure counts"
            )
        counts = [len(part.latency_s) for part in parts]
        return VectorStore(
            keys=tuple(part.key for part in parts),
            task=torch.from_numpy(np.repeat(np.arange(len(parts)), counts)),
            latency_s=torch.from_numpy(np.concatenate([part.latency_s for part in parts])),
            line=torch.from_numpy(np.concatenate([part.line for part in parts])),
            digest=np.concatenate([part.digest for part in parts]),
            timed_s=np.concatenate([part.timed_s for part in parts]),
            num_failed=sum(part.num_failed for part in parts),
            vectors=tuple(part.vectors for part in parts),
            definitions=definitions,
            **settings,
        )

    @property
    def num_dataflow_rows(self) -> int:
        """8 or 10."""
        return NUM_ROWS[self.dataflow]

    @property
    def has_dataflow(self) -> bool:
        """Whether some program has a dataflow pattern."""
        return any(bool(one.center.dataflow.any()) for one in self.vectors)

    def in_memory(self) -> ProgramStore:
        """Raise PrunerError: that is what they are not for."""
        raise PrunerError(
            "store=vectors is for networks, which see a batch at a time; trees are grown from "
            "all features at once: give store=features"
        )

    def relative(self) -> "VectorStore":
        """The same programs, features relative to the mean of all programs of their task."""
        return replace(self, is_relative=True)

    def computed(self, programs: np.ndarray) -> TaskPrograms:
        """The given programs of one task, ascending, with their features.

        Raises:
            DataError: some have none, which they had when the vectors were written.
        """
        number = int(self.task[int(programs[0])])
        vectors, own = self.vectors[number], programs - int(self.task_start[number])
        platform = self.keys[number].platform
        found = features.featurize_groups(
            self._definition(number),
            vectors.groups(own),
            len(own),
            dataflow=self.dataflow,
            extra=None if vectors.center.draft is None else draft_columns(platform),
            tokens=self.tokens,
        )
        if not found.valid.all():
            raise DataError(
                f"{self.keys[number].task}: {len(found.failures)} programs have no features any "
                "more; delete the folder data.cache= names"
            )
        part = TaskPrograms.of(
            self.keys[number],
            found,
            self.latency_s.numpy()[programs],
            self.line.numpy()[programs],
            self.digest[programs],
            self.timed_s[programs],
        )
        return _less(part, vectors.center) if self.is_relative else part

    def each_task(self, index: Int[Tensor, " program"]) -> Iterator[TaskView]:
        """The given programs, task by task, computed in worker processes ahead of the reader."""
        parts = [part.numpy() for part in self.by_task(index)]
        worked = Worked(self.computed, self._workers())
        for part, found in zip(parts, worked(parts), strict=True):
            store = ProgramStore.build([found])
            yield TaskView(torch.from_numpy(part), store, torch.arange(len(part)))

    def loader(self, sampler: EpochIndices, share: Share) -> Loader:
        """Batches whose tasks are computed ahead of them, and dropped behind them."""
        worked = Worked(self.computed, self._workers(), stays=True)
        return Arriving(lambda indices: batches_of(self, worked, indices, share), sampler)

    def fit_scaler(self, index: Int[Tensor, " program"], kind: Scale = "max") -> ColumnScaler:
        """Column statistics over a sample of the given programs; see :meth:`sample`."""
        found = ProgramStore.concatenate(
            [view.store for view in self.each_task(self.sample(index))]
        )
        return found.fit_scaler(torch.arange(found.num_programs), kind)

    def sample(self, index: Int[Tensor, " program"]) -> Int[Tensor, " kept"]:
        """At most `SCALER_PROGRAMS` of `SCALER_TASKS` tasks, drawn; the same every time."""
        generator, tasks = torch.Generator().manual_seed(0), self.by_task(index)
        chosen = torch.randperm(len(tasks), generator=generator)[:SCALER_TASKS].sort().values
        tasks = [tasks[number] for number in chosen.tolist()]
        each = max(1, SCALER_PROGRAMS // max(1, len(tasks)))
        drawn = [torch.randperm(len(programs), generator=generator)[:each] for programs in tasks]
        kept = [part[draw.sort().values] for part, draw in zip(tasks, drawn, strict=True)]
        return torch.cat(kept) if kept else index[:0]

    def _workers(self) -> int:
        """Of this process, where several share the machine."""
        return self.num_workers and max(1, self.num_workers // processes())

    def _definition(self, number: int) -> Definition:
        if number not in self._defined:
            key = self.keys[number]
            steps = [one.steps for one in self.vectors[number].skeletons]
            self._defined[number] = find_definition(
                key.workload_key, key.fused, steps, self.definitions
            )
        return self._defined[number]


def _less(part: TaskPrograms, center: Center) -> TaskPrograms:
    """The same programs, features relative to a mean."""
    store = ProgramStore.build([part]).less(center)
    made = replace(
        part.features,
        statement=store.rows.numpy(),
        dataflow=store.dataflow.numpy(),
        tokens=None if store.tokens is None else store.tokens.arrays(),
        extra=None if store.draft is None else store.draft.numpy(),
    )
    return replace(part, features=made)
