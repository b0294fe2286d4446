"""Read the parts of a Relax module to which rules apply.

The operators of ``main`` form levels: behind an operator that rules cannot look into, such as a
ReLU or a norm, a new level begins. Connected operators of a level are a region, so regions depend
on regions of lower levels alone. Regions with equal graphs are one class; a network of repeated
layers has few.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from pruner.tune.networks.rewrites.operators import is_constant, operator_name
from pruner.tune.networks.variants import graph as g
from pruner.tune.networks.variants.graph import Graph, GraphNode
from pruner.tune.tvm_import import load_tvm

MOST = 40  # nodes of a region
_CONSTANT = -1  # level of constants
_ELEMENTWISE = {f"relax.{op}": op for op in ("add", "subtract", "multiply", "divide")}
_VIEWS = ("relax.reshape", "relax.flatten", "relax.squeeze", "relax.expand_dims")
# Functions of elements that rules cannot look into.
_FUNCTIONS = {
    *(f"relax.nn.{name}" for name in ("relu", "gelu", "gelu_tanh", "silu", "leakyrelu")),
    *(f"relax.{name}" for name in ("sigmoid", "tanh", "erf", "sqrt", "rsqrt", "abs", "negative")),
    *(f"relax.{name}" for name in ("maximum", "minimum", "power", "exp", "log")),
}
_LAYOUTS = {("NHWC", "HWIO"): True, ("NCHW", "OIHW"): False}
_Read = GraphNode | tuple[GraphNode, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GraphRegion:
    """A part of a network as a graph.

    ``inputs``: Relax's expressions of the leaves, by name. ``outputs``: the variables that the rest
    of the network reads. ``calls``: Relax's calls of functions of elements, by name. ``members``:
    hashes of all its variables.
    """

    graph: Graph
    inputs: Mapping[str, Any]
    outputs: Sequence[Any]
    calls: Mapping[str, Any]
    members: frozenset[int]

    @property
    def key(self) -> str:
        """The name of its class."""
        keys = b"".join(node.key for node in self.graph)
        return hashlib.blake2b(keys, digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Regions:
    """Regions of ``main``, its bindings in order, and what is left out."""

    found: Sequence[GraphRegion]
    bindings: Sequence[Any]
    left_out: Sequence[str]


def read_regions(module: Any) -> Regions:
    """Divide ``main`` of a Relax module in regions."""
    relax, main = load_tvm().relax, module["main"]
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    plain = all(
        isinstance(binding, relax.VarBinding) and not isinstance(binding.value, relax.If)
        for binding in bindings
    )
    if not (plain and main.is_pure):
        reason = "the network: it has branches, casts of shapes or calls with side effects"
        return Regions(found=(), bindings=(), left_out=[reason])
    reader = _Reader(relax)
    for number, binding in enumerate(bindings):
        reader.add(number, binding)
    order = sorted(range(len(bindings)), key=lambda i: (reader.levels[i], i))
    used = {hash(var) for var in relax.analysis.free_vars(main.body.body)}
    unread = ", ".join(f"{count} {name}" for name, count in sorted(reader.unread.items()))
    reads = "rules read float32 products of equal batches and plain 2-d convolutions"
    found, left_out = [], [f"{unread}: {reads}"] if unread else []
    for members in reader.components():
        if not any(_is_product(bindings[i].value) for i in members):
            continue
        if len(members) > MOST:
            names = sorted({operator_name(bindings[i].value) for i in members} - {""})
            left_out.append(f"{len(members)} connected operators, more than {MOST}: {names}")
            continue
        inside = {hash(bindings[i].var) for i in members}
        outside = used.union(*(reader.reads[i] for i in range(len(bindings)) if i not in members))
        region = _region(
            relax,
            [bindings[i] for i in sorted(members | reader.constants(members))],
            inside,
            outside,
        )
        if region is not None:
            found.append(region)
        else:
            left_out.append(f"{len(members)} connected operators, which cannot be read as a whole")
    if not (found or left_out):
        left_out.append("the network: it has no product of matrices and no convolution")
    return Regions(found=found, bindings=[bindings[i] for i in order], left_out=left_out)


class _Reader:
    """Levels of bindings, and which are connected."""

    def __init__(self, relax: Any) -> None:
        self._relax = relax
        self.levels: list[int] = []
        self.reads: list[set[int]] = []  # hashes of the variables that each binding reads
        self._ends: list[int] = []  # level of the operators that read a binding
        self._number: dict[int, int] = {}  # of the binding of a variable
        self._values: dict[int, _Read] = {}  # of known variables
        self._joined: list[int] = []  # union-find
        self._readers: dict[tuple[int, int], int] = {}  # one reader of an input in a level
        self.unread = Counter[str]()  # products

    def add(self, number: int, binding: Any) -> None:
        """Take the next binding."""
        read = {hash(var) for var in self._relax.analysis.free_vars(binding.value)}
        value = _Parts(self._relax, self._values).read(binding.value)
        constant = value is not None and all(node.constant for node in _tuple(value))
        unknown = value is None or any(node.op == "call" for node in _tuple(value))
        ends = [self._ends[self._number[one]] for one in read if one in self._number]
        # constants come first: they are part of every region that reads them
        level = _CONSTANT if constant else max([0, *ends])
        self.levels.append(level)
        self.reads.append(read)
        self._number[hash(binding.var)] = number
        self._ends.append(level + (unknown and not constant))
        self._joined.append(-1 if value is None or constant else number)
        if value is None:
            if _is_product(binding.value):
                name = operator_name(binding.value).removeprefix("relax.")
                self.unread[f"{name} of {binding.value.args[0].ty.dtype}"] += 1
            return
        if constant:
            self._values[hash(binding.var)] = value
            return
        # as leaves, so that graphs stay small; regions are read again as a whole
        self._values[hash(binding.var)] = (
            g.leaf(f"v{number}", value.shape)
            if isinstance(value, GraphNode)
            else tuple(g.leaf(f"v{number}.{i}", one.shape) for i, one in enumerate(value))
        )
        for one in read:
            source = self._number.get(one, -1)
            known = source >= 0 and self._joined[source] >= 0
            if known and self.levels[source] == self._ends[source] == level:
                self._join(number, source)
            elif known or self._values.get(one) is None:  # no constant
                self._join(number, self._readers.setdefault((level, one), number))

    def components(self) -> list[set[int]]:
        """Return the connected known bindings."""
        found: dict[int, set[int]] = defaultdict(set)
        for number, joined in enumerate(self._joined):
            if joined >= 0:
                found[self._root(number)].add(number)
        return list(found.values())

    def constants(self, members: set[int]) -> set[int]:
        """Return the constant bindings that the given bindings read."""
        found, waiting = set[int](), [one for i in members for one in self.reads[i]]
        while waiting:
            number = self._number.get(waiting.pop(), -1)
            if number >= 0 and self.levels[number] == _CONSTANT and number not in found:
                found.add(number)
                waiting.extend(self.reads[number])
        return found

    def _join(self, one: int, other: int) -> None:
        self._joined[self._root(one)] = self._root(other)

    def _root(self, number: int) -> int:
        while self._joined[number] != number:
            number = self._joined[number]
        return number


def _region(
    relax: Any, bindings: Sequence[Any], inside: set[int], outside: set[int]
) -> GraphRegion | None:
    values: dict[int, _Read] = {}
    parts = _Parts(relax, values)
    outputs, graph = [], []
    for binding in bindings:
        value = parts.read(binding.value)
        if value is None:
            return None
        values[hash(binding.var)] = value
        if hash(binding.var) in inside & outside:
            if not isinstance(value, GraphNode):
                return None
            outputs.append(binding.var)
            graph.append(value)
    return GraphRegion(
        graph=tuple(graph),
        inputs=parts.inputs,
        outputs=outputs,
        calls=parts.calls,
        members=frozenset(inside),
    )


@dataclass(slots=True)
class _Parts:
    """Reads values as nodes; `known` has the nodes of variables, by hash."""

    relax: Any
    known: Mapping[int, _Read]
    inputs: dict[str, Any] = field(default_factory=dict)
    calls: dict[str, Any] = field(default_factory=dict)
    _leaves: dict[int, GraphNode] = field(default_factory=dict)

    def read(self, value: Any) -> _Read | None:
        """Return the nodes of a value, None for operators that are not read."""
        relax = self.relax
        if isinstance(value, relax.Tuple):
            fields = [self._node(one) for one in value.fields]
            return None if None in fields else tuple(one for one in fields if one is not None)
        if isinstance(value, relax.TupleGetItem):
            whole = self.known.get(hash(value.tuple_value))
            return whole[int(value.index)] if isinstance(whole, tuple) else None
        if isinstance(value, relax.Var) or is_constant(value):
            return self._node(value)
        if not isinstance(value, relax.Call):
            return None
        name = operator_name(value)
        args = [self._argument(arg) for arg in value.args if not isinstance(arg, relax.ShapeExpr)]
        if any(arg is None for arg in args):
            return None
        is_tuple = isinstance(value.ty, relax.TupleType)
        shape = () if is_tuple else _shape(value)
        if shape is None or (is_tuple and name != "relax.split"):
            return None
        attrs = value.attrs
        if name in _ELEMENTWISE:
            return g.elementwise(_ELEMENTWISE[name], *args)
        if name in _VIEWS:
            return g.reshape(args[0], shape)
        if name in _FUNCTIONS:
            text = "exp" if name == "relax.exp" else name
            if attrs is not None:
                text += f" {load_tvm().ffi.structural_hash(attrs)}"
            self.calls[text] = value
            return g.elementwise("call", *args, name=text)
        reader: Callable[..., _Read | None] | None = _OPERATORS.get(name)
        return None if reader is None else reader(attrs, args, shape)

    def _argument(self, value: Any) -> Any:
        if isinstance(value, self.relax.Tuple):
            return self.read(value)
        whole = self.known.get(hash(value))
        return whole if isinstance(whole, tuple) else self._node(value)

    def _node(self, value: Any) -> GraphNode | None:
        """Return the node of a variable or a constant, None without a fixed shape."""
        found = self.known.get(hash(value), self._leaves.get(hash(value)))
        if found is not None:
            return found if isinstance(found, GraphNode) else None
        shape = _shape(value)
        if shape is None:
            return None
        constant = is_constant(value)
        name = f"{'c' if constant else 'x'}{len(self._leaves)}"
        self.inputs[name] = value
        return self._leaves.setdefault(hash(value), g.leaf(name, shape, constant=constant))


def _is_product(value: Any) -> bool:
    name = operator_name(value)
    return name == "relax.matmul" or name.startswith("relax.nn.conv")


def _tuple(value: _Read) -> tuple[GraphNode, ...]:
    return (value,) if isinstance(value, GraphNode) else value


def _shape(value: Any) -> tuple[int, ...] | None:
    """Return the extents of a tensor of float32, None for others."""
    tirx, shape = load_tvm().tirx, getattr(value.ty, "shape", None)
    if shape is None or str(value.ty.dtype) != "float32":
        return None
    if any(not isinstance(extent, tirx.IntImm) for extent in shape):
        return None
    return tuple(int(extent) for extent in shape)


def _matmul(_: Any, args: Sequence[GraphNode], shape: Sequence[int]) -> GraphNode | None:
    left, right = args
    if min(len(left.shape), len(right.shape)) < 2 or len(left.shape) != len(shape):
        return None
    batch = [f"b{i}" for i in range(len(shape) - 2)]
    theirs = batch[len(batch) - len(right.shape) + 2 :] if len(right.shape) > 2 else []
    if (
        left.shape[:-2] != tuple(shape[:-2])
        or right.shape[:-2] != left.shape[:-2][-len(theirs) or 99 :]
    ):
        return None
    names = " ".join(batch)
    return g.contract(f"{names} m k, {' '.join(theirs)} k n -> {names} m n", left, right)


def _conv2d(attrs: Any, args: Sequence[GraphNode], shape: Sequence[int]) -> GraphNode | None:
    last = _LAYOUTS.get((str(attrs.data_layout), str(attrs.kernel_layout)))
    if last is None or int(attrs.groups) != 1 or str(attrs.out_layout) != str(attrs.data_layout):
        return None
    return g.convolve(
        *args,
        channels_last=last,
        size=shape[1:3] if last else shape[2:],
        strides=[int(one) for one in attrs.strides],
        dilation=[int(one) for one in attrs.dilation],
        padding=[int(one) for one in attrs.padding[:2]],
    )


def _permute(attrs: Any, args: Sequence[GraphNode], _: Sequence[int]) -> GraphNode:
    rank = len(args[0].shape)
    axes = range(rank)[::-1] if attrs.axes is None else [int(a) % rank for a in attrs.axes]
    return g.permute(args[0], list(axes))


def _concat(attrs: Any, args: Sequence[Any], shape: Sequence[int]) -> GraphNode | None:
    if not isinstance(args[0], tuple) or attrs.axis is None:
        return None
    return g.concat(args[0], int(attrs.axis) % len(shape))


def _split(attrs: Any, args: Sequence[GraphNode], _: Sequence[int]) -> tuple[GraphNode, ...] | None:
    axis, sections = int(attrs.axis) % len(args[0].shape), attrs.indices_or_sections
    extent = args[0].shape[axis]
    if hasattr(sections, "value"):
        places = list(range(0, extent, -(-extent // int(sections))))
        if len(places) != int(sections):  # others are empty
            return None
    else:
        places = [0, *(int(one) for one in sections)]
    ends = [*places[1:], extent]
    if any(begin >= end for begin, end in zip(places, ends, strict=True)):
        return None
    return tuple(g.cut(args[0], axis, *both) for both in zip(places, ends, strict=True))


_OPERATORS: Mapping[str, Callable[..., _Read | None]] = {
    "relax.matmul": _matmul,
    "relax.nn.conv2d": _conv2d,
    "relax.permute_dims": _permute,
    "relax.concat": _concat,
    "relax.split": _split,
    "relax.nn.softmax": lambda attrs, args, _: g.rows("softmax", args[0], int(attrs.axis)),
}


def size_bytes(node: GraphNode) -> float:
    """Return the size of a tensor of float32."""
    return 4.0 * prod(node.shape)
