"""Normalisation of inputs: column by column, with statistics of the training programs."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pruner.models.programs.batch import NUM_DATAFLOW_COLUMNS, NUM_STATEMENT_COLUMNS, ProgramBatch

STANDARD_LIMIT = 5.0
"""Standard scores beyond this many deviations are cut: a new operator can be far outside."""


def positive_or_one(value: Float[Tensor, " column"]) -> Float[Tensor, " column"]:
    """Replace values that are not positive by 1, so that constant columns stay what they are."""
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
        for kind, size in (
            ("statement", NUM_STATEMENT_COLUMNS),
            ("dataflow", NUM_DATAFLOW_COLUMNS),
        ):
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
        scaler = ColumnScaler()
        scaler.statement_center.copy_(statement[0])
        scaler.statement_scale.copy_(statement[1])
        scaler.dataflow_center.copy_(dataflow[0])
        scaler.dataflow_scale.copy_(dataflow[1])
        scaler.limit.fill_(STANDARD_LIMIT)
        return scaler

    @property
    def is_standard(self) -> bool:
        """Standard scores, not maxima."""
        return bool(torch.isfinite(self.limit))

    @property
    def is_identity(self) -> bool:
        """Nothing fitted yet."""
        scales = torch.cat([self.statement_scale, self.dataflow_scale])
        return not self.is_standard and bool((scales == 1).all())

    def num_blind(self, other: "ColumnScaler") -> int:
        """How many columns vary for `other` that never did for the programs of this one.

        They were no input of a network that learned with this normalisation.
        """
        pairs = (
            (self.statement_scale, other.statement_scale),
            (self.dataflow_scale, other.dataflow_scale),
        )
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
