"""What a cost model sees: some programs, their statement rows one after another.

Axes: `program` N programs, `row` all their statements (ragged: program 0's rows, then program 1's,
...), `column` 174 statement columns (164 features + 10 workload flags), `slot` 8 or 10 dataflow
rows, `flow` 23 dataflow columns. Models that read schedules or platforms find them in the optional
fields.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pruner.models.tokens import ProgramTokens

NUM_STATEMENT_FEATURES = 164
NUM_WORKLOAD_FLAGS = 10
NUM_STATEMENT_COLUMNS = NUM_STATEMENT_FEATURES + NUM_WORKLOAD_FLAGS
NUM_DATAFLOW_COLUMNS = 23


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramBatch:
    """Programs without labels; rows of one program are neighbours and in program order.

    `platform` numbers the names in `platforms`; the name of programs of no known platform is "".
    `tokens` are None where the programs did not come from schedule primitives.
    """

    statement: Float[Tensor, "row column"]
    program: Int[Tensor, " row"]  # which program a row belongs to, ascending
    dataflow: Float[Tensor, "program slot flow"]
    platform: Int[Tensor, " program"] | None = None
    platforms: tuple[str, ...] = ()
    tokens: ProgramTokens | None = None

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
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledBatch:
    """Programs with their labels; `task` numbers the tasks, `index` the programs of a store."""

    programs: ProgramBatch
    label: Float[Tensor, " program"]  # best latency of the task / latency, in (0, 1]
    task: Int[Tensor, " program"]
    index: Int[Tensor, " program"]

    def to(self, device: Any, **kwargs: Any) -> "LabelledBatch":
        """Return the same batch on another device (the name Lightning looks for)."""
        return LabelledBatch(
            programs=self.programs.to(device, **kwargs),
            label=self.label.to(device, **kwargs),
            task=self.task.to(device, **kwargs),
            index=self.index.to(device, **kwargs),
        )


def row_mask(num_statements: Int[Tensor, " program"], width: int) -> Bool[Tensor, "program slot"]:
    """Tell real rows of a padded block from padding: ``slot < num_statements``."""
    slots = torch.arange(width, device=num_statements.device)
    return slots < num_statements[:, None]


def from_padded(
    statement: Float[Tensor, "program slot features"],
    num_statements: Int[Tensor, " program"],
    workload_flags: Float[Tensor, " flags"],
    dataflow: Float[Tensor, "program rows columns"],
) -> ProgramBatch:
    """Pack zero-padded features of one task into ragged rows, flags appended to every row.

    Padding is dropped before the first layer: its bias would turn a zero row into a non-zero one.
    """
    mask = row_mask(num_statements, statement.shape[1])
    rows = statement[mask]
    flags = workload_flags.to(rows.dtype).expand(len(rows), -1)
    program = torch.arange(len(statement), device=rows.device)
    return ProgramBatch(
        statement=torch.cat([rows, flags], dim=1),
        program=torch.repeat_interleave(program, num_statements.long()),
        dataflow=dataflow,
    )
