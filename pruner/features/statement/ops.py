"""Count the arithmetic of a store's iteration after TVM's Simplify."""

from __future__ import annotations

from pruner.arrays import IntLike
from pruner.features.columns import COUNT_COLUMNS, COUNT_INDEX
from pruner.features.statement.touches import load_indices
from pruner.program.dag.expr import Axis, Binary, Call, Cast, Const, Expr, Load, Not, Select, walk
from pruner.program.index import affine as af
from pruner.program.index.affine import INF, Affine
from pruner.program.index.divide import opened
from pruner.program.index.regions import is_sum
from pruner.program.nests import BufferStore

FLOAT, INT = COUNT_INDEX["float_mad"], COUNT_INDEX["int_mad"]  # the first of each group
_ADDSUB, _MUL, _DIVMOD, _CMP, _MATH, _OTHER = (  # places inside a group
    COUNT_INDEX[f"float_{kind}"] - FLOAT
    for kind in ("addsub", "mul", "divmod", "cmp", "mathfunc", "otherfunc")
)
BOOL_OP, SELECT_OP = COUNT_INDEX["bool_op"], COUNT_INDEX["select_op"]
_GROUP = {
    "add": _ADDSUB, "sub": _ADDSUB, "mul": _MUL, "div": _DIVMOD, "mod": _DIVMOD,
    "floordiv": _DIVMOD, "floormod": _DIVMOD, "min": _CMP, "max": _CMP,
    "eq": _CMP, "ne": _CMP, "lt": _CMP, "le": _CMP, "gt": _CMP, "ge": _CMP,
}  # fmt: skip
_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})


_Truth = tuple[IntLike, IntLike]  # where a condition provably holds, and where it fails


class OpCounter:
    """Counts of the 16 operation columns for one store."""

    def __init__(self, store: BufferStore) -> None:
        self._store = store
        self._truths: dict[int, _Truth] = {}  # of conditions in the store's value
        self.counts: list[IntLike] = [0] * len(COUNT_COLUMNS)
        self._expr(store.value, 1)

    def _bump(self, column: int, amount: IntLike) -> None:
        self.counts[column] = self.counts[column] + amount

    def _expr(self, expr: Expr, live: IntLike) -> None:
        match expr:
            case Const():
                return
            # Simplify sorts sums of loop variables as a whole, but keeps integer min and max.
            case Axis() | Binary(dtype="int32" | "int64") if _has_no_choice(expr) and is_sum(expr):
                self._affine(self._store.sum_of(expr), live)
            case Binary(op=op, a=a, b=b) if _is_int(expr):  # of elements, or with a choice
                self._bump(INT + _GROUP[op], live)
                self._expr(a, live)
                self._expr(b, live)
            case Load():
                for index in load_indices(expr, self._store):
                    self._affine(index, live)
            case Binary(op=("and" | "or")) | Not():
                self._condition(expr, live)
            case Binary(op=op) if op in _COMPARISONS:
                self._condition(expr, live)
            case Binary(op="div", a=a, b=Const(value=value)):
                if value != 1:  # Simplify multiplies by the reciprocal
                    self._bump(FLOAT + _MUL, live)
                self._expr(a, live)
            case Binary(op=op, a=a, b=b):
                self._bump(FLOAT + _GROUP[op], live)
                self._expr(a, live)
                self._expr(b, live)
            case Cast(a=a):
                self._expr(a, live)
            case Select(cond=cond, then=then, other=other):
                # ``live``: the share of programs (0 or 1) that keep the expression.
                self._choice(cond, then, other, live, SELECT_OP)
            case Call(name="if_then_else", args=(cond, then, other)):
                column = (FLOAT if expr.dtype.startswith(("float", "bfloat")) else INT) + _MATH
                self._choice(cond, then, other, live, column)
            case Call(args=args, pure=pure, dtype=dtype):
                group = FLOAT if dtype.startswith(("float", "bfloat")) else INT
                self._bump(group + (_MATH if pure else _OTHER), live)
                for arg in args:
                    self._expr(arg, live)

    def _choice(self, cond: Expr, then: Expr, other: Expr, live: IntLike, column: int) -> None:
        """Count a select or if_then_else; gone where its condition is decided."""
        always, never = self._decide(cond)
        open_ = live * (1 - always) * (1 - never)
        self._bump(column, open_)
        self._condition(cond, open_)
        self._expr(then, live * (1 - never))
        self._expr(other, live * (1 - always))

    def _affine(self, a: Affine, live: IntLike) -> None:
        """Count additions, products and divisions of a simplified index."""
        number: IntLike = 0
        positive: IntLike = 0
        for t in a.terms:
            active = af.where(t.coef != 0, live, 0)
            number = number + active
            positive = positive + af.where(t.coef > 0, live, 0)
            self._bump(INT + _MUL, af.where((t.coef == 1) | (t.coef == -1), 0, active))
            self._bump(INT + _DIVMOD, af.where(t.lower != 1, active, 0))
            self._bump(INT + _DIVMOD, af.where(t.upper < INF, active, 0))
            if isinstance(t.index, Affine):
                self._affine(t.index, active)
        # A sum without a positive term is printed as 0 - x: one more subtraction.
        leading_zero = (positive == 0) & (a.base <= 0)
        sums = number - 1 + af.where(a.base != 0, 1, 0) + af.where(leading_zero, 1, 0)
        self._bump(INT + _ADDSUB, af.where(number > 0, sums, 0) * live)

    def _decide(self, cond: Expr) -> _Truth:
        if id(cond) not in self._truths:
            self._truths[id(cond)] = self._decided(cond)
        return self._truths[id(cond)]

    def _decided(self, cond: Expr) -> _Truth:
        match cond:
            case Binary(op="and", a=a, b=b):
                (holds, fails), (holds_too, fails_too) = self._decide(a), self._decide(b)
                return holds * holds_too, 1 - (1 - fails) * (1 - fails_too)
            case Binary(op="or", a=a, b=b):
                (holds, fails), (holds_too, fails_too) = self._decide(a), self._decide(b)
                return 1 - (1 - holds) * (1 - holds_too), fails * fails_too
            case Not(a=a):
                return self._decide(a)[::-1]
            case Binary(op=op, a=a, b=b) if op in _COMPARISONS and _are_indices(a, b):
                return self._compare(op, a, b)
            case Const(value=value):
                return int(bool(value)), int(not value)
            case _:
                return 0, 0

    def _compare(self, op: str, a: Expr, b: Expr) -> _Truth:
        difference = af.add(self._store.sum_of(a), self._store.sum_of(b), -1)
        lo, hi = af.bounds(difference)
        below, not_below = af.where(hi < 0, 1, 0), af.where(lo >= 0, 1, 0)
        above, not_above = af.where(lo > 0, 1, 0), af.where(hi <= 0, 1, 0)
        zero = not_below * not_above
        apart = af.most(below, above)
        table = {
            "lt": (below, not_below),
            "ge": (not_below, below),
            "gt": (above, not_above),
            "le": (not_above, above),
            "eq": (zero, apart),
            "ne": (apart, zero),
        }
        return table[op]

    def _condition(self, cond: Expr, live: IntLike) -> None:
        """Count comparisons and connectives that remain undecided."""
        match cond:
            case Binary(op=("and" | "or") as op, a=a, b=b):
                # ``a and true`` is a, ``a or false`` is a: the decided side goes.
                x_gone, y_gone = (self._decide(side)[op == "or"] for side in (a, b))
                self._bump(BOOL_OP, live * (1 - x_gone) * (1 - y_gone))
                self._condition(a, live * (1 - x_gone))
                self._condition(b, live * (1 - y_gone))
            case Not(a=a):
                self._bump(BOOL_OP, live)
                self._condition(a, live)
            case Binary(op=op, a=a, b=b) if op in _COMPARISONS:
                if not _is_int(a):
                    self._bump(FLOAT + _CMP, live)
                    self._expr(a, live)
                    self._expr(b, live)
                    return
                self._bump(INT + _CMP, live)
                if not _are_indices(a, b):
                    self._expr(a, live)
                    self._expr(b, live)
                    return
                for side in self._sides(op, a, b):
                    self._affine(side, live)
            case _:
                self._expr(cond, live)

    def _sides(self, op: str, a: Expr, b: Expr) -> tuple[Affine, Affine]:
        left, right = self._store.sum_of(a), self._store.sum_of(b)
        ordered = op not in ("eq", "ne")
        if not right.terms:
            left = _compared(left, ordered=ordered)
        elif not left.terms:
            right = _compared(right, ordered=ordered)
        return left, right


