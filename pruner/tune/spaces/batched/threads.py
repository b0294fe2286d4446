"""Bound the threads of a block by its decisions alone.

On GPUs most random tilings have too many threads or too few, and MetaSchedule's rule annotates the
allowed range beside the tiles (``meta_schedule.thread_extent_low_inclusive``, ``..high..``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Decisions
from pruner.program.nests import WARP_LANES
from pruner.program.tir.trace import TILES, Instruction, Ref
from pruner.program.tir.verify import THREADS_HIGH, THREADS_LOW


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadRange:
    """A condition on legal rows: the thread count is in a range.

    ``low`` <= ``lanes`` * product of the decisions at ``slots`` <= ``high``.
    """

    slots: tuple[int, ...]
    low: int
    high: int
    lanes: int = 1

    def holds(self, decisions: Decisions) -> NDArray[np.bool_]:
        """Check which rows may be legal, bool [N]."""
        threads = self.lanes * decisions[:, self.slots].prod(axis=1)
        return (self.low <= threads) & (threads <= self.high)


def thread_ranges(instructions: Sequence[Instruction]) -> list[ThreadRange]:
    """Find the ranges of blocks with a thread loop of sampled factors."""
    tiles = [i for i in instructions if i.kind in TILES]
    sampled = {out: i.slot + k for i in tiles for k, out in enumerate(i.outputs)}
    slots: dict[int, tuple[int, ...]] = {}  # whose product is the extent of a loop
    bound: tuple[int, ...] = ()
    low, lanes = 0, 1
    out: list[ThreadRange] = []
    for i in instructions:
        if i.kind == "Split":
            pairs = zip(i.outputs, i.inputs[1:], strict=True)
            known = ((loop, f.number) for loop, f in pairs if isinstance(f, Ref))
            slots |= {loop: (sampled[number],) for loop, number in known if number in sampled}
        # a fused loop counts only if every part is sampled: otherwise its extent depends on the
        # shape
        elif i.kind == "Fuse" and all(loop.number in slots for loop in i.inputs):
            slots[i.outputs[0]] = sum((slots[loop.number] for loop in i.inputs), ())
        elif i.kind == "Bind" and i.attrs[0] in ("threadIdx.x", "threadIdx.y"):
            # MetaSchedule binds one thread axis before it annotates the limits; in tensor-core
            # spaces that is threadIdx.y, the warps, and threadIdx.x holds the 32 lanes
            bound = slots.get(i.inputs[0].number, ())
            lanes = WARP_LANES if i.attrs[0] == "threadIdx.y" else 1
        elif i.kind == "Annotate" and i.attrs[0] == THREADS_LOW:
            low = int(i.inputs[1])
        elif i.kind == "Annotate" and i.attrs[0] == THREADS_HIGH and bound:
            out.append(ThreadRange(slots=bound, low=low, high=int(i.inputs[1]), lanes=lanes))
    return out
