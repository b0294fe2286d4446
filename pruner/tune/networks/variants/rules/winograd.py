"""Compute 3x3 convolutions with fewer products (Winograd; Lavin and Gray, CVPR 2016).

Tiles of m x m outputs are A^T [(G g G^T) * (B^T d B)] A: (m + 2)^2 products instead of 9 m^2, so
m = 2 saves a factor of 2.25 and m = 4 one of 4, paid with transforms of the image and of the result
and with rounding errors, which grow with m. The products of all tiles are products of matrices,
(m + 2)^2 of them. Constant weights are transformed when the network is built, others in each run.
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction as F

from pruner.tune.networks.variants.convolutions import convolution_of
from pruner.tune.networks.variants.graph import (
    Graph,
    GraphNode,
    contract,
    cut,
    literal,
    nodes,
    reshape,
)

# By m: the transforms B^T, G and A^T of Lavin and Gray, sections 4.1 and 4.3.
TRANSFORMS = {
    2: (
        [[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]],
        [[1, 0, 0], [F(1, 2), F(1, 2), F(1, 2)], [F(1, 2), F(-1, 2), F(1, 2)], [0, 0, 1]],
        [[1, 1, 1, 0], [0, 1, -1, -1]],
    ),
    4: (
        [
            [4, 0, -5, 0, 1, 0],
            [0, -4, -4, 1, 1, 0],
            [0, 4, -4, -1, 1, 0],
            [0, -2, -1, 2, 1, 0],
            [0, 2, -1, -2, 1, 0],
            [0, 4, 0, -5, 0, 1],
        ],
        [
            [F(1, 4), 0, 0],
            [F(-1, 6), F(-1, 6), F(-1, 6)],
            [F(-1, 6), F(1, 6), F(-1, 6)],
            [F(1, 24), F(1, 12), F(1, 6)],
            [F(1, 24), F(-1, 12), F(1, 6)],
            [0, 0, 1],
        ],
        [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]],
    ),
}


def winograd(graph: Graph) -> Iterator[Mapping[GraphNode, GraphNode]]:
    """Rewrite 3x3 convolutions of stride 1."""
    for node in nodes(graph):
        found = convolution_of(node)
        if found is not None and found.plain and found.taps == (3, 3) and not node.constant:
            for size in TRANSFORMS:
                yield {node: _tiled(node, size, found.channels_last, found.padding)}


def _tiled(node: GraphNode, m: int, channels_last: bool, padding: tuple[int, int]) -> GraphNode:
    """Compute a convolution in tiles of m x m outputs."""
    data, weights = node.args
    image, taps, result = map(literal, TRANSFORMS[m])  # B^T, G and A^T
    rows = 1 if channels_last else 2
    tiles = {"y": -(-node.shape[rows] // m), "x": -(-node.shape[rows + 1] // m)}
    top, left = (f"{-before:+d}" if before else "" for before in padding)
    if channels_last:
        g = contract("e r, r s c o -> e s c o", taps, weights)
        u = contract("f s, e s c o -> e f c o", taps, g)
        d = contract(f"e i, n {m}*y+i{top} w c -> e n y w c", image, data, y=tiles["y"])
        v = contract(f"f j, e n y {m}*x+j{left} c -> e f n y x c", image, d, x=tiles["x"])
        products = contract("e f n y x c, e f c o -> e f n y x o", v, u)
        half = contract("p e, e f n y x o -> f n y p x o", result, products)
        full = contract("q f, f n y p x o -> n y p x q o", result, half)
    else:
        g = contract("e r, o c r s -> e s o c", taps, weights)
        u = contract("f s, e s o c -> e f o c", taps, g)
        d = contract(f"e i, n c {m}*y+i{top} w -> e c n y w", image, data, y=tiles["y"])
        v = contract(f"f j, e c n y {m}*x+j{left} -> e f c n y x", image, d, x=tiles["x"])
        products = contract("e f o c, e f c n y x -> e f o n y x", u, v)
        half = contract("p e, e f o n y x -> f o n y p x", result, products)
        full = contract("q f, f o n y p x -> n o y p x q", result, half)
    shape = list(node.shape)
    shape[rows : rows + 2] = [m * tiles["y"], m * tiles["x"]]
    # the last tiles are cut where they leave the image
    inside = cut(reshape(full, shape), rows, 0, node.shape[rows])
    return cut(inside, rows + 1, 0, node.shape[rows + 1])
