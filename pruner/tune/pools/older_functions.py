"""Rebuild functions that another release of TVM saved.

Releases up to 0.20 write ``{"root": 1, "nodes": [{"type_key": "tir.For", "attrs": {"body": "35",
..}}, ..]}``, later ones ``{"root_index": 1, "nodes": [{"type": "tir.For", "data": {"body": 35,
..}}, ..]}``. Types moved between packages and kept their last names. A field that the table below
does not read has to be empty. Source: ``src/node/serialization.cc`` of TVM 0.8 to 0.20.
"""

import base64
import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from pruner.errors import UnsupportedProgram
from pruner.tune.tvm_import import load_tvm

# Fields that follow from others, or say nothing of the computation.
_DERIVED = frozenset(
    {"span", "dtype", "_checked_type_", "checked_type_", "struct_info_", "virtual_device_"}
    | {"type_annotation", "ret_type", "ty", "data"}
)
# Types whose constructor takes these fields in this order.
_BY_FIELDS = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Mod", "FloorDiv", "FloorMod"), "a b"),
    **dict.fromkeys(("Min", "Max", "EQ", "NE", "LT", "LE", "GT", "GE", "And", "Or"), "a b"),
    "Not": "a",
    "Select": "condition true_value false_value",
    "Let": "var value body",
    "BufferLoad": "buffer indices",
    "BufferRegion": "buffer region",
    "MatchBufferRegion": "buffer source",
    "BufferStore": "buffer value indices",
    "SeqStmt": "seq",
    "IfThenElse": "condition then_case else_case",
    "Evaluate": "value",
    "SBlockRealize": "iter_values predicate block",
}
_RENAMED = {"Block": "SBlock", "BlockRealize": "SBlockRealize", "SizeVar": "Var"}
_BIT_OPERATORS = {  # calls once, expressions of their own today
    "bitwise_and": "BitwiseAnd",
    "bitwise_or": "BitwiseOr",
    "bitwise_xor": "BitwiseXor",
    "bitwise_not": "BitwiseNot",
    "shift_left": "LShift",
    "shift_right": "RShift",
}
# The first argument of these is a number that depends on LLVM's release.
_BY_NUMBER = ("call_llvm_intrin", "call_llvm_pure_intrin")
_AUTO_BROADCAST = 2  # a buffer whose shape is open where it is 1


def load_module(text: bytes) -> Any:
    """Load a module of any release, or raise `UnsupportedProgram`."""
    saved = json.loads(text)
    if "root_index" in saved:
        try:
            return load_tvm().tvm.ir.load_json(text.decode())
        except Exception as error:  # another release's graph fails in many ways
            if saved_version(text) == str(load_tvm().tvm.__version__):
                raise UnsupportedProgram("function-not-read", str(error)) from error
    try:
        return _Graph(saved).module()
    except (KeyError, IndexError, TypeError, ValueError, RecursionError) as error:
        detail = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise UnsupportedProgram("function-not-read", detail) from error


def saved_version(text: bytes) -> str:
    """Return the release of TVM that wrote a graph."""
    found = re.search(rb'"tvm_version": ?"([0-9A-Za-z.+-]{1,30})"', text)
    return found[1].decode() if found else "of unknown release"


class _Graph:
    """A saved graph. Every node is built once: shared nodes stay shared."""

    def __init__(self, saved: Mapping[str, Any]) -> None:
        self.nodes: list[dict[str, Any]] = saved["nodes"]
        self._root = int(saved["root_index"] if "root_index" in saved else saved["root"])
        self._built: dict[int, Any] = {}
        self.owners: dict[int, int] = {}  # the buffer of each pointer

    def module(self) -> Any:
        tvm = load_tvm().tvm
        if self._type(self._root) == "PrimFunc":
            return tvm.IRModule({"main": self.build(self._root)})
        functions = _Node(self, self._root).pairs("functions")
        return tvm.IRModule(
            {_Node(self, name)["name_hint"]: self.build(place) for name, place in functions}
        )

    def build(self, place: int) -> Any:
        if place not in self._built:
            make = _table().get(self._type(place))
            if make is None:
                raise UnsupportedProgram("function-not-read", f"it uses {self.full_type(place)}")
            node = _Node(self, place)
            self._built[place] = make(node)
            node.check_all_read()
        return self._built[place]

    def full_type(self, place: int) -> str:
        node = self.nodes[place]
        return str(node.get("type_key", node.get("type", "")))

    def _type(self, place: int) -> str:
        name = self.full_type(place).rpartition(".")[2]
        return _RENAMED.get(name, name)


