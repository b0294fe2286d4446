"""Check the rules of algebraic variants: right ones, wrong ones, and the time of a check.

    python benchmarks/variants.py

For each rule: its applications to ten shapes, all of which must be accepted,
with the median and the longest time of a complete check and of the check in the fields (one random
point, as in a search), in milliseconds of processor time; the largest rounding error; and the
number of wrong versions, all of which must be refused. The table is results/variants.csv. The last
line is a JSON object.
"""

import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from pruner.files import write_table
from pruner.tune.networks.variants.check import Checker, Floats
from pruner.tune.networks.variants.evaluation import evaluate, whole
from pruner.tune.networks.variants.graph import (
    Graph,
    GraphNode,
    concat,
    contract,
    convolve,
    cut,
    elementwise,
    leaf,
    nodes,
    permute,
    replaced,
    rows,
    spec_of,
)
from pruner.tune.networks.variants.rules import RULES, Rule

HERE = Path(__file__).resolve().parent
MUTATED = (3, 4, 3, 8)  # the shape of the wrong versions
_EQUAL = 1e-9  # relative difference of equal results in double precision
SHAPES = (  # m, k, n, j
    (5, 7, 3, 11),
    (16, 256, 16, 16),
    (1, 256, 17, 9),
    (12, 768, 48, 6),
    (33, 1024, 31, 30),
    (7, 12, 7, 7),
    (64, 64, 64, 64),
    (2, 4096, 2, 5),
    (17, 320, 40, 1),
    (30, 16, 30, 30),
)


def inputs(*names_and_shapes: tuple[str, tuple[int, ...]]) -> list[GraphNode]:
    """Make leaves; those with names in capitals are constants."""
    return [leaf(name, shape, constant=name.isupper()) for name, shape in names_and_shapes]


def matmul(left: GraphNode, right: GraphNode) -> GraphNode:
    """Multiply two matrices."""
    return contract("m k, k n -> m n", left, right)


def _order(m: int, k: int, n: int, j: int) -> Graph:
    a, b, c = inputs(("a", (m, k)), ("b", (k, n)), ("c", (n, j)))
    return (matmul(matmul(a, b), c), matmul(a, matmul(b, c)))


def _factor(m: int, k: int, n: int, j: int) -> Graph:
    a, b, c, d, e = inputs(
        ("a", (m, k)), ("b", (k, n)), ("c", (k, n)), ("d", (m, j)), ("e", (j, n))
    )
    return (
        elementwise("add", matmul(a, b), matmul(a, c)),
        elementwise("subtract", matmul(a, b), matmul(a, c)),
        elementwise("add", matmul(a, b), matmul(d, e)),
        matmul(a, elementwise("subtract", b, c)),
    )


def _join(m: int, k: int, n: int, j: int) -> Graph:
    x, b, c, d = inputs(("x", (m, k)), ("B", (k, n)), ("C", (k, j)), ("D", (k, n)))
    image, e, f = inputs(("y", (1, m, 4, n)), ("E", (3, 3, n, j)), ("F", (3, 3, n, 5)))
    convolutions = (
        convolve(image, w, channels_last=True, size=(m, 4), padding=(1, 1)) for w in (e, f)
    )
    return (matmul(x, b), matmul(x, c), matmul(x, d), *convolutions)


def _scale(m: int, k: int, n: int, j: int) -> Graph:
    x, b, s, t, image, e = inputs(
        ("x", (m, k)), ("B", (k, n)), ("S", (n,)), ("T", (m, k)), ("y", (1, j, m, 6)),
        ("E", (n, j, 3, 3)),
    )  # fmt: skip
    u = leaf("U", (1, n, 1, 1), constant=True)
    product = convolve(image, e, channels_last=False, size=(m, 6), padding=(1, 1))
    return (
        elementwise("multiply", matmul(x, b), s),
        matmul(elementwise("add", x, t), b),
        elementwise("multiply", u, product),
    )


