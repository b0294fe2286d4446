"""Fold constants of bodies without extents, by ``TryConstFold`` (src/arith/const_fold.h)."""

from __future__ import annotations

import operator
from collections.abc import Callable

from pruner.program.dag.expr import Axis, Binary, Call, Cast, Const, Expr, Not, Select, rewrite

Linear = dict[int, int]
_CONSTANT = -1  # key of the constant part of a linear form
_FLOATS = ("float", "bfloat")
_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "min": min,
    "max": max,
}


def fold(expr: Expr) -> Expr:
    """Return ``expr`` with literals folded."""
    return rewrite(expr, _rule)


def _rule(node: Expr) -> Expr:
    match node:
        case Select(cond=Const(value=cond), then=then, other=other):
            return then if cond else other
        case Call(name="if_then_else", args=(Const(value=cond), then, other)):
            return then if cond else other
        case Not(a=Const(value=value)):
            return Const(int(not value), "bool")
        case Cast(a=Const(value=value), dtype=dtype):
            return Const(float(value) if dtype.startswith(_FLOATS) else int(value), dtype)
        case Binary():
            return _binary(node)
        case _:
            return node


def _binary(node: Binary) -> Expr:
    # Integers (indices) are canonicalised as sums, as TVM does; floats only by the identities
    # below, since reordering floats would change results.
    if node.dtype.startswith("int"):
        form = _linear(node)
        if form is not None and not any(v for k, v in form.items() if k != _CONSTANT):
            return Const(form.get(_CONSTANT, 0), node.dtype)
        return node
    match node:
        case Binary(op=op, a=Const(value=x), b=Const(value=y)) if op in _ARITHMETIC:
            return Const(_ARITHMETIC[op](x, y), node.dtype)
        # 0 * x is 0 also for floats: TryConstFold ignores NaN and infinity.
        case (
            Binary(op="mul", a=Const(value=0) as zero) | Binary(op="mul", b=Const(value=0) as zero)
        ):
            return zero
        case Binary(op="mul", a=Const(value=1), b=other):
            return other
        case Binary(op="mul", a=other, b=Const(value=1)):
            return other
        case Binary(op="add", a=Const(value=0), b=other):
            return other
        case Binary(op=("add" | "sub"), a=other, b=Const(value=0)):
            return other
        case Binary(op="div", a=other, b=Const(value=1)):
            return other
        case _:
            return node


def _linear(expr: Expr) -> Linear | None:
    """Return coefficients by axis slot; None unless a sum of scaled axes."""
    match expr:
        case Const(value=int(value)):
            return {_CONSTANT: value}
        case Axis(slot=slot):
            return {slot: 1}
        case Binary(op=("add" | "sub") as op, a=a, b=b):
            left, right = _linear(a), _linear(b)
            if left is None or right is None:
                return None
            sign = 1 if op == "add" else -1
            return {k: left.get(k, 0) + sign * right.get(k, 0) for k in {*left, *right}}
        case Binary(op="mul", a=a, b=Const(value=int(value))):
            form = _linear(a)
            return None if form is None else {k: v * value for k, v in form.items()}
        case _:
            return None
