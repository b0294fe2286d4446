"""TenSetMLP, TenSet's baseline (NeurIPS'21 Datasets): summed statements only."""

from jaxtyping import Float
from torch import Tensor, nn

from pruner.models.model import RankingNetwork
from pruner.models.networks.layers import residual_layers, segment_sum, statement_encoder
from pruner.models.programs.batch import NUM_STATEMENT_COLUMNS, ProgramBatch


class TenSetMLP(RankingNetwork):
    """Columns -> 256 -> 256 per statement, sum, two residual layers, score."""

    def __init__(self, *, width: int = 256, num_residual: int = 2) -> None:
        super().__init__()
        self.statement_encoder = statement_encoder(NUM_STATEMENT_COLUMNS, width)
        self.residual = residual_layers(width, num_residual)
        self.head = nn.Linear(width, 1)

    def forward(self, batch: ProgramBatch) -> Float[Tensor, " program"]:
        """Score normalised features; higher is better."""
        rows = self.statement_encoder(batch.statement)
        summed = segment_sum(rows, batch.program, batch.num_programs)
        return self.head(self.residual(summed)).squeeze(1)
