"""Find the ``mma`` spaces that TVM can finish, by their copies.

It fails on vectors that would step (``VerifyGPUCode``), results that are added to another tensor on
the way out (``LowerAutoCopy``), and padded results, whose guard names loops inside the guard.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from pruner.tune.spaces.batched.prim_func import blocks_in

_ONE = ("a", "b", "condition", "true_value", "false_value", "value")  # fields of expressions
_SEVERAL = ("args", "indices")


def can_finish(schedule: Any) -> bool:
    """Check whether TVM makes programs of a design space's schedule."""
    # the blocks of ReadAt and WriteAt
    copies = blocks_in(schedule.mod["main"].body, lambda block: "auto_copy" in block.annotations)
    # a copy into shared memory brings operands; any other copy stores results
    return all(_reads_rows(one) if _stages(one) else _writes_whole(one) for one in copies)


def _stages(block: Any) -> bool:
    return str(block.writes[0].source.scope()).startswith("shared")


def _reads_rows(block: Any) -> bool:
    """Check that shared memory's neighbours are global memory's, padding aside."""
    stmt, inner = block.body, None
    # LowerAutoCopy vectorises the innermost loop, which must move the last index only
    while type(stmt).__name__ == "For":
        stmt, inner = stmt.body, stmt.loop_var
    loads = [e for e in _expressions(stmt.value) if type(e).__name__ == "TensorLoad"]
    return all(
        _uses(load.indices[-1], inner) and not any(_uses(i, inner) for i in load.indices[:-1])
        for load in loads
    )


def _writes_whole(block: Any) -> bool:
    """Check that a copy stores all fragments and reads nothing else."""
    (written, *_), reads = block.writes, block.reads
    shapes = [[int(extent) for extent in region.source.shape] for region in (written, reads[0])]
    # a second read is an operand of an epilogue; fewer elements are the cut of a padded result
    return len(reads) == 1 and prod(shapes[0]) == prod(shapes[1])


def _expressions(value: Any) -> Iterator[Any]:
    yield value
    parts = [getattr(value, name, None) for name in _ONE]
    parts += [part for name in _SEVERAL for part in getattr(value, name, ())]
    for part in parts:
        if part is not None and not isinstance(part, (bool, int, float, str)):
            yield from _expressions(part)


def _uses(index: Any, var: Any) -> bool:
    return any(part.same_as(var) for part in _expressions(index))
