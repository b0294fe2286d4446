"""Split a sum of products in parts, computed in parallel and then added.

A small result of a long sum, such as 16 x 16 from 65,536 products each, has too few elements for
all cores. Of a convolution, the input channels are divided.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from pruner.tune.networks.variants.graph import (
    AffineIndex,
    Graph,
    GraphNode,
    contract,
    nodes,
    reshape,
    spec_of,
)

PARTS, _LEAST = (4, 16), 64  # parts, and summands of each


def split(graph: Graph) -> Iterator[Mapping[GraphNode, GraphNode]]:
    """Split the longest sum of a product."""
    for node in nodes(graph):
        if node.op != "contract" or len(node.args) != 2 or node.constant:
            continue
        spec, sizes = spec_of(node), dict(node.attrs[1])
        plain = [n for n in spec.summed if n in spec.plain(0) and n in spec.plain(1)]
        name = max(plain, key=sizes.__getitem__, default=None)
        for parts in PARTS if name is not None else ():
            assert name is not None
            if sizes[name] % parts == 0 and sizes[name] >= _LEAST * parts:
                yield {node: _split(node, name, parts)}


def _split(node: GraphNode, name: str, parts: int) -> GraphNode:
    spec = spec_of(node)
    new = next(f"part{i}" for i in range(9) if f"part{i}" not in spec.letters)
    part = AffineIndex(((1, new),), 0)
    args, specs = [], []
    for number, arg in enumerate(node.args):
        axis = spec.plain(number).index(name)
        inner = arg.shape[axis] // parts
        args.append(reshape(arg, (*arg.shape[:axis], parts, inner, *arg.shape[axis + 1 :])))
        specs.append((*spec.args[number][:axis], part, *spec.args[number][axis:]))
    sizes = {n: extent for n, extent in node.attrs[1] if n != name}
    each = contract(replace(spec, args=tuple(specs), out=(new, *spec.out)), *args, **sizes)
    return contract(f"{new} {' '.join(spec.out)} -> {' '.join(spec.out)}", each)
