"""Compute a convolution by a single tap as a product of matrices.

With channels last its pixels are the rows of a matrix without a copy; with channels first its
weights are multiplied by a matrix of channels and pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from pruner.tune.networks.variants.convolutions import convolution_of
from pruner.tune.networks.variants.graph import Graph, GraphNode, contract, nodes, reshape


def pointwise(graph: Graph) -> Iterator[Mapping[GraphNode, GraphNode]]:
    """Rewrite 1x1 convolutions of stride 1 without padding."""
    for node in nodes(graph):
        found = convolution_of(node)
        if found is None or not found.plain or found.taps != (1, 1) or found.padding != (0, 0):
            continue
        data, weights = node.args
        if data.shape[found.rows : found.rows + 2] != node.shape[found.rows : found.rows + 2]:
            continue
        if found.channels_last:
            matrix = reshape(data, (prod(data.shape[:3]), data.shape[3]))
            product = contract("m k, k n -> m n", matrix, reshape(weights, weights.shape[2:]))
        else:
            matrix = reshape(data, (*data.shape[:2], prod(data.shape[2:])))
            product = contract("n k, b k m -> b n m", reshape(weights, weights.shape[:2]), matrix)
        yield {node: reshape(product, node.shape)}
