"""Read TenSet's task lists, ``network_info/*.task.pkl``, without running them.

The few type names that TenSet writes become inert records; any other name is refused
(:mod:`pruner.data.tenset.safe_pickle`).

Such a file holds ``([SearchTask, ...], [weight, ...])``: the subgraphs of one network for one
target and how often the network runs each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from pruner.data.tenset.safe_pickle import DATA_OPCODES, UnsafePickle, load_named
from pruner.errors import DataError

NETWORK_INFO = "network_info"  # their folder beside ``measure_records``

PATTERN = "*.task.pkl"

MAX_BYTES = 256 * 2**20
"""TenSet's largest task file has 3 MB; a larger one than this is no task file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PickledTask:
    """One tuning task of a network, which runs it ``weight`` times.

    ``target`` is TVM's target text as measurement records write it; ``compute_dag`` the JSON object
    graph of the task's tensors.
    """

    workload_key: str
    target: str
    weight: int
    compute_dag: str


def read_task_pickle(path: Path) -> list[PickledTask]:
    """Read all tasks of a ``*.task.pkl`` file.

    Raises :class:`UnsafePickle` for other types than TenSet's, :class:`DataError` for a damaged
    file.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise DataError(f"{path}: larger than {MAX_BYTES} bytes, no task file")
        payload = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        return list(_tasks(load_inert(payload)))
    except DataError as error:
        raise type(error)(f"{path}: {error}") from error


def load_inert(payload: bytes) -> Any:
    """Load a pickle with every object as an :class:`Inert` record."""
    return load_named(payload, ALLOWED_TYPES, ALLOWED_OPCODES)


class Inert:
    """Stand-in for an object: keeps its arguments and state, and does nothing."""

    name = ""

    def __new__(cls, *args: object) -> Inert:
        """Keep the constructor arguments."""
        self = super().__new__(cls)
        self.args = args
        self.state = None
        return self

    args: tuple[object, ...]
    state: object

    def __setstate__(self, state: object) -> None:
        """Keep the state."""
        self.state = state

    def attribute(self, name: str) -> Any:
        """Return an entry of the state; raise :class:`DataError` when missing."""
        if not isinstance(self.state, dict) or name not in self.state:
            raise DataError(f"{self.name} without {name!r}")
        return self.state[name]


class _NewObject(Inert):
    """Stand-in for TVM's ``_new_object``, a class: pickles can set attributes of a function."""

    def __new__(cls, *args: object) -> Any:
        """Return an empty object of the only argument, a type."""
        match args:
            case (type() as kind,) if issubclass(kind, Inert) and kind is not _NewObject:
                return kind()
            case _:
                raise UnsafePickle(f"refused: an object of {args!r}")


ALLOWED_TYPES: dict[tuple[str, str], Any] = {
    ("tvm.runtime.object", "_new_object"): _NewObject,
    **{
        (module, name): type("Inert" + name, (Inert,), {"name": name})
        for module, name in (
            ("tvm.runtime.object", "Object"),
            ("tvm.runtime.container", "String"),
            ("tvm.ir.container", "Array"),
            ("tvm.target.target", "Target"),
            ("tvm.auto_scheduler.search_task", "SearchTask"),
            ("tvm.auto_scheduler.search_task", "HardwareParams"),
            ("tvm.auto_scheduler.compute_dag", "ComputeDAG"),
        )
    },
}
"""Every global name a task file may mention, and its replacement."""

ALLOWED_OPCODES = DATA_OPCODES | {"POP_MARK", "LIST", "DICT"}
"""Plain data and objects of named types; no sets and no byte strings."""


def _tasks(loaded: Any) -> Iterable[PickledTask]:
    match loaded:
        case (list() as tasks, list() as weights) if len(tasks) == len(weights):
            pairs = zip(tasks, weights, strict=True)
        case _:
            raise DataError("not a pair of equally long lists of tasks and weights")
    for task, weight in pairs:
        if not isinstance(task, Inert) or task.name != "SearchTask" or not isinstance(weight, int):
            raise DataError("an entry is not a search task with an integer weight")
        key = task.attribute("workload_key")
        if isinstance(key, Inert) and key.name == "String" and len(key.args) == 1:  # TVM's
            key = key.args[0]
        handle = _inert(task.attribute("target")).attribute("handle")  # JSON of TVM's object
        yield PickledTask(
            workload_key=_plain(key),
            target=target_text(NodeGraph.parse(_plain(handle)).root),
            weight=weight,
            compute_dag=_plain(_inert(task.attribute("compute_dag")).attribute("tensors")),
        )


