"""All programs of a training or evaluation run in memory, without padding.

Statement rows of all programs lie one after another in one float32 array, so a batch is one
contiguous gather. The workload flags are the same for all programs of a task and are stored
once for each task.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

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
from pruner.models.programs.loading import WHOLE, EpochIndices, Loader, Share, gathering
from pruner.models.programs.relative import Center, group_means
from pruner.models.programs.scaler import ColumnScaler, positive_or_one
from pruner.models.programs.table import ProgramTable, Scale, TaskView
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
class ProgramStore(ProgramTable):
    """Programs with their features, which are all in memory.

    `rows` [row, column], `row_start` [N + 1], `dataflow` [N, slots, flow], `flags` [task, flag];
    `tokens` and `draft` [N, column] (what the analyzer makes of them,
    :mod:`pruner.models.analyzer.columns`) of all programs where every task has them.
    """

    rows: Float[Tensor, "row column"]
    row_start: Int[Tensor, " boundary"]
    dataflow: Float[Tensor, "program slot flow"]
    flags: Float[Tensor, "task flag"]
    tokens: ProgramTokens | None = None
    draft: Float[Tensor, "program draft"] | None = None

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

    @staticmethod
    def concatenate(stores: Sequence["ProgramStore"]) -> "ProgramStore":
        """The programs of stores of one task each, without primitives."""
        counts = [store.num_programs for store in stores]
        return ProgramStore(
            keys=tuple(store.keys[0] for store in stores),
            rows=torch.cat([store.rows for store in stores]),
            row_start=_boundaries(torch.cat([store.row_start.diff() for store in stores])),
            dataflow=torch.cat([store.dataflow for store in stores]),
            flags=torch.cat([store.flags for store in stores]),
            task=torch.repeat_interleave(torch.arange(len(stores)), torch.tensor(counts)),
            latency_s=torch.cat([store.latency_s for store in stores]),
            line=torch.cat([store.line for store in stores]),
            digest=np.concatenate([store.digest for store in stores]),
            timed_s=np.concatenate([store.timed_s for store in stores]),
        )

    @property
    def num_dataflow_rows(self) -> int:
        """8 or 10."""
        return self.dataflow.shape[1]

    @property
    def has_dataflow(self) -> bool:
        """Whether some program has a dataflow pattern."""
        return bool(self.dataflow.any())

    def in_memory(self) -> "ProgramStore":
        """Itself."""
        return self

    def each_task(self, index: Int[Tensor, " program"]) -> Iterator[TaskView]:
        """The given programs, task by task, where they are."""
        return (TaskView(programs, self, programs) for programs in self.by_task(index))

    def loader(self, sampler: EpochIndices, share: Share) -> Loader:
        """Batches gathered here, each when it is asked for."""
        return gathering(lambda index: self.batch(index, share), sampler)

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
            row_start=_boundaries(counts),
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

    def batch(self, index: Int[Tensor, " program"], share: Share = WHOLE) -> LabelledBatch:
        """Gather programs with their labels and tasks; the features are those of the share."""
        return LabelledBatch(
            programs=self.programs(share(index)),
            label=self.label[index],
            task=self.task[index],
            index=index,
            first=share.bounds(len(index))[0],
        )

    def relative(self, centers: Mapping[TaskKey, Center] | None = None) -> "ProgramStore":
        """The same programs, features relative to their task.

        See :mod:`pruner.models.programs.relative`.

        `centers` has the means to take away; other tasks lose the mean of their own programs here.
        """
        place = self._places()
        width = int(place.max()) + 1 if len(place) else 1
        group = self._task_of_rows() * width + place
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

    def center(self) -> Center:
        """The mean of the programs of a store of one task: what :meth:`relative` takes away."""
        place, flat = self._places(), self.dataflow.reshape(self.num_programs, -1)
        return Center(
            group_means(self.rows, place, int(place.max()) + 1 if len(place) else 1),
            group_means(flat, self.task, 1).view_as(self.dataflow[0]),
            None if self.tokens is None else self.tokens.place_means(self.task, 1)[0],
            None if self.draft is None else group_means(self.draft, self.task, 1)[0],
        )

    def less(self, center: Center) -> "ProgramStore":
        """The programs of a store of one task, relative to a mean that has every place of theirs.

        Other programs may have taken part in it.
        """
        tokens, draft = self.tokens, self.draft
        if tokens is not None and center.tokens is not None:
            tokens = tokens.minus(center.tokens[None], self.task)
        if draft is not None and center.draft is not None:
            draft = draft - center.draft
        rows, dataflow = self.rows - center.statement[self._places()], self.dataflow
        dataflow = dataflow - center.dataflow
        return replace(self, rows=rows, dataflow=dataflow, tokens=tokens, draft=draft)

    def _places(self) -> Int[Tensor, " row"]:
        """Place of every row in its program."""
        counts = self.row_start.diff()
        return torch.arange(len(self.rows)) - self.row_start[:-1].repeat_interleave(counts)

    def _task_of_rows(self) -> Int[Tensor, " row"]:
        return self.task.repeat_interleave(self.row_start.diff())

    def fit_scaler(self, index: Int[Tensor, " program"], kind: Scale = "max") -> ColumnScaler:
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


def _boundaries(counts: Int[Tensor, " program"]) -> Int[Tensor, " boundary"]:
    return torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)])


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
