"""Search the variants of graphs and of a network.

Every application of a rule is compared with the original graph in the fields; what is refused is
not applied any further. Of variants with the same operators on the same shapes one is kept.
"""

import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pruner.tune.networks.rewrites.layout import Precision
from pruner.tune.networks.variants.check import Checker, Verdict
from pruner.tune.networks.variants.graph import (
    ELEMENTWISE,
    Graph,
    flops,
    is_operator,
    nodes,
    replaced,
)
from pruner.tune.networks.variants.network_regions import GraphRegion, read_regions, size_bytes
from pruner.tune.networks.variants.rules import RULES
from pruner.tune.networks.variants.writing import written

log = logging.getLogger(__name__)

SECONDS = 10.0  # of the search of a network
KEPT = 3  # variants of a graph, beside the original
_DEPTH, _MOST = 4, 300  # applications in a row, and checked variants of a graph
_SEARCHED = 0.75  # of the time; the rest is for complete checks
_EXPANDED, _WORSE = 1.5, 1.1  # times the original's cost: followed, and kept
_FLOPS_PER_BYTE = 10.0  # of a machine: below this intensity, bytes determine the time


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgebraicVariant:
    """Another graph with the same values, by its steps from the original.

    ``cost`` is in multiples of the original's; ``verdict``: its check.
    """

    steps: Sequence[str]
    graph: Graph
    cost: float
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """The best variants of a graph, and counts of the search.

    ``skipped``: in float16, variants that TVM cannot convert.
    """

    variants: Sequence[AlgebraicVariant]
    checked: int
    refused: Sequence[str]
    complete: bool
    skipped: int = 0


def search(graph: Graph, precision: Precision, end_s: float) -> Searched:
    """Find variants until :func:`time.monotonic` reaches `end_s`.

    A check that has begun is not interrupted. The complete checks have the last part of the time.
    """
    now = time.monotonic()
    searched_s = now + _SEARCHED * (end_s - now)
    checker, original = Checker(graph, precision), cost(graph)
    seen, checked, skipped, complete = {_fingerprint(graph)}, 0, 0, True
    found: list[tuple[float, list[str], Graph]] = []
    refused: list[str] = []
    level: list[tuple[list[str], Graph]] = [([], graph)]
    for _ in range(_DEPTH):
        following: list[tuple[list[str], Graph]] = []
        for path, new in _following(level, refused):
            relative, mark = cost(new) / original, _fingerprint(new)
            late = time.monotonic() > searched_s
            if not late and (mark in seen or relative > _EXPANDED):
                continue
            if late or checked >= _MOST:
                complete = False
                break
            if precision == "float16" and not _convertible(new):
                skipped += 1
                continue
            checked += 1
            reason = checker.exactly(new).refused
            if reason is not None:
                refused.append(f"{' '.join(path)}: {reason}")
                continue
            seen.add(mark)
            following.append((path, new))
            found.append((relative, path, new))
        level = following if complete else []
    variants: list[AlgebraicVariant] = []
    for relative, path, new in sorted(found, key=lambda one: (one[0], len(one[1]))):
        if len(variants) == KEPT or relative > _WORSE:
            break
        if time.monotonic() > end_s:
            complete = False
            break
        verdict = checker(new)
        if verdict.refused is None:
            variants.append(AlgebraicVariant(steps=path, graph=new, cost=relative, verdict=verdict))
        else:
            refused.append(f"{' '.join(path)}: {verdict.refused}")
    return Searched(
        variants=variants, checked=checked, refused=refused, complete=complete, skipped=skipped
    )


def _convertible(graph: Graph) -> bool:
    """Check for operators alone: TVM converts no functions that a variant adds to float16."""
    products = (node for node in nodes(graph) if node.op == "contract" and not node.constant)
    return all(map(is_operator, products))


def _following(
    level: Sequence[tuple[list[str], Graph]], refused: list[str]
) -> Iterator[tuple[list[str], Graph]]:
    """Apply every rule to every graph, with the steps to each result."""
    for steps, start in level:
        for rule in RULES:
            try:
                applications = list(rule(start))
            except Exception as error:  # of a user's rule
                refused.append(f"{rule.__name__} failed: {type(error).__name__}: {error}")
                continue
            for number, application in enumerate(applications):
                yield [*steps, f"{rule.__name__} {number}"], replaced(start, application)


