"""Losses of the networks, on scores and labels.

Labels are y = best latency / latency.

All losses work on padded lists: `score`, `label` [list, item] and `mask` (True = a real item).
`as_lists` packs a batch into lists, either one list for the whole batch (the official code, which
so compares programs of different tasks) or a list for each task in it.

[Burges2010] Burges, From RankNet to LambdaRank to LambdaMART. [Cao2007] Cao et al., Learning to
rank: from pairwise approach to listwise approach (ListNet). [Goldberger2004] Goldberger et al.,
Neighbourhood components analysis (the probability that a softmax draws from a set).
"""

import math
from abc import ABC, abstractmethod
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

ListKind = Literal["batch", "task"]
Values = Float[Tensor, "list item"]
Items = Bool[Tensor, "list item"]
Losses = Float[Tensor, " list"]
SIGMOID_FLOOR = 1e-10  # of the official code: a pair more wrong than this gives no gradient


def as_lists(
    score: Float[Tensor, " program"],
    label: Float[Tensor, " program"],
    task: Int[Tensor, " program"],
    kind: ListKind,
) -> tuple[Values, Values, Items]:
    """Pack one batch into padded lists of (score, label, mask)."""
    if kind == "batch":
        mask = torch.ones_like(score, dtype=torch.bool)
        return score[None], label[None], mask[None]
    order = torch.argsort(task, stable=True)
    _, counts = torch.unique_consecutive(task[order], return_counts=True)
    num_lists, longest = len(counts), int(counts.max()) if len(counts) else 0
    row = torch.repeat_interleave(torch.arange(num_lists, device=task.device), counts)
    start = torch.cumsum(counts, 0) - counts
    column = torch.arange(len(task), device=task.device) - start[row]
    slot = row * longest + column
    shape = (num_lists, longest)

    def packed(values: Tensor) -> Tensor:
        flat = values.new_zeros(num_lists * longest)
        return flat.index_copy(0, slot, values[order]).view(shape)

    return packed(score), packed(label), packed(torch.ones_like(task, dtype=torch.bool))


class RankingLoss(ABC):
    """A loss of a batch: the sum over its lists."""

    def __init__(self, *, lists: ListKind = "task") -> None:
        if lists not in ("batch", "task"):
            raise ValueError(f"loss.lists: got {lists!r}; known: 'batch', 'task'")
        self.lists = lists

    def __call__(
        self,
        score: Float[Tensor, " program"],
        label: Float[Tensor, " program"],
        task: Int[Tensor, " program"],
    ) -> Float[Tensor, ""]:
        """Return the loss of a batch of programs, grouped by `task`."""
        # In float32 also under autocast: differences of scores lose digits in half precision.
        return self.of_lists(*as_lists(score.float(), label, task, self.lists)).sum()

    @abstractmethod
    def of_lists(self, score: Values, label: Values, mask: Items) -> Losses:
        """Return the loss of each list."""


def _pair_mask(label: Tensor, mask: Tensor) -> Bool[Tensor, "list item item"]:
    """Pairs (i, j) of real items with y_i > y_j."""
    real = mask[:, :, None] & mask[:, None, :]
    return (label[:, :, None] > label[:, None, :]) & real


def _ranks(values: Tensor, mask: Tensor) -> Int[Tensor, "list item"]:
    """1-based position of each item when sorted descending, padding last."""
    # Padding is sorted last, so it moves no rank of a real item.
    order = values.masked_fill(~mask, -math.inf).argsort(dim=1, descending=True, stable=True)
    positions = torch.arange(1, values.shape[1] + 1, device=values.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, positions)


class LambdaRank(RankingLoss):
    """LambdaRank with NDCG weights [Burges2010], as in Pruner and TenSet.

    ``loss = - sum over y_i > y_j of w_ij log2 max(sigmoid(s_i - s_j), 1e-10)`` with ``w_ij = |1/D_i
    - 1/D_j| |G_i - G_j|``, ``D_i = log2(1 + rank of i by score)`` and ``G_i = (2^y_i - 1) /
    maxDCG``. Summed, not averaged.
    """

    def of_lists(self, score: Values, label: Values, mask: Items) -> Losses:
        """Return the weighted pair loss of each list."""
        with torch.no_grad():
            # The lambda weights count as constants: ranks have no gradient, and the pair loss has
            # its own.
            weight = self._weights(score, label, mask)
        pair = score[:, :, None] - score[:, None, :]
        log2_sigmoid = functional.logsigmoid(pair) / math.log(2.0)
        return -(weight * log2_sigmoid.clamp(min=math.log2(SIGMOID_FLOOR))).sum(dim=(1, 2))

    @staticmethod
    def _weights(score: Tensor, label: Tensor, mask: Tensor) -> Float[Tensor, "list item item"]:
        gain = 2.0**label - 1.0  # padding has label 0, so gain 0
        ideal = torch.log2(1.0 + _ranks(label, mask))
        max_dcg = (gain / ideal).sum(dim=1, keepdim=True).clamp(min=1e-12)
        discount = 1.0 / torch.log2(1.0 + _ranks(score, mask))
        gain = gain / max_dcg
        swap = (discount[:, :, None] - discount[:, None, :]).abs()
        weight = swap * (gain[:, :, None] - gain[:, None, :]).abs()
        return weight * _pair_mask(label, mask)