class _Node:
    """A node's fields, which it counts as they are read."""

    def __init__(self, graph: _Graph, place: int) -> None:
        self.graph, self.place = graph, place
        self.raw = graph.nodes[place]
        fields = self.raw.get("attrs", self.raw.get("data"))
        self.fields: dict[str, Any] = fields if isinstance(fields, dict) else {}
        self._read: set[str] = set()

    def scalar(self, name: str) -> Any:
        self._read.add(name)
        return self.fields[name]

    def __getitem__(self, name: str) -> Any:
        return self.graph.build(int(self.scalar(name)))

    @property
    def dtype(self) -> str:
        return re.sub(r"^uint1(?!\d)", "bool", str(self.scalar("dtype")))

    def items(self) -> list[int]:
        return [int(place) for place in self.raw.get("data", ())]

    def pairs(self, name: str) -> list[tuple[int, int]]:
        found = _Node(self.graph, int(self.scalar(name))).items()
        return list(zip(found[::2], found[1::2], strict=True))

    def check_all_read(self) -> None:
        """Refuse a node that holds more than was read."""
        for name in self.fields.keys() - self._read - _DERIVED:
            value = self[name]
            if value is not None and (not isinstance(value, list | dict | str) or value):
                detail = f"it uses {name} of {self.graph.full_type(self.place)}"
                raise UnsupportedProgram("function-not-read", detail)


@cache
def _table() -> dict[str, Callable[[_Node], Any]]:
    tvm, _, tirx, _ = load_tvm()
    return {name: _by_fields(name, fields.split()) for name, fields in _BY_FIELDS.items()} | {
        **dict.fromkeys(("", "None"), lambda n: None),
        **dict.fromkeys(("int", "float", "bool"), lambda n: n.raw["data"]),
        "String": _string,
        "Array": lambda n: [n.graph.build(place) for place in n.items()],
        "Map": _map,
        "DictAttrs": lambda n: _plain(n["__dict__"]),
        "IntImm": lambda n: tirx.IntImm(n.dtype, int(n.scalar("value"))),
        "FloatImm": lambda n: tirx.FloatImm(n.dtype, float(n.scalar("value"))),
        "StringImm": lambda n: tvm.ir.StringImm(n["value"]),
        "Var": _variable,
        "Cast": lambda n: tirx.Cast(n.dtype, n["value"]),
        "Call": _call,
        "Range": lambda n: tvm.ir.Range.from_min_extent(n["min"], n["extent"]),
        "IterVar": lambda n: tirx.IterVar(
            n["dom"], n["var"], int(n.scalar("iter_type")), n["thread_tag"]
        ),
        "Buffer": _buffer,
        # the body behind a binding became a sequence with it
        "LetStmt": lambda n: tirx.SeqStmt([tirx.Bind(n["var"], n["value"]), n["body"]]),
        "For": _loop,
        "SBlock": _block,
        "PrimFunc": _function,
    }


def _by_fields(name: str, fields: list[str]) -> Callable[[_Node], Any]:
    _, s_tir, tirx, _ = load_tvm()
    make = getattr(tirx, name, None) or getattr(s_tir, name)
    return lambda n: make(*(n[field] for field in fields))


def _loop(n: _Node) -> Any:
    fields = n["loop_var"], n["min"], n["extent"], int(n.scalar("kind")), n["body"]
    return load_tvm().tirx.For(*fields, n["thread_binding"], _plain(n["annotations"]))


