"""Assign programs to the sides of a split, and draw shares."""

from collections.abc import Iterable

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from pruner.data.frozen import SIDES, Side
from pruner.data.splits import TaskSplit
from pruner.data.tasks import TaskKey
from pruner.models.programs.program_table import ProgramTable

Programs = Int[Tensor, " program"]
Kept = Int[Tensor, " kept"]
_RANGES = 20  # of label, see `spread`


def programs_on_side(store: ProgramTable, split: TaskSplit, side: Side) -> Programs:
    """Programs on `side` of the split, in store order; failed programs only on "train"."""
    parts = []
    for number, key in enumerate(store.keys):
        programs = store.programs_of([number])
        rows = split.rows(side, key, store.digest[programs.numpy()])
        if side != "train":
            rows = rows & np.isfinite(store.latency_s[programs].numpy())
        parts.append(programs[torch.from_numpy(np.ascontiguousarray(rows))])
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.long)


def divide(store: ProgramTable, split: TaskSplit) -> dict[Side, Programs]:
    """Programs of every side of the split."""
    return {side: programs_on_side(store, split, side) for side in SIDES}


def small_tasks_removed(store: ProgramTable, index: Programs, least: int) -> Kept:
    """Remove programs of tasks with fewer than `least` programs in `index`."""
    kept = [programs for programs in store.by_task(index) if len(programs) >= least]
    return torch.cat(kept) if kept else index[:0]


def sampled(store: ProgramTable, index: Programs, share: float, seed: int) -> Kept:
    """Draw this share of every task's programs, two at least; draws are nested."""
    if share >= 1:
        return index
    generator = torch.Generator().manual_seed(seed)
    kept = []
    for programs in store.by_task(index):
        # A permutation cut at the share: this makes smaller draws part of larger draws.
        order = torch.randperm(len(programs), generator=generator)
        kept.append(programs[order[: max(2, round(share * len(programs)))]].sort().values)
    return torch.cat(kept) if kept else index[:0]


def sampled_tasks(store: ProgramTable, index: Programs, share: float, seed: int) -> Kept:
    """Draw this share of the tasks in `index`, two at least; draws are nested."""
    tasks = store.by_task(index)
    order = torch.randperm(len(tasks), generator=torch.Generator().manual_seed(seed))
    chosen = order[: max(2, round(share * len(tasks)))].sort().values.tolist()
    return torch.cat([tasks[number] for number in chosen]) if tasks else index


def keys_of(store: ProgramTable, parts: Iterable[Tensor]) -> list[TaskKey]:
    """The tasks of all programs in `parts`."""
    numbers = torch.unique(torch.cat([store.task[part] for part in parts])).tolist()
    return [store.keys[number] for number in numbers]


def spread(store: ProgramTable, index: Programs, share: float, seed: int) -> Kept:
    """Keep a share of every task's programs, spread over its labels.

    Verma et al. (arXiv 2304.05430) train on 55 % of TenSet at equal pairwise accuracy. How they
    choose is not in the public abstract; this is our reading of "low value": logs of a search are
    crowded with programs of nearly the same latency, whose order is mostly noise, so the crowded
    ranges of label are thinned and the sparse ranges kept.

    The labels of a task are cut into 20 ranges of equal width; no range keeps more than a common
    cap, which gives the requested share. At least two programs stay, among them the best; the
    programs that stay of a crowded range are drawn.
    """
    if share >= 1:
        return index
    generator = torch.Generator().manual_seed(seed)
    kept = [_spread_task(store, part, share, generator) for part in store.by_task(index)]
    return torch.cat(kept) if kept else index[:0]


def _spread_task(
    store: ProgramTable, programs: Tensor, share: float, generator: torch.Generator
) -> Kept:
    label = store.label[programs]
    span = (label.max() - label.min()).clamp(min=1e-12)
    ranges = ((label - label.min()) / span * _RANGES).long().clamp(max=_RANGES - 1)
    draw = torch.rand(len(label), generator=generator)
    draw[label.argmax()] = -1.0  # so that it is the first of its range
    order = draw.argsort()
    # By range, and at random inside each range.
    order = order[ranges[order].argsort(stable=True)]
    counts = torch.bincount(ranges, minlength=_RANGES)
    turn = torch.empty_like(order)
    turn[order] = torch.cat([torch.arange(int(count)) for count in counts])
    # First programs of all ranges, then second programs, and so on: the order in which a growing
    # cap admits programs. The best program comes before the others of the first round.
    first = torch.argsort(turn + draw.clamp(max=0.999), stable=True)
    wanted = max(2, round(share * len(programs)))
    return programs[first[:wanted]].sort().values
