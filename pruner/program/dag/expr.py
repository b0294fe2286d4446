"""Scalar expressions, immutable: the value of one iteration of a stage.

A loop variable is an :class:`Axis` slot of the stage, spatial axes first, then reduce axes. The
constructors fold constants (``x + 0``) as TVM's operators do, :func:`fold` those of whole bodies.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

BinaryOp = Literal[
    "add", "sub", "mul", "div", "mod", "floordiv", "floormod", "min", "max",
    "eq", "ne", "lt", "le", "gt", "ge", "and", "or",
]  # fmt: skip
TVM_BINARY: dict[str, BinaryOp] = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Mod": "mod", "FloorDiv": "floordiv",
    "FloorMod": "floormod", "Min": "min", "Max": "max", "EQ": "eq", "NE": "ne", "LT": "lt",
    "LE": "le", "GT": "gt", "GE": "ge", "And": "and", "Or": "or",
}  # fmt: skip
"""Binary operations by the name of TVM's class."""


@dataclass(frozen=True, slots=True, eq=False)
# Identity, not value: comparing arrays would give an array, and hashing one is an error.
class PerProgram:
    """A literal that differs between N programs: int64 [N], equal by identity."""

    values: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Const:
    """A literal; ``dtype`` separates integers, floats and booleans."""

    value: int | float
    dtype: str = "int32"


@dataclass(frozen=True, slots=True)
class Axis:
    """Loop variable ``slot`` of the owning stage: spatial, then reduce axes."""

    slot: int
    dtype: str = "int32"


@dataclass(frozen=True, slots=True)
class Binary:
    """``a op b``; comparisons and and/or have dtype ``bool``."""

    op: BinaryOp
    a: Expr
    b: Expr
    dtype: str


@dataclass(frozen=True, slots=True)
class Not:
    """Boolean negation."""

    a: Expr
    dtype: str = "bool"


@dataclass(frozen=True, slots=True)
class Select:
    """``cond ? then : other`` where both sides are evaluated."""

    cond: Expr
    then: Expr
    other: Expr
    dtype: str


@dataclass(frozen=True, slots=True)
class Call:
    """A call by name, such as ``if_then_else`` (lazy); ``pure`` by TVM's effect kind."""

    name: str
    args: tuple[Expr, ...]
    dtype: str
    pure: bool = True


@dataclass(frozen=True, slots=True)
class Cast:
    """Conversion of ``a`` to ``dtype``."""

    a: Expr
    dtype: str


@dataclass(frozen=True, slots=True)
class Load:
    """Element ``indices`` of the output of stage number ``stage`` in ``ComputeDAG.stages``."""

    stage: int
    indices: tuple[Expr, ...]
    dtype: str


Expr = Const | Axis | Binary | Not | Select | Call | Cast | Load


def children(expr: Expr) -> tuple[Expr, ...]:
    """Return the direct operands, in evaluation order."""
    match expr:
        case Binary(a=a, b=b):
            return (a, b)
        case Not(a=a) | Cast(a=a):
            return (a,)
        case Select(cond=c, then=t, other=o):
            return (c, t, o)
        case Call(args=args):
            return args
        case Load(indices=indices):
            return indices
        case _:
            return ()


def rebuild(expr: Expr, new: tuple[Expr, ...]) -> Expr:
    """Return the same node with other operands (inverse of :func:`children`)."""
    match expr:
        case Binary(op=op, dtype=dtype):
            return Binary(op, new[0], new[1], dtype)
        case Not():
            return Not(new[0])
        case Cast(dtype=dtype):
            return Cast(new[0], dtype)
        case Select(dtype=dtype):
            return Select(new[0], new[1], new[2], dtype)
        case Call(name=name, dtype=dtype, pure=pure):
            return Call(name, new, dtype, pure)
        case Load(stage=stage, dtype=dtype):
            return Load(stage, new, dtype)
        case _:
            return expr


def walk(expr: Expr) -> Iterator[Expr]:
    """Yield every node, operands before their user."""
    for child in children(expr):
        yield from walk(child)
    yield expr


