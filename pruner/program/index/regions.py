"""Regions: a symbolic start plus an interval of numbers, for N programs (src/arith/int_set.cc)."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from pruner.arrays import IntLike
from pruner.errors import UnsupportedProgram
from pruner.program.dag.expr import (
    Axis,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Not,
    PerProgram,
    Select,
    walk,
)
from pruner.program.index import affine as af
from pruner.program.index.affine import Affine, LoopVar, Term, Truth
from pruner.program.index.divide import floordiv, floormod

UNKNOWN_WIDTH = 1 << 40
"""Stands for a width that depends on a loop variable."""


@dataclass(slots=True, eq=False)
class Region:
    """Values ``start + [lo, hi]``."""

    start: Affine
    lo: IntLike
    hi: IntLike


def clip_to_shape(region: Region, size: IntLike) -> Region:
    """Return the whole axis where the region provably covers it."""
    lo, hi = region.lo + region.start.base, region.hi + region.start.base
    covers: Truth = (lo <= 0) & (hi >= size - 1)
    # A symbolic start could move the interval off the axis: only constant regions are clipped.
    if af.any_nonzero(covers):
        covers = covers & af.is_constant(region.start)
    if not af.any_nonzero(covers):
        return region
    start = af.mul(region.start, af.where(covers, 0, 1))
    return Region(start, af.where(covers, 0, region.lo), af.where(covers, size - 1, region.hi))


def union(regions: list[Region]) -> Region:
    """Return the smallest region that holds all ``regions``."""
    first = regions[0]
    lo, hi = first.lo, first.hi
    for other in regions[1:]:
        shift = af.add(other.start, first.start, -1)
        lo = af.least(lo, other.lo + shift.base)
        hi = af.most(hi, other.hi + shift.base)
        # Starts that differ by a loop variable have no common interval (TVM: an unbounded set).
        hi = af.where(af.is_constant(shift), hi, lo + UNKNOWN_WIDTH)
    return Region(first.start, lo, hi)


def relax(region: Region, variables: Set[LoopVar], *, partly: bool = False) -> Region:
    """Let the variables run whole.

    The quotient of a sum that moves in part has no interval of constant width: with ``partly`` it
    has `UNKNOWN_WIDTH`, else `UnsupportedProgram` (``mixed-relax``) is raised.
    """
    if not variables:
        return region
    fixed: list[Term] = []
    lo, hi = region.lo, region.hi
    for t in region.start.terms:
        used = af.variables_of(t.index)
        if not used & variables:
            fixed.append(t)
            continue
        moved = t.coef
        if not used <= variables:
            if not partly:
                raise UnsupportedProgram("mixed-relax", "a fused index is only partly relaxed")
            # A program may lack the loops that stand, or those that run: it has an interval.
            stands = _uses_some(t.index, used - variables)
            fixed += af.mul(_without(Affine([t]), variables), af.where(stands, 1, 0)).terms
            mixed = stands & _uses_some(t.index, variables) & (t.coef != 0)
            moved, hi = af.where(stands, 0, t.coef), hi + af.where(mixed, UNKNOWN_WIDTH, 0)
        a, b = af.wrap_bounds(t, *af.index_bounds(t.index))
        x, y = moved * a, moved * b
        lo, hi = lo + af.least(x, y), hi + af.most(x, y)
    return Region(Affine(fixed, region.start.base), lo, hi)


def _uses_some(index: LoopVar | Affine, variables: Set[LoopVar]) -> Truth:
    if isinstance(index, LoopVar):
        return index in variables
    out: Truth = False
    for t in index.terms:
        out = out | ((t.coef != 0) & _uses_some(t.index, variables))
    return out


def _without(index: Affine, variables: Set[LoopVar]) -> Affine:
    terms = []
    for t in index.terms:
        if isinstance(t.index, LoopVar):
            terms += [] if t.index in variables else [t]
        else:
            inner = _without(t.index, variables)
            terms.append(Term(inner, t.lower, t.upper, t.coef, t.limit))
    return Affine(terms, index.base)


def span(last: Affine, first: Affine) -> IntLike:
    """Return ``last - first`` where that is a number, else `UNKNOWN_WIDTH`."""
    width = af.add(last, first, -1)
    return af.where(af.is_constant(width), width.base, UNKNOWN_WIDTH)


def evaluate_region(index: Expr, domains: list[Region]) -> Region:
    """Return an index's interval when axis slot ``s`` lies in ``domains[s]``.

    What is no sum may take any value. Raises `UnsupportedProgram` for what no index of TVM has.
    """
    match index:
        case Axis(slot=slot):
            return domains[slot]
        case Const(value=value):
            return Region(af.const(_int(value)), 0, 0)
        case Cast(a=a):
            return evaluate_region(a, domains)
        case Load() | Call() | Select() | Not() | Binary(op=("min" | "max")):
            # Whatever is looked up or clamped may be any index: int_set.cc gives everything, too.
            return Region(Affine(), -UNKNOWN_WIDTH, UNKNOWN_WIDTH)
        case Binary(op=op, a=a, b=b):
            return _binary_region(op, evaluate_region(a, domains), evaluate_region(b, domains))
        case _:
            raise UnsupportedProgram("index-expression", type(index).__name__)


def _int(value: object) -> IntLike:
    if isinstance(value, PerProgram):
        return value.values
    return np.asanyarray(value, np.int64) if isinstance(value, np.ndarray) else int(value)  # type: ignore[call-overload]


def _binary_region(op: str, a: Region, b: Region) -> Region:
    if op == "add":
        return Region(af.add(a.start, b.start), a.lo + b.lo, a.hi + b.hi)
    if op == "sub":
        return Region(af.add(a.start, b.start, -1), a.lo - b.hi, a.hi - b.lo)
    # The constant may stand on either side; a product of two variables is no sum.
    if op == "mul":
        if a.start.terms or not _is_point(a):
            a, b = b, a
        if a.start.terms or not _is_point(a):
            raise UnsupportedProgram("index-expression", "product of two loop variables")
        k = a.start.base + a.lo
        x, y = b.lo * k, b.hi * k
        return Region(af.mul(b.start, k), af.least(x, y), af.most(x, y))
    if b.start.terms or not _is_point(b):
        raise UnsupportedProgram("index-expression", f"{op} by a loop variable")
    divisor = b.start.base + b.lo
    if op in ("floordiv", "div"):
        return _divide(a, divisor)
    if op in ("floormod", "mod"):
        return _modulo(a, divisor)
    raise UnsupportedProgram("index-expression", op)


def _is_point(a: Region) -> bool:
    if a.lo is a.hi:
        return True
    return af.everywhere(a.lo == a.hi)


def _divide(a: Region, divisor: IntLike) -> Region:
    if not a.start.terms:
        base = a.start.base
        return Region(Affine(), (a.lo + base) // divisor, (a.hi + base) // divisor)
    first = floordiv(af.add(a.start, af.const(a.lo)), divisor)
    if _is_point(a):
        # A single value has one quotient: its width is 0 without the second division.
        return Region(first, 0, 0)
    last = floordiv(af.add(a.start, af.const(a.hi)), divisor)
    known = a.hi - a.lo < UNKNOWN_WIDTH
    width = af.where(known, af.where(a.lo == a.hi, 0, span(last, first)), UNKNOWN_WIDTH)
    return Region(first, 0, width)


def _modulo(a: Region, divisor: IntLike) -> Region:
    """Return ``a mod divisor``; exact where the interval has one quotient (int_set.cc)."""
    if not a.start.terms:
        lo, hi = a.lo + a.start.base, a.hi + a.start.base
        low_q, high_q = lo // divisor, hi // divisor
        one = low_q == high_q
        return Region(
            Affine(),
            af.where(one, lo - divisor * low_q, 0),
            af.where(one, hi - divisor * low_q, divisor - 1),
        )
    first = af.add(a.start, af.const(a.lo))
    start = floormod(first, divisor)
    if _is_point(a):
        return Region(start, 0, 0)
    width = a.hi - a.lo
    last = floordiv(af.add(first, af.const(width)), divisor)
    # Equal quotients at both ends: the interval lies in one period of the modulo.
    one = (span(last, floordiv(first, divisor)) == 0) | (width == 0)
    if af.everywhere(one):
        return Region(start, 0, width)
    return Region(af.mul(start, af.where(one, 1, 0)), 0, af.where(one, width, divisor - 1))


def evaluate_index(index: Expr, roots: Mapping[int, Affine]) -> Affine:
    """Return an index of simplified axis slots, or a sum that moves like it."""
    if isinstance(index, Axis):
        return roots[index.slot]
    points = [Region(roots[s], 0, 0) for s in range(len(roots))]
    region = evaluate_region(index, points)
    if not _is_point(region):
        region = evaluate_region(as_sum(index), points)
    return af.add(region.start, af.const(region.lo))


_HALF = Fraction(1, 2)
_ROUNDING = {"floor": Fraction(0), "trunc": Fraction(0), "round": _HALF, "nearbyint": _HALF}
_MOST = 1 << 12  # of a denominator: float32 holds no more of a scale that is a ratio of sizes


def as_sum(index: Expr) -> Expr:
    """Return a sum of loop variables and quotients that moves like ``index``.

    ``A[t[i]]`` moves as ``A[i]`` (a permutation); ``min(max(i, 0), n)`` and ``i < 0 ? i + n : i``
    as ``i``; ``floor(i * 0.125 - 0.4375)``, of resizing, as ``(2 i - 7) div 16``.
    """
    match index:
        case Load(indices=indices):
            return _added([as_sum(i) for i in indices])
        case Select(then=then, other=other) | Call(name="if_then_else", args=(_, then, other)):
            # The shorter branch is the index itself, the longer its correction at the border.
            return as_sum(min(then, other, key=lambda branch: sum(1 for _ in walk(branch))))
        case Binary(op=("min" | "max"), a=a, b=b):
            return as_sum(b if isinstance(a, Const) else a)
        case Binary(op=op, a=a, b=b, dtype=dtype):
            return Binary(op, as_sum(a), as_sum(b), dtype)
        # ceil(a) = -floor(-a): one rule serves both.
        case Cast(a=Call(name="ceil", args=(a,))):
            down = _divided(Binary("mul", a, Const(-1.0, "float32"), "float32"), Fraction(0))
            return Binary("mul", down, Const(-1), "int64")
        case Cast(a=Call(name=name, args=(a,))) if name in _ROUNDING:
            return _divided(a, _ROUNDING[name])
        case Cast(a=a):
            return as_sum(a)
        case Axis() | Const():
            return index
        case _:
            return Const(0)


def _added(parts: list[Expr]) -> Expr:
    out: Expr = Const(0)
    for part in parts:
        out = part if out == Const(0) else Binary("add", out, part, "int64")
    return out


def _divided(value: Expr, shift: Fraction) -> Expr:
    """Return ``floor(value + shift)`` of a float linear in one integer, else 0."""
    found = _linear(value)
    if found is None:
        return Const(0)
    # Float scales are rounded ratios of sizes: the nearest small fraction is exact again.
    scale, core, offset = found[0].limit_denominator(_MOST), found[1], found[2] + shift
    offset = offset.limit_denominator(_MOST)
    bottom = scale.denominator * offset.denominator
    top = Binary("mul", as_sum(core), Const(scale.numerator * offset.denominator), "int64")
    moved = Binary("add", top, Const(offset.numerator * scale.denominator), "int64")
    return Binary("floordiv", moved, Const(bottom), "int64")


def _linear(value: Expr) -> tuple[Fraction, Expr, Fraction] | None:
    """Return (scale, core, offset) of ``scale * core + offset``, core integer, or None."""
    match value:
        case Const(value=number):
            return Fraction(0), Const(0), Fraction(number)
        case Cast(a=a) if a.dtype.startswith(("int", "uint")):
            return Fraction(1), a, Fraction(0)
        case Binary(op=("add" | "sub") as op, a=a, b=b):
            x, y = _linear(a), _linear(b)
            sign = 1 if op == "add" else -1
            # Only one side may hold the integer: scale and core describe a single one.
            if x is None or y is None or (x[0] and y[0]):
                return None
            return x[0] + sign * y[0], x[1] if x[0] else y[1], x[2] + sign * y[2]
        case Binary(op=("mul" | "div") as op, a=a, b=b):
            x, y = _linear(a), _linear(b)
            if x is None or y is None:
                return None
            if op == "mul" and not x[0]:
                x, y = y, x
            if y[0] or (op == "div" and not y[2]):
                return None
            factor = y[2] if op == "mul" else 1 / y[2]
            return x[0] * factor, x[1], x[2] * factor
        case _:
            return None


def is_sum(expr: Expr) -> bool:
    """Return whether an index has loop variables and numbers only, for arithmetic."""
    return all(isinstance(node, (Axis, Const, Cast, Binary)) for node in walk(expr))
