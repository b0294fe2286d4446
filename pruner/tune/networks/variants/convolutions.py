"""Convolutions as contractions, and contractions that are operators of TVM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from pruner.tune.networks.variants.graph import AffineIndex, GraphNode, Spec, contract, spec_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """The attributes of a two-dimensional convolution; ``padding``: at the top and the left."""

    channels_last: bool
    strides: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int]
    taps: tuple[int, int]

    @property
    def plain(self) -> bool:
        """True without strides and dilation."""
        return self.strides == self.dilation == (1, 1)

    @property
    def rows(self) -> int:
        """The axis of the rows of an image."""
        return 1 if self.channels_last else 2


def convolve(
    data: GraphNode,
    weights: GraphNode,
    *,
    channels_last: bool,
    size: Sequence[int],
    strides: Sequence[int] = (1, 1),
    dilation: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
) -> GraphNode:
    """Make a convolution with a result of `size` pixels.

    Weights are [r, s, c, o] with channels last, else [o, c, r, s].
    """
    h, w = (
        AffineIndex(((stride, image), (step, tap)), -before)
        for stride, step, before, image, tap in zip(
            strides, dilation, padding, "hw", "rs", strict=True
        )
    )
    n, c, o, r, s = (AffineIndex(((1, name),), 0) for name in "ncors")
    if channels_last:
        spec = Spec(((n, h, w, c), (r, s, c, o)), ("n", "h", "w", "o"))
    else:
        spec = Spec(((n, c, h, w), (o, c, r, s)), ("n", "o", "h", "w"))
    return contract(spec, data, weights, h=size[0], w=size[1])


def convolution_of(node: GraphNode) -> Convolution | None:
    """Return the attributes of a contraction that :func:`convolve` makes."""
    if node.op != "contract" or len(node.args) != 2:
        return None
    spec, sizes = spec_of(node), dict(node.attrs[1])
    channels_last = spec.out == ("n", "h", "w", "o")
    if len(spec.args[0]) != 4 or len(spec.args[1]) != 4 or not {*"hwrs"} <= sizes.keys():
        return None
    axes = spec.args[0][1:3] if channels_last else spec.args[0][2:]
    if any(len(axis.terms) != 2 for axis in axes):
        return None
    found = Convolution(
        channels_last=channels_last,
        strides=(axes[0].terms[0][0], axes[1].terms[0][0]),
        dilation=(axes[0].terms[1][0], axes[1].terms[1][0]),
        padding=(-axes[0].offset, -axes[1].offset),
        taps=(sizes["r"], sizes["s"]),
    )
    try:
        same = convolve(
            *node.args,
            channels_last=channels_last,
            size=(sizes["h"], sizes["w"]),
            strides=found.strides,
            dilation=found.dilation,
            padding=found.padding,
        )
    except ValueError:  # its weights have their axes in another order
        return None
    return found if same == node else None


def matrices_of(node: GraphNode) -> tuple[tuple[int, ...], ...] | None:
    """Return the shapes of arguments as matrices, if no transpose is needed."""
    spec, sizes = spec_of(node), dict(node.attrs[1])
    if len(spec.args) < 2:
        return None
    left, right = spec.plain(0), spec.plain(1)
    if None in left or None in right:
        return None
    batch = [name for name in left if name in right and name in spec.out]
    summed = spec.summed
    rows = [name for name in left if name in spec.out and name not in batch]
    columns = [name for name in right if name in spec.out and name not in batch]
    if left != batch + rows + summed or right != batch + summed + columns:
        return None
    if list(spec.out) != batch + rows + columns or not summed:
        return None
    if not batch and len(summed) == len(columns) == 1:  # any number of rows
        return tuple(arg.shape for arg in node.args)
    b, m, k, n = (prod(sizes[str(x)] for x in group) for group in (batch, rows, summed, columns))
    front = (b,) if batch else ()
    if len(rows) == len(summed) == len(columns) == 1:
        return tuple(arg.shape for arg in node.args)
    return (*front, m, k), (*front, k, n)


def is_operator(node: GraphNode) -> bool:
    """Check for a product or convolution of TVM; other contractions get their own functions."""
    return convolution_of(node) is not None or matrices_of(node) is not None
