"""Make parallel, vector and unrolled loops of CPU programs.

Follows s_tir/meta_schedule/postproc/rewrite_parallel_vectorize_unroll.cc of TVM. The numbers of
fused loops differ between programs: a loop that went into the added parallel or vector loop keeps
its place with extent 1, and all programs share a tree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pruner.arrays import IntLike, Ints, Mask, rows_of
from pruner.program.index import affine as af
from pruner.program.index.affine import Affine, LoopVar
from pruner.program.index.divide import floordiv, floormod
from pruner.program.index.regions import evaluate_index
from pruner.program.nests import Mark
from pruner.program.tir.primitives import is_data_parallel
from pruner.program.tir.regions import index_uses
from pruner.program.tir.tree import Block, LoopNode, Tree, Uses, replace_child

_NO_LOOPS = -1


@dataclass(frozen=True, slots=True, eq=False)
class _Path:
    """The loops around a block, outermost first: ``extents``, ``exists`` [L, N]."""

    loops: list[LoopNode]
    extents: Ints
    exists: Mask

    @staticmethod
    def of(tree: Tree, loops: list[LoopNode]) -> _Path:
        absent = np.empty((len(loops), tree.num_programs), bool)
        for row, loop in enumerate(loops):
            absent[row] = loop.absent
        return _Path(loops, rows_of([x.extent for x in loops], tree.num_programs), ~absent)


# Outer and inner loops to fuse [L, N]; where all are fused [N], and split into so many lanes.
_Plan = tuple[Mask, Mask, Mask, IntLike]


def rewrite_parallel_vectorize_unroll(
    tree: Tree,
    *,
    parallel: IntLike | None = None,
    vectorize: IntLike | None = None,
    unroll: IntLike | None = None,
) -> None:
    """Fuse and mark the loops of every block in program order; None: unset."""
    for block in list(tree.blocks()):
        # The path is taken anew for each block: earlier blocks may have put a parallel loop above.
        loops = tree.path(block)
        if not loops:
            continue
        if parallel is not None or vectorize is not None:
            path = _Path.of(tree, loops)
            _apply(tree, block, path, _plan(tree, block, path, parallel, vectorize))
        if unroll is not None and block.reduces:
            _set_unroll(tree.path(block), unroll)


def _set_unroll(loops: list[LoopNode], depth: IntLike) -> None:
    """Set the pragma of the outermost loop that a program has."""
    pending: Mask | np.bool_ = np.bool_(True)
    for loop in loops:
        here = pending & ~np.asarray(loop.absent)
        if af.any_nonzero(here):
            loop.unroll = af.plain(np.where(here, depth, 0 if loop.unroll is None else loop.unroll))
        pending = pending & ~here
        if not af.any_nonzero(pending):
            return


def _plan(
    tree: Tree, block: Block, path: _Path, parallel: IntLike | None, vectorize: IntLike | None
) -> _Plan:
    exists, count = path.exists, path.exists.sum(0)
    reducing = tree.reducing_in(path.loops)
    usable, single = _usable(path, reducing), _single(path)
    fusible = contiguous_loops(tree, block, path)
    outer, inner = np.full(count.shape, _NO_LOOPS), np.full(count.shape, _NO_LOOPS)
    if parallel is not None:
        outer = _outer_loops(path, usable, single, parallel)
    if vectorize is not None:
        inner = _inner_loops(path, usable, single, vectorize, fusible)
    # AdjustParallelVectorize: where both counts together exceed the loops, the parallel one gives
    # way; RewriteFuseSplitParallelVectorize instead fuses all loops and splits off the vector where
    # every loop is usable and all accesses are contiguous over all of them.
    both = (outer > _NO_LOOPS) & (inner > _NO_LOOPS)
    rewritable = (usable & exists & single).sum(0)
    whole = both & (rewritable == count) & (fusible == count)
    outer = np.where(both, np.minimum(outer, count - inner), outer)
    rank = exists.cumsum(0)
    some = exists & ~whole
    lanes = 1 if vectorize is None else vectorize
    return some & (rank <= outer), some & (count - rank < inner), whole, lanes


def _usable(path: _Path, reducing: set[LoopVar]) -> Mask:
    """Return where loops are data parallel, not annotated, not bound."""
    out = np.ones(path.exists.shape, bool)
    for row, loop in enumerate(path.loops):
        if not is_data_parallel(loop, reducing) or loop.annotations:
            out[row] = False
            continue
        if loop.mark is not None:
            out[row] &= ~np.asarray(loop.marked)
        if loop.unroll is not None:
            out[row] &= ~np.greater(loop.unroll, 0)
    return out


def _single(path: _Path) -> Mask:
    """Return where each loop has one child, counting through absent loops."""
    out = np.ones(path.exists.shape, bool)
    several = False  # children of a loop further in
    for row in range(len(path.loops) - 1, -1, -1):
        if len(path.loops[row].body) != 1:
            out[row], several = False, True
        elif several:
            out[row] = out[row + 1] | path.exists[row + 1]
    return out


def _outer_loops(path: _Path, usable: Mask, single: Mask, most: IntLike) -> Ints:
    """Count outer loops to fuse until beyond ``most`` (included); -1: all of 1."""
    exists, product = path.exists, np.where(path.exists, path.extents, 1)
    ends = exists & ~usable
    ends[1:] |= (exists & (np.greater(product.cumprod(0), most) | ~single))[:-1]
    taken = exists & ~np.logical_or.accumulate(ends)
    return _counted(taken, np.where(taken, path.extents, 1))


def _inner_loops(path: _Path, usable: Mask, single: Mask, most: IntLike, fusible: Ints) -> Ints:
    """Count inner contiguous loops to fuse within ``most`` lanes; -1: all of extent 1."""
    exists = path.exists[::-1]
    product = np.where(exists, path.extents[::-1], 1)
    inside = exists.cumsum(0) - exists  # loops further in
    exceeds = np.greater(product.cumprod(0), most)
    ends = exists & ~((usable & single)[::-1] & (inside < fusible))
    ends[1:] |= exceeds[:-1]
    looked_at = exists & ~np.logical_or.accumulate(ends)
    return _counted(looked_at & ~exceeds, np.where(looked_at, product, 1))


def _counted(taken: Mask, extents: Ints) -> Ints:
    return np.where(extents.prod(0) == 1, _NO_LOOPS, taken.sum(0))


@dataclass(frozen=True, slots=True, eq=False)
class _Fusion:
    """Loops fused together: where, iterations for one of a loop, the outermost, all."""

    masks: Mask
    steps: Ints
    first: Mask
    total: Ints

    @staticmethod
    def of(path: _Path, masks: Mask) -> _Fusion:
        # Steps: an exclusive product of the extents, from the innermost loop out.
        inside = np.where(masks, path.extents, 1)[::-1].cumprod(0)[::-1]
        steps = np.concatenate([inside[1:], np.ones_like(inside[:1])])
        first = masks.copy()
        first[1:] &= ~np.logical_or.accumulate(masks)[:-1]
        return _Fusion(masks, steps, first, inside[0])


def _apply(tree: Tree, block: Block, path: _Path, plan: _Plan) -> None:
    outer_loops, inner_loops, whole, lanes = plan
    inner = _Fusion.of(path, inner_loops)
    narrow = np.where(whole, lanes, inner.total)
    vector = LoopNode(LoopVar("vector", af.plain(narrow)), mark=Mark.VECTORIZE)
    outer = [_Outer.of(path, plan, vector, top, here) for top, here in _tops(path)]
    parts = [(one.var, one.left) for one in outer]
    parts.append((af.variable(vector.var), inner))
    parts += [(one.together, one.everything) for one in outer]
    fused = outer_loops | inner_loops | (whole & path.exists)
    # A fused loop keeps its place with extent 1, and its old variable becomes an expression of the
    # new loops, so no binding has to be rewritten.
    for row in np.flatnonzero(fused.any(1)).tolist():
        loop = path.loops[row]
        old = loop.var
        loop.var = LoopVar(old.name, af.plain(np.where(fused[row], 1, old.extent)))
        value = af.variable(loop.var)
        for source, fusion in parts:
            value = af.add(value, _part(source, fusion, old.extent, row))
        uses: Uses = {loop.var: 1}
        uses |= {one.loop.var: af.plain(one.alone[row] * 1) for one in outer}
        tree.define(old, value, uses | {vector.var: 0})
        loop.absent = ~path.exists[row] | fused[row]
    for one in outer:
        _insert(path.loops[one.top], one.loop, one.used)
    _insert(block, vector, inner_loops.any(0) | whole)


def _tops(path: _Path) -> list[tuple[int, Mask]]:
    """Return (row, mask) of the loops that fused loops are put above."""
    borders = [row + 1 for row, loop in enumerate(path.loops[:-1]) if len(loop.body) != 1]
    tops = np.array([0, *borders])
    first = path.exists.argmax(0)
    chosen = tops[np.searchsorted(tops, first, side="right") - 1]
    return [(top, chosen == top) for top in np.unique(chosen).tolist()]


@dataclass(frozen=True, slots=True, eq=False)
class _Outer:
    """A parallel loop to insert above loop ``top`` in programs ``used`` [N].

    ``left``: outer loops fused into it; ``everything``: all, where it is ``together`` with the
    vector; ``alone`` [L, N]: loops fused by themselves.
    """

    top: int
    loop: LoopNode
    used: Mask
    left: _Fusion
    everything: _Fusion
    together: Affine
    alone: Mask

    @property
    def var(self) -> Affine:
        return af.variable(self.loop.var)

    @staticmethod
    def of(path: _Path, plan: _Plan, vector: LoopNode, top: int, here: Mask) -> _Outer:
        outer_loops, _, everywhere, lanes = plan
        some, whole = outer_loops & here, everywhere & here
        left, everything = _Fusion.of(path, some), _Fusion.of(path, path.exists & whole)
        # Rounded up: RewriteFuseSplit splits the fused loop by the lanes, the last vector partial.
        wide = np.where(whole, -(-everything.total // lanes), left.total)
        loop = LoopNode(LoopVar("parallel", af.plain(wide)), mark=Mark.PARALLEL)
        together = af.add(af.variable(vector.var), af.variable(loop.var), lanes)
        alone = some & (some.sum(0) == 1)
        return _Outer(top, loop, some.any(0) | whole, left, everything, together, alone)


def _part(source: Affine, fusion: _Fusion, extent: IntLike, row: int) -> Affine:
    """Return the value of an old loop from its fused loop, else 0."""
    mask = fusion.masks[row]
    if not af.any_nonzero(mask):
        return Affine()
    quotient = floordiv(source, af.plain(np.where(mask, fusion.steps[row], 1)))
    inside = floormod(quotient, af.plain(np.where(mask, extent, 1)))
    # The outermost part needs no remainder: its quotient is in range by itself.
    return af.mul(af.select(fusion.first[row], quotient, inside), af.plain(mask * 1))


def _insert(node: LoopNode | Block, made: LoopNode, where: Mask) -> None:
    if not af.any_nonzero(where):
        return
    replace_child(node, [made])
    made.body, node.parent = [node], made
    made.marked, made.absent = where, ~where


def contiguous_loops(tree: Tree, block: Block, path: _Path) -> Ints:
    """Count the innermost loops over which every access is contiguous, [N]."""
    values = dict(enumerate(tree.values(block)))
    found = [(key, block.loads_of(key)) for key in block.reads]
    accesses = [(key, [load.indices for load in loads]) for key, loads in found if loads]
    accesses.append((block.buffer, [block.indices]))
    strides = np.zeros((len(accesses), *path.exists.shape), np.int64)
    rows = {loop.var: row for row, loop in enumerate(path.loops)}
    # TVM's analysis does not look through differences (see :func:`_strides`).
    for access, (key, places) in enumerate(accesses):
        dimensions = [dict.fromkeys(indices) for indices in zip(*places, strict=True)]
        sums = [~_have_difference(evaluate_index(i, values) for i in d) for d in dimensions]
        forms = [_common([index_uses(tree, block, i) for i in d]) for d in dimensions]
        for var, stride in _strides(forms, sums, tree.buffers[key].shape).items():
            if var in rows:
                strides[access, rows[var]] = stride
    return _loops_of(path, strides).min(0)


def _common(forms: list[Uses]) -> Uses:
    """Return the variables that move all of several indices alike.

    TVM takes the least index that a block reads, and follows no minimum: of ``min(i + j, i + k)``,
    which is ``i + min(j, k)``, only ``i``.
    """
    out = forms[0]
    for other in forms[1:]:
        out = {v: af.where(np.equal(other.get(v, 0), s), s, 0) for v, s in out.items()}
    return out


def _loops_of(path: _Path, strides: Ints) -> Ints:
    """Count contiguous innermost loops of each access, [A, N] of strides [A, L, N]."""
    # A contiguous run starts at stride 1 (or a loop moves it first) and each further loop must step
    # by exactly the elements covered so far.
    number, expected = np.zeros((2, *strides[:, 0].shape), np.int64)  # 0: no loop inside moves it
    open_ = np.ones(number.shape, bool)
    moving = np.any(strides != 0, axis=(0, 2))
    for row in range(len(path.loops) - 1, -1, -1):
        exists, stride = path.exists[row], strides[:, row]
        if moving[row]:
            moves, unmoved = stride != 0, expected == 0
            begins = unmoved & ((stride == 1) | (number == 0))
            fits = begins | (~unmoved & (stride == expected))
            open_ &= ~exists | ~moves | fits
        here = open_ & exists
        number += here
        if moving[row]:
            expected = np.where(here & moves, stride * path.extents[row], expected)
    return number


def _strides(
    forms: list[Uses], sums: list[Mask | np.bool_], shape: tuple[IntLike, ...]
) -> dict[LoopVar, IntLike]:
    """Return elements between iterations in the last dimension that each loop moves.

    ``forms``: variables of each dimension; ``sums``: where it is a sum. TVM follows no difference,
    which is what an index that starts below zero becomes.
    """
    out: dict[LoopVar, IntLike] = {}
    row: IntLike = 1
    for form, is_sum, size in reversed(list(zip(forms, sums, shape, strict=True))):
        for var, scale in form.items():
            here, known = af.where(is_sum, scale * row, 0), out.get(var, 0)
            out[var] = af.where(np.equal(known, 0), here, known)
        row = row * size
    return out


def _have_difference(indices: Iterable[Affine]) -> Mask | np.bool_:
    out: Mask | np.bool_ = np.bool_(False)
    for index in indices:
        out = out | np.less(index.base, 0)
        for t in index.terms:
            out = out | np.less(t.coef, 0)
    return out
