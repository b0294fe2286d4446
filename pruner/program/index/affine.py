"""Index expressions for N programs at once.

Sums ``sum_t coef_t * ((index_t mod upper_t) div lower_t) + base``, the normal form of TVM's
canonical simplifier ("SplitExpr" and "SumExpr" in src/arith/canonical_simplify.cc); every number is
int64 [N], or plain where it is common to all programs, which is many times faster. A term that is
absent from a program has coefficient 0 there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pruner.arrays import IntLike, Mask

Truth = Mask | np.bool_ | bool  # of all programs alike, or one a program [N]
INF = 1 << 61  # "no modulo"; larger than any index and safe to multiply by small factors


@dataclass(eq=False, slots=True)
class LoopVar:
    """A loop variable: ``0 <= value < extent``, per program."""

    name: str
    extent: IntLike = 1


@dataclass(eq=False, slots=True)
class Term:
    """``coef * ((index mod upper) div lower)``, a term of a sum.

    ``limit``: upper bound of the quotient that the guard of the store implies (:data:`INF`: none).
    """

    index: LoopVar | Affine
    lower: IntLike
    upper: IntLike
    coef: IntLike
    limit: IntLike = INF


@dataclass(eq=False, slots=True)
class Affine:
    """``sum(terms) + base`` for N programs.

    ``limit``: upper bound of the value that the guard of the store implies (:data:`INF`: none);
    results of arithmetic have none.
    """

    terms: list[Term] = field(default_factory=list)
    base: IntLike = 0
    limit: IntLike = INF


def plain(value: IntLike) -> IntLike:
    """Return an int where all programs agree, else the array."""
    if type(value) is np.ndarray and value.ndim and value.size:
        # Bytes: NumPy's own comparison and test take ten times as long for the usual short array.
        numbers, width = value.tobytes(), value.itemsize
        alike = numbers.endswith(numbers[:width]) and numbers == numbers[:width] * value.size
        return int(value.item(0)) if alike else value
    # relaxed numbers stay: equal numbers of the anchors may differ elsewhere
    return value if isinstance(value, np.ndarray) and value.ndim and value.size else int(value)


def any_nonzero(x: IntLike | Truth) -> bool:
    """Return whether any program has a non-zero value."""
    return bool(x.tobytes().strip(b"\0")) if isinstance(x, np.ndarray) else bool(x)


def everywhere(x: Truth) -> bool:
    """Return whether a condition holds for all programs."""
    return 0 not in x.tobytes() if isinstance(x, np.ndarray) else bool(x)


def fails(x: Truth) -> Truth:
    """Return where a condition does not hold."""
    return ~x if isinstance(x, np.ndarray) else not x


def where(cond: Truth, a: IntLike, b: IntLike) -> IntLike:
    """Return ``np.where(cond, a, b)``; plain integers stay plain."""
    if not isinstance(cond, np.ndarray):
        return a if cond else b
    # The most frequent case, a mask as a number: a cast is several times faster.
    if isinstance(a, int) and isinstance(b, int) and a == 1 and b == 0:
        return cond.astype(np.int64)
    return np.where(cond, a, b)


def least(a: IntLike, b: IntLike) -> IntLike:
    """Return the smaller of two numbers, element by element."""
    plain = isinstance(a, int) and isinstance(b, int)
    return min(a, b) if plain else np.minimum(a, b)


def most(a: IntLike, b: IntLike) -> IntLike:
    """Return the larger of two numbers, element by element."""
    plain = isinstance(a, int) and isinstance(b, int)
    return max(a, b) if plain else np.maximum(a, b)


def const(value: IntLike) -> Affine:
    """Return a constant index."""
    return Affine([], value)


def variable(var: LoopVar) -> Affine:
    """Return the loop variable as index; lowering removes loops of extent 1."""
    present = where(var.extent > 1, 1, 0)
    return Affine([Term(var, 1, INF, present)]) if any_nonzero(present) else Affine()


def add(a: Affine, b: Affine, scale: IntLike = 1) -> Affine:
    """Return ``a + scale * b``; equal terms merge per program (``AddToSelf``)."""
    if not b.terms and isinstance(b.base, int) and b.base == 0:
        return a
    terms = list(a.terms)
    for t in b.terms:
        _insert(terms, t, t.coef * scale)
    limit = a.limit
    # The guard bounds `a` alone: adding anything else makes its bound say nothing of the sum.
    if not is_endless(limit):
        limit = where(is_zero(b), limit, INF)
    terms = [t for t in terms if any_nonzero(t.coef)]
    if len(terms) > 1:
        _join(terms)
    return Affine(terms, a.base + b.base * scale, limit)


def _join(terms: list[Term]) -> None:
    """Join quotients with matching remainders, in place (``SimplifySplitExprs``).

    ``(x div (c s)) * s + (x mod (c s)) div c -> x div c``.
    """
    # A sum without any modulo has nothing to join: skip the quadratic search.
    joined = not all(is_endless(t.upper) for t in terms)
    while joined:
        # A join can make the next one possible (x div 8, mod 8 div 4, mod 4): repeat.
        joined = False
        for i, high in enumerate(terms):
            for j, low in enumerate(terms):
                if i == j or is_endless(low.upper) or _other_variable(high, low):
                    continue
                fits = (high.lower == low.upper) & (high.coef != 0)
                if not any_nonzero(fits):
                    continue
                # One ratio for coefficients and factors; the larger factor is a multiple.
                fits = fits & (high.coef * low.lower == low.coef * high.lower)
                if any_nonzero(fits):
                    fits = fits & same_index(high, low)
                if not any_nonzero(fits):
                    continue
                # Where it does not fit, both terms stay: masks split the batch, not the arrays.
                upper = plain(where(fits, high.upper, low.upper))
                limit = plain(where(fits, INF, low.limit))
                terms[j] = Term(low.index, low.lower, upper, low.coef, limit)
                coef = where(fits, 0, high.coef)
                terms[i] = high = Term(high.index, high.lower, high.upper, coef, high.limit)
                joined = True
        if joined:
            terms[:] = [t for t in terms if any_nonzero(t.coef)]


def _other_variable(t: Term, u: Term) -> bool:
    """Return whether no program can have equal indices in both terms."""
    simple = isinstance(t.index, LoopVar) or isinstance(u.index, LoopVar)
    return simple and t.index is not u.index


def _is_one(factor: IntLike) -> bool:
    return isinstance(factor, int) and factor == 1


def _insert(terms: list[Term], t: Term, coef: IntLike) -> None:
    simple = isinstance(t.index, LoopVar)
    for i, u in enumerate(terms):
        # The usual case, tested here because calls cost more than the test.
        if u.index is not t.index and (simple or isinstance(u.index, LoopVar)):
            continue
        equal = equal_terms(t, u)
        # Only False itself means "no program": an array of False must go through the masks.
        if equal is False:
            continue
        merged = u.coef + where(equal, coef, 0)
        terms[i] = Term(u.index, u.lower, u.upper, merged, u.limit)
        coef = where(equal, 0, coef)
        if not any_nonzero(coef):
            return
    fresh = Term(t.index, t.lower, t.upper, coef, t.limit)
    for i, u in enumerate(terms):
        if u.index is not t.index and (simple or isinstance(u.index, LoopVar)):
            continue
        both = _overlay(u, fresh)
        if both is not None:
            terms[i] = both
            return
    terms.append(fresh)


def _overlay(u: Term, t: Term) -> Term | None:
    """Merge two terms that no program has both of; None where impossible."""
    mine = u.coef != 0
    if any_nonzero(mine & (t.coef != 0)):
        return None
    index: LoopVar | Affine = u.index
    if isinstance(u.index, Affine) and isinstance(t.index, Affine):
        # Two composite indices become one that is each in its programs; masks keep the sum exact.
        index = add(mul(u.index, where(mine, 1, 0)), mul(t.index, where(mine, 0, 1)))
    return Term(
        index,
        plain(where(mine, u.lower, t.lower)),
        plain(where(mine, u.upper, t.upper)),
        u.coef + t.coef,
        plain(where(mine, u.limit, t.limit)),
    )


def equal_terms(t: Term, u: Term) -> Truth:
    """Return where two terms differ at most in their coefficients; False: nowhere."""
    same = same_index(t, u)
    if same is False:
        return False
    same = same & _eq(t.lower, u.lower) & _eq(t.upper, u.upper)
    if not any_nonzero(same):
        return False
    return True if everywhere(same) else same


def same_index(t: Term, u: Term) -> Truth:
    """Return where two terms divide the same index; False: nowhere."""
    if t.index is u.index:
        return True
    if isinstance(t.index, LoopVar) or isinstance(u.index, LoopVar):
        return False
    # Composite indices are compared by value, as the simplifier's deep equality does.
    same = is_zero(add(t.index, u.index, -1))
    return same if any_nonzero(same) else False


def _eq(a: IntLike, b: IntLike) -> Truth:
    return True if a is b else a == b


def is_zero(a: Affine) -> Truth:
    """Return where the value is the constant 0."""
    return is_constant(a) & (a.base == 0)


def is_constant(a: Affine) -> Truth:
    """Return where no term is present."""
    out: Truth = True
    for t in a.terms:
        out = out & (t.coef == 0)
    return out


def num_terms(a: Affine) -> IntLike:
    """Count the terms that are present."""
    count: IntLike = 0
    for t in a.terms:
        count = count + (t.coef != 0)
    return count


def mul(a: Affine, scale: IntLike) -> Affine:
    """Return ``a * scale``."""
    terms = [Term(t.index, t.lower, t.upper, t.coef * scale, t.limit) for t in a.terms]
    # No limit: the guard bounds the unscaled value.
    return Affine([t for t in terms if any_nonzero(t.coef)], a.base * scale)


def select(cond: Truth, a: Affine, b: Affine) -> Affine:
    """Return ``a`` where ``cond`` holds, else ``b``."""
    if everywhere(cond):
        return a
    if not any_nonzero(cond):
        return b
    out = add(mul(a, where(cond, 1, 0)), mul(b, where(cond, 0, 1)))
    return Affine(out.terms, out.base, where(cond, a.limit, b.limit))


def index_bounds(index: LoopVar | Affine) -> tuple[IntLike, IntLike]:
    """Return the smallest and largest value of a term's index."""
    if isinstance(index, LoopVar):
        return 0, index.extent - 1
    return bounds(index)


