"""A network and trees that judge together: the mean of their standard scores in the task.

Networks learn what is smooth in the features, trees where a threshold lies; on held-out workloads
their first choices fail on different tasks, so the mean fails less often than either.
"""

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor, nn

from pruner.models.ranker import NeuralRanker, Ranker
from pruner.models.store import ProgramStore
from pruner.models.trees import TreeRanker


class Blend(Ranker):
    """``(z(network) + z(trees)) / 2``, with z the standard score among the candidates.

    Built with a plain network; `with_network` puts the trained ranker in its place. A single
    candidate, or candidates that a member cannot tell apart, get 0 from that member.
    """

    def __init__(self, *, network: nn.Module | NeuralRanker, trees: TreeRanker) -> None:
        self.network = network
        self.trees = trees

    def with_network(self, ranker: NeuralRanker) -> "Blend":
        """The same trees beside a trained network."""
        return Blend(network=ranker, trees=self.trees)

    @property
    def ranker(self) -> NeuralRanker:
        """The trained network; RuntimeError before there is one."""
        if not isinstance(self.network, NeuralRanker):
            raise RuntimeError("Blend: score before its network is trained or loaded")
        return self.network

    def score_store(
        self, store: ProgramStore, index: Int[Tensor, " program"]
    ) -> Float[np.ndarray, " program"]:
        """Score programs of one task of a store."""
        members: tuple[Ranker, ...] = (self.ranker, self.trees)
        scores = [_standard(member.score_store(store, index)) for member in members]
        return np.mean(scores, axis=0).astype(np.float32)


def _standard(score: Float[np.ndarray, " program"]) -> Float[np.ndarray, " program"]:
    deviation = score.std()
    return (score - score.mean()) / (deviation if deviation > 0 else 1.0)
