"""All programs of a training or evaluation run in memory, without padding.

Statement rows of all programs lie one after another in one float32 array, so a batch is one
contiguous gather. The workload flags are the same for all programs of a task and are stored
once for each task.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

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
)
from pruner.models.programs.relative import Center, group_means
from pruner.models.programs.scaler import ColumnScaler, positive_or_one
from pruner.models.programs.tokens import ProgramTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPrograms:
    """The valid programs of one task with what is known of them.

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
        """Leave out programs that are not valid."""
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
class ProgramStore:
    """Programs of many tasks; programs of one task are neighbours, tasks in the given order.

    `rows` [row, column], `row_start` [N + 1], `dataflow` [N, slots, flow], `flags` [task, flag],
    `task` [N], `latency_s` [N] (float64), `line` [N], `digest` uint64 [N], `timed_s` [N, 2] (two
    timings minutes apart, or NaN); `tokens` and `draft` [N, column] (what the analyzer makes of
    them, :mod:`pruner.models.analyzer.columns`) of all programs where every task has them. A
    program that failed has an infinite latency: its label is 0.
    """

    keys: tuple[TaskKey, ...]
    rows: Float[Tensor, "row column"]
    row_start: Int[Tensor, " boundary"]
    dataflow: Float[Tensor, "program slot flow"]
    flags: Float[Tensor, "task flag"]
    task: Int[Tensor, " program"]
    latency_s: Float[Tensor, " program"]
    line: Int[Tensor, " program"]
    digest: np.ndarray
    timed_s: np.ndarray
    num_failed: int = 0
    tokens: ProgramTokens | None = None
    draft: Float[Tensor, "program draft"] | None = None
    label: Float[Tensor, " program"] = field(init=False)
    task_start: Int[Tensor, " boundary"] = field(init=False)
    platforms: tuple[str, ...] = field(init=False)
    platform: Int[Tensor, " task"] = field(init=False)

    def __post_init__(self) -> None:
        counts = torch.bincount(self.task, minlength=len(self.keys))
        starts = torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)])
        best = torch.full((len(self.keys),), torch.inf, dtype=self.latency_s.dtype)
        best = best.scatter_reduce(0, self.task, self.latency_s, "amin")
        label = (best[self.task] / self.latency_s).float()
        object.__setattr__(self, "label", label)
        object.__setattr__(self, "task_start", starts)
        platforms = tuple(sorted({key.platform for key in self.keys}))
        object.__setattr__(self, "platforms", platforms)
        numbers = torch.tensor([platforms.index(key.platform) for key in self.keys])
        object.__setattr__(self, "platform", numbers)

    @staticmethod
    def build(tasks: Iterable[TaskPrograms]) -> "ProgramStore":
        """Concatenate tasks; raises DataError when no task has a program."""
        parts = [part for part in tasks if len(part.latency_s)]
        if not parts:
            raise DataError(
                "no task has a program that could be featurised; see the failure counts"
            )
        found = [part.features for part in parts]
        counts = np.concatenate([features.num_statements for features in found])
        tokens = [features.tokens for features in found if features.tokens is not None]
        joined = PrimitiveTokens.join(tokens) if len(tokens) == len(parts) else None
        draft = [features.extra for features in found if features.extra is not None]
        return ProgramStore(
            keys=tuple(part.key for part in parts),
            rows=torch.from_numpy(np.concatenate([features.statement for features in found])),
            row_start=torch.from_numpy(np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])),
            dataflow=torch.from_numpy(np.concatenate([features.dataflow for features in found])),
            flags=torch.from_numpy(np.stack([features.workload for features in found])),
            task=torch.from_numpy(np.repeat(np.arange(len(parts)), [len(f) for f in found])),
            latency_s=torch.from_numpy(np.concatenate([part.latency_s for part in parts])),
            line=torch.from_numpy(np.concatenate([part.line for part in parts])),
            digest=np.concatenate([part.digest for part in parts]),
            timed_s=np.concatenate([part.timed_s for part in parts]),
            num_failed=sum(part.num_failed for part in parts),
            tokens=None if joined is None else ProgramTokens.of(joined),
            draft=torch.from_numpy(np.concatenate(draft)) if len(draft) == len(parts) else None,
        )

    @property
    def num_programs(self) -> int:
        """Programs of all tasks."""
        return len(self.task)

    @property
    def num_dataflow_rows(self) -> int:
        """8 or 10."""
        return self.dataflow.shape[1]

    def programs_of(self, tasks: Sequence[int]) -> Int[Tensor, " program"]:
        """Indices of all programs of the given tasks, in store order."""
        starts, ends = self.task_start[:-1], self.task_start[1:]
        ranges = [torch.arange(int(starts[t]), int(ends[t])) for t in sorted(tasks)]
        return torch.cat(ranges) if ranges else torch.zeros(0, dtype=torch.long)

    def key_of(self, programs: Int[Tensor, " program"]) -> TaskKey:
        """The task of programs that all belong to one."""
        return self.keys[int(self.task[programs[0]])]

    def by_task(self, index: Int[Tensor, " program"]) -> list[Int[Tensor, " _"]]:
        """Split program indices into one ascending tensor for each task that occurs."""
        index = index.sort().values
        _, counts = torch.unique_consecutive(self.task[index], return_counts=True)
        return list(index.split(counts.tolist()))

    def row_index(
        self, index: Int[Tensor, " program"]
    ) -> tuple[Int[Tensor, " row"], Int[Tensor, " row"]]:
        """Rows of the given programs, and for each row its program's position in `index`."""
        start = self.row_start[index]
        counts = self.row_start[index + 1] - start
        position = torch.repeat_interleave(torch.arange(len(index)), counts)
        first = counts.cumsum(0) - counts
        return (start - first)[position] + torch.arange(len(position)), position

    def programs(self, index: Int[Tensor, " program"]) -> ProgramBatch:
        """Gather raw (not normalised) features of the given programs, in the given order."""
        rows, position = self.row_index(index)
        statement = torch.empty((len(rows), NUM_STATEMENT_COLUMNS))
        statement[:, :NUM_STATEMENT_FEATURES] = self.rows[rows]
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

    def subset(self, index: Int[Tensor, " program"]) -> "ProgramStore":
        """The given programs, in store order; tasks keep their numbers, also those left empty.

        Labels are computed anew: the best latency of the subset / latency, the best so far of what
        an online learner has measured.
        """
        index = index.sort().values
        rows, _ = self.row_index(index)
        counts = self.row_start[index + 1] - self.row_start[index]
        return replace(
            self,
            rows=self.rows[rows],
            row_start=torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)]),
            dataflow=self.dataflow[index],
            task=self.task[index],
            latency_s=self.latency_s[index],
            line=self.line[index],
            digest=self.digest[index.numpy()],
            timed_s=self.timed_s[index.numpy()],
            num_failed=0,
            tokens=None if self.tokens is None else self.tokens.take(index),
            draft=None if self.draft is None else self.draft[index],
        )

    def batch(self, index: Int[Tensor, " program"]) -> LabelledBatch:
        """Gather programs with their labels and tasks."""
        return LabelledBatch(
            programs=self.programs(index),
            label=self.label[index],
            task=self.task[index],
            index=index,
        )

    def relative(self, centers: Mapping[TaskKey, Center] | None = None) -> "ProgramStore":
        """The same programs, features relative to their task.

        See :mod:`pruner.models.programs.relative`.

        `centers` has the means to take away; other tasks lose the mean of their own programs here.
        """
        program = torch.repeat_interleave(
            torch.arange(self.num_programs), self.row_start[1:] - self.row_start[:-1]
        )
        place = torch.arange(len(self.rows)) - self.row_start[program]
        width = int(place.max()) + 1 if len(place) else 1
        group = self.task[program] * width + place
        mean = group_means(self.rows, group, len(self.keys) * width)
        flat = self.dataflow.reshape(self.num_programs, -1)
        flow = group_means(flat, self.task, len(self.keys))
        tokens, decided = self.tokens, torch.zeros(0)
        if tokens is not None:
            decided = tokens.place_means(self.task, len(self.keys))
        drafted = None
        if self.draft is not None:
            drafted = group_means(self.draft, self.task, len(self.keys))
        for number, key in enumerate(self.keys):
            if centers and key in centers:
                known = centers[key].statement[:width]
                mean[number * width : number * width + len(known)] = known
                flow[number] = centers[key].dataflow.reshape(-1)
                if tokens is not None and (known_tokens := centers[key].tokens) is not None:
                    decided[number] = known_tokens
                if drafted is not None and (known_draft := centers[key].draft) is not None:
                    drafted[number] = known_draft
        dataflow = (flat - flow[self.task]).view_as(self.dataflow)
        tokens = None if tokens is None else tokens.minus(decided, self.task)
        draft = None
        if self.draft is not None and drafted is not None:
            draft = self.draft - drafted[self.task]
        rows = self.rows - mean[group]
        return replace(self, rows=rows, dataflow=dataflow, tokens=tokens, draft=draft)

    def fit_scaler(
        self, index: Int[Tensor, " program"], kind: Literal["standard", "max"] = "max"
    ) -> ColumnScaler:
        """Column statistics over the given (training) programs.

        ``max``: division by the maximum (1 where not positive); ``standard``: standard scores.
        """
        rows, _ = self.row_index(index)
        flags = self.flags[self.task[index].unique()]
        flow = self.dataflow.reshape(self.num_programs, -1)
        if kind == "max":
            statement = torch.cat([_column_max(self.rows, rows), flags.amax(dim=0)])
            dataflow = _column_max(flow, index).view(-1, NUM_DATAFLOW_COLUMNS).amax(dim=0)
            return ColumnScaler.by_maximum(positive_or_one(statement), positive_or_one(dataflow))
        mean, square = _column_moments(self.rows, rows)
        mean = torch.cat([mean, flags.mean(dim=0)])
        square = torch.cat([square, flags.square().mean(dim=0)])
        flow_mean, flow_square = _column_moments(
            self.dataflow.reshape(-1, NUM_DATAFLOW_COLUMNS),
            (index[:, None] * self.num_dataflow_rows + torch.arange(self.num_dataflow_rows)).view(
                -1
            ),
        )
        return ColumnScaler.standard(
            (mean, _deviation(mean, square)), (flow_mean, _deviation(flow_mean, flow_square))
        )


def _column_moments(
    values: Tensor, index: Tensor, block: int = 65536
) -> tuple[Float[Tensor, " column"], Float[Tensor, " column"]]:
    """Mean and mean square of the chosen rows without copying them all at once."""
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
    """Maximum over the chosen rows without copying them all at once."""
    blocks = [values[part].amax(dim=0) for part in index.split(block)]
    return torch.stack(blocks).amax(dim=0)
