"""Does a tiling say what the general engine says?"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pruner.features.symbols.closed.formula import Evaluator
from pruner.features.symbols.closed.tiling import Tiling
from pruner.program.te.apply import replay
from pruner.program.te.bounds import infer_bounds


def check_tiling(tiling: Tiling, decisions: NDArray[np.int64]) -> list[str]:
    """Loops whose formula differs from the general engine for some of N decision vectors.

    Returns one line a difference; empty when every extent of every loop agrees.
    """
    schedule = replay(tiling.dag, tiling.skeleton, decisions)
    infer_bounds(schedule)
    pairs = [
        (ours.name, theirs, tiling.extents[mine])
        for ours, other in zip(tiling.schedule.pool, schedule.pool, strict=True)
        if ours.attach != "inline"
        for mine, theirs in zip(ours.leaves, other.leaves, strict=True)
    ]
    values = Evaluator([formula for _, _, formula in pairs])(decisions)
    return [
        f"{name}: loop {loop.name}"
        for (name, loop, _), value in zip(pairs, values, strict=True)
        if not np.array_equal(value, np.broadcast_to(loop.extent, value.shape))
    ]
