"""Divide index expressions by constants, for N programs at once.

The rules of TVM's canonical simplifier (src/arith/canonical_simplify.cc), because features count
the divisions it leaves; each works on a mask of the programs that it applies to:

1. ``SeparateDivisibleParts`` (:func:`_split`): terms whose coefficient the divisor divides are
   divided exactly; only the rest is divided further;
2. a rest known to be in ``[0, divisor)`` (:func:`_fits_below`) is 0 in the quotient and itself in
   the remainder;
3. a rest of one term goes to ``SplitDivConst`` or ``SplitModConst`` (:func:`_divided_term`,
   :func:`_reduced_term`), which move the divisor into the term's lower or upper factor;
4. any other rest becomes the index of a new term, divided as a whole.
"""

from __future__ import annotations

from pruner.arrays import IntLike
from pruner.program.index import affine as af
from pruner.program.index.affine import INF, Affine, LoopVar, Term, Truth


def _split(a: Affine, divisor: IntLike) -> tuple[Affine, Affine]:
    """Split into terms that ``divisor`` divides, and the rest (``SeparateDivisibleParts``)."""
    whole, rest = [], []
    for t in a.terms:
        divisible = t.coef % divisor == 0
        if af.everywhere(divisible) and af.any_nonzero(t.coef):
            whole.append(t)
            continue
        w, r = af.where(divisible, t.coef, 0), af.where(divisible, 0, t.coef)
        if af.any_nonzero(w):
            whole.append(Term(t.index, t.lower, t.upper, w, t.limit))
        if af.any_nonzero(r):
            rest.append(Term(t.index, t.lower, t.upper, r, t.limit))
    divisible = _modulo(a.base, divisor) == 0
    base = af.where(divisible, a.base, 0)
    limit = a.limit
    if not af.is_endless(limit):  # the guard speaks of the rest only where that is all there is
        alone = base == 0
        for t in whole:
            alone = alone & (t.coef == 0)
        limit = af.where(alone, limit, INF)
    return Affine(whole, base), Affine(rest, af.where(divisible, 0, a.base), limit)


def _masked(a: Affine, keep: IntLike) -> Affine:
    out = af.mul(a, keep)
    return Affine(out.terms, out.base, a.limit)


def _shape(rest: Affine, live: IntLike) -> tuple[IntLike, IntLike]:
    """Return where ``live`` programs have one term and no base, and where several."""
    count = af.num_terms(rest)
    single = (count == 1) & (rest.base == 0)
    multi = (count > 0) & af.fails(single)  # anything else that is not a plain constant
    return af.where(single, live, 0), af.where(multi, live, 0)


def _fits_below(rest: Affine, divisor: IntLike) -> Truth:
    lo, hi = af.bounds(rest)
    return (lo >= 0) & (hi < divisor)


