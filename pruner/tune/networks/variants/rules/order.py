"""Change the order of chained products: (A B) C = A (B C).

For matrices of 1024 x 16, 16 x 1024 and 1024 x 1024 the second order takes a 32nd of the
arithmetic. Products of weights alone are computed when the network is built.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pruner.tune.networks.variants.graph import (
    AffineIndex,
    Graph,
    GraphNode,
    Spec,
    contract,
    nodes,
    spec_of,
)


def order(graph: Graph) -> Iterator[Mapping[GraphNode, GraphNode]]:
    """Multiply one argument of a product by the other factor first."""
    for node in nodes(graph):
        for place, inner in enumerate(node.args if node.op == "contract" else ()):
            if inner.op != "contract" or not len(inner.args) == len(node.args) == 2:
                continue
            # transforms of other rules are literals, in the best order already
            if all(arg.op != "literal" for arg in (*inner.args, *node.args)):
                for number in (0, 1):
                    new = _reordered(node, place, number)
                    if new is not None:
                        yield {node: new}


def _reordered(node: GraphNode, place: int, number: int) -> GraphNode | None:
    """Multiply argument `number` of the inner product first, with the other outer argument."""
    inner, other = node.args[place], node.args[1 - place]
    outer_spec, spec = spec_of(node), spec_of(inner)
    names = outer_spec.plain(place)
    if any(name is None for arg in (*outer_spec.args, *spec.args) for name in _plain(arg)):
        return None
    # letters of the inner product: its results have names in the outer one, sums get new names
    new = {name: f"i_{name}" for name in spec.summed}
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
    product = contract(_spec(left, right, [*both, *rest]), *args)
    if (place == 0) == (number == 1):
        return contract(_spec(kept, both + rest, outer_spec.out), inner.args[1 - number], product)
    return contract(_spec(both + rest, kept, outer_spec.out), product, inner.args[1 - number])


def _plain(arg: tuple[AffineIndex, ...]) -> list[str | None]:
    return [axis.letter for axis in arg]


def _spec(left: list[str], right: list[str], out: list[str] | tuple[str, ...]) -> Spec:
    args = tuple(tuple(AffineIndex(((1, name),), 0) for name in own) for own in (left, right))
    return Spec(args, tuple(out))
