"""Replace indices that are no sums of loop variables by such sums.

The value of such an index is unknown before the program runs, and TVM's regions then hold the whole
dimension. Features need how it *moves*, and take a sum that moves like it:

* ``A[t[i]]`` moves as ``A[i]``: the table is taken for a permutation;

* ``min(max(i, 0), n)`` moves as ``i``, and so does ``i < 0 ? i + n : i``;

* ``floor(i * 0.125 - 0.4375)``, as resizing has it, is the division ``(2 i - 7) div 16``.
"""

from __future__ import annotations

from fractions import Fraction

from pruner.program.dag.expr import Axis, Binary, Call, Cast, Const, Expr, Load, Select, walk

_HALF = Fraction(1, 2)
_ROUNDING = {"floor": Fraction(0), "trunc": Fraction(0), "round": _HALF, "nearbyint": _HALF}
_MOST = 1 << 12  # of a denominator: float32 holds no more of a scale that is a ratio of sizes


def as_sum(index: Expr) -> Expr:
    """Return a sum of loop variables and quotients that moves like ``index``."""
    match index:
        case Load(indices=indices):
            return _added([as_sum(i) for i in indices])
        case Select(then=then, other=other) | Call(name="if_then_else", args=(_, then, other)):
            # The shorter branch is the index itself, the longer its correction at the border (i +
            # n).
            return as_sum(min(then, other, key=_size))
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


def _size(expr: Expr) -> int:
    return sum(1 for _ in walk(expr))


def _added(parts: list[Expr]) -> Expr:
    out: Expr = Const(0)
    for part in parts:
        out = part if out == Const(0) else Binary("add", out, part, "int64")
    return out


def _divided(value: Expr, shift: Fraction) -> Expr:
    """Return ``floor(value + shift)`` of a float expression linear in one integer.

    0 where the expression is not linear.
    """
    found = _linear(value)
    if found is None:
        return Const(0)
    # Float scales are ratios of sizes, rounded: the nearest fraction of small denominator is exact
    # again.
    scale, core, offset = found[0].limit_denominator(_MOST), found[1], found[2] + shift
    offset = offset.limit_denominator(_MOST)
    bottom = scale.denominator * offset.denominator
    top = Binary("mul", as_sum(core), Const(scale.numerator * offset.denominator), "int64")
    moved = Binary("add", top, Const(offset.numerator * scale.denominator), "int64")
    return Binary("floordiv", moved, Const(bottom), "int64")


def _linear(value: Expr) -> tuple[Fraction, Expr, Fraction] | None:
    """Return (scale, core, offset) of ``scale * core + offset``, or None.

    ``core`` is an integer expression.
    """
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
    """Return whether an index has loop variables and numbers only.

    Such an index can be followed by arithmetic.
    """
    return all(isinstance(node, (Axis, Const, Cast, Binary)) for node in walk(expr))
