"""PaCM, the pattern-aware cost model of Pruner (ASPLOS'25).

Sizes of the release. Statement branch: columns -> 256 -> 256 for every statement, summed over
statements. Dataflow branch: columns -> 64 -> 128 for every row of the data movement pattern,
self-attention with residual, summed over rows. Both are joined, normalised over programs and passed
through two residual layers.

Ours, off by default: branches that read the analyzer or the device, a score that begins as the
analyzer's, branches that are dropped at random.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from pruner.errors import PrunerError
from pruner.models.analyzer.columns import NUM_DRAFT_COLUMNS, SCORE
from pruner.models.model import RankingNetwork
from pruner.models.networks.hardware_attention import HardwareEncoder
from pruner.models.networks.layers import (
    NormStatistics,
    PooledSelfAttention,
    ProgramNorm,
    ResidualLayer,
    dense_layers,
    segment_sum,
    statement_encoder,
)
from pruner.models.programs.batch import NUM_DATAFLOW_COLUMNS, NUM_STATEMENT_COLUMNS, ProgramBatch


class PaCM(RankingNetwork):
    """Rank programs from statement features and the dataflow pattern; higher is better.

    `num_dataflow_rows` is 10 in the paper and 8 in the official code (no epilogue rows), 14 with
    the loads of fragments on tensor cores; the weights do not depend on it (417,409 parameters with
    the default sizes). `use_statement` and `use_dataflow` are the two ablations of the paper. A
    program without the pattern has a block of zero rows and still passes the branch, as in the
    official code. `norm_statistics` is explained at `ProgramNorm`.

    Ours: `use_draft` reads the analyzer's symbols and terms, with `residual` the score begins as
    the analyzer's and the residual is learned; `use_device` reads the constants of the device, for
    training on several; `branch_dropout` is the probability that a program loses a branch in
    training. `draft_width` and `device_width` are the widths of these branches.
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
        use_draft: bool = False,
        draft_width: int = 64,
        residual: bool = False,
        use_device: bool = False,
        device_width: int = 32,
        branch_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if not (use_statement or use_dataflow):
            raise ValueError("PaCM: use_statement and use_dataflow are both off; turn one on")
        self.num_dataflow_rows = num_dataflow_rows if use_dataflow else None
        self.reads_draft = use_draft or residual
        joined = width * use_statement + dataflow_width * use_dataflow
        joined += draft_width * use_draft + device_width * use_device
        self.statement_encoder = (
            statement_encoder(NUM_STATEMENT_COLUMNS, width) if use_statement else None
        )
        of_dataflow = (NUM_DATAFLOW_COLUMNS, dataflow_hidden, dataflow_width)
        self.dataflow_encoder = dense_layers(*of_dataflow) if use_dataflow else None
        self.attention = PooledSelfAttention(dataflow_width, num_heads) if use_dataflow else None
        self.fuse = nn.Linear(joined, width)
        self.norm = ProgramNorm(width, statistics=norm_statistics)
        self.residual = nn.Sequential(ResidualLayer(width), ResidualLayer(width))
        self.head = nn.Linear(width, 1)
        # Last, so that the weights above are drawn as they always were.
        self.draft_encoder = DraftBranch(draft_width) if use_draft else None
        self.device_encoder = HardwareEncoder(device_width) if use_device else None
        self.drop = BranchDropout(branch_dropout) if branch_dropout else None
        self.draft_score = DraftScore(self.head) if residual else None

    def forward(self, batch: ProgramBatch) -> Float[Tensor, " program"]:
        """Scores [program].

        Raises PrunerError for another number of dataflow rows than the model's, or without the
        analyzer's columns that it needs.
        """
        branches = self._branches(batch)
        if self.drop is not None:
            branches = self.drop(branches)
        # not dropped: it is the same for all programs of a task
        if self.device_encoder is not None:
            branches.append(self.device_encoder(batch))
        # ReLU before the norm, as in the release.
        hidden = self.norm(functional.relu(self.fuse(torch.cat(branches, dim=1))))
        score = self.head(self.residual(hidden)).squeeze(1)
        return score if self.draft_score is None else score + self.draft_score(batch)

    def _branches(self, batch: ProgramBatch) -> list[Float[Tensor, "program width"]]:
        branches = []
        if self.statement_encoder is not None:
            rows = self.statement_encoder(batch.statement)
            # A sum as in TenSet: times of statements add up.
            branches.append(segment_sum(rows, batch.program, batch.num_programs))
        if self.dataflow_encoder is not None and self.attention is not None:
            num_rows = batch.dataflow.shape[1]
            if num_rows != self.num_dataflow_rows:
                raise PrunerError(
                    f"PaCM: the features have {num_rows} dataflow rows, the model was made for "
                    f"{self.num_dataflow_rows}; set features.dataflow to match"
                )
            branches.append(self.attention(self.dataflow_encoder(batch.dataflow)))
        if self.draft_encoder is not None:
            branches.append(self.draft_encoder(batch))
        return branches


