"""Other ways to compute products, and what is around them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction as F
from math import prod

from pruner.tune.networks.variants.graph import (
    AffineIndex,
    Graph,
    GraphNode,
    Spec,
    concat,
    contract,
    convolution_of,
    cut,
    elementwise,
    literal,
    nodes,
    permute,
    reshape,
    rows,
    spec_of,
)

Applications = Iterator[Mapping[GraphNode, GraphNode]]
PARTS, _LEAST = (4, 16), 64  # parts of a split sum, and summands of each
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


def _is_product(node: GraphNode) -> bool:
    return node.op == "contract" and len(node.args) == 2


def _letter(name: str) -> AffineIndex:
    return AffineIndex(((1, name),), 0)


def order(graph: Graph) -> Applications:
    """Change the order of chained products: (A B) C = A (B C).

    For matrices of 1024 x 16, 16 x 1024 and 1024 x 1024 the second order takes a 32nd of the
    arithmetic. Products of weights alone are computed when the network is built.
    """
    for node in nodes(graph):
        for place, inner in enumerate(node.args if _is_product(node) else ()):
            # transforms of other rules are literals, in the best order already
            if _is_product(inner) and all(arg.op != "literal" for arg in (*inner.args, *node.args)):
                for number in (0, 1):
                    new = _reordered(node, place, number)
                    if new is not None:
                        yield {node: new}


def _reordered(node: GraphNode, place: int, number: int) -> GraphNode | None:
    """Multiply argument `number` of the inner product first, with the other outer argument."""
    inner, other = node.args[place], node.args[1 - place]
    outer_spec, spec = spec_of(node), spec_of(inner)
    if any(axis.letter is None for arg in (*outer_spec.args, *spec.args) for axis in arg):
        return None
    # letters of the inner product: its results have names in the outer one, sums get new names
    taken = set(outer_spec.letters)
    new = {name: _fresh(name, taken) for name in spec.summed}
    names = outer_spec.plain(place)
    new |= {old: str(name) for old, name in zip(spec.out, names, strict=True)}
    if len(set(new.values())) < len(new):
        return None
    letters = [[new[str(name)] for name in spec.plain(i)] for i in (0, 1)]
    theirs = [str(name) for name in outer_spec.plain(1 - place)]
    kept, first = letters[1 - number], letters[number]
    if place == 0:  # (A B) C, B C first; else A (B C), A B first
        left, right, args = first, theirs, (inner.args[number], other)
    else:
        left, right, args = theirs, first, (other, inner.args[number])
    used = {*kept, *outer_spec.out}
    both = [name for name in left if name in right and name in used]
    rest = [n for own in (left, right) for n in own if n in used and n not in both]
    product = contract(_plain_spec(left, right, [*both, *rest]), *args)
    if (place == 0) == (number == 1):
        outer = _plain_spec(kept, both + rest, outer_spec.out)
        return contract(outer, inner.args[1 - number], product)
    return contract(_plain_spec(both + rest, kept, outer_spec.out), product, inner.args[1 - number])


def _fresh(name: str, taken: set[str]) -> str:
    name = f"i_{name}"
    while name in taken:
        name = f"i_{name}"
    taken.add(name)
    return name


def _plain_spec(left: Iterable[str], right: Iterable[str], out: Iterable[str]) -> Spec:
    return Spec((tuple(map(_letter, left)), tuple(map(_letter, right))), tuple(out))


def factor(graph: Graph) -> Applications:
    """Take common factors out of sums of products.

    A B + A C = A (B + C), and the reverse. A sum of products without a common factor is one
    product: A B + C D = [A C] [B; D].
    """
    for node in nodes(graph):
        if node.op in ("add", "subtract") and all(len(a.args) == 2 for a in node.args):
            left, right = node.args
            if left.op == right.op == "contract" and left.attrs[0] == right.attrs[0]:
                yield from ({node: new} for new in _factored(node, left, right))
        for place, arg in enumerate(node.args if _is_product(node) else ()):
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
                yield contract(spec, *joined, **_extents_without(left, name))


def _without(node: GraphNode, axis: int) -> tuple[int, ...]:
    return node.shape[:axis] + node.shape[axis + 1 :]


def _with(node: GraphNode, place: int, arg: GraphNode) -> GraphNode:
    args = [arg if i == place else other for i, other in enumerate(node.args)]
    return GraphNode(node.op, tuple(args), node.shape, node.attrs)


def _extents_without(node: GraphNode, skipped: str) -> dict[str, int]:
    return {name: extent for name, extent in node.attrs[1] if name != skipped}


def join(graph: Graph) -> Applications:
    """Join products of a tensor by constants of equal shape but in an extent.

    [A B | A C] = A [B | C]: the projections of attention are three products of one tensor; joined,
    it is read once, and a larger product fills more of the machine. The weights are joined when the
    network is built.
    """
    groups: dict[tuple[GraphNode, str, str, tuple[tuple[str, int], ...]], list[GraphNode]] = (
        defaultdict(list)
    )
    for node in nodes(graph):
        if not _is_product(node) or node.constant or not node.args[1].constant:
            continue
        spec = spec_of(node)
        for name in spec.out:
            in_data = any(name == letter for axis in spec.args[0] for _, letter in axis.terms)
            if name in spec.plain(1) and not in_data:
                others = tuple(_extents_without(node, name).items())
                groups[node.args[0], node.attrs[0], name, others].append(node)
    for (data, text, name, others), found in groups.items():
        if len(found) > 1:
            spec = spec_of(found[0])
            weights = concat([node.args[1] for node in found], spec.plain(1).index(name))
            joined = contract(text, data, weights, **dict(others))
            axis, begin, new = spec.out.index(name), 0, {}
            for node in found:
                new[node] = cut(joined, axis, begin, begin + node.shape[axis])
                begin += node.shape[axis]
            yield new


def scale(graph: Graph) -> Applications:
    """Move constant factors into weights, and constant summands out of products.

    (A B) s = A (B s) for factors s of the columns or of everything, and (A + b) B = A B + b B.
    """
    for node in nodes(graph):
        if node.constant:
            continue
        if node.op == "multiply":
            for product, factors in (node.args, node.args[::-1]):
                fits = _is_product(product) and product.shape == node.shape
                new = _scaled(product, factors) if fits and factors.constant else None
                if new is not None:
                    yield {node: new}
        if _is_product(node) and node.args[1].constant:
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
    axes = [names.index(str(name)) for name in own if name in names]
    shape = [e if n in names else 1 for n, e in zip(own, weights.shape, strict=True)]
    scaled = elementwise("multiply", weights, reshape(permute(vector, axes), shape))
    return GraphNode("contract", (data, scaled), product.shape, product.attrs)


def split(graph: Graph) -> Applications:
    """Split the longest sum of a product in parts.

    The parts are computed in parallel and then added. A small result of a long sum, such as 16 x 16
    from 65,536 products each, has too few elements for all cores. Of a convolution, the input
    channels are divided.
    """
    for node in nodes(graph):
        if not _is_product(node) or node.constant:
            continue
        spec, sizes = spec_of(node), dict(node.attrs[1])
        plain = [n for n in spec.summed if n in spec.plain(0) and n in spec.plain(1)]
        name = max(plain, key=sizes.__getitem__, default="")
        for parts in PARTS if name else ():
            if sizes[name] % parts == 0 and sizes[name] >= _LEAST * parts:
                yield {node: _split(node, name, parts)}


def _split(node: GraphNode, name: str, parts: int) -> GraphNode:
    spec = spec_of(node)
    new = next(f"part{i}" for i in range(9) if f"part{i}" not in spec.letters)
    args, specs = [], []
    for number, arg in enumerate(node.args):
        axis = spec.plain(number).index(name)
        inner = arg.shape[axis] // parts
        args.append(reshape(arg, (*arg.shape[:axis], parts, inner, *arg.shape[axis + 1 :])))
        specs.append((*spec.args[number][:axis], _letter(new), *spec.args[number][axis:]))
    divided = replace(spec, args=tuple(specs), out=(new, *spec.out))
    each = contract(divided, *args, **_extents_without(node, name))
    return contract(f"{new} {' '.join(spec.out)} -> {' '.join(spec.out)}", each)


def pointwise(graph: Graph) -> Applications:
    """Rewrite 1x1 convolutions of stride 1 without padding as products of matrices.

    With channels last the pixels are the rows of a matrix without a copy; with channels first the
    weights are multiplied by a matrix of channels and pixels.
    """
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


def transpose(graph: Graph) -> Applications:
    """Take a transpose in front of a product or behind it into its indices."""
    for node in nodes(graph):
        if node.constant:
            continue
        inner = node.args[0] if node.op == "permute" else None
        if inner is not None and inner.op == "contract":
            spec = spec_of(inner)
            turned = replace(spec, out=tuple(spec.out[axis] for axis in node.attrs))
            yield {node: contract(turned, *inner.args, **dict(inner.attrs[1]))}
        if (
            inner is not None
            and inner.op in ("add", "subtract", "multiply")
            and all(part.shape == inner.args[0].shape for part in inner.args)
        ):
            moved = (permute(part, node.attrs) for part in inner.args)
            yield {node: GraphNode(inner.op, tuple(moved), node.shape)}
        for place, arg in enumerate(node.args if node.op == "contract" else ()):
            if arg.op == "permute":
                yield {node: _absorbed(node, place, arg)}


def _absorbed(node: GraphNode, place: int, arg: GraphNode) -> GraphNode:
    spec = spec_of(node)
    indices = dict(zip(arg.attrs, spec.args[place], strict=True))
    moved = tuple(indices[axis] for axis in range(len(arg.shape)))
    specs = tuple(moved if i == place else one for i, one in enumerate(spec.args))
    args = [arg.args[0] if i == place else other for i, other in enumerate(node.args)]
    return contract(replace(spec, args=specs), *args, **dict(node.attrs[1]))


def softmax(graph: Graph) -> Applications:
    """Divide after the product with a softmax.

    softmax(x) V = (e V) / sum(e) with e = exp(x - max(x)), so the scores are read twice instead of
    three times. A softmax in parts (Milakov and Gimelshein, 2018) is no rule: a part that a mask of
    minus infinity covers has no finite maximum.
    """
    for node in nodes(graph):
        if node.op == "softmax":
            powers = _powers(node.args[0], node.attrs[0])
            yield {node: elementwise("divide", powers, _sums(powers, node.attrs[0]))}
        if _is_product(node) and node.args[0].op == "softmax":
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


def winograd(graph: Graph) -> Applications:
    """Compute 3x3 convolutions of stride 1 with fewer products.

    Winograd; Lavin and Gray, CVPR 2016. Tiles of m x m outputs are A^T [(G g G^T) * (B^T d B)] A:
    (m + 2)^2 products instead of 9 m^2, so m = 2 saves a factor of 2.25 and m = 4 one of 4, paid
    with transforms of the image and of the result and with rounding errors, which grow with m. The
    products of all tiles are products of matrices, (m + 2)^2 of them. Constant weights are
    transformed when the network is built, others in each run.
    """
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
