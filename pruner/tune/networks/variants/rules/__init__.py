"""Rules: other ways to compute a part of a graph, one file each.

A rule yields its applications to a graph, each a mapping from nodes to nodes that have the same
value. It may be wrong: every application is checked (:mod:`pruner.tune.networks.variants.check`).
To add a rule, write ``def rule(graph) -> Iterator[Application]`` in a new file and list it in
:data:`RULES`; docs/variants.md has an example.

* `order`: order of chained products
* `factor`: common factors of sums, and sums of products as products
* `join`: products or convolutions of one input, joined
* `scale`: factors and summands folded into products with constants
* `split`: a sum of products split in parts
* `pointwise`: 1x1 convolutions as products of matrices
* `winograd`: convolutions with fewer products
* `transpose`: transposes taken into products
* `softmax_forms`: division after the product, and softmax of parts
"""

from collections.abc import Callable, Iterator, Mapping

from pruner.tune.networks.variants.graph import Graph, GraphNode
from pruner.tune.networks.variants.rules.factor import factor
from pruner.tune.networks.variants.rules.join import join
from pruner.tune.networks.variants.rules.order import order
from pruner.tune.networks.variants.rules.pointwise import pointwise
from pruner.tune.networks.variants.rules.scale import scale
from pruner.tune.networks.variants.rules.softmax_forms import softmax
from pruner.tune.networks.variants.rules.split import split
from pruner.tune.networks.variants.rules.transpose import transpose
from pruner.tune.networks.variants.rules.winograd import winograd

Application = Mapping[GraphNode, GraphNode]
Rule = Callable[[Graph], Iterator[Application]]

RULES: tuple[Rule, ...] = (
    order, factor, join, scale, split, pointwise, winograd, transpose, softmax
)  # fmt: skip
