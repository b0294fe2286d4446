"""Change layouts of buffers, and invert the indices of an access, for inlining.

``transform_layout`` and ``storage_align``: layout_transformation.cc and block_annotate.cc of
src/s_tir/schedule/primitive. ``InverseAffineIterMap`` (src/arith/iter_affine_map.cc): the digits of
a dimension, in a mixed radix, are *parts* ``(v mod upper) div lower`` of iterators, which are the
digits of each iterator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pruner.arrays import IntLike
from pruner.errors import UnsupportedProgram
from pruner.program.dag.expr import (
    Axis,
    Binary,
    Const,
    Expr,
    PerProgram,
    replace_loads,
    substitute_axes,
)
from pruner.program.index import affine as af
from pruner.program.index.affine import Affine, LoopVar, plain
from pruner.program.index.regions import evaluate_index
from pruner.program.tir.tree import Block, Layout, Tree

ALIGN = "buffer_dim_align"


def transform_layout(
    tree: Tree, block: Block, pieces: Sequence[tuple[int, IntLike, IntLike]]
) -> None:
    """Change the layout that ``block`` writes; raise `UnsupportedProgram` for odd pieces.

    ``pieces``: (axis, divisor, extent) of each new dimension, ``(index[axis] div divisor) mod
    extent``; extent 0: without ``mod``.
    """
    buffer = tree.buffers[block.buffer]
    old = buffer.shape
    shape = []
    form: list[Expr] = []
    for axis, divisor, extent in pieces:
        # TVM would have to pad the buffer there.
        if not np.all(np.equal(np.mod(old[axis], divisor), 0)):
            raise UnsupportedProgram("index-map", f"{buffer.name}: parts do not divide it")
        # The outermost part of an axis needs no modulo, and TVM writes none.
        bare = isinstance(extent, int) and extent == 0
        shape.append(plain(old[axis] // divisor if bare else extent))
        part: Expr = Axis(axis)
        if not (isinstance(divisor, int) and divisor == 1):
            part = Binary("floordiv", part, _number(divisor), "int32")
        form.append(part if bare else Binary("floormod", part, _number(extent), "int32"))
    reads: dict[Block, tuple[Expr, ...]] = {}
    for reader in tree.consumers(block):
        loads = reader.loads_of(buffer.key)
        if len(loads) != 1:
            raise UnsupportedProgram("index-map", f"{reader.name} reads {buffer.name} twice")
        reads[reader] = loads[0].indices
    for other in [block, *reads]:
        other.value = replace_loads(
            other.value, buffer.key, lambda load: replace(load, indices=_at(form, load.indices))
        )
    block.indices = _at(form, block.indices)
    buffer.shape = tuple(shape)
    # The old indices are kept: a later reverse_compute_inline needs them to invert the epilogue.
    tree.layouts[buffer.key] = Layout(tuple((axis, d) for axis, d, _ in pieces), old, reads)


def _at(form: Sequence[Expr], indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
    return tuple(substitute_axes(part, indices) for part in form)


def old_indices(layout: Layout, indices: Sequence[Expr]) -> tuple[Expr, ...]:
    """Return the old dimensions' indices from new indices."""
    out: list[Expr] = [Const(0)] * len(layout.shape)
    for (axis, divisor), index in zip(layout.pieces, indices, strict=True):
        part = index
        if not (isinstance(divisor, int) and divisor == 1):
            part = Binary("mul", index, _number(divisor), "int32")
        first = isinstance(out[axis], Const)
        out[axis] = part if first else Binary("add", out[axis], part, "int32")
    return tuple(out)


def _number(value: IntLike) -> Const:
    wrapped = PerProgram(value) if isinstance(value, np.ndarray) else value
    return Const(wrapped)  # type: ignore[arg-type]  # an index may hold one number a program


def storage_align(block: Block, axis: int, factor: int, offset: int) -> None:
    """Align strides of dimension ``axis`` to ``offset`` modulo ``factor`` elements."""
    block.annotations[ALIGN] = (axis, factor, offset)


def aligned_elements(block: Block, extents: Sequence[IntLike]) -> IntLike:
    """Return the elements a buffer of ``extents`` takes with aligned strides."""
    found: Any = block.annotations.get(ALIGN)
    axis, factor, offset = (-1, 1, 0) if found is None else found
    stride: IntLike = 1
    for dimension in reversed(range(len(extents))):
        if dimension == axis:
            # TVM pads the stride to the next number that is `offset` modulo `factor`.
            stride = stride + (offset - stride) % factor
        stride = stride * extents[dimension]
    return stride


