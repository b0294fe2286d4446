"""Write graphs back into a Relax module."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pruner.tune.networks.variants.check import Floats
from pruner.tune.networks.variants.evaluation import Array, Places, evaluate, whole
from pruner.tune.networks.variants.graph import (
    AffineIndex,
    Graph,
    GraphNode,
    convolution_of,
    matrices_of,
    nodes,
    spec_of,
)
from pruner.tune.networks.variants.network_regions import GraphRegion, Regions
from pruner.tune.tvm_import import load_tvm


def written(module: Any, regions: Regions, graphs: Mapping[int, Graph]) -> Any:
    """Replace regions, given by their number, in ``main`` of a Relax module."""
    tvm, relax, main = load_tvm().tvm, load_tvm().relax, module["main"]
    kept = {name: f for name, f in module.functions_items() if name.name_hint != "main"}
    builder = relax.BlockBuilder(tvm.IRModule(kept, attrs=module.attrs))
    number = {member: i for i in graphs for member in regions.found[i].members}
    new: dict[int, Any] = {}
    done: set[int] = set()

    def substituted(value: Any) -> Any:
        return load_tvm().ffi.structural_map(
            value, (relax.Var, lambda var: new.get(hash(var), var))
        )

    with builder.function("main", list(main.params), attrs=dict(main.attrs)):
        with builder.dataflow():
            for binding in regions.bindings:
                place = number.get(hash(binding.var))
                if place is None:
                    new[hash(binding.var)] = builder.emit(substituted(binding.value))
                elif place not in done:
                    # in the order of levels all inputs of a region are there with its first binding
                    done.add(place)
                    region = regions.found[place]
                    inputs = {name: substituted(value) for name, value in region.inputs.items()}
                    results = Writer(builder, inputs, region.calls).write(graphs[place])
                    for var, result in zip(region.outputs, results, strict=True):
                        new[hash(var)] = result
            out = builder.emit_output(substituted(main.body.body))
        builder.emit_func_output(out)
    passes = relax.transform
    return passes.DeadCodeElimination()(passes.Normalize()(builder.get()))


def alone(region: GraphRegion, graph: Graph) -> Any:
    """Make a module of a region's graph, with its inputs as parameters."""
    relax = load_tvm().relax
    builder, inputs = relax.BlockBuilder(), dict(region.inputs)
    leaves = [node for node in nodes(graph) if node.op == "leaf" and not node.constant]
    for leaf in leaves:
        inputs[leaf.attrs[0]] = relax.Var(leaf.attrs[0], relax.TensorType(leaf.shape, "float32"))
    with builder.function("main", [inputs[leaf.attrs[0]] for leaf in leaves]):
        with builder.dataflow():
            results = Writer(builder, inputs, region.calls).write(graph)
            out = builder.emit_output(relax.Tuple(results) if len(results) > 1 else results[0])
        builder.emit_func_output(out)
    return builder.get()


