"""A smaller training set at equal accuracy: which measured programs are worth learning from.

Verma et al. (arXiv 2304.05430) train on 55 % of TenSet at equal pairwise accuracy. How they choose
is not in the public abstract; this is our reading of "low value". Logs of a search are crowded with
programs of nearly the same latency, whose order is mostly noise, so the crowded ranges of label are
thinned and the sparse ones kept.
"""

import torch
from jaxtyping import Int
from torch import Tensor

from pruner.models.programs.store import ProgramStore

NUM_RANGES = 20


def spread(
    store: ProgramStore, index: Int[Tensor, " program"], share: float, seed: int
) -> Int[Tensor, " kept"]:
    """Keep a share of every task's programs, spread over its labels.

    The labels of a task are cut into 20 ranges of equal width; no range keeps more than a cap, the
    same for all, that makes the kept ones the wanted share. At least two programs stay, the best
    among them; which ones stay of a crowded range is drawn.
    """
    if share >= 1:
        return index
    generator = torch.Generator().manual_seed(seed)
    kept = [_spread_task(store, part, share, generator) for part in store.by_task(index)]
    return torch.cat(kept) if kept else index[:0]


def _spread_task(
    store: ProgramStore, programs: Tensor, share: float, generator: torch.Generator
) -> Int[Tensor, " kept"]:
    label = store.label[programs]
    span = (label.max() - label.min()).clamp(min=1e-12)
    ranges = ((label - label.min()) / span * NUM_RANGES).long().clamp(max=NUM_RANGES - 1)
    draw = torch.rand(len(label), generator=generator)
    draw[label.argmax()] = -1.0  # the first of its range
    order = draw.argsort()
    order = order[ranges[order].argsort(stable=True)]
    counts = torch.bincount(ranges, minlength=NUM_RANGES)
    turn = torch.empty_like(order)
    turn[order] = torch.cat([torch.arange(int(count)) for count in counts])
    # First programs of all ranges, then second ones, ...: what a growing cap lets in. The best
    # comes before the others of the first round.
    first = torch.argsort(turn + draw.clamp(max=0.999), stable=True)
    wanted = max(2, round(share * len(programs)))
    return programs[first[:wanted]].sort().values
