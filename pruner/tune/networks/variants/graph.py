"""Graphs of tensor expressions, the objects of rules.

A graph is a tuple of output nodes. Nodes are immutable, and nodes with equal structure have equal
keys, so a value that occurs twice is one value. Nearly all arithmetic of a network is one operator,
``contract``: a sum of products whose indices are affine, as in

    contract("n h+r-1 w+s-1 c, r s c o -> n h w o", x, w, h=56, w=56)

Letters on the left that are not on the right are summed; outside of its extents an argument is 0.
So matrix products, convolutions with padding and strides, sums and Winograd's transforms are one
operator, and a rule that splits a summed letter splits it in all of them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from math import lcm, prod
from typing import Any

Shape = tuple[int, ...]
ELEMENTWISE = ("add", "subtract", "multiply", "divide", "call")
_TERM = re.compile(r"([+-]?)(?:(\d+)\*)?([a-zA-Z]\w*|\d+)")


@dataclass(frozen=True, slots=True, eq=False)
class GraphNode:
    """A tensor: an operator, its arguments and attributes, and the result's shape.

    ``constant``: it depends on constants alone, so it is computed when the network is built.
    """

    op: str
    args: tuple[GraphNode, ...]
    shape: Shape
    attrs: tuple[Any, ...] = ()
    constant: bool = field(init=False)
    key: bytes = field(init=False)

    def __post_init__(self) -> None:
        text = repr((self.op, self.shape, self.attrs)).encode()
        digest = hashlib.blake2b(text + b"".join(arg.key for arg in self.args), digest_size=16)
        object.__setattr__(self, "key", digest.digest())
        # a leaf has it as its second attribute; other nodes without arguments are literals
        own = self.attrs[1] if self.op == "leaf" else True
        constant = all(arg.constant for arg in self.args) if self.args else own
        object.__setattr__(self, "constant", constant)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GraphNode) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


Graph = tuple[GraphNode, ...]


@dataclass(frozen=True, slots=True)
class AffineIndex:
    """An index of an argument: ``sum(factor * letter) + offset``."""

    terms: tuple[tuple[int, str], ...]
    offset: int

    @property
    def letter(self) -> str | None:
        """The letter of an index that is a letter alone."""
        return self.terms[0][1] if self == AffineIndex(((1, self.terms[0][1]),), 0) else None


@dataclass(frozen=True, slots=True)
class Spec:
    """The indices of a contraction's arguments, and the letters of its result."""

    args: tuple[tuple[AffineIndex, ...], ...]
    out: tuple[str, ...]

    @property
    def letters(self) -> list[str]:
        """All letters, in order of appearance."""
        terms = (term for arg in self.args for axis in arg for term in axis.terms)
        return list(dict.fromkeys(letter for _, letter in terms))

    @property
    def summed(self) -> list[str]:
        """The letters that are summed over."""
        return [letter for letter in self.letters if letter not in self.out]

    def plain(self, number: int) -> list[str | None]:
        """Return the letters of an argument's indices; None for sums of letters."""
        return [axis.letter for axis in self.args[number]]

    def __str__(self) -> str:
        """Format it as :func:`contract` takes it."""
        args = ", ".join(" ".join(map(_axis_text, arg)) for arg in self.args)
        return f"{args} -> {' '.join(self.out)}"


def _axis_text(axis: AffineIndex) -> str:
    terms = "+".join(name if factor == 1 else f"{factor}*{name}" for factor, name in axis.terms)
    return terms + (f"{axis.offset:+d}" if axis.offset else "")


@cache
def parse(text: str) -> Spec:
    """Read a contraction's indices."""
    left, _, right = text.partition("->")
    return Spec(
        args=tuple(tuple(map(_axis, arg.split())) for arg in left.split(",")),
        out=tuple(right.split()),
    )


def _axis(text: str) -> AffineIndex:
    terms, offset = [], 0
    for sign, factor, name in _TERM.findall(text):
        if name.isdigit():
            offset += int(sign + name)
        else:
            terms.append((int(factor or 1), name))
    return AffineIndex(tuple(terms), offset)


def leaf(name: str, shape: Sequence[int], *, constant: bool = False) -> GraphNode:
    """Make an input, or a constant of the network."""
    return GraphNode("leaf", (), tuple(shape), (name, constant))


def literal(rows: Any) -> GraphNode:
    """Make a tensor of fractions, exact in every field, from nested lists."""
    shape, values = [], [rows]
    while isinstance(values[0], list | tuple):
        shape.append(len(values[0]))
        values = [value for row in values for value in row]
    fractions = [Fraction(value) for value in values]
    below = lcm(*(value.denominator for value in fractions))
    return GraphNode("literal", (), tuple(shape), (tuple(int(v * below) for v in fractions), below))


