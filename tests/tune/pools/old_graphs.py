"""Functions as other releases of TVM saved them, written node by node."""

import base64
import json


class Graph:
    """Nodes of a graph in the form of TVM 0.8 to 0.20, or of 0.21 and later."""

    def __init__(self, *, ffi=False):
        self.ffi = ffi
        self.nodes = [{"type": "None"} if ffi else {"type_key": ""}]

    def add(self, type_key, **fields):
        if self.ffi:
            self.nodes.append({"type": type_key, "data": {"span": 0, **fields}})
        else:
            fields = {"span": 0, **fields}
            attrs = {name: str(value) for name, value in fields.items()}
            self.nodes.append({"type_key": type_key, "attrs": attrs})
        return len(self.nodes) - 1

    def text(self, value):
        if self.ffi:
            self.nodes.append({"type": "ffi.String", "data": value})
        else:
            node = {"type_key": "runtime.String"}
            self.nodes.append(node | {"repr_str": value} if value else node)
        return len(self.nodes) - 1

    def array(self, *places):
        name = {"type": "ffi.Array"} if self.ffi else {"type_key": "Array"}
        self.nodes.append(name | ({"data": list(places)} if places else {}))
        return len(self.nodes) - 1

    def map(self, *pairs, **named):
        if self.ffi:
            pairs = [*pairs, *((self.text(name), place) for name, place in named.items())]
            self.nodes.append(
                {"type": "ffi.Map", "data": [place for pair in pairs for place in pair]}
            )
        else:
            found = {"data": [place for pair in pairs for place in pair]} if pairs else {}
            found |= {"keys": list(named), "data": list(named.values())} if named else {}
            self.nodes.append({"type_key": "Map"} | found)
        return len(self.nodes) - 1

    def number(self, value, dtype="int32"):
        return self.add("IntImm", dtype=dtype, value=value)

    def var(self, name, dtype="int32"):
        kind = self.add("PrimType", dtype=dtype)
        return self.add("tir.Var", name=self.text(name), dtype=dtype, type_annotation=kind)

    def buffer(self, name, *shape, dtype="float32", pointer=None):
        if pointer is None:
            kind = self.add("PrimType", dtype=dtype)
            points = self.add("PointerType", element_type=kind, storage_scope=self.text("global"))
            pointer = self.add(
                "tir.Var", name=self.text(name), dtype="handle", type_annotation=points
            )
        return self.add(
            "tir.Buffer", data=pointer, name=self.text(name), dtype=dtype, buffer_type=1,
            shape=self.array(*map(self.number, shape)), strides=self.array(),
            axis_separators=self.array(), elem_offset=self.number(0), data_alignment=64,
            offset_factor=1,
        )  # fmt: skip

    def load(self, buffer, *indices, **more):
        taken = self.array(*indices)
        return self.add("tir.BufferLoad", buffer=buffer, indices=taken, dtype="float32", **more)

    def region(self, buffer, *indices):
        one = [self.add("Range", min=index, extent=self.number(1)) for index in indices]
        return self.add("tir.BufferRegion", buffer=buffer, region=self.array(*one))

    def block(self, name, *, body, iter_vars=(), reads=(), writes=(), values=(), init=0, alloc=()):
        made = self.add(
            "tir.Block", name_hint=self.text(name), body=body, init=init,
            iter_vars=self.array(*iter_vars), reads=self.array(*reads), writes=self.array(*writes),
            alloc_buffers=self.array(*alloc), match_buffers=self.array(), annotations=self.map(),
        )  # fmt: skip
        yes = self.number(1, "bool")
        iter_values = self.array(*values)
        return self.add("tir.BlockRealize", block=made, predicate=yes, iter_values=iter_values)

    def module(self, buffers, body, **attrs):
        """A module of one function of the buffers."""
        params = [self.var(f"var_{n}", "handle") for n in range(len(buffers))]
        name = self.add("GlobalVar", name_hint=self.text("main"))
        attrs = self.map(
            global_symbol=self.text("main"), **{"tir.noalias": self.number(1, "bool"), **attrs}
        )
        function = self.add(
            "tir.PrimFunc", params=self.array(*params), body=body, ret_type=0,
            buffer_map=self.map(*zip(params, buffers, strict=True)),
            attrs=self.add("DictAttrs", __dict__=attrs),
        )  # fmt: skip
        return self.add("IRModule", functions=self.map((name, function)))

    def saved(self, root, version="0.13.dev0"):
        notes = {"tvm_version": version}
        if self.ffi:
            return {"root_index": root, "nodes": self.nodes, "metadata": notes}
        return {"root": root, "nodes": self.nodes, "b64ndarrays": [], "attrs": notes}


def matmul(m, n, k, *, ffi=False):
    """C[x, y] = sum over k of A[x, k] B[k, y], as `te.create_prim_func` makes it."""
    g = Graph(ffi=ffi)
    a, b, c = g.buffer("A", m, k), g.buffer("B", k, n), g.buffer("C", m, n)
    names, extents = ("x", "y", "k"), (m, n, k)
    loops = [g.var(name) for name in names]
    x, y, z = inner = [g.var(f"v_{name}") for name in names]
    iter_vars = [
        g.add(
            "tir.IterVar", var=var, iter_type=2 if name == "k" else 0, thread_tag=g.text(""),
            dom=g.add("Range", min=g.number(0), extent=g.number(extent)),
        )
        for var, name, extent in zip(inner, names, extents, strict=True)
    ]  # fmt: skip
    product = g.add("tir.Mul", a=g.load(a, x, z), b=g.load(b, z, y), dtype="float32")
    total = g.add("tir.Add", a=g.load(c, x, y), b=product, dtype="float32")
    zero = g.add("FloatImm", dtype="float32", value=0.0 if ffi else "0")
    stmt = g.block(
        "C", iter_vars=iter_vars, values=loops,
        reads=[g.region(a, x, z), g.region(b, z, y)], writes=[g.region(c, x, y)],
        init=g.add("tir.BufferStore", buffer=c, value=zero, indices=g.array(x, y)),
        body=g.add("tir.BufferStore", buffer=c, value=total, indices=g.array(x, y)),
    )  # fmt: skip
    for var, extent in zip(loops[::-1], extents[::-1], strict=True):
        stmt = g.add(
            "tir.For", loop_var=var, min=g.number(0), extent=g.number(extent), kind=0, body=stmt,
            thread_binding=0, annotations=g.map(),
        )  # fmt: skip
    return g.saved(g.module([a, b, c], g.block("root", body=stmt)))


def packed(saved):
    """A function as a database holds it."""
    content = json.dumps(saved).encode()
    return base64.b64encode(len(content).to_bytes(8, "little") + content).decode()
