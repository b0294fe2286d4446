"""Writes saved graphs as TVM does, for small cases made by hand."""

import json
from typing import Any


class SavedGraph:
    """Collects nodes; every method returns the number of the node that it adds."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = [{"type_key": ""}]

    def add(self, type_key: str, **attrs: Any) -> int:
        attrs_text = {name: str(value) for name, value in attrs.items()}
        self.nodes.append({"type_key": type_key, "attrs": attrs_text})
        return len(self.nodes) - 1

    def array(self, *items: int) -> int:
        node: dict[str, Any] = {"type_key": "Array"}
        if items:
            node["data"] = list(items)
        self.nodes.append(node)
        return len(self.nodes) - 1

    def named(self, type_key: str, text: str) -> int:
        self.nodes.append({"type_key": type_key, "repr_str": text})
        return len(self.nodes) - 1

    def int_(self, value: int, dtype: str = "int32") -> int:
        return self.add("IntImm", dtype=dtype, span=0, value=value)

    def float_(self, value: float) -> int:
        return self.add("FloatImm", dtype="float32", span=0, value=value)

    def var(self, name: str, dtype: str = "int32") -> int:
        return self.add("tir.Var", dtype=dtype, name=self.named("runtime.String", name))

    def axis(self, name: str, extent: int, *, iter_type: int = 0, start: int = 0) -> int:
        """A loop; ``extent`` is a node number."""
        domain = self.add("Range", extent=extent, min=self.int_(start), span=0)
        return self.add("tir.IterVar", dom=domain, iter_type=iter_type, var=self.var(name))

    def var_of(self, axis: int) -> int:
        return int(self.nodes[axis]["attrs"]["var"])

    def binary(self, kind: str, a: int, b: int, dtype: str = "float32") -> int:
        return self.add(f"tir.{kind}", a=a, b=b, dtype=dtype, span=0)

    def tensor(self, op: int, value_index: int = 0) -> int:
        return self.add("Tensor", dtype="float32", op=op, shape=0, value_index=value_index)

    def placeholder(self, name: str, *shape: int) -> int:
        """The tensor of a kernel input."""
        sizes = self.array(*(self.int_(size) for size in shape))
        return self.tensor(
            self.add("PlaceholderOp", attrs=0, dtype="float32", name=name, shape=sizes, tag="")
        )

    def compute(
        self, name: str, axes: list[int], body: int, reduce_axes: tuple[int, ...] = ()
    ) -> int:
        """The tensor of a computation."""
        op = self.add(
            "ComputeOp",
            attrs=0,
            axis=self.array(*axes),
            body=self.array(body),
            name=name,
            reduce_axis=self.array(*reduce_axes),
            tag="made-by-hand",
        )
        return self.tensor(op)

    def load(self, tensor: int, *indices: int) -> int:
        array = self.array(*indices)
        return self.add("tir.ProducerLoad", dtype="float32", indices=array, producer=tensor, span=0)

    def call(self, name: str, *args: int) -> int:
        op = self.named("Op", f"tir.{name}")
        return self.add("tir.Call", args=self.array(*args), dtype="float32", op=op, span=0)

    def reduce(self, kind: str, source: int, axes: tuple[int, ...], identity: float = 0.0) -> int:
        """A reduction by ``x kind y``."""
        x, y = self.var("x", "float32"), self.var("y", "float32")
        reducer = self.add(
            "tir.CommReducer",
            identity_element=self.array(self.float_(identity)),
            lhs=self.array(x),
            result=self.array(self.binary(kind, x, y)),
            rhs=self.array(y),
        )
        return self.add(
            "tir.Reduce",
            axis=self.array(*axes),
            combiner=reducer,
            condition=self.int_(1, "bool"),
            dtype="float32",
            init=self.array(),
            source=self.array(source),
            value_index=0,
        )

    def text(self, *tensors: int) -> str:
        """The JSON text of an array of tensors."""
        root = self.array(*tensors)
        return json.dumps({"root": root, "nodes": self.nodes})
