"""Take common factors out of sums of products.

A B + A C = A (B + C), and the reverse. A sum of products without a common factor is one product:
A B + C D = [A C] [B; D].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pruner.tune.networks.variants.graph import (
    Graph,
    GraphNode,
    concat,
    contract,
    elementwise,
    nodes,
    spec_of,
)


def factor(graph: Graph) -> Iterator[Mapping[GraphNode, GraphNode]]:
    """Rewrite sums and differences of products, and products of sums."""
    for node in nodes(graph):
        if node.op in ("add", "subtract") and all(len(a.args) == 2 for a in node.args):
            left, right = node.args
            if left.op == right.op == "contract" and left.attrs[0] == right.attrs[0]:
                yield from ({node: new} for new in _factored(node, left, right))
        if node.op == "contract" and len(node.args) == 2:
            for place, arg in enumerate(node.args):
                if arg.op in ("add", "subtract") and arg.args[0].shape == arg.args[1].shape:
                    parts = [_with(node, place, part) for part in arg.args]
                    yield {node: elementwise(arg.op, *parts)}


def _factored(node: GraphNode, left: GraphNode, right: GraphNode) -> Iterator[GraphNode]:
    for place in (0, 1):
        first, second = left.args[1 - place], right.args[1 - place]
        if left.args[place] == right.args[place] and first.shape == second.shape:
            yield _with(left, 1 - place, elementwise(node.op, first, second))
    spec = spec_of(left)
    for name in spec.summed if node.op == "add" else ():
        if all(name in spec.plain(place) for place in (0, 1)):
            axes = [spec.plain(place).index(name) for place in (0, 1)]
            sides = list(zip(left.args, right.args, strict=True))
            # every other extent must be equal
            if all(_without(a, i) == _without(b, i) for (a, b), i in zip(sides, axes, strict=True)):
                joined = [concat(both, i) for both, i in zip(sides, axes, strict=True)]
                yield contract(spec, *joined, **_windows(left, name))


def _without(node: GraphNode, axis: int) -> tuple[int, ...]:
    return node.shape[:axis] + node.shape[axis + 1 :]


def _with(node: GraphNode, place: int, arg: GraphNode) -> GraphNode:
    args = [arg if i == place else other for i, other in enumerate(node.args)]
    return GraphNode(node.op, tuple(args), node.shape, node.attrs)


def _windows(node: GraphNode, skipped: str) -> dict[str, int]:
    return {name: extent for name, extent in node.attrs[1] if name != skipped}
