"""Take transposes into products, which read and write in any order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from pruner.tune.networks.variants.graph import Graph, GraphNode, contract, nodes, permute, spec_of


def transpose(graph: Graph) -> Iterator[Mapping[GraphNode, GraphNode]]:
    """Take a transpose in front of a product or behind it into its indices."""
    for node in nodes(graph):
        if node.constant:
            continue
        if node.op == "permute" and node.args[0].op == "contract":
            product = node.args[0]
            spec = spec_of(product)
            out = tuple(spec.out[axis] for axis in node.attrs)
            yield {node: contract(replace(spec, out=out), *product.args, **dict(product.attrs[1]))}
        if node.op == "permute" and node.args[0].op in ("add", "subtract", "multiply"):
            parts = node.args[0].args
            if all(part.shape == parts[0].shape for part in parts):
                moved = (permute(part, node.attrs) for part in parts)
                yield {node: GraphNode(node.args[0].op, tuple(moved), node.shape)}
        if node.op == "contract":
            for place, arg in enumerate(node.args):
                if arg.op == "permute":
                    yield {node: _absorbed(node, place, arg)}


def _absorbed(node: GraphNode, place: int, arg: GraphNode) -> GraphNode:
    spec = spec_of(node)
    indices = dict(zip(arg.attrs, spec.args[place], strict=True))
    moved = tuple(indices[axis] for axis in range(len(arg.shape)))
    specs = tuple(moved if i == place else one for i, one in enumerate(spec.args))
    args = [arg.args[0] if i == place else other for i, other in enumerate(node.args)]
    return contract(replace(spec, args=specs), *args, **dict(node.attrs[1]))
