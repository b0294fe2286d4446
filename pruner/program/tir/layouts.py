"""Change layouts of buffers: ``transform_layout`` and ``storage_align`` of TVM.

Sources: layout_transformation.cc and block_annotate.cc of src/s_tir/schedule/primitive.
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
from pruner.program.index.affine import plain
from pruner.program.tir.tree import Block, Layout, Tree

_ALIGN = "buffer_dim_align"


@dataclass(frozen=True, slots=True)
class Piece:
    """One new dimension: ``(index[axis] div divisor) mod extent``; 0: without ``mod``."""

    axis: int
    divisor: IntLike
    extent: IntLike


def transform_layout(tree: Tree, block: Block, pieces: Sequence[Piece]) -> None:
    """Change the layout that ``block`` writes; raise `UnsupportedProgram` for odd pieces."""
    buffer = tree.buffers[block.buffer]
    old = buffer.shape
    shape = []
    for piece in pieces:
        whole = old[piece.axis]
        # TVM would have to pad the buffer there.
        if not np.all(np.equal(np.mod(whole, piece.divisor), 0)):
            raise UnsupportedProgram("index-map", f"{buffer.name}: parts do not divide it")
        # The outermost part of an axis needs no modulo, and TVM writes none.
        bare = isinstance(piece.extent, int) and piece.extent == 0
        shape.append(plain(whole // piece.divisor if bare else piece.extent))
    form = tuple(_piece_of(piece) for piece in pieces)
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
    tree.layouts[buffer.key] = Layout(tuple((p.axis, p.divisor) for p in pieces), old, reads)


def _piece_of(piece: Piece) -> Expr:
    out: Expr = Axis(piece.axis)
    if not (isinstance(piece.divisor, int) and piece.divisor == 1):
        out = Binary("floordiv", out, _number(piece.divisor), "int32")
    if not (isinstance(piece.extent, int) and piece.extent == 0):
        out = Binary("floormod", out, _number(piece.extent), "int32")
    return out


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
    block.annotations[_ALIGN] = (axis, factor, offset)


def forget_alignment(block: Block) -> None:
    """Store rows of the block's buffer without gaps, undoing :func:`storage_align`."""
    block.annotations.pop(_ALIGN, None)


def aligned_elements(block: Block, extents: Sequence[IntLike]) -> IntLike:
    """Return the elements a buffer of ``extents`` takes with aligned strides."""
    found: Any = block.annotations.get(_ALIGN)
    axis, factor, offset = (-1, 1, 0) if found is None else found
    stride: IntLike = 1
    for dimension in reversed(range(len(extents))):
        if dimension == axis:
            # TVM pads the stride to the next number that is `offset` modulo `factor`.
            stride = stride + (offset - stride) % factor
        stride = stride * extents[dimension]
    return stride
