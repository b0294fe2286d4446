"""Read TVM's object graphs saved as JSON.

``{"root": 1, "nodes": [{"type_key", "attrs", ...}, ...]}``: every node is a plain record;
attributes are strings, of which some are numbers of other nodes. Reading creates no objects but
these records.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from pruner.errors import DataError


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