def contract(text: str | Spec, *args: GraphNode, **sizes: int) -> GraphNode:
    """Multiply one or two arguments and sum.

    ``sizes``: extents of letters that are no index by themselves. Raises `ValueError`: two extents
    of a letter differ.
    """
    spec = parse(text) if isinstance(text, str) else text
    for number, arg in enumerate(args):
        if len(spec.args[number]) != len(arg.shape):
            raise ValueError(f"{spec}: argument {number} has the shape {arg.shape}")
        for name, extent in zip(spec.plain(number), arg.shape, strict=True):
            if name is not None and sizes.setdefault(name, extent) != extent:
                raise ValueError(f"{spec}: {name} is {sizes[name]} and {extent}")
    shape = tuple(sizes[name] for name in spec.out)
    extents = tuple((name, sizes[name]) for name in spec.letters)
    return GraphNode("contract", args, shape, (str(spec), extents))


def elementwise(op: str, *args: GraphNode, name: str = "") -> GraphNode:
    """Apply ``add``, ``subtract``, ``multiply``, ``divide`` or a named ``call``."""
    rank = max(len(arg.shape) for arg in args)
    padded = [(1,) * (rank - len(arg.shape)) + arg.shape for arg in args]
    shape = tuple(max(extents) for extents in zip(*padded, strict=True))
    if any(one not in (1, all_) for arg in padded for one, all_ in zip(arg, shape, strict=True)):
        raise ValueError(f"{op}: shapes {[arg.shape for arg in args]}")
    return GraphNode(op, args, shape, (name,) if op == "call" else ())


def reshape(data: GraphNode, shape: Sequence[int]) -> GraphNode:
    """View a tensor with another shape; one extent may be -1."""
    known = prod(extent for extent in shape if extent != -1)
    full = tuple(prod(data.shape) // known if extent == -1 else extent for extent in shape)
    if prod(full) != prod(data.shape):
        raise ValueError(f"reshape: {data.shape} to {full}")
    if data.op == "reshape":
        data = data.args[0]
    return data if full == data.shape else GraphNode("reshape", (data,), full)


def permute(data: GraphNode, axes: Sequence[int]) -> GraphNode:
    """Transpose a tensor."""
    if tuple(axes) == tuple(range(len(data.shape))):
        return data
    return GraphNode("permute", (data,), tuple(data.shape[axis] for axis in axes), tuple(axes))


def concat(parts: Sequence[GraphNode], axis: int) -> GraphNode:
    """Join tensors along an axis."""
    first = parts[0].shape
    total = sum(part.shape[axis] for part in parts)
    shape = (*first[:axis], total, *first[axis + 1 :])
    if any((*p.shape[:axis], total, *p.shape[axis + 1 :]) != shape for p in parts):
        raise ValueError(f"concat: shapes {[part.shape for part in parts]}")
    return GraphNode("concat", tuple(parts), shape, (axis,))


def cut(data: GraphNode, axis: int, begin: int, end: int) -> GraphNode:
    """Return the places from `begin` up to `end` of an axis."""
    if not 0 <= begin < end <= data.shape[axis]:
        raise ValueError(f"cut: {begin}:{end} of {data.shape[axis]}")
    if (begin, end) == (0, data.shape[axis]):
        return data
    shape = (*data.shape[:axis], end - begin, *data.shape[axis + 1 :])
    return GraphNode("cut", (data,), shape, (axis, begin))


def rows(op: str, data: GraphNode, axis: int) -> GraphNode:
    """Apply ``softmax`` or ``max`` along an axis, which stays; of extent 1 behind ``max``."""
    axis %= len(data.shape)
    shape = (*data.shape[:axis], 1, *data.shape[axis + 1 :]) if op == "max" else data.shape
    return GraphNode(op, (data,), shape, (axis,))


def nodes(graph: Iterable[GraphNode]) -> list[GraphNode]:
    """List the nodes of a graph, arguments first."""
    found: dict[GraphNode, None] = {}
    waiting = [(node, False) for node in reversed(tuple(graph))]
    while waiting:
        node, ready = waiting.pop()
        if node in found:
            continue
        if ready:
            found[node] = None
        else:
            waiting.append((node, True))
            waiting.extend((arg, False) for arg in reversed(node.args))
    return list(found)


def replaced(graph: Graph, new: Mapping[GraphNode, GraphNode]) -> Graph:
    """Return a graph with nodes replaced by others of the same shape."""
    made: dict[GraphNode, GraphNode] = {}
    for node in nodes(graph):
        if node in new:
            made[node] = new[node]
        elif any(made[arg] is not arg for arg in node.args):
            made[node] = GraphNode(
                node.op, tuple(made[arg] for arg in node.args), node.shape, node.attrs
            )
        else:
            made[node] = node
    return tuple(made[node] for node in graph)


def spec_of(node: GraphNode) -> Spec:
    """Return the indices of a contraction."""
    return parse(node.attrs[0])


def flops(node: GraphNode) -> float:
    """Count the arithmetic of a node that is computed at run time."""
    if node.constant or not node.args:
        return 0.0
    if node.op == "contract":
        return (1.0 + (len(node.args) > 1)) * prod(extent for _, extent in node.attrs[1])
    return float(prod(node.shape)) if node.op in ELEMENTWISE else 0.0


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