def _block(n: _Node) -> Any:
    first = [n[name] for name in ("iter_vars", "reads", "writes", "name_hint", "body", "init")]
    fields = [*first, n["alloc_buffers"], n["match_buffers"]]
    return load_tvm().s_tir.SBlock(*fields, _plain(n["annotations"]))


def _string(n: _Node) -> str:
    if "repr_b64" in n.raw:
        return base64.b64decode(n.raw["repr_b64"]).decode()
    return str(n.raw.get("repr_str", n.raw.get("data", "")))


def _map(n: _Node) -> dict[Any, Any]:
    places = n.items()
    if "keys" in n.raw:  # text, up to 0.20
        return dict(zip(n.raw["keys"], map(n.graph.build, places), strict=True))
    built = [n.graph.build(place) for place in places]
    return dict(zip(built[::2], built[1::2], strict=True))


def _variable(n: _Node) -> Any:
    if n.dtype == "handle":
        raise UnsupportedProgram("function-not-read", "it uses a pointer outside of its buffers")
    return load_tvm().tirx.Var(n["name_hint" if "name_hint" in n.fields else "name"], n.dtype)


def _call(n: _Node) -> Any:
    tvm, _, tirx, _ = load_tvm()
    saved = n.graph.nodes[int(n.scalar("op"))]
    operator = str(saved.get("repr_str", saved.get("data", "")))
    name = operator.rpartition(".")[2]
    arguments = n["args"]
    if name in _BIT_OPERATORS:
        return getattr(tirx, _BIT_OPERATORS[name], getattr(tvm.ir.prim.expr, _BIT_OPERATORS[name]))(
            *arguments
        )
    for known in (f"tirx.{name}", f"prim.{name}"):
        if known in _operators() and name not in _BY_NUMBER:
            return tvm.ir.Call(known, arguments, ret_ty=n.dtype)
    raise UnsupportedProgram("function-not-read", f"it calls {operator or 'another function'}")


@cache
def _operators() -> frozenset[str]:
    return frozenset(map(str, load_tvm().tvm.ir.Op.list_op_names()))


def _buffer(n: _Node) -> Any:
    tirx, owned = load_tvm().tirx, int(n.scalar("data"))
    if owned and n.graph.owners.setdefault(owned, n.place) != n.place:
        raise UnsupportedProgram("function-not-read", "two of its buffers share their memory")
    if int(n.scalar("buffer_type")) == _AUTO_BROADCAST:
        raise UnsupportedProgram("function-not-read", "it uses a buffer that broadcasts")
    pointer = _Node(n.graph, owned)
    scope = _Node(n.graph, int(pointer.scalar("type_annotation")))["storage_scope"]
    return tirx.decl_buffer(
        n["shape"],
        n.dtype,
        n["name"],
        strides=n["strides"],
        elem_offset=n["elem_offset"],
        scope=scope,
        data_alignment=int(n.scalar("data_alignment")),
        offset_factor=int(n.scalar("offset_factor")),
        layout=None,
    )


def _function(n: _Node) -> Any:
    tvm, _, tirx, _ = load_tvm()
    buffers = dict(n.pairs("buffer_map"))  # since 0.27 a parameter is its buffer
    params = _Node(n.graph, int(n.scalar("params"))).items()
    attrs = {name.replace("tir.", "tirx."): value for name, value in n["attrs"].items()}
    return tirx.PrimFunc(
        [n.graph.build(buffers.get(place, place)) for place in params],
        n["body"],
        attrs=tvm.ir.make_node("ir.DictAttrs", **attrs, s_tir=True),
    )


def _plain(value: Any) -> Any:
    tvm, _, tirx, _ = load_tvm()
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, tirx.IntImm):
        return bool(value.value) if str(value.ty.dtype) == "bool" else int(value.value)
    if isinstance(value, tirx.FloatImm):
        return float(value.value)
    return str(value.value) if isinstance(value, tvm.ir.StringImm) else value
