"""Values of a stage's axes from its loop variables (TE's ``PassUpIndex``).

A fused loop is taken apart by repeated division. The rewriting simplifier pulls the outer part of
``outer * factor + inner`` out of a division where the divisor divides the factor, and otherwise
collapses nested divisions into one before the canonical form is made; both leave different numbers
of divisions behind, so the pieces of every fused value are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pruner.arrays import IntLike, Mask
from pruner.program.index import affine as af
from pruner.program.index.affine import Affine
from pruner.program.index.divide import floordiv, floormod
from pruner.program.te.bounds import Bounds
from pruner.program.te.schedule import FuseRelation, Loop, SplitRelation, StageState


@dataclass(frozen=True, slots=True)
class _Quotient:
    """``total div divisor``; ``lead``: factor of the outer part of ``total``, 0 if none."""

    total: Affine
    divisor: IntLike
    lead: IntLike

    @property
    def value(self) -> Affine:
        return floordiv(self.total, self.divisor)

    def divided(self, by: IntLike) -> _Quotient:
        """The quotient divided once more."""
        divides = np.equal(np.mod(self.lead, by), 0)
        pulls = np.equal(self.divisor, 1) & np.greater(self.lead, 0) & divides
        pulls = pulls | np.equal(by, 1)
        lead = np.where(pulls, self.lead // by, 0)
        lead = np.where(np.equal(lead, 1), 0, lead)
        total = af.select(pulls, floordiv(self.total, by), self.total)
        return _Quotient(total, np.where(pulls, self.divisor, self.divisor * by), lead)


class _PassUp:
    """Walks the relations of one stage from the leaves to the roots.

    Where tiles do not divide a loop, lowering guards the store with ``value < extent`` for that
    loop and for what it was fused from; the simplifier knows the guards (``MakeBoundCheck``).
    """

    def __init__(self, leaves: dict[Loop, Affine]) -> None:
        self.values = {loop: _Quotient(value, 1, 0) for loop, value in leaves.items()}
        self.guarded: dict[Loop, IntLike] = {}

    def split(self, rel: SplitRelation) -> None:
        """``parent = inner + outer * factor``."""
        inner, outer = self.values[rel.inner], self.values[rel.outer]
        factor = rel.inner.extent
        total = af.add(inner.value, outer.value, factor)
        ragged = np.not_equal(factor * rel.outer.extent, rel.parent.extent) * 1
        inside = np.maximum(self.guarded.get(rel.outer, 0), self.guarded.get(rel.inner, 0))
        self.guarded[rel.parent] = np.maximum(ragged, inside)
        alone = np.equal(rel.outer.extent, 1)
        whole = np.equal(factor, 1)
        lead = np.where(alone, inner.lead, np.where(whole, outer.lead, factor))
        total = self._guard(total, rel.parent)
        self.values[rel.parent] = _Quotient(total, 1, lead)

    def fuse(self, rel: FuseRelation) -> None:
        """``outer = fused div extent``, ``inner = fused mod extent``."""
        fused, extent = self.values[rel.fused], rel.inner.extent
        self.guarded[rel.outer] = self.guarded[rel.inner] = self.guarded.get(rel.fused, 0)
        outer = fused.divided(extent)
        whole = np.equal(outer.divisor, 1)
        total = self._guard(outer.total, rel.outer, whole)
        self.values[rel.outer] = _Quotient(total, outer.divisor, outer.lead)
        remainder = self._guard(floormod(fused.value, extent), rel.inner)
        self.values[rel.inner] = _Quotient(remainder, 1, 0)

    def of(self, root: Loop) -> Affine:
        """Value of a root axis."""
        return self._guard(self.values[root].value, root)

    def _guard(self, value: Affine, loop: Loop, where: IntLike | Mask = 1) -> Affine:
        guard = self.guarded.get(loop, 0) * where
        if not np.any(guard):
            return value
        return af.with_limit(value, np.where(guard, loop.extent, af.INF))


def root_values(
    stage: StageState, leaves: dict[Loop, Affine], bounds: Bounds
) -> tuple[Affine, ...]:
    """Values of the axis slots of ``stage``: spatial axes, then reduce axes."""
    up = _PassUp(leaves)
    for rel in reversed(stage.relations):
        if isinstance(rel, SplitRelation):
            up.split(rel)
        else:
            up.fuse(rel)
    return tuple(af.add(up.of(root), bounds.mins[root]) for root in stage.roots)
