"""Scalar expressions, immutable: the value of one iteration of a stage.

A loop variable is an :class:`Axis` slot of the stage, spatial axes first, then reduce axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

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
