"""Optional parts of PaCM: the analyzer's columns, its score, branch dropout."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pruner.errors import PrunerError
from pruner.models.analyzer.columns import NUM_DRAFT_COLUMNS, SCORE
from pruner.models.networks.layers import ProgramNorm, statement_encoder
from pruner.models.programs.batch import ProgramBatch


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
        encoded: Tensor = self.layers(self.norm(draft_of(batch)))
        return encoded


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
