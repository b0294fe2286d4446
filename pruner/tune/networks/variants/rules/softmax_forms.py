"""Divide after the product with a softmax.

softmax(x) V = (e V) / sum(e) with e = exp(x - max(x)), so the scores are read twice instead of
three times. A softmax in parts (Milakov and Gimelshein, 2018) is no rule: a part that a mask of
minus infinity covers has no finite maximum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pruner.tune.networks.variants.graph import (
    Graph,
    GraphNode,
    contract,
    elementwise,
    nodes,
    reshape,
    rows,
    spec_of,
)


def softmax(graph: Graph) -> Iterator[Mapping[GraphNode, GraphNode]]:
    """Rewrite softmax along rows, and products with them."""
    for node in nodes(graph):
        if node.op == "softmax":
            powers = _powers(node.args[0], node.attrs[0])
            yield {node: elementwise("divide", powers, _sums(powers, node.attrs[0]))}
        if node.op == "contract" and len(node.args) == 2 and node.args[0].op == "softmax":
            data, axis = node.args[0].args[0], node.args[0].attrs[0]
            spec = spec_of(node)
            names = spec.plain(0)
            others = [name for i, name in enumerate(names) if i != axis]
            # the sum of a row must be a factor of its products alone
            if names[axis] in spec.summed and all(name in spec.out for name in others):
                powers = _powers(data, axis)
                kept = [name for name in spec.out if name in others]
                sums = contract(f"{' '.join(map(str, names))} -> {' '.join(kept)}", powers)
                shape = [e if n in kept else 1 for n, e in zip(spec.out, node.shape, strict=True)]
                product = contract(spec, powers, node.args[1])
                yield {node: elementwise("divide", product, reshape(sums, shape))}


def _powers(data: GraphNode, axis: int) -> GraphNode:
    """Return exp(x - max(x)) along an axis."""
    difference = elementwise("subtract", data, rows("max", data, axis))
    return elementwise("call", difference, name="exp")


def _sums(data: GraphNode, axis: int) -> GraphNode:
    names = [f"a{i}" for i in range(len(data.shape))]
    kept = [name for i, name in enumerate(names) if i != axis]
    shape = [1 if i == axis else extent for i, extent in enumerate(data.shape)]
    return reshape(contract(f"{' '.join(names)} -> {' '.join(kept)}", data), shape)