_PASSES = 2  # Simplify runs the rewriting simplifier, then the canonical one; each takes one step


def _compared(a: Affine, *, ordered: bool) -> Affine:
    """Return the looping side of a comparison after moving the constant.

    ``x + c1 < c2 -> x < c2 - c1``, ``x * c1 < c2 -> x < c2 div c1`` and ``x div c1 < c2 -> x < c1
    c2`` (``LTNode`` rules of src/arith/rewrite_simplify.cc).
    """
    # For == and != the rules move only the base: a factor would need divisibility.
    if not ordered:
        return Affine(a.terms, 0)
    a = opened(Affine(a.terms, 0))
    for _ in range(_PASSES):
        a = _without_factor(a)
    return a


def _without_factor(a: Affine) -> Affine:
    """Drop the coefficient, or the divisor, of a single term."""
    count, out = af.num_terms(a), Affine()
    for t in a.terms:
        single = (count == 1) & (t.coef != 0)
        scaled = single & (t.coef != 1)
        divided = single & (t.coef == 1) & (t.lower != 1)
        bare = divided & (t.upper >= INF)
        coef = af.where(scaled, 1, af.where(divided, 0, t.coef))
        out = af.add(out, Affine([af.Term(t.index, t.lower, t.upper, coef)]))
        wrapped = af.where(divided & (t.upper < INF), 1, 0)
        if af.any_nonzero(wrapped):
            out = af.add(out, Affine([af.Term(t.index, 1, t.upper, wrapped)]))
        if af.any_nonzero(bare):
            inner = af.variable(t.index) if isinstance(t.index, af.LoopVar) else t.index
            out = af.add(out, Affine(af.mul(inner, af.where(bare, 1, 0)).terms))
    return out


def _has_no_choice(expr: Expr) -> bool:
    return not any(isinstance(node, Binary) and node.op in ("min", "max") for node in walk(expr))


def _are_indices(a: Expr, b: Expr) -> bool:
    return _is_int(a) and is_sum(a) and is_sum(b)


def _is_int(expr: Expr) -> bool:
    return expr.dtype.startswith(("int", "uint"))
