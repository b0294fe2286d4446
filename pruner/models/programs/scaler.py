"""Centre features by task, and normalise columns by training statistics.

Normalisation works column by column, with statistics of the training programs. Before it, features
can be made relative to the other candidates of the same task.

A ranker compares schedules of one operator, but absolute features mostly distinguish operators (how
much work, how large the tensors): a model learns properties of the training operators and fails on
a new operator. Relative features are the differences from the mean over the task's candidates,
place by place: statement row r of every program minus the mean row r, and the same for decisions.
Scores are then relative to the set of candidates that is scored together; the ten workload flags
and the structure of schedules stay.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from pruner.models.programs.batch import (
    NUM_DATAFLOW_COLUMNS,
    NUM_STATEMENT_COLUMNS,
    NUM_STATEMENT_FEATURES,
    ProgramBatch,
)

STANDARD_LIMIT = 5.0
"""Standard scores beyond this many deviations are cut: a new operator can be far outside."""


def positive_or_one(value: Float[Tensor, " column"]) -> Float[Tensor, " column"]:
    """Replace values that are not positive by 1; constant columns stay."""
    # As the official code: a column that never occurs must not divide by zero.
    return torch.where(value > 0, value, torch.ones_like(value))


class ColumnScaler(nn.Module):
    """``clamp((x - center) / scale, -limit, limit)`` for statement and dataflow columns.

    Two uses: the official division by column maxima (center 0, no limit) and standard scores. The
    vectors are buffers: they travel with the weights, to devices and into checkpoints.
    """

    statement_center: Tensor
    statement_scale: Tensor
    dataflow_center: Tensor
    dataflow_scale: Tensor
    limit: Tensor

    def __init__(self) -> None:
        super().__init__()
        sizes = {"statement": NUM_STATEMENT_COLUMNS, "dataflow": NUM_DATAFLOW_COLUMNS}
        for kind, size in sizes.items():
            self.register_buffer(f"{kind}_center", torch.zeros(size))
            self.register_buffer(f"{kind}_scale", torch.ones(size))
        self.register_buffer("limit", torch.tensor(torch.inf))

    @staticmethod
    def by_maximum(
        statement: Float[Tensor, " statement"], dataflow: Float[Tensor, " dataflow"]
    ) -> "ColumnScaler":
        """Division by column maxima, as in the official code."""
        scaler = ColumnScaler()
        scaler.statement_scale.copy_(statement)
        scaler.dataflow_scale.copy_(dataflow)
        return scaler

    @staticmethod
    def standard(
        statement: tuple[Float[Tensor, " statement"], Float[Tensor, " statement"]],
        dataflow: tuple[Float[Tensor, " dataflow"], Float[Tensor, " dataflow"]],
    ) -> "ColumnScaler":
        """Standard scores from (mean, deviation) of every column."""
        scaler = ColumnScaler.by_maximum(statement[1], dataflow[1])
        scaler.statement_center.copy_(statement[0])
        scaler.dataflow_center.copy_(dataflow[0])
        scaler.limit.fill_(STANDARD_LIMIT)
        return scaler

    @property
    def is_standard(self) -> bool:
        """Whether it gives standard scores, not shares of maxima."""
        return bool(torch.isfinite(self.limit))

    @property
    def is_identity(self) -> bool:
        """Whether no statistics were fitted."""
        scales = torch.cat([self.statement_scale, self.dataflow_scale])
        return not self.is_standard and bool((scales == 1).all())

    def num_blind(self, other: "ColumnScaler") -> int:
        """Number of columns that vary for `other` but were constant, so no input, here."""
        pairs = (
            (self.statement_scale, other.statement_scale),
            (self.dataflow_scale, other.dataflow_scale),
        )
        # Constant columns have scale 1.
        return sum(int(((ours == 1) & (theirs != 1)).sum()) for ours, theirs in pairs)

    def forward(self, batch: ProgramBatch) -> ProgramBatch:
        """Return the batch with normalised columns."""
        statement = (batch.statement - self.statement_center) / self.statement_scale
        dataflow = (batch.dataflow - self.dataflow_center) / self.dataflow_scale
        return replace(
            batch,
            statement=statement.clamp(-self.limit, self.limit),
            dataflow=dataflow.clamp(-self.limit, self.limit),
        )


def group_means(
    values: Float[Tensor, "item column"], group: Int[Tensor, " item"], num_groups: int
) -> Float[Tensor, "group column"]:
    """Mean [group, column] of every group; zeros for an empty group."""
    total = torch.zeros((num_groups, values.shape[1]), dtype=values.dtype)
    total.index_add_(0, group, values)
    count = torch.bincount(group, minlength=num_groups).clamp(min=1)
    return total / count[:, None]


def rank_in_task(program: Int[Tensor, " row"]) -> Int[Tensor, " row"]:
    """Place of every row inside its program; rows of a program are neighbours.

    >>> rank_in_task(torch.tensor([0, 0, 0, 1, 1, 2])).tolist()
    [0, 1, 2, 0, 1, 0]
    """
    if not len(program):
        return program
    starts = torch.ones_like(program, dtype=torch.bool)
    starts[1:] = program[1:] != program[:-1]
    order = torch.arange(len(program), device=program.device)
    # The number of a row less the number of its program's first row.
    return order - order[starts][starts.cumsum(0) - 1]


@dataclass(frozen=True, slots=True)
class Center:
    """Mean candidate of a task: `statement` [place, column], `dataflow` [slot, flow].

    `tokens` [place]: mean decisions, where the programs have primitive tokens; `draft` [column]:
    the analyzer's columns, where the programs have them.
    """

    statement: Tensor
    dataflow: Tensor
    tokens: Tensor | None = None
    draft: Tensor | None = None

    @staticmethod
    def of(batch: ProgramBatch) -> "Center":
        """The mean of a batch of programs of one task."""
        place = rank_in_task(batch.program)
        # The longest program decides; means of its last places are those of few programs.
        num_places = int(place.max()) + 1 if len(place) else 0
        rows, tokens = batch.statement[:, :NUM_STATEMENT_FEATURES], batch.tokens
        return Center(
            group_means(rows, place, num_places),
            batch.dataflow.mean(dim=0),
            None if tokens is None else tokens.place_means(torch.zeros_like(tokens.skeleton), 1)[0],
            None if batch.draft is None else batch.draft.mean(dim=0),
        )

    def over(self, other: "Center") -> "Center":
        """This mean, with the other's values for places without any statement here."""
        missing = other.statement[len(self.statement) :]
        return replace(self, statement=torch.cat([self.statement, missing]))

    def relative(self, batch: ProgramBatch) -> ProgramBatch:
        """The batch with this mean subtracted."""
        statement = batch.statement.clone()
        statement[:, :NUM_STATEMENT_FEATURES] -= self.statement[rank_in_task(batch.program)]
        tokens = batch.tokens
        if tokens is not None and self.tokens is not None:
            tokens = tokens.minus(self.tokens[None], torch.zeros_like(tokens.skeleton))
        draft = batch.draft
        if draft is not None and self.draft is not None:
            draft = draft - self.draft
        dataflow = batch.dataflow - self.dataflow
        return replace(batch, statement=statement, dataflow=dataflow, tokens=tokens, draft=draft)