def _split(m: int, k: int, n: int, j: int) -> Graph:
    k = max(64, k // 64 * 64) * 4
    a, b, image, e = inputs(
        ("a", (m, k)), ("b", (k, n)), ("y", (1, 3, j, 256)), ("E", (3, 3, 256, n))
    )
    return (matmul(a, b), convolve(image, e, channels_last=True, size=(1, j), padding=(0, 1)))


def _pointwise(m: int, k: int, n: int, j: int) -> Graph:
    x, y, e, f = inputs(
        ("x", (2, m, j, k)), ("y", (2, k, m, j)), ("E", (1, 1, k, n)), ("F", (n, k, 1, 1))
    )
    first = convolve(x, e, channels_last=True, size=(m, j))
    return (first, convolve(y, f, channels_last=False, size=(m, j)))


def _winograd(m: int, k: int, n: int, j: int) -> Graph:
    h, w, c, o = 2 + m % 9, 2 + n % 11, 1 + k % 13, j
    x, y, e, f = inputs(
        ("x", (2, h, w, c)), ("y", (1, c, h + 2, w + 2)), ("E", (3, 3, c, o)), ("F", (o, c, 3, 3))
    )
    first = convolve(x, e, channels_last=True, size=(h, w), padding=(1, 1))
    return (first, convolve(y, f, channels_last=False, size=(h, w)))


def _transpose(m: int, k: int, n: int, j: int) -> Graph:
    a, b, c, d = inputs(("a", (m, k)), ("b", (n, k)), ("c", (j, k, n)), ("d", (j, k, n)))
    return (
        permute(matmul(a, permute(b, (1, 0))), (1, 0)),
        permute(elementwise("subtract", c, d), (2, 0, 1)),
    )


def _softmax(m: int, k: int, n: int, j: int) -> Graph:
    s, v, t = inputs(("s", (j, m, 4 * n)), ("v", (j, 4 * n, 3)), ("t", (m, 4 * j)))
    soft = rows("softmax", s, 2)
    return (contract("h s t, h t d -> h s d", soft, v), rows("softmax", t, 1))


CASES: Mapping[str, Callable[[int, int, int, int], Graph]] = {
    "order": _order,
    "factor": _factor,
    "join": _join,
    "scale": _scale,
    "split": _split,
    "pointwise": _pointwise,
    "winograd": _winograd,
    "transpose": _transpose,
    "softmax": _softmax,
}


def mutants(graph: Graph, rule: Rule) -> Iterator[tuple[str, Graph]]:
    """Yield wrong versions of a rule's applications to a graph, each with what is wrong.

    Changes that leave the values as they are, by double precision at every place, are left out.
    """
    wanted = evaluate(graph, whole(graph), Floats("float64"))
    old = set(nodes(graph))
    for application in rule(graph):
        new = replaced(graph, application)
        for node in nodes(new):
            for what, changed in () if node in old else _changed(node):
                mutant = replaced(new, {node: changed})
                found = evaluate(mutant, whole(mutant), Floats("float64"))
                pairs = list(zip(found, wanted, strict=True))
                if any(np.abs(a - b).max() > _EQUAL * np.abs(b).max() for a, b in pairs):
                    yield what, mutant


def _changed(node: GraphNode) -> Iterator[tuple[str, GraphNode]]:
    """Yield nodes of the same shape that compute something else."""
    if node.op == "literal":
        numerators, below = node.attrs
        for place, value in enumerate(numerators):
            for other in {value + below, -value} - {value}:
                changed = (*numerators[:place], other, *numerators[place + 1 :])
                yield "constant", replace(node, attrs=(changed, below))
    shapes = [arg.shape for arg in node.args]
    ordered = node.op in ("subtract", "divide", "contract") and len(shapes) == 2
    if ordered and shapes[0] == shapes[1]:
        yield "swapped operands", replace(node, args=node.args[::-1])
    if node.op in ("add", "subtract", "multiply", "divide"):
        for arg in node.args:
            if arg.shape == node.shape:
                yield "missing term", arg
    if node.op == "call":
        yield "missing function", node.args[0]
    if node.op == "contract":
        yield from (("axis or place", one) for one in _other_indices(node))
        for arg in node.args:
            if arg.shape == node.shape:
                yield "missing factor", arg
    if node.op == "concat" and len({arg.shape for arg in node.args}) == 1:
        yield "swapped operands", concat(node.args[::-1], node.attrs[0])
        yield "missing term", concat([node.args[0]] * len(node.args), node.attrs[0])
    if node.op == "cut":
        axis, begin = node.attrs
        for first in (begin - 1, begin + 1):
            if 0 <= first <= node.args[0].shape[axis] - node.shape[axis]:
                yield "place", cut(node.args[0], axis, first, first + node.shape[axis])
    if node.op in ("softmax", "max") and len(node.shape) > 1:
        other = rows(node.op, node.args[0], node.attrs[0] - 1)
        if other.shape == node.shape:
            yield "axis", other
    for one, other in itertools.combinations(range(len(node.shape)), 2):
        order = list(range(len(node.shape)))
        order[one], order[other] = other, one
        if node.op in ("permute", "reshape") and node.shape[one] == node.shape[other] > 1:
            yield "axis", permute(node, order)


def _other_indices(node: GraphNode) -> Iterator[GraphNode]:
    """Yield contractions with two letters of the result swapped, or a window moved."""
    spec, sizes = spec_of(node), dict(node.attrs[1])
    for one, other in itertools.combinations(spec.out, 2):
        if sizes[one] == sizes[other] > 1:
            swap = {one: other, other: one}
            out = tuple(swap.get(name, name) for name in spec.out)
            yield contract(replace(spec, out=out), *node.args, **sizes)
    for number, indices in enumerate(spec.args):
        for place, axis in enumerate(indices):
            if axis.letter is None:
                for step in (-1, 1):
                    moved = replace(axis, offset=axis.offset + step)
                    own = (*indices[:place], moved, *indices[place + 1 :])
                    args = (*spec.args[:number], own, *spec.args[number + 1 :])
                    yield contract(replace(spec, args=args), *node.args, **sizes)


def row_of(rule: Rule) -> dict[str, Any]:
    """Check a rule; return its row of the table."""
    accepted, complete_ms, exact_ms, errors = 0, [], [], []
    for shape in SHAPES:
        graph = CASES[rule.__name__](*shape)
        checker = Checker(graph)
        checker(graph)  # the values of the original are computed once for all variants
        for application in rule(graph):
            new = replaced(graph, application)
            exact_ms.append(1e3 * checker.exactly(new).seconds)
            verdict = checker(new)
            complete_ms.append(1e3 * verdict.seconds)
            errors.append(verdict.error)
            accepted += verdict.refused is None
    graph = CASES[rule.__name__](*MUTATED)
    checker = Checker(graph)
    refused = [checker.exactly(mutant).refused is not None for _, mutant in mutants(graph, rule)]
    return {
        "rule": rule.__name__,
        "applications": len(complete_ms),
        "accepted": accepted,
        "exact_ms": round(median(exact_ms), 2),
        "exact_ms_max": round(max(exact_ms), 1),
        "complete_ms": round(median(complete_ms), 1),
        "complete_ms_max": round(max(complete_ms), 1),
        "error": float(f"{max(errors):.1e}"),
        "wrong": len(refused),
        "refused": sum(refused),
    }


def main() -> None:
    """Check all rules and write the table."""
    rows = [row_of(rule) for rule in RULES]
    for row in rows:
        print(row, file=sys.stderr)
    write_table(HERE / "results" / "variants.csv", rows)
    names = ("applications", "accepted", "wrong", "refused")
    print(json.dumps({name: sum(row[name] for row in rows) for name in names}))


if __name__ == "__main__":
    main()