def floordiv(a: Affine, divisor: IntLike) -> Affine:
    """Return ``floor(a / divisor)`` (``divisor`` > 0), simplified as TVM does."""
    one = divisor == 1
    if af.everywhere(one):
        return a
    # Division by 1 keeps the guard's limit, which the rules below drop: such programs apart.
    if not af.is_endless(a.limit) and af.any_nonzero(one):
        return af.select(one, a, floordiv(a, af.where(one, INF, divisor)))
    whole, rest = _split(a, divisor)
    terms = [Term(t.index, t.lower, t.upper, t.coef // divisor, t.limit) for t in whole.terms]
    out = Affine(terms, _divided(whole.base, divisor))
    if not rest.terms:
        return Affine(out.terms, out.base + _divided(rest.base, divisor))
    gone = af.where(_fits_below(rest, divisor), 1, 0)
    single, composite = _shape(rest, 1 - gone)
    # A rest without terms is a number, which is divided as a number.
    has_terms = single + composite + gone > 0
    out = Affine(out.terms, out.base + af.where(has_terms, 0, _divided(rest.base, divisor)))
    for t in rest.terms:
        here = af.where(t.coef != 0, single, 0)
        if af.any_nonzero(here):
            quotient, left = _divided_term(t, divisor, here)
            out = af.add(out, quotient)
            composite = composite + left
    # Rule 4, and single terms that no rule of 3 fits: the rest as a whole becomes an index.
    if af.any_nonzero(composite):
        out = af.add(out, Affine([Term(_masked(rest, composite), divisor, INF, composite)]))
    return out


def _divided_term(t: Term, divisor: IntLike, here: IntLike) -> tuple[Affine, IntLike]:
    """Divide a single term where ``here``; also return where no rule applied.

    ``SplitDivConst`` of ``coef * ((x mod upper) div lower)``, ``reach = lower * divisor / coef``:
    where ``reach`` divides ``upper`` it becomes the lower factor; where ``upper <= reach`` the
    quotient is 0; else ``x mod upper`` becomes an index of its own.
    """
    scaled, fits = _scaled(divisor, t.coef)
    reach = t.lower * scaled
    fold = fits & _divides(reach, t.upper)
    vanish = fits & (t.upper <= reach)
    inward = fits & af.fails(fold | vanish)
    limit = t.limit if af.is_endless(t.limit) else -(-t.limit // af.where(fold, scaled, 1))
    lower = af.plain(af.where(fold, reach, t.lower))
    out = Affine([Term(t.index, lower, t.upper, af.where(fold, here, 0), limit)])
    moved = af.where(inward, here, 0)
    if af.any_nonzero(moved):  # (x mod upper) div lower becomes an index of its own
        index = Affine([Term(t.index, 1, t.upper, moved)])
        out = af.add(out, Affine([Term(index, af.plain(reach), INF, moved)]))
    return out, af.where(fits, 0, here)


def floormod(a: Affine, divisor: IntLike) -> Affine:
    """Return ``a mod divisor`` (floor), simplified as TVM does."""
    if af.everywhere(divisor == 1):
        return Affine()
    _, rest = _split(a, divisor)
    if not rest.terms:
        return Affine([], _modulo(rest.base, divisor))
    keep = af.where(_fits_below(rest, divisor), 1, 0)
    single, composite = _shape(rest, 1 - keep)
    out = _closed_quotient(_masked(rest, keep))
    is_const = single + composite + keep == 0
    out = Affine(
        out.terms, out.base + af.where(is_const, _modulo(rest.base, divisor), 0), out.limit
    )
    for t in rest.terms:
        here = af.where(t.coef != 0, single, 0)
        if af.any_nonzero(here):
            remainder, left = _reduced_term(t, divisor, here)
            out = af.add(out, remainder)
            composite = composite + left
    if af.any_nonzero(composite):
        # The base is reduced first: TVM's floormod of a sum takes constants modulo the divisor.
        inner = _masked(rest, composite)
        base = _modulo(inner.base, divisor)
        limit = inner.limit
        if not af.is_endless(limit):
            limit = af.where(base == inner.base, limit, INF)
        out = af.add(out, Affine([Term(Affine(inner.terms, base, limit), 1, divisor, composite)]))
    return out


def _closed_quotient(a: Affine) -> Affine:
    """Turn a single quotient ``s div c`` into one indivisible term.

    The simplifier returns ``(s div c) mod m`` with ``s div c < m`` as a plain expression, no
    ``SplitExpr``: ``(s div c) div d`` stays two divisions.
    """
    terms = []
    for t in a.terms:
        if isinstance(t.index, LoopVar):
            terms.append(t)
            continue
        # A quotient by itself, without factor, modulo or base.
        closed = (t.coef == 1) & (t.lower != 1) & (af.num_terms(a) == 1)
        closed = closed & (t.upper >= INF) & (a.base == 0)
        if not af.any_nonzero(closed):
            terms.append(t)
            continue
        piece = Affine([Term(t.index, t.lower, t.upper, af.where(closed, 1, 0), t.limit)])
        terms.append(Term(t.index, t.lower, t.upper, af.where(closed, 0, t.coef), t.limit))
        terms.append(Term(piece, 1, INF, af.where(closed, 1, 0), t.limit))
    return Affine([t for t in terms if af.any_nonzero(t.coef)], a.base, a.limit)


def opened(a: Affine) -> Affine:
    """Return the same value with indivisible quotients as ordinary terms again."""
    out = Affine([], a.base, a.limit)
    for t in a.terms:
        if isinstance(t.index, LoopVar):
            out = af.add(out, Affine([t]))
            continue
        bare = (t.lower == 1) & (t.upper >= INF)
        inside = af.mul(t.index, af.where(bare, t.coef, 0))
        coef = af.where(bare, 0, t.coef)
        out = af.add(af.add(out, inside), Affine([Term(t.index, t.lower, t.upper, coef, t.limit)]))
    return out


def _reduced_term(t: Term, divisor: IntLike, here: IntLike) -> tuple[Affine, IntLike]:
    """Reduce a term modulo ``divisor`` where ``here``; also return where no rule applied.

    ``SplitModConst``: where ``reach`` (:func:`_divided_term`) divides ``upper`` it becomes the
    upper factor; where ``upper`` divides ``reach`` the term stays.
    """
    scaled, fits = _scaled(divisor, t.coef)
    reach = t.lower * scaled
    # (x mod upper) mod reach is x mod reach where reach divides upper.
    tighter = _divides(reach, t.upper)
    looser = False if af.is_endless(t.upper) else reach % af.most(t.upper, 1) == 0
    ok = fits & (tighter | looser)
    upper = af.plain(af.where(ok, af.where(tighter, reach, t.upper), INF))
    out = Affine([Term(t.index, t.lower, upper, af.where(ok, here, 0) * t.coef, t.limit)])
    return out, af.where(ok, 0, here)


def _divides(reach: IntLike, upper: IntLike) -> Truth:
    """Return where ``reach`` divides a term's upper factor, or none exists."""
    if af.is_endless(upper):
        return True
    return (upper >= INF) | (upper % af.most(reach, 1) == 0)


def _scaled(divisor: IntLike, coef: IntLike) -> tuple[IntLike, Truth]:
    """Return ``divisor / coef`` and where a positive ``coef`` divides it."""
    positive = coef > 0
    # A divisor of 1 where the rule does not apply: the masked result must not divide by zero.
    safe = af.where(positive, coef, 1)
    scaled = divisor // safe
    return scaled, positive & (scaled * safe == divisor)


def _divided(base: IntLike, divisor: IntLike) -> IntLike:
    """Return ``base div divisor``, skipping the usual base 0."""
    return 0 if isinstance(base, int) and base == 0 else base // divisor


def _modulo(base: IntLike, divisor: IntLike) -> IntLike:
    """Return ``base mod divisor``, skipping the usual base 0."""
    return 0 if isinstance(base, int) and base == 0 else base % divisor
