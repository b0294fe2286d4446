"""Indices as sums of loop parts, and the statements they belong to."""

from __future__ import annotations

from dataclasses import dataclass

from pruner.errors import UnsupportedProgram
from pruner.features.symbols.closed import formula as fm
from pruner.features.symbols.closed.formula import ONE, Formula
from pruner.program.dag.expr import Axis, Binary, Cast, Const, Expr
from pruner.program.te.schedule import Loop, StageState


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A loop before it was fused: ``extent`` iterations, run by ``leaves`` (maybe several)."""

    extent: Formula
    leaves: tuple[Loop, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """``sum(coefficient * part) + [low, high]``."""

    parts: tuple[tuple[Part, Formula], ...] = ()
    low: Formula = fm.ZERO
    high: Formula = fm.ZERO

    def width(self, moving: set[Loop]) -> Formula:
        """Distinct values span when only the loops in ``moving`` run (box rule)."""
        spans = [
            coefficient * (part.extent - 1)
            for part, coefficient in self.parts
            if all(leaf in moving for leaf in part.leaves)
        ]
        return fm.total([ONE, self.high, self.low * -1.0, *spans])

    def count(self, moving: set[Loop]) -> Formula:
        """Distinct values when only the loops in ``moving`` run: a strided outer part skips some.

        The least over all cuts of (iterations of the parts before it) x (span of those after it).
        """
        inside = [
            (part, coefficient)
            for part, coefficient in self.parts
            if all(leaf in moving for leaf in part.leaves)
        ]
        best, before = self.width(moving), ONE
        for cut, (part, _) in enumerate(inside):
            before = before * part.extent
            spans = [coefficient * (p.extent - 1) for p, coefficient in inside[cut + 1 :]]
            best = fm.minimum(best, before * fm.total([ONE, *spans]))
        return best


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """One buffer a statement touches: its storage rank and one index per dimension."""

    stage: StageState
    scope: int
    indices: tuple[Index, ...]

    def footprint(self, moving: set[Loop]) -> Formula:
        """Elements touched when only the loops in ``moving`` run."""
        return fm.product(index.width(moving) for index in self.indices)

    def count(self, moving: set[Loop]) -> Formula:
        """Distinct elements touched when only the loops in ``moving`` run."""
        return fm.product(index.count(moving) for index in self.indices)


@dataclass(frozen=True, slots=True, eq=False)
class TiledLoop:
    """A loop around a statement, outermost first in :attr:`Statement.loops`."""

    loop: Loop
    extent: Formula
    mark: str | None
    is_reduce: bool
    is_own: bool


@dataclass(frozen=True, slots=True, eq=False)
class Statement:
    """One stage's store under its loops. ``tile``: the allocated extent per axis of a buffer."""

    stage: StageState
    scope: int
    body: Expr
    loops: tuple[TiledLoop, ...]
    write: Access
    reads: tuple[Access, ...]
    tile: tuple[Formula, ...]
    unroll: Formula

    @property
    def is_reduction(self) -> bool:
        """The store accumulates."""
        return bool(self.stage.reduce)


def evaluate(index: Expr, roots: list[Index]) -> Index:
    """An index expression over the values of the axis slots."""
    match index:
        case Axis(slot=slot):
            return roots[slot]
        case Const(value=value):
            return Index((), Formula(float(value)), Formula(float(value)))
        case Cast(a=a):
            return evaluate(a, roots)
        case Binary(op=("add" | "sub") as op, a=a, b=b):
            return _combine(evaluate(a, roots), evaluate(b, roots), 1.0 if op == "add" else -1.0)
        case Binary(op="mul", a=a, b=b):
            x, y = evaluate(a, roots), evaluate(b, roots)
            if x.parts:
                x, y = y, x
            if x.parts or x.low != x.high:
                raise UnsupportedProgram("draft-index", "product of two loop variables")
            return Index(tuple((p, c * x.low) for p, c in y.parts), y.low * x.low, y.high * x.low)
        case _:
            raise UnsupportedProgram("draft-index", type(index).__name__)


def _combine(a: Index, b: Index, sign: float) -> Index:
    low, high = (b.low, b.high) if sign > 0 else (b.high, b.low)
    return Index(a.parts + b.parts, a.low + low * sign, a.high + high * sign)


def shift(value: Index, start: Index) -> Index:
    """``value`` counted from ``start``."""
    return Index(start.parts + value.parts, start.low + value.low, start.high + value.high)


def fixed(index: Index, moving: set[Loop]) -> Index:
    """What stays when the loops in ``moving`` are taken as a whole."""
    kept = tuple((p, c) for p, c in index.parts if not all(leaf in moving for leaf in p.leaves))
    return Index(kept)