@dataclass(slots=True)
class Writer:
    """Emits the nodes of a graph, with the values of constants."""

    builder: Any
    inputs: Mapping[str, Any]
    calls: Mapping[str, Any]
    _values: dict[GraphNode, Any] = field(default_factory=dict)

    def write(self, graph: Graph) -> list[Any]:
        """Emit the outputs."""
        for node in nodes(graph):
            if node.op == "leaf":
                self._values[node] = self.inputs[node.attrs[0]]
            elif _is_number(node):
                self._values[node] = node  # computed where it is used
            else:
                args = [self._argument(arg) for arg in node.args]
                self._values[node] = self.builder.emit(self._call(node, args))
        return [self._argument(node) for node in graph]

    def _argument(self, node: GraphNode) -> Any:
        found = self._values[node]
        if found is node:
            (value,) = evaluate((node,), whole((node,)), _Numbers(self.inputs))
            found = load_tvm().relax.const(np.ascontiguousarray(value[0], np.float32), "float32")
            self._values[node] = found
        return found

    def _call(self, node: GraphNode, args: list[Any]) -> Any:
        relax = load_tvm().relax
        op, name = relax.op, node.op
        if name == "contract":
            return self._contraction(node, args)
        if name in ("add", "subtract", "multiply", "divide"):
            return getattr(op, name)(*args)
        if name == "call":
            if node.attrs[0] == "exp":
                return op.exp(args[0])
            call = self.calls[node.attrs[0]]
            return relax.Call(call.op, args, call.attrs)
        if name == "reshape":
            return op.reshape(args[0], node.shape)
        if name == "permute":
            return op.permute_dims(args[0], list(node.attrs))
        if name == "concat":
            return op.concat(args, node.attrs[0])
        axis = node.attrs[0]
        if name == "cut":
            begin = node.attrs[1]
            return op.strided_slice(args[0], [axis], [begin], [begin + node.shape[axis]])
        if name == "max":
            return op.max(args[0], axis, keepdims=True)
        return op.nn.softmax(args[0], axis)

    def _contraction(self, node: GraphNode, args: list[Any]) -> Any:
        relax, found = load_tvm().relax, convolution_of(node)
        if found is not None:
            after = [
                step * (size - 1) + gap * (taps - 1) + 1 - before - extent
                for step, size, gap, taps, before, extent in zip(
                    found.strides,
                    node.shape[found.rows : found.rows + 2],
                    found.dilation,
                    found.taps,
                    found.padding,
                    node.args[0].shape[found.rows : found.rows + 2],
                    strict=True,
                )
            ]
            return relax.op.nn.conv2d(
                *args,
                strides=found.strides,
                padding=[*found.padding, *(max(0, one) for one in after)],
                dilation=found.dilation,
                data_layout="NHWC" if found.channels_last else "NCHW",
                kernel_layout="HWIO" if found.channels_last else "OIHW",
                out_dtype="float32",
            )
        matrices = matrices_of(node)
        if matrices is None:
            return self.builder.call_te(_computed(node), *args, primfunc_name_hint="contract")
        if matrices == tuple(arg.shape for arg in node.args):
            return relax.op.matmul(*args)
        views = (relax.op.reshape(arg, s) for arg, s in zip(args, matrices, strict=True))
        return relax.op.reshape(self.builder.emit(relax.op.matmul(*views)), node.shape)


def _is_number(node: GraphNode) -> bool:
    """Check for a constant without functions that are not specified."""
    return node.constant and all(
        one.op != "call" or one.attrs[0] == "exp" for one in nodes((node,))
    )


def _computed(node: GraphNode) -> Any:
    """Return a function that makes TVM's expression of a contraction."""
    spec, sizes = spec_of(node), dict(node.attrs[1])

    def compute(*tensors: Any) -> Any:
        te, topi = importlib.import_module("tvm.te"), importlib.import_module("tvm.topi")
        padded = [
            _padded(topi, tensor, indices, arg.shape, sizes)
            for tensor, indices, arg in zip(tensors, spec.args, node.args, strict=True)
        ]
        summed = {name: te.reduce_axis((0, sizes[name]), name) for name in spec.summed}

        def element(*places: Any) -> Any:
            letters = summed | dict(zip(spec.out, places, strict=True))
            factors = [
                tensor(*(_index(axis, letters, pad) for axis, pad in zip(own, before, strict=True)))
                for (tensor, before), own in zip(padded, spec.args, strict=True)
            ]
            product = factors[0] if len(factors) == 1 else factors[0] * factors[1]
            return te.sum(product, axis=list(summed.values())) if summed else product

        return te.compute(node.shape, element, name="contract")

    return compute


def _padded(
    topi: Any, tensor: Any, indices: Any, shape: tuple[int, ...], sizes: Mapping[str, int]
) -> tuple[Any, list[int]]:
    """Fill an argument up with the zeros that its indices reach."""
    before, after = [], []
    for axis, extent in zip(indices, shape, strict=True):
        last = axis.offset + sum(factor * (sizes[name] - 1) for factor, name in axis.terms)
        before.append(max(0, -axis.offset))
        after.append(max(0, last + 1 - extent))
    return (topi.nn.pad(tensor, before, after) if any(before + after) else tensor), before


def _index(axis: AffineIndex, letters: Mapping[str, Any], before: int) -> Any:
    total = sum(
        factor * letters[name] if factor > 1 else letters[name] for factor, name in axis.terms
    )
    offset = axis.offset + before
    return total + offset if offset else total


class _Numbers(Floats):
    """Double precision, with the constants' own numbers."""

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        super().__init__("float64")
        self._inputs = inputs

    def leaf(self, node: GraphNode, places: Places) -> Array:
        """Return elements of a constant."""
        numbers = self._inputs[node.attrs[0]].value.numpy().astype(np.float64)
        return numbers.reshape(-1)[places][None]