def draft_of(batch: ProgramBatch) -> Float[Tensor, "program draft"]:
    """The analyzer's columns of a batch; raises PrunerError where missing."""
    if batch.draft is None:
        raise PrunerError(
            "this model reads the analyzer's terms, and these programs have none; train.py, "
            "evaluate.py, pruner predict and tune.py compute them"
        )
    return batch.draft


class DraftBranch(nn.Module):
    """Encode the analyzer's columns (normalised over programs, not by the scaler) by two layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = ProgramNorm(NUM_DRAFT_COLUMNS)
        self.layers = statement_encoder(NUM_DRAFT_COLUMNS, width)

    def forward(self, batch: ProgramBatch) -> Float[Tensor, "program width"]:
        """A vector [width] for each program."""
        return self.layers(self.norm(draft_of(batch)))


class DraftScore(nn.Module):
    """``weight * score of the analyzer``, with a learned weight, initially 1.

    `head` is the last layer of the network whose output is added; it begins at zero, so that an
    untrained model ranks as the analyzer does and the residual is learned. A score
    ``-log(seconds)`` has the size of the logits that ranking losses compare.
    """

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)

    def forward(self, batch: ProgramBatch) -> Float[Tensor, " program"]:
        """A term of the score [program]."""
        return self.weight * draft_of(batch)[:, SCORE]


class BranchDropout(nn.Module):
    """In training, zero at most one branch of a program at random.

    After ModDrop (Neverova et al., TPAMI 2016): no branch can rely on another branch. The branch is
    drawn anew for every program; nothing is rescaled. Draws continue from the number of batches
    seen, which is stored with the weights, so a resumed fit draws as an uninterrupted fit.
    """

    stream: Tensor
    batches: Tensor

    def __init__(self, probability: float) -> None:
        super().__init__()
        if not 0 < probability < 1:
            raise ValueError(f"branch_dropout: got {probability}; it must be above 0 and below 1")
        self.probability = probability
        # Drawn at construction: it depends on the fit's seed, and is stored with the weights.
        self.register_buffer("stream", torch.randint(2**31, ()))
        self.register_buffer("batches", torch.zeros((), dtype=torch.long))

    def forward(
        self, branches: list[Float[Tensor, "program _"]]
    ) -> list[Float[Tensor, "program _"]]:
        """Zero branches in training mode; a single branch is never zeroed."""
        if not self.training or len(branches) < 2:
            return branches
        generator = torch.Generator().manual_seed(int(self.stream) + 1_000_003 * int(self.batches))
        self.batches += 1
        num = len(branches[0])
        dropped = torch.rand(num, generator=generator) < self.probability
        which = torch.randint(len(branches), (num,), generator=generator)
        kept = [~(dropped & (which == place))[:, None] for place in range(len(branches))]
        return [one * keep.to(one.device) for one, keep in zip(branches, kept, strict=True)]