def variables_of(index: LoopVar | Affine) -> frozenset[LoopVar]:
    """Return the loop variables in an index."""
    if isinstance(index, LoopVar):
        return frozenset((index,))
    return frozenset().union(*(variables_of(t.index) for t in index.terms))


def wrap_bounds(t: Term, lo: IntLike, hi: IntLike) -> tuple[IntLike, IntLike]:
    """Bound ``(index mod upper) div lower`` for ``index`` in [lo, hi] (``ConstIntBound``)."""
    if isinstance(lo, int) and lo == 0:  # loop variables: the common case
        hi = hi if is_endless(t.upper) else least(hi, t.upper - 1)
        return 0, hi if _is_one(t.lower) else hi // t.lower
    if not is_endless(t.upper):
        inside = (lo >= 0) & (hi < t.upper)
        # The modulo wraps somewhere in the interval, or might: TVM then assumes its whole range.
        capped = where(lo >= 0, least(hi, t.upper - 1), t.upper - 1)
        lo, hi = where(inside, lo, 0), where(inside, hi, capped)
    if not _is_one(t.lower):
        lo, hi = lo // t.lower, hi // t.lower
    return lo, hi


def with_limit(a: Affine, limit: IntLike) -> Affine:
    """Return ``a`` with an upper bound, noted on the term where single."""
    if is_endless(limit) or not a.terms:
        return a
    alone = (num_terms(a) == 1) & (a.base == 0)
    terms = []
    for t in a.terms:
        here = alone & (t.coef == 1)
        bound = least(t.limit, where(here, limit, INF))
        terms.append(Term(t.index, t.lower, t.upper, t.coef, bound))
    return Affine(terms, a.base, least(a.limit, limit))


def bounds(a: Affine) -> tuple[IntLike, IntLike]:
    """Return the smallest and largest value over all loops, by intervals of terms."""
    lo: IntLike = a.base
    hi: IntLike = a.base
    for t in a.terms:
        tlo, thi = wrap_bounds(t, *index_bounds(t.index))
        if not is_endless(t.limit):
            thi = least(thi, t.limit - 1)
        y = t.coef * thi
        # Indices start at 0 nearly always: skip an array product that would be 0.
        x = 0 if isinstance(tlo, int) and tlo == 0 else t.coef * tlo
        lo, hi = lo + least(x, y), hi + most(x, y)
    return lo, hi if is_endless(a.limit) else least(hi, a.limit - 1)


def is_endless(limit: IntLike) -> bool:
    """Return whether the limit is "none" for all programs."""
    return isinstance(limit, int) and limit >= INF
