"""A table of measured programs for training or evaluation, without padding.

Splits, batches and labels need the task, latency and digest of each program, some 60 bytes a
program. Features take 3.4 kB: statement rows of all programs lie one after another in one float32
array, so a batch is one contiguous gather. The workload flags are the same for all programs of a
task and are stored once for each task. Where features do not fit into memory, they stay in the
cache (:mod:`pruner.models.programs.cache`), which loads them task by task.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from pruner.data.tasks import TaskKey
from pruner.errors import DataError
from pruner.features.batch import ProgramFeatures
from pruner.features.primitives import PrimitiveTokens
from pruner.models.programs.batch import (
    NUM_DATAFLOW_COLUMNS,
    NUM_STATEMENT_COLUMNS,
    NUM_STATEMENT_FEATURES,
    LabelledBatch,
    ProgramBatch,
    ProgramTokens,
)
from pruner.models.programs.loading import (
    WHOLE,
    Loader,
    Share,
    ahead,
    streamed_batches,
)
from pruner.models.programs.scaler import (
    Center,
    ColumnScaler,
    group_means,
    positive_or_one,
    rank_in_task,
)
from pruner.models.training.sampler import EpochSampler

Scale = Literal["standard", "max"]
SCALER_PROGRAMS, SCALER_TASKS = 100_000, 512
"""Of so many programs of so many tasks the normalisation of streamed features is computed, as many
of every task; of all where there are fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPrograms:
    """The valid programs of one task with features and measurements.

    `latency_s` float64 [N], `line` int64 [N] (where each program stood in its record file),
    `digest` uint64 [N] (equal for equal programs), `timed_s` float64 [N, 2] (two timings minutes
    apart, NaN where there are none). `num_failed` programs could not be replayed.
    """

    key: TaskKey
    features: ProgramFeatures
    latency_s: np.ndarray
    line: np.ndarray
    digest: np.ndarray
    timed_s: np.ndarray
    num_failed: int = 0

    @staticmethod
    def of(
        key: TaskKey,
        features: ProgramFeatures,
        latency_s: np.ndarray,
        line: np.ndarray,
        digest: np.ndarray | None = None,
        timed_s: np.ndarray | None = None,
    ) -> "TaskPrograms":
        """Select the valid programs of a task."""
        keep = features.valid
        timed_s = np.full((len(keep), 2), np.nan) if timed_s is None else timed_s
        return TaskPrograms(
            key=key,
            features=replace(features.take(keep), failures={}),
            latency_s=np.asarray(latency_s, dtype=np.float64)[keep],
            line=np.asarray(line, dtype=np.int64)[keep],
            digest=np.asarray(line if digest is None else digest, dtype=np.uint64)[keep],
            timed_s=timed_s[keep],
            num_failed=int((~keep).sum()),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class ProgramTable:
    """Programs of many tasks in order; programs of a task are neighbours.

    `task` [N], `latency_s` [N] (float64), `line` [N], `digest` uint64 [N], `timed_s` [N, 2] (two
    timings minutes apart, or NaN). `label` [N]: best latency of the task / latency. A program that
    failed has an infinite latency: its label is 0.

    Features: `rows` [row, column], `row_start` [N + 1], `dataflow` [N, slots, flow], `flags` [task,
    flag]; `tokens` and `draft` [N, column] (the analyzer's columns,
    :mod:`pruner.models.analyzer.columns`) where every task has them. If `load` is given, it returns
    the table of one task by number, and `rows` and `dataflow` hold an example program of each task.
    """

    keys: tuple[TaskKey, ...]
    task: Int[Tensor, " program"]
    latency_s: Float[Tensor, " program"]
    line: Int[Tensor, " program"]
    digest: np.ndarray
    timed_s: np.ndarray
    rows: Float[Tensor, "row column"]
    row_start: Int[Tensor, " boundary"]
    dataflow: Float[Tensor, "kept slot flow"]
    flags: Float[Tensor, "task flag"]
    tokens: ProgramTokens | None = None
    draft: Float[Tensor, "kept draft"] | None = None
    load: "Callable[[int], ProgramTable] | None" = None
    label: Float[Tensor, " program"] = field(init=False)
    task_start: Int[Tensor, " boundary"] = field(init=False)
    platforms: tuple[str, ...] = field(init=False)
    platform: Int[Tensor, " task"] = field(init=False)

    def __post_init__(self) -> None:
        counts = torch.bincount(self.task, minlength=len(self.keys))
        starts = torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)])
        best = torch.full((len(self.keys),), torch.inf, dtype=self.latency_s.dtype)
        best = best.scatter_reduce(0, self.task, self.latency_s, "amin")
        # The infinite latency of a failed program is never the best, and gives label 0.
        label = (best[self.task] / self.latency_s).float()
        object.__setattr__(self, "label", label)
        object.__setattr__(self, "task_start", starts)
        platforms = tuple(sorted({key.platform for key in self.keys}))
        object.__setattr__(self, "platforms", platforms)
        numbers = torch.tensor([platforms.index(key.platform) for key in self.keys])
        object.__setattr__(self, "platform", numbers)

    @staticmethod
    def build(
        tasks: Iterable[TaskPrograms], load: "Callable[[int], ProgramTable] | None" = None
    ) -> "ProgramTable":
        """Concatenate tasks; raises DataError when no task has a program."""
        parts = [part for part in tasks if len(part.latency_s)]
        if not parts:
            raise DataError(
                "no task has a program that could be featurised; see the failure counts"
            )
        found, sizes = [part.features for part in parts], [len(part.latency_s) for part in parts]
        counts = np.concatenate([features.num_statements for features in found])
        tokens = [features.tokens for features in found if features.tokens is not None]
        # Only where every task has tokens: a model reads them of all programs or of none.
        joined = PrimitiveTokens.join(tokens) if len(tokens) == len(parts) else None
        draft = [features.extra for features in found if features.extra is not None]
        return ProgramTable(
            keys=tuple(part.key for part in parts),
            rows=torch.from_numpy(np.concatenate([features.statement for features in found])),
            row_start=torch.from_numpy(np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])),
            dataflow=torch.from_numpy(np.concatenate([features.dataflow for features in found])),
            flags=torch.from_numpy(np.stack([features.workload for features in found])),
            task=torch.from_numpy(np.repeat(np.arange(len(parts)), sizes)),
            latency_s=torch.from_numpy(np.concatenate([part.latency_s for part in parts])),
            line=torch.from_numpy(np.concatenate([part.line for part in parts])),
            digest=np.concatenate([part.digest for part in parts]),
            timed_s=np.concatenate([part.timed_s for part in parts]),
            tokens=None if joined is None else ProgramTokens.of(joined),
            draft=torch.from_numpy(np.concatenate(draft)) if len(draft) == len(parts) else None,
            load=load,
        )

    @staticmethod
    def concatenate(tables: Sequence["ProgramTable"]) -> "ProgramTable":
        """The programs of tables of one task each."""
        tokens = [table.tokens.arrays() for table in tables if table.tokens is not None]
        joined = PrimitiveTokens.join(tokens) if len(tokens) == len(tables) else None
        draft = [table.draft for table in tables if table.draft is not None]
        counts = torch.tensor([table.num_programs for table in tables])
        return ProgramTable(
            keys=tuple(table.keys[0] for table in tables),
            rows=torch.cat([table.rows for table in tables]),
            row_start=_boundaries(torch.cat([table.row_start.diff() for table in tables])),
            dataflow=torch.cat([table.dataflow for table in tables]),
            flags=torch.cat([table.flags for table in tables]),
            task=torch.repeat_interleave(torch.arange(len(tables)), counts),
            latency_s=torch.cat([table.latency_s for table in tables]),
            line=torch.cat([table.line for table in tables]),
            digest=np.concatenate([table.digest for table in tables]),
            timed_s=np.concatenate([table.timed_s for table in tables]),
            tokens=None if joined is None else ProgramTokens.of(joined),
            draft=torch.cat(draft) if len(draft) == len(tables) else None,
        )

    @property
    def num_dataflow_rows(self) -> int:
        """Number of dataflow rows of a program: 8, 10 or 14."""
        return self.dataflow.shape[1]

    @property
    def has_dataflow(self) -> bool:
        """Whether some program has a dataflow pattern."""
        return bool(self.dataflow.any())

    @property
    def num_programs(self) -> int:
        """Programs of all tasks."""
        return len(self.task)

    def programs_of(self, tasks: Sequence[int]) -> Int[Tensor, " program"]:
        """Indices of all programs of the given tasks, in table order."""
        starts, ends = self.task_start[:-1], self.task_start[1:]
        ranges = [torch.arange(int(starts[t]), int(ends[t])) for t in sorted(tasks)]
        return torch.cat(ranges) if ranges else torch.zeros(0, dtype=torch.long)

    def key_of(self, programs: Int[Tensor, " program"]) -> TaskKey:
        """The task of programs that all belong to a single task."""
        return self.keys[int(self.task[programs[0]])]

    def by_task(self, index: Int[Tensor, " program"]) -> list[Int[Tensor, " _"]]:
        """Split program indices into one ascending tensor for each task that occurs."""
        index = index.sort().values
        _, counts = torch.unique_consecutive(self.task[index], return_counts=True)
        return list(index.split(counts.tolist()))

    def in_memory(self) -> "ProgramTable":
        """The table with all its features in memory."""
        if self.load is None:
            return self
        return self.concatenate(list(ahead(self.load, range(len(self.keys)))))

    def loaded(self, parts: Iterable[Int[Tensor, " _"]]) -> Iterator["ProgramTable"]:
        """Load features from disk: a table for each part, ascending programs of one task."""
        assert self.load is not None
        load = self.load

        def one(part: Tensor) -> ProgramTable:
            number = int(self.task[part[0]])
            return load(number).take(part - self.task_start[number])

        return ahead(one, parts)

    def each_task(
        self, index: Int[Tensor, " program"]
    ) -> "Iterator[tuple[Tensor, ProgramTable, Tensor]]":
        """Task by task: programs, a table with their features, and their numbers there."""
        parts = self.by_task(index)
        if self.load is None:
            return ((part, self, part) for part in parts)
        both = zip(parts, self.loaded(parts), strict=True)
        return ((part, found, torch.arange(len(part))) for part, found in both)

    def loader(self, sampler: EpochSampler, share: Share) -> Loader:
        """Batches of the programs that `sampler` yields, with this process's share."""
        if self.load is None:
            return Loader(lambda indices: (self.batch(i, share) for i in indices), sampler)
        return Loader(lambda indices: streamed_batches(self, indices, share), sampler)

    def sample(self, index: Int[Tensor, " program"]) -> Int[Tensor, " kept"]:
        """A fixed draw of at most `SCALER_PROGRAMS` programs of `SCALER_TASKS` tasks."""
        # A fixed seed: a resumed fit must find the same normalisation.
        generator, tasks = torch.Generator().manual_seed(0), self.by_task(index)
        chosen = torch.randperm(len(tasks), generator=generator)[:SCALER_TASKS].sort().values
        # As many of every task: a few long logs would otherwise set the statistics alone.
        tasks = [tasks[number] for number in chosen.tolist()]
        each = max(1, SCALER_PROGRAMS // max(1, len(tasks)))
        drawn = [torch.randperm(len(programs), generator=generator)[:each] for programs in tasks]
        kept = [part[draw.sort().values] for part, draw in zip(tasks, drawn, strict=True)]
        return torch.cat(kept) if kept else index[:0]

    def row_index(
        self, index: Int[Tensor, " program"]
    ) -> tuple[Int[Tensor, " row"], Int[Tensor, " row"]]:
        """Rows of the given programs, and each row's position in `index`."""
        start = self.row_start[index]
        counts = self.row_start[index + 1] - start
        position = torch.repeat_interleave(torch.arange(len(index)), counts)
        first = counts.cumsum(0) - counts
        # Ragged gather without a loop: a running count, shifted to the start of each program's
        # rows.
        return (start - first)[position] + torch.arange(len(position)), position

    def programs(self, index: Int[Tensor, " program"]) -> ProgramBatch:
        """Gather raw (not normalised) features of programs, in the given order."""
        rows, position = self.row_index(index)
        statement = torch.empty((len(rows), NUM_STATEMENT_COLUMNS))
        statement[:, :NUM_STATEMENT_FEATURES] = self.rows[rows]
        # Flags are stored once a task, and copied to every row only here.
        statement[:, NUM_STATEMENT_FEATURES:] = self.flags[self.task[index]][position]
        return ProgramBatch(
            statement=statement,
            program=position,
            dataflow=self.dataflow[index],
            platform=self.platform[self.task[index]],
            platforms=self.platforms,
            tokens=None if self.tokens is None else self.tokens.take(index),
            draft=None if self.draft is None else self.draft[index],
        )

    def subset(self, index: Int[Tensor, " program"]) -> "ProgramTable":
        """The given programs, in store order; tasks keep their numbers, empty tasks stay.

        Labels are computed anew: the best latency of the subset / latency.
        """
        return self.take(index.sort().values)

    def take(self, index: Int[Tensor, " program"]) -> "ProgramTable":
        """The given programs in the given order, which must keep tasks together."""
        rows, _ = self.row_index(index)
        counts = self.row_start[index + 1] - self.row_start[index]
        return replace(
            self,
            rows=self.rows[rows],
            row_start=_boundaries(counts),
            dataflow=self.dataflow[index],
            task=self.task[index],
            latency_s=self.latency_s[index],
            line=self.line[index],
            digest=self.digest[index.numpy()],
            timed_s=self.timed_s[index.numpy()],
            tokens=None if self.tokens is None else self.tokens.take(index),
            draft=None if self.draft is None else self.draft[index],
        )

    def batch(self, index: Int[Tensor, " program"], share: Share = WHOLE) -> LabelledBatch:
        """Gather programs with labels and tasks; features only of the share."""
        return LabelledBatch(
            programs=self.programs(share(index)),
            label=self.label[index],
            task=self.task[index],
            index=index,
            first=share.bounds(len(index))[0],
        )

    def relative(self, centers: Mapping[TaskKey, Center] | None = None) -> "ProgramTable":
        """The same programs with features relative to their task (:class:`.scaler.Center`).

        `centers` has the means to subtract; from other tasks the mean of their own programs here is
        subtracted.
        """
        # Each task is centred when it is loaded; nothing is read here.
        if (load := self.load) is not None:
            return replace(self, load=lambda number: load(number).relative(centers))
        counts = self.row_start.diff()
        place = rank_in_task(torch.arange(len(counts)).repeat_interleave(counts))
        width = int(place.max()) + 1 if len(place) else 1
        # One index for (task, place), so that one scatter gives the means of all tasks.
        group = self.task.repeat_interleave(counts) * width + place
        mean = group_means(self.rows, group, len(self.keys) * width)
        flat = self.dataflow.reshape(self.num_programs, -1)
        flow = group_means(flat, self.task, len(self.keys))
        tokens, draft, num = self.tokens, self.draft, len(self.keys)
        decided: Any = None if tokens is None else tokens.place_means(self.task, num)
        drafted: Any = None if draft is None else group_means(draft, self.task, num)
        for number, key in enumerate(self.keys):
            if centers and key in centers:
                # A centre may have fewer or more places than this table: the longest program
                # decides each.
                known = centers[key].statement[:width]
                mean[number * width : number * width + len(known)] = known
                flow[number] = centers[key].dataflow.reshape(-1)
                for means, own in (
                    (decided, centers[key].tokens),
                    (drafted, centers[key].draft),
                ):
                    if means is not None and own is not None:
                        means[number] = own
        dataflow = (flat - flow[self.task]).view_as(self.dataflow)
        tokens = None if tokens is None else tokens.minus(decided, self.task)
        draft = None if draft is None else draft - drafted[self.task]
        rows = self.rows - mean[group]
        return replace(self, rows=rows, dataflow=dataflow, tokens=tokens, draft=draft)

    def fit_scaler(self, index: Int[Tensor, " program"], kind: Scale = "max") -> ColumnScaler:
        """Column statistics over the given (training) programs.

        ``max``: division by the maximum (1 where not positive); ``standard``: standard scores.
        Where features are on disk, a sample is used (:meth:`sample`).
        """
        if self.load is not None:
            sample = self.sample(index)
            held = self.concatenate([table for _, table, _ in self.each_task(sample)])
            return held.fit_scaler(torch.arange(held.num_programs), kind)
        rows, _ = self.row_index(index)
        # Of tasks that occur in `index` only: others may be test tasks.
        flags = self.flags[self.task[index].unique()]
        flow = self.dataflow.reshape(self.num_programs, -1)
        if kind == "max":
            statement = torch.cat([_column_max(self.rows, rows), flags.amax(dim=0)])
            dataflow = _column_max(flow, index).view(-1, NUM_DATAFLOW_COLUMNS).amax(dim=0)
            return ColumnScaler.by_maximum(positive_or_one(statement), positive_or_one(dataflow))
        mean, square = _column_moments(self.rows, rows)
        mean = torch.cat([mean, flags.mean(dim=0)])
        square = torch.cat([square, flags.square().mean(dim=0)])
        slots = torch.arange(self.num_dataflow_rows)
        every = (index[:, None] * self.num_dataflow_rows + slots).view(-1)
        flow_mean, flow_square = _column_moments(
            self.dataflow.reshape(-1, NUM_DATAFLOW_COLUMNS), every
        )
        return ColumnScaler.standard(
            (mean, _deviation(mean, square)), (flow_mean, _deviation(flow_mean, flow_square))
        )


def _boundaries(counts: Int[Tensor, " program"]) -> Int[Tensor, " boundary"]:
    return torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)])


def _column_moments(
    values: Tensor, index: Tensor, block: int = 65536
) -> tuple[Float[Tensor, " column"], Float[Tensor, " column"]]:
    """Mean and mean square of the chosen rows, block by block."""
    # Sums over millions of rows would lose their last digits in float32.
    total = torch.zeros((2, values.shape[1]), dtype=torch.float64)
    for part in index.split(block):
        chosen = values[part].double()
        total[0] += chosen.sum(dim=0)
        total[1] += chosen.square().sum(dim=0)
    mean, square = (total / max(len(index), 1)).float()
    return mean, square


def _deviation(
    mean: Float[Tensor, " column"], square: Float[Tensor, " column"]
) -> Float[Tensor, " column"]:
    """Standard deviation; 1 for columns that (almost) never vary."""
    deviation = (square - mean.square()).clamp(min=0).sqrt()
    return torch.where(deviation > 1e-4, deviation, torch.ones_like(deviation))


def _column_max(values: Tensor, index: Tensor, block: int = 65536) -> Float[Tensor, " column"]:
    blocks = [values[part].amax(dim=0) for part in index.split(block)]
    return torch.stack(blocks).amax(dim=0)
