"""Join products or convolutions of an input.

[A B | A C] = A [B | C].

The projections of attention are three products of one tensor; joined, it is read once, and a larger
product fills more of the machine. The weights are joined when the network is built.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from pruner.tune.networks.variants.graph import (
    Graph,
    GraphNode,
    concat,
    contract,
    cut,
    nodes,
    spec_of,
)


def join(graph: Graph) -> Iterator[Mapping[GraphNode, GraphNode]]:
    """Join products of a tensor by constants of equal shape but in an extent."""
    groups: dict[tuple[GraphNode, str, str, tuple[object, ...]], list[GraphNode]] = defaultdict(
        list
    )
    for node in nodes(graph):
        if node.op != "contract" or len(node.args) != 2 or node.constant:
            continue
        data, weights = node.args
        spec = spec_of(node)
        if not weights.constant:
            continue
        for name in spec.out:
            in_data = any(name == letter for axis in spec.args[0] for _, letter in axis.terms)
            if name in spec.plain(1) and not in_data:
                others = tuple(pair for pair in node.attrs[1] if pair[0] != name)
                groups[data, node.attrs[0], name, others].append(node)
    for (data, text, name, others), found in groups.items():
        if len(found) > 1:
            spec = spec_of(found[0])
            weights = concat([node.args[1] for node in found], spec.plain(1).index(name))
            joined = contract(text, data, weights, **dict(others))  # type: ignore[arg-type]
            axis, begin, new = spec.out.index(name), 0, {}
            for node in found:
                new[node] = cut(joined, axis, begin, begin + node.shape[axis])
                begin += node.shape[axis]
            yield new
