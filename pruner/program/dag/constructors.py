"""Constructors of expressions that fold constants (``x + 0``) as TVM's operators do."""

from __future__ import annotations

from functools import reduce

from pruner.program.dag.expr import Axis, Binary, BinaryOp, Call, Const, Expr, Load

# The identity of TE's max reductions, te.min_value("float32").
FLOAT32_MIN = -3.4028234663852886e38


def int_(value: int) -> Const:
    """Return an int32 literal."""
    return Const(value, "int32")


def float_(value: float) -> Const:
    """Return a float32 literal."""
    return Const(float(value), "float32")


def is_const(expr: Expr, value: float) -> bool:
    """Return whether ``expr`` is the literal ``value``."""
    return isinstance(expr, Const) and expr.value == value


def add(a: Expr, b: Expr) -> Expr:
    """Return ``a + b``; a literal 0 vanishes."""
    if is_const(a, 0):
        return b
    if is_const(b, 0):
        return a
    return Binary("add", a, b, a.dtype)


def sub(a: Expr, b: Expr) -> Expr:
    """Return ``a - b``; a literal 0 on the right vanishes."""
    return a if is_const(b, 0) else Binary("sub", a, b, a.dtype)


def mul(a: Expr, b: Expr) -> Expr:
    """Return ``a * b``; a literal 1 vanishes."""
    if is_const(a, 1):
        return b
    if is_const(b, 1):
        return a
    return Binary("mul", a, b, a.dtype)


def div(a: Expr, b: Expr) -> Expr:
    """Return ``a / b``; division by a literal 1 vanishes."""
    return a if is_const(b, 1) else Binary("div", a, b, a.dtype)


def maximum(a: Expr, b: Expr) -> Expr:
    """Return ``max(a, b)``."""
    return Binary("max", a, b, a.dtype)


def compare(op: BinaryOp, a: Expr, b: Expr) -> Expr:
    """Return ``a op b`` as a boolean."""
    return Binary(op, a, b, "bool")


def all_of(conditions: list[Expr]) -> Expr:
    """Return the conjunction of one or more conditions, nested to the left."""
    # Left-nested as TVM's && chains: text and operation counts follow the nesting.
    return reduce(lambda a, b: Binary("and", a, b, "bool"), conditions)


def if_then_else(cond: Expr, then: Expr, other: Expr) -> Expr:
    """Return ``cond ? then : other``; only the chosen side is evaluated."""
    return Call("if_then_else", (cond, then, other), then.dtype)


def load(stage: int, *indices: Expr) -> Load:
    """Return one float32 element of stage ``stage``."""
    return Load(stage, indices, "float32")


def axes(count: int, start: int = 0) -> tuple[Axis, ...]:
    """Return `count` loop variables of the body's stage, from slot `start`."""
    return tuple(Axis(start + i) for i in range(count))