def rewrite(expr: Expr, rule: Callable[[Expr], Expr]) -> Expr:
    """Apply ``rule`` bottom-up to every node."""
    # An unchanged node is returned itself, so caches keyed by identity survive a rewrite.
    old = children(expr)
    new = tuple(rewrite(child, rule) for child in old)
    return rule(expr if new == old else rebuild(expr, new))


def loads(expr: Expr) -> list[Load]:
    """Return all loads in post-order: a load inside another's index comes first."""
    return [node for node in walk(expr) if isinstance(node, Load)]


def slots_of(expr: Expr) -> set[int]:
    """Return the slots of the axes in an expression."""
    return {node.slot for node in walk(expr) if isinstance(node, Axis)}


def replace_loads(body: Expr, stage: int, made: Callable[[Load], Expr]) -> Expr:
    """Return ``body`` with ``made(load)`` in place of the loads of ``stage``."""

    def rule(node: Expr) -> Expr:
        return made(node) if isinstance(node, Load) and node.stage == stage else node

    return rewrite(body, rule)


def redirect_loads(body: Expr, source: int, target: int) -> Expr:
    """Return ``body`` with loads of stage ``source`` turned to stage ``target``."""
    return replace_loads(body, source, lambda load: replace(load, stage=target))


def substitute_axes(body: Expr, values: Iterable[Expr]) -> Expr:
    """Return ``body`` with axis slot ``s`` replaced by the s-th of ``values``."""
    table = tuple(values)

    def rule(node: Expr) -> Expr:
        return table[node.slot] if isinstance(node, Axis) else node

    return rewrite(body, rule)


# The identity of TE's max reductions, te.min_value("float32").
FLOAT32_MIN = -3.4028234663852886e38


def int_(value: int) -> Const:
    """Return an int32 literal."""
    return Const(value, "int32")


def float_(value: float) -> Const:
    """Return a float32 literal."""
    return Const(float(value), "float32")


def _is(expr: Expr, value: float) -> bool:
    return isinstance(expr, Const) and expr.value == value


def _kept(op: BinaryOp, a: Expr, b: Expr) -> Expr | None:
    """Return the operand beside a literal that changes nothing, as ``0 + x``."""
    if (op == "add" and _is(a, 0)) or (op == "mul" and _is(a, 1)):
        return b
    if (op in ("add", "sub") and _is(b, 0)) or (op in ("mul", "div") and _is(b, 1)):
        return a
    return None


def _arithmetic(op: BinaryOp, a: Expr, b: Expr) -> Expr:
    """Return ``a op b``; a literal that changes nothing vanishes."""
    return _kept(op, a, b) or Binary(op, a, b, a.dtype)


add = partial(_arithmetic, "add")
sub = partial(_arithmetic, "sub")
mul = partial(_arithmetic, "mul")
div = partial(_arithmetic, "div")
maximum = partial(_arithmetic, "max")


def load(stage: int, *indices: Expr) -> Load:
    """Return one float32 element of stage ``stage``."""
    return Load(stage, indices, "float32")


def axes(count: int, start: int = 0) -> tuple[Axis, ...]:
    """Return `count` loop variables of the body's stage, from slot `start`."""
    return tuple(Axis(start + i) for i in range(count))


Linear = dict[int, int]
_CONSTANT = -1  # key of the constant part of a linear form
_FLOATS = ("float", "bfloat")
_FOLDED = ("add", "sub", "mul", "min", "max")  # operations of two float literals


# C's division rounds towards zero, Python's // towards minus infinity.
def _truncated_div(a: int, b: int) -> int:
    return a // b if (a < 0) == (b < 0) else -(-a // b)


OPERATIONS: dict[BinaryOp, Callable[[Any, Any], Any]] = {
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
        case Binary(op=op, a=Const(value=x), b=Const(value=y)) if op in _FOLDED:
            return Const(OPERATIONS[op](x, y), node.dtype)
        # 0 * x is 0 also for floats: TryConstFold ignores NaN and infinity.
        case (
            Binary(op="mul", a=Const(value=0) as zero) | Binary(op="mul", b=Const(value=0) as zero)
        ):
            return zero
        case _:
            return _kept(node.op, node.a, node.b) or node


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