@dataclass(frozen=True, slots=True)
class _Part:
    """``(v mod upper) div lower`` of an iterator, with ``size`` values."""

    slot: int
    lower: int
    size: int
    digit: Expr


def iterators_of(block: Block, indices: Sequence[Expr]) -> list[Expr]:
    """Return the iterators at ``indices``; raise `UnsupportedProgram` without inverse."""
    taken = [index.slot for index in indices if isinstance(index, Axis)]
    # The common case, each index an iterator by itself, needs no digits.
    if len(set(taken)) == len(taken) and all(isinstance(i, (Axis, Const)) for i in indices):
        parts = [
            _Part(index.slot, 1, 0, Axis(place))
            for place, index in enumerate(indices)
            if isinstance(index, Axis)
        ]
        return [_alone(block, slot, parts) for slot in range(len(block.iters))]
    variables = [LoopVar(f"v{slot}", it.extent) for slot, it in enumerate(block.iters)]
    slots = {id(var): slot for slot, var in enumerate(variables)}
    values = dict(enumerate(map(af.variable, variables)))
    found: list[_Part] = []
    for place, index in enumerate(indices):
        digits = _digits(evaluate_index(index, values), Axis(place), slots)
        if digits is None:
            raise UnsupportedProgram("inline-index", f"{block.name}: {index}")
        found += digits
    return [_joined(block, slot, found) for slot in range(len(block.iters))]


def _alone(block: Block, slot: int, parts: list[_Part]) -> Expr:
    """Return an iterator that is one dimension, or that has one value."""
    for part in parts:
        if part.slot == slot:
            return part.digit
    if block.iters[slot].extent != 1:
        raise UnsupportedProgram("inline-index", f"{block.name}: iterator {slot} is free")
    return Const(0)


def _digits(index: Affine, number: Expr, slots: dict[int, int]) -> list[_Part] | None:
    """Return the digits of a dimension; None unless a mixed-radix number."""
    if any(not isinstance(t.index, LoopVar) or _whole(t.coef) is None for t in index.terms):
        return None
    if not index.terms:
        return []
    if _whole(index.base) != 0:
        return None
    out: list[_Part] = []
    weight = 1
    # Each coefficient must be the product of the sizes below it, from the least digit on.
    ordered = sorted(index.terms, key=lambda t: _whole(t.coef) or 0)
    for place, t in enumerate(ordered):
        assert isinstance(t.index, LoopVar)
        extent, lower = _whole(t.index.extent), _whole(t.lower)
        upper = extent if af.is_endless(t.upper) else _whole(t.upper)
        if extent is None or lower is None or upper is None or t.coef != weight:
            return None
        # A modulo beyond the extent does nothing.
        upper = min(upper, extent)
        if upper % lower:
            return None
        digit = number if weight == 1 else Binary("floordiv", number, Const(weight), "int64")
        # The most significant digit needs no remainder: nothing is above it.
        if place < len(ordered) - 1:
            digit = Binary("floormod", digit, Const(upper // lower), "int64")
        out.append(_Part(slots[id(t.index)], lower, upper // lower, digit))
        weight *= upper // lower
    return out


def _joined(block: Block, slot: int, parts: list[_Part]) -> Expr:
    """Join an iterator from its parts, which must be all its digits."""
    out: Expr | None = None
    weight = 1
    for part in sorted((p for p in parts if p.slot == slot), key=lambda p: p.lower):
        if part.lower != weight:
            raise UnsupportedProgram("inline-index", f"{block.name}: iterator {slot} is torn")
        digit = part.digit
        if weight > 1:
            digit = Binary("mul", digit, Const(weight), "int64")
        out = digit if out is None else Binary("add", digit, out, "int64")
        weight *= part.size
    # Some digit is missing: the index does not determine the iterator.
    if weight != block.iters[slot].extent:
        raise UnsupportedProgram("inline-index", f"{block.name}: iterator {slot} is not whole")
    return Const(0) if out is None else out


def _whole(value: IntLike) -> int | None:
    value = af.plain(value)
    return value if isinstance(value, int) else None
