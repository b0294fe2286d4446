"""PaCM, the pattern-aware cost model of Pruner (ASPLOS'25, section on PaCM; sizes of the release).

Statement branch: columns -> 256 -> 256 for every statement, summed over statements. Dataflow
branch: columns -> 64 -> 128 for every row of the data movement pattern, self-attention with
residual, summed over rows. Both are joined, normalised over programs and passed through two
residual layers.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from pruner.errors import PrunerError
from pruner.models.model import Network
from pruner.models.networks.layers import (
    NormStatistics,
    PooledSelfAttention,
    ProgramNorm,
    ResidualLayer,
    segment_sum,
    statement_encoder,
)
from pruner.models.programs.batch import NUM_DATAFLOW_COLUMNS, NUM_STATEMENT_COLUMNS, ProgramBatch


class PaCM(Network):
    """Rank programs from statement features and the dataflow pattern; higher is better.

    `num_dataflow_rows` is 10 in the paper and 8 in the official code (no epilogue rows); the
    weights do not depend on it (417,409 parameters with the default sizes). `use_statement` and
    `use_dataflow` are the two ablations of the paper. A program without the pattern has a block of
    zero rows and still passes the branch, as in the official code. `norm_statistics` is explained
    at `ProgramNorm`.
    """

    def __init__(
        self,
        *,
        num_dataflow_rows: int = 10,
        width: int = 256,
        dataflow_hidden: int = 64,
        dataflow_width: int = 128,
        num_heads: int = 4,
        use_statement: bool = True,
        use_dataflow: bool = True,
        norm_statistics: NormStatistics = "running",
    ) -> None:
        super().__init__()
        if not (use_statement or use_dataflow):
            raise ValueError("PaCM: use_statement and use_dataflow are both off; turn one on")
        self.num_dataflow_rows = num_dataflow_rows if use_dataflow else None
        joined = width * use_statement + dataflow_width * use_dataflow
        self.statement_encoder = (
            statement_encoder(NUM_STATEMENT_COLUMNS, width) if use_statement else None
        )
        self.dataflow_encoder = (
            nn.Sequential(
                nn.Linear(NUM_DATAFLOW_COLUMNS, dataflow_hidden),
                nn.ReLU(),
                nn.Linear(dataflow_hidden, dataflow_width),
                nn.ReLU(),
            )
            if use_dataflow
            else None
        )
        self.attention = PooledSelfAttention(dataflow_width, num_heads) if use_dataflow else None
        self.fuse = nn.Linear(joined, width)
        self.norm = ProgramNorm(width, statistics=norm_statistics)
        self.residual = nn.Sequential(ResidualLayer(width), ResidualLayer(width))
        self.head = nn.Linear(width, 1)

    def forward(self, batch: ProgramBatch) -> Float[Tensor, " program"]:
        """Score normalised features.

        Raises PrunerError when the dataflow block has another number of rows than the model.
        """
        joined = torch.cat(self._branches(batch), dim=1)
        hidden = self.norm(functional.relu(self.fuse(joined)))
        return self.head(self.residual(hidden)).squeeze(1)

    def _branches(self, batch: ProgramBatch) -> list[Float[Tensor, "program width"]]:
        branches = []
        if self.statement_encoder is not None:
            rows = self.statement_encoder(batch.statement)
            branches.append(segment_sum(rows, batch.program, batch.num_programs))
        if self.dataflow_encoder is not None and self.attention is not None:
            num_rows = batch.dataflow.shape[1]
            if num_rows != self.num_dataflow_rows:
                raise PrunerError(
                    f"PaCM: the features have {num_rows} dataflow rows, the model was made for "
                    f"{self.num_dataflow_rows}; set features.dataflow to match"
                )
            branches.append(self.attention(self.dataflow_encoder(batch.dataflow)))
        return branches