def applied(graph: Graph, steps: Sequence[str]) -> Graph | None:
    """Apply a variant's steps again; None if they do not fit."""
    found, rules = graph, {rule.__name__: rule for rule in RULES}
    for step in steps:
        name, _, number = step.partition(" ")
        applications = list(rules[name](found)) if name in rules else []
        if int(number) >= len(applications):
            return None
        found = replaced(found, applications[int(number)])
    return found if Checker(graph).exactly(found).refused is None else None


def cost(graph: Graph) -> float:
    """Estimate the time of a graph, in operations of one core.

    A product takes its arithmetic or its bytes, whichever is longer. Other operators are fused into
    the product in front of them or into one another, so only their last result takes time.
    """
    order = [node for node in nodes(graph) if not node.constant]
    products = {node for node in order if node.op == "contract"}
    ends = [node for node in order if node.op in ("contract", "softmax", "max")]
    stored = {arg for node in ends for arg in node.args} | set(graph)
    total = 0.0
    for node in order:
        size = sum(size_bytes(arg) for arg in node.args) + size_bytes(node)
        if node in products:
            total += max(flops(node), _FLOPS_PER_BYTE * size)
        elif node in stored and node.op not in ("leaf", "reshape"):
            fused = node.op in ELEMENTWISE and any(arg in products for arg in node.args)
            total += 0.0 if fused else _FLOPS_PER_BYTE * size
    return total


def _fingerprint(graph: Graph) -> tuple[object, ...]:
    """Describe the operators and their shapes, which decide how a variant can be tuned."""
    return tuple(
        sorted(
            repr((node.op, node.shape, node.attrs, [arg.shape for arg in node.args]))
            for node in nodes(graph)
            if node.op != "reshape"
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search found in a network.

    ``classes``: a region, how often the network has its graph, and the variants of it.
    """

    classes: Sequence[tuple[GraphRegion, int, Sequence[AlgebraicVariant]]]
    left_out: Sequence[str]
    seconds: float


def find(module: Any, precision: Precision = "float32") -> Found:
    """Find the variants of a Relax module's regions within :data:`SECONDS`.

    The region with most work is searched first; each gets its share of the rest of the time.
    """
    start, regions = time.monotonic(), read_regions(module)
    counts = Counter(region.key for region in regions.found)
    distinct = {region.key: region for region in regions.found}
    left_out, classes = list(regions.left_out), []
    waiting = sorted(distinct.values(), key=lambda one: -counts[one.key] * cost(one.graph))
    for number, region in enumerate(waiting):
        now = time.monotonic()
        left_s = start + SECONDS - now
        # half of what is left, at least: small regions take less than their share
        end_s = now + max(left_s / 2, left_s / (len(waiting) - number))
        searched = search(region.graph, precision, end_s)
        if not searched.complete:
            left_out.append(f"more variants of {describe(region)}: {searched.checked} were checked")
        if searched.skipped:
            left_out.append(
                f"{searched.skipped} variants of {describe(region)}, such as Winograd's: TVM "
                "converts no functions of their own to float16"
            )
        left_out.extend(searched.refused)
        if searched.variants:
            classes.append((region, counts[region.key], searched.variants))
    return Found(classes=classes, left_out=left_out, seconds=time.monotonic() - start)


def with_variants(module: Any, chosen: Mapping[str, Sequence[str]]) -> Any:
    """Apply the chosen steps to the regions of a Relax module, by their classes."""
    if not chosen:
        return module
    regions = read_regions(module)
    classes = {region.key: region.graph for region in regions.found if region.key in chosen}
    # once for a class: its graphs are equal
    new = {key: applied(graph, chosen[key]) for key, graph in classes.items()}
    graphs = {
        number: graph
        for number, region in enumerate(regions.found)
        if (graph := new.get(region.key)) is not None
    }
    for key in sorted(key for key in chosen if new.get(key) is None):
        log.warning(
            "variants: the steps %s of the class %s fit no part of this network, which is built "
            "without them: its rules or its layout have changed",
            ", ".join(chosen[key]),
            key,
        )
    return written(module, regions, graphs) if graphs else module


def describe(region: GraphRegion) -> str:
    """Name a region by its products and their shapes."""
    found = [node for node in nodes(region.graph) if node.op == "contract" and not node.constant]
    sizes = ", ".join("x".join(map(str, node.shape)) for node in found[:3])
    return f"{len(found)} products to {sizes}" + (" ..." if len(found) > 3 else "")
