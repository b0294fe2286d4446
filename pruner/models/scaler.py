"""Normalisation of inputs: every column divided by its maximum over the training programs."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pruner.models.batch import NUM_DATAFLOW_COLUMNS, NUM_STATEMENT_COLUMNS, ProgramBatch


def positive_or_one(maximum: Float[Tensor, " column"]) -> Float[Tensor, " column"]:
    """Replace maxima that are not positive by 1, so that constant columns stay what they are."""
    return torch.where(maximum > 0, maximum, torch.ones_like(maximum))


class ColumnMaxScaler(nn.Module):
    """Divide by column maxima of the training set: one vector of 174, one of 23.

    The vectors are buffers: they travel with the weights, to devices and into checkpoints.
    """

    statement_max: Tensor
    dataflow_max: Tensor

    def __init__(
        self,
        statement_max: Float[Tensor, " statement"] | None = None,
        dataflow_max: Float[Tensor, " dataflow"] | None = None,
    ) -> None:
        super().__init__()
        ones = torch.ones
        self.register_buffer(
            "statement_max",
            ones(NUM_STATEMENT_COLUMNS) if statement_max is None else statement_max.clone(),
        )
        self.register_buffer(
            "dataflow_max",
            ones(NUM_DATAFLOW_COLUMNS) if dataflow_max is None else dataflow_max.clone(),
        )

    def forward(self, batch: ProgramBatch) -> ProgramBatch:
        """Return the batch with normalised columns."""
        return ProgramBatch(
            statement=batch.statement / self.statement_max,
            program=batch.program,
            dataflow=batch.dataflow / self.dataflow_max,
        )
