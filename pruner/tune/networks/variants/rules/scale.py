"""Fold constant factors and summands through products with constants.

(A B) s = A (B s) for factors s of the columns or of everything, and (A + b) B = A B + b B.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pruner.tune.networks.variants.graph import (
    Graph,
    GraphNode,
    contract,
    elementwise,
    nodes,
    permute,
    reshape,
    spec_of,
)


def scale(graph: Graph) -> Iterator[Mapping[GraphNode, GraphNode]]:
    """Move constant factors into weights, and constant summands out of products."""
    for node in nodes(graph):
        if node.constant:
            continue
        if node.op == "multiply":
            for product, factors in (node.args, node.args[::-1]):
                fits = product.op == "contract" and product.shape == node.shape
                if fits and len(product.args) == 2 and factors.constant:
                    new = _scaled(product, factors)
                    if new is not None:
                        yield {node: new}
        if node.op == "contract" and len(node.args) == 2 and node.args[1].constant:
            sum_, weights = node.args
            # behind a window a summand is missing at the borders
            if sum_.op == "add" and None not in spec_of(node).plain(0):
                for data, summand in (sum_.args, sum_.args[::-1]):
                    if summand.constant and data.shape == sum_.shape == summand.shape:
                        parts = (contract(node.attrs[0], one, weights) for one in (data, summand))
                        yield {node: elementwise("add", *parts)}


def _scaled(product: GraphNode, factors: GraphNode) -> GraphNode | None:
    """Multiply the weights of a product by factors, if these are theirs alone."""
    spec, (data, weights) = spec_of(product), product.args
    if not weights.constant:
        return None
    extents = (1,) * (len(spec.out) - len(factors.shape)) + factors.shape
    names = [name for name, extent in zip(spec.out, extents, strict=True) if extent != 1]
    own, theirs = spec.plain(1), [n for axis in spec.args[0] for _, n in axis.terms]
    if any(name not in own or name in theirs for name in names):
        return None
    vector = reshape(factors, [dict(product.attrs[1])[name] for name in names])
    order = [names.index(str(name)) for name in own if name in names]
    shape = [e if n in names else 1 for n, e in zip(own, weights.shape, strict=True)]
    scaled = elementwise("multiply", weights, reshape(permute(vector, order), shape))
    return GraphNode("contract", (data, scaled), product.shape, product.attrs)