class RankNet(RankingLoss):
    """Mean over pairs with y_i > y_j of ``-log sigmoid(s_i - s_j)``.

    Times the list length. [Burges2010] equation (3) for certain preferences; ties give no pair. The
    list length keeps a list's share of the batch gradient in proportion to its programs.
    """

    def of_lists(self, score: Values, label: Values, mask: Items) -> Losses:
        """Return each list's mean pair loss, times its number of items."""
        pairs = _pair_mask(label, mask)
        loss = -functional.logsigmoid(score[:, :, None] - score[:, None, :]) * pairs
        mean = loss.sum(dim=(1, 2)) / pairs.sum(dim=(1, 2)).clamp(min=1)
        return mean * mask.sum(dim=1)


class ListNet(RankingLoss):
    """Cross-entropy between the top-one distributions of labels and scores [Cao2007].

    ``- sum_i softmax(y / temperature)_i log softmax(s)_i``. Labels live in (0, 1], so temperature 1
    gives a nearly flat target; smaller values favour the best programs.
    """

    def __init__(self, *, lists: ListKind = "task", temperature: float = 0.1) -> None:
        super().__init__(lists=lists)
        if temperature <= 0:
            raise ValueError(f"loss.temperature: got {temperature}; it must be positive")
        self.temperature = temperature

    def of_lists(self, score: Values, label: Values, mask: Items) -> Losses:
        """Return the cross-entropy of each list, in nats."""
        # A large finite filler: minus infinity times a zero probability would be NaN. Padding gets
        # target 0 and so adds nothing.
        target = (label / self.temperature).masked_fill(~mask, -1e9).softmax(dim=1)
        predicted = score.masked_fill(~mask, -1e9).log_softmax(dim=1)
        return -(target * predicted).sum(dim=1)


class MeanSquare(RankingLoss):
    """Sum of ``(s - y)^2``: regression on the label, regardless of lists."""

    def of_lists(self, score: Values, label: Values, mask: Items) -> Losses:
        """Return the summed square error of each list."""
        return ((score - label).square() * mask).sum(dim=1)


class TopShare(RankingLoss):
    """Classify the programs that are in the best `share` of their list.

    ``- log sum over the best share of softmax(s)_i``: the surprise that a program drawn by the
    top-one probabilities [Cao2007] of the scores is among the best [Goldberger2004]. It needs no
    threshold: scores are compared inside a list only, so a constant added to all changes nothing.
    The best are ``max(1, ceil(share * n))`` programs by label, with all that tie with the last of
    them; programs that failed have label 0 and are negatives like the others, never among the best.
    A list counts once, as with LambdaRank, whose size this has: a few units. `weight` multiplies
    it; `beside` is another loss that is added, None for this alone.
    """

    def __init__(
        self,
        *,
        lists: ListKind = "task",
        share: float = 0.1,
        weight: float = 1.0,
        beside: RankingLoss | None = None,
    ) -> None:
        super().__init__(lists=lists)
        if not 0 < share < 1 or weight <= 0:
            raise ValueError(
                f"loss: got share={share}, weight={weight}; share is between 0 and 1, weight above"
            )
        self.share, self.weight, self.beside = share, weight, beside

    def __call__(
        self,
        score: Float[Tensor, " program"],
        label: Float[Tensor, " program"],
        task: Int[Tensor, " program"],
    ) -> Float[Tensor, ""]:
        """Return the loss of a batch, plus the other loss of its own lists."""
        loss = super().__call__(score, label, task)
        return loss if self.beside is None else loss + self.beside(score, label, task)

    def of_lists(self, score: Values, label: Values, mask: Items) -> Losses:
        """Return the weighted surprise of each list."""
        best = self._best(label, mask)
        # A large finite filler, as in ListNet; a list without any label above 0 adds nothing.
        drawn = score.masked_fill(~mask, -1e9).log_softmax(dim=1)
        inside = drawn.masked_fill(~best, -1e9).logsumexp(dim=1)
        return -self.weight * torch.where(best.any(dim=1), inside, 0.0)

    def _best(self, label: Tensor, mask: Tensor) -> Items:
        # Less a little: a tenth of thirty is three, whatever 0.1 is in binary.
        count = (self.share * mask.sum(dim=1) - 1e-4).ceil().long().clamp(min=1)
        ordered = label.masked_fill(~mask, -math.inf).sort(dim=1, descending=True).values
        edge = ordered.gather(1, (count - 1)[:, None])
        return mask & (label >= edge) & (label > 0)
