"""Evaluate integer expressions: for one iteration, or for all when constant."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from itertools import product

from pruner.errors import UnsupportedProgram
from pruner.program.dag.expr import (
    Axis,
    Binary,
    BinaryOp,
    Call,
    Cast,
    Const,
    Expr,
    Not,
    Select,
    walk,
)

MAX_POINTS = 65536
"""Iterations that :func:`constant_value` is willing to try."""


# C's division rounds towards zero, Python's // towards minus infinity.
def _truncated_div(a: int, b: int) -> int:
    return a // b if (a < 0) == (b < 0) else -(-a // b)


OPERATIONS: dict[BinaryOp, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": _truncated_div,
    "mod": lambda a, b: a - b * _truncated_div(a, b),
    "floordiv": operator.floordiv,
    "floormod": operator.mod,
    "min": min,
    "max": max,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "and": lambda a, b: bool(a) and bool(b),
    "or": lambda a, b: bool(a) or bool(b),
}


def integer_value(expr: Expr, iteration: Sequence[int]) -> int:
    """Return the value of ``expr`` where axis slot ``i`` is ``iteration[i]``.

    Division and remainder truncate (``div``, ``mod``) or floor (``floordiv``, ``floormod``).
    Raises :class:`UnsupportedProgram` (``not-an-integer``) for loads, floats and other calls.
    """
    match expr:
        case Const(value=int(value)):
            return value
        case Axis(slot=slot):
            return iteration[slot]
        case Binary(op=op, a=a, b=b):
            return int(OPERATIONS[op](integer_value(a, iteration), integer_value(b, iteration)))
        case Not(a=a):
            return int(not integer_value(a, iteration))
        case Cast(a=a, dtype=dtype) if dtype.startswith(("int", "uint", "bool")):
            return integer_value(a, iteration)
        case (
            Select(cond=cond, then=then, other=other)
            | Call(name="if_then_else", args=(cond, then, other))
        ):
            # Only the chosen side: the other may divide by zero.
            return integer_value(then if integer_value(cond, iteration) else other, iteration)
        case _:
            raise UnsupportedProgram("not-an-integer", type(expr).__name__)


def constant_value(expr: Expr, extents: Sequence[int]) -> int | None:
    """Return the value common to all (at most `MAX_POINTS`) iterations, else None."""
    used = {node.slot for node in walk(expr) if isinstance(node, Axis)}
    # A loop that the expression does not use contributes one point, so unused extents cost nothing.
    ranges = [range(extent if slot in used else 1) for slot, extent in enumerate(extents)]
    points = 1
    for values in ranges:
        points *= len(values)
    if points > MAX_POINTS:
        return None
    found = {integer_value(expr, iteration) for iteration in product(*ranges)}
    return found.pop() if len(found) == 1 else None
