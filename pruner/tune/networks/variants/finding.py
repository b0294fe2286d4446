"""Find the variants of a network's regions, and apply a choice."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pruner.tune.networks.rewrites.precision import Precision
from pruner.tune.networks.variants.graph import nodes
from pruner.tune.networks.variants.network_regions import GraphRegion, read_regions
from pruner.tune.networks.variants.search import Searched, applied, cost, search
from pruner.tune.networks.variants.writing import written

log = logging.getLogger(__name__)
SECONDS = 10.0  # of a search


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionClass:
    """A region, how often the network has its graph, and the variants of it."""

    region: GraphRegion
    count: int
    searched: Searched


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The classes of a network with variants, and what the search left out."""

    classes: Sequence[RegionClass]
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
            classes.append(RegionClass(region=region, count=counts[region.key], searched=searched))
    return Found(classes=classes, left_out=left_out, seconds=time.monotonic() - start)


def with_variants(module: Any, chosen: Mapping[str, Sequence[str]]) -> Any:
    """Apply the chosen steps to the regions of a Relax module, by their classes."""
    if not chosen:
        return module
    regions, graphs, fitting = read_regions(module), {}, set()
    for number, region in enumerate(regions.found):
        new = applied(region.graph, chosen[region.key]) if region.key in chosen else None
        if new is not None:
            graphs[number] = new
            fitting.add(region.key)
    for key in sorted(chosen.keys() - fitting):
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
