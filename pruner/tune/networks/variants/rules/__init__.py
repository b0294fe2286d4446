"""Rules: other ways to compute a part of a graph.

A rule yields its applications to a graph, each a mapping from nodes to nodes that have the same
value. It may be wrong: every application is checked (:mod:`pruner.tune.networks.variants.check`).
To add a rule, write ``def rule(graph) -> Iterator[Application]`` in a new file and list it in
:data:`RULES`; docs/variants.md has an example.

* `products`: order of chained products, common factors of sums, joined products, folded factors and
  summands, split sums, 1x1 convolutions as products of matrices, convolutions with fewer products,
  transposes, and softmax
"""

from collections.abc import Callable, Iterator, Mapping

from pruner.tune.networks.variants.graph import Graph, GraphNode
from pruner.tune.networks.variants.rules.products import (
    factor,
    join,
    order,
    pointwise,
    scale,
    softmax,
    split,
    transpose,
    winograd,
)

Application = Mapping[GraphNode, GraphNode]
Rule = Callable[[Graph], Iterator[Application]]

RULES: tuple[Rule, ...] = (
    order, factor, join, scale, split, pointwise, winograd, transpose, softmax
)  # fmt: skip
