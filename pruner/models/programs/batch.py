"""What a cost model sees: some programs, their statement rows one after another.

Axes: `program` N programs, `row` all their statements (ragged: program 0's rows, then program 1's,
...), `column` statement features and then workload flags, `slot` dataflow rows, `flow` dataflow
columns, all as in :mod:`pruner.features.columns`. Models that read schedules or platforms find
them in the optional fields.
"""

from dataclasses import dataclass, replace
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from pruner.features.columns import DATAFLOW_COLUMNS, STATEMENT_COLUMNS, WORKLOAD_COLUMNS
from pruner.models.programs.tokens import ProgramTokens

NUM_STATEMENT_FEATURES = len(STATEMENT_COLUMNS)
NUM_WORKLOAD_FLAGS = len(WORKLOAD_COLUMNS)
NUM_STATEMENT_COLUMNS = NUM_STATEMENT_FEATURES + NUM_WORKLOAD_FLAGS
NUM_DATAFLOW_COLUMNS = len(DATAFLOW_COLUMNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramBatch:
    """Programs without labels; rows of one program are neighbours and in program order.

    `platform` numbers the names in `platforms`; the name of programs of no known platform is "".
    `tokens` are None where the programs did not come from schedule primitives, `draft` where nobody
    asked for what the analyzer makes of them (:mod:`pruner.models.analyzer.columns`).
    """

    statement: Float[Tensor, "row column"]
    program: Int[Tensor, " row"]  # which program a row belongs to, ascending
    dataflow: Float[Tensor, "program slot flow"]
    platform: Int[Tensor, " program"] | None = None
    platforms: tuple[str, ...] = ()
    tokens: ProgramTokens | None = None
    draft: Float[Tensor, "program draft"] | None = None

    @property
    def num_programs(self) -> int:
        """N, counting programs without any statement row."""
        return self.dataflow.shape[0]

    def to(self, device: Any, **kwargs: Any) -> "ProgramBatch":
        """Return the same programs on another device."""
        return replace(
            self,
            statement=self.statement.to(device, **kwargs),
            program=self.program.to(device, **kwargs),
            dataflow=self.dataflow.to(device, **kwargs),
            platform=None if self.platform is None else self.platform.to(device, **kwargs),
            tokens=None if self.tokens is None else self.tokens.to(device, **kwargs),
            draft=None if self.draft is None else self.draft.to(device, **kwargs),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledBatch:
    """Programs with their labels; `task` numbers the tasks, `index` the programs of a store.

    Of a batch that several processes share, `programs` are the part of this one, which begins with
    number `first` of the batch; everything else is of the whole batch.
    """

    programs: ProgramBatch
    label: Float[Tensor, " program"]  # best latency of the task / latency, in (0, 1]
    task: Int[Tensor, " program"]
    index: Int[Tensor, " program"]
    first: int = 0

    def to(self, device: Any, **kwargs: Any) -> "LabelledBatch":
        """Return the same batch on another device (the name Lightning looks for)."""
        return LabelledBatch(
            programs=self.programs.to(device, **kwargs),
            label=self.label.to(device, **kwargs),
            task=self.task.to(device, **kwargs),
            index=self.index.to(device, **kwargs),
            first=self.first,
        )