def _inert(value: object) -> Inert:
    if not isinstance(value, Inert):
        raise DataError(f"expected an object, found {type(value).__name__}")
    return value


def _plain(value: object) -> str:
    if not isinstance(value, str):
        raise DataError(f"expected a text, found {type(value).__name__}")
    return value


def target_text(target: Node) -> str:
    """Return a saved target as TVM writes it: ``kind -keys=... -attribute=value ...``."""
    words = [target.ref("kind").ref("name").text]
    keys = [key.text for key in target.ref("keys").items]
    if keys:
        words.append("-keys=" + ",".join(keys))
    attrs = target.ref("attrs")
    for name, value in sorted(zip(attrs.keys, attrs.items, strict=True), key=lambda kv: kv[0]):
        text = _attribute_text(value)
        if text is not None:
            words.append(f"-{name}={text}")
    return " ".join(words)


def _attribute_text(value: Node) -> str | None:
    match value.type_key:
        case "IntImm":
            return str(value.integer("value"))
        case "runtime.String":
            return value.text
        case "Array":
            parts = [_attribute_text(item) for item in value.items]
            return ",".join(p for p in parts if p is not None) if None not in parts else ""
        case _:
            return None


@dataclass(frozen=True, slots=True)
class Node:
    """A saved object; accessors raise :class:`DataError` for bad fields."""

    graph: NodeGraph
    number: int

    @property
    def type_key(self) -> str:
        """Type, for example ``"tir.Add"``; empty for a null reference."""
        return str(self._record.get("type_key", ""))

    @property
    def text(self) -> str:
        """Value of a string, or name of a global object (an operator)."""
        return str(self._record.get("repr_str", ""))

    @property
    def items(self) -> tuple[Node, ...]:
        """Elements of an array, values of a map."""
        return tuple(self.graph.node(i) for i in self._record.get("data", ()))

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of a map with string keys, in the order of :attr:`items`."""
        return tuple(str(key) for key in self._record.get("keys", ()))

    def field(self, name: str) -> str:
        """Return a plain attribute as it is written."""
        attrs = self._record.get("attrs")
        if not isinstance(attrs, dict) or name not in attrs:
            raise DataError(f"object graph: node {self.number} ({self.type_key}) has no {name!r}")
        return str(attrs[name])

    def integer(self, name: str) -> int:
        """Return an integer attribute."""
        try:
            return int(self.field(name))
        except ValueError as error:
            raise DataError(f"object graph: node {self.number}: {name} is no integer") from error

    def ref(self, name: str) -> Node:
        """Return the node that an attribute points to."""
        return self.graph.node(self.integer(name))

    @property
    def _record(self) -> dict[str, Any]:
        return self.graph.records[self.number]


@dataclass(frozen=True, slots=True, eq=False)
class NodeGraph:
    """All nodes of one saved object; compare nodes by their number."""

    records: tuple[dict[str, Any], ...]
    root_number: int

    @classmethod
    def parse(cls, text: str) -> NodeGraph:
        """Read the JSON text; raise :class:`DataError` if malformed."""
        try:
            raw = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise DataError(f"object graph: not JSON ({error})") from error
        nodes = raw.get("nodes") if isinstance(raw, dict) else None
        if not isinstance(nodes, list) or not all(isinstance(node, dict) for node in nodes):
            raise DataError("object graph: no list of nodes")
        root = raw.get("root")
        if not isinstance(root, int):
            raise DataError("object graph: no root")
        return cls(tuple(nodes), root)

    @property
    def root(self) -> Node:
        """The saved object itself."""
        return self.node(self.root_number)

    def node(self, number: int) -> Node:
        """Return node ``number``; raise :class:`DataError` when there is none."""
        if not isinstance(number, int) or not 0 <= number < len(self.records):
            raise DataError(f"object graph: no node {number!r}")
        return Node(self, number)

    def __iter__(self) -> Iterator[Node]:
        """Yield every node in order."""
        return (Node(self, i) for i in range(len(self.records)))
