"""Variants of whole networks: read, searched, written and run."""

import json

import numpy as np
import pytest
import torch

from pruner.tune.networks.source import network_of
from tests.tune.networks.lowered import ONE_CORE, imported, source
from tests.tune.networks.test_extraction import run

pytestmark = pytest.mark.tvm


@pytest.mark.parametrize(
    ("name", "layout", "steps"),
    [
        ("biased", "NHWC", {"winograd 1"}),
        pytest.param("residual", "NCHW", {"winograd 0"}, marks=pytest.mark.slow),
        ("encoder", "NHWC", {"join 0", "softmax 0"}),
    ],
)
def test_a_network_of_variants_computes_what_torch_computes(name, layout, steps, tvm):
    from pruner.tune.networks.lowering import NetworkFormat, formed, lower
    from pruner.tune.networks.variants.network_regions import read_regions
    from pruner.tune.networks.variants.search import applied

    regions = read_regions(formed(imported(name), NetworkFormat(layout=layout))).found
    chosen = {
        region.key: [step]
        for region in regions
        for step in steps
        if applied(region.graph, [step]) is not None
    }
    assert {step for (step,) in chosen.values()} == steps
    network, inputs = network_of(source(name))
    with torch.no_grad():
        wanted = network(*inputs)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    target = tvm.tvm.target.Target(json.loads(ONE_CORE))
    lowered = lower(imported(name), target, NetworkFormat(layout=layout, variants=chosen))
    names = " ".join(str(name) for name, _ in lowered.functions_items())
    assert "contract" in names
    for mine, theirs in zip(run(lowered, inputs), wanted, strict=True):
        assert np.abs(mine - theirs.numpy()).max() < 1e-4 * np.abs(theirs.numpy()).max()


def test_a_network_without_variants_is_not_written_anew(tvm, caplog):
    from pruner.tune.networks.variants.search import with_variants

    module = imported("encoder")
    assert with_variants(module, {}) is module
    assert with_variants(module, {"of another network": ["winograd 0"]}) is module
    assert "winograd 0 of the class of another network fit no part" in caplog.text


def test_a_class_is_of_all_outputs_of_its_graph():
    from pruner.tune.networks.variants.graph import leaf
    from pruner.tune.networks.variants.network_regions import GraphRegion

    def key(*extents):
        graph = tuple(leaf(f"x{i}", (extent,)) for i, extent in enumerate(extents))
        empty = {"inputs": {}, "outputs": [], "calls": {}, "members": frozenset()}
        return GraphRegion(graph=graph, **empty).key

    assert key(2, 2, 2, 2, 2) == key(2, 2, 2, 2, 2)
    assert key(2, 2, 2, 2, 2) != key(2, 2, 2, 2, 3)


def test_regions_hold_connected_products_and_end_behind_a_function(tvm):
    from pruner.tune.networks.lowering import NetworkFormat, formed
    from pruner.tune.networks.variants.graph import nodes
    from pruner.tune.networks.variants.network_regions import read_regions

    regions = read_regions(formed(imported("encoder"), NetworkFormat())).found
    products = [sum(node.op == "contract" for node in nodes(region.graph)) for region in regions]
    # per layer: three projections, scores, mixture and its projection, two of the feed-forward
    assert products.count(3) == 2
    assert len({region.key for region in regions}) < len(regions)
    for region in regions:
        functions = [node for node in nodes(region.graph) if node.op == "call"]
        assert all(node in region.graph for node in functions)


def test_a_rule_that_fails_or_is_wrong_is_left_out(monkeypatch):
    from pruner.tune.networks.variants import search as module
    from pruner.tune.networks.variants.graph import GraphNode, contract, leaf

    product = contract("m k, k n -> m n", leaf("a", (3, 3)), leaf("b", (3, 3)))

    def broken(graph):
        yield {}["nothing"]

    def swapped(graph):
        yield {product: contract("k m, k n -> m n", *product.args)}

    def shapeless(graph):
        yield {product: GraphNode("contract", (leaf("a", (3, 4)),) * 2, (3, 3), product.attrs)}

    monkeypatch.setattr(module, "RULES", (broken, swapped, shapeless))
    found = module.search((product,), "float32", float("inf"))
    assert found.variants == []
    assert [line.split()[0] for line in found.refused] == ["broken", "swapped", "shapeless"]


def test_a_search_finds_the_order_of_a_chain_and_keeps_to_its_time():
    from pruner.tune.networks.variants.graph import contract, leaf
    from pruner.tune.networks.variants.search import applied, search

    shapes = {"a": (64, 4), "b": (4, 64), "c": (64, 64), "d": (64, 2)}
    product, *rest = (leaf(name, shape) for name, shape in shapes.items())
    for factor in rest:
        product = contract("m k, k n -> m n", product, factor)
    found = search((product,), "float32", float("inf"))
    assert found.complete
    assert not found.refused
    best = found.variants[0]
    # a (b (c d)): 2 (64 64 2 + 4 64 2 + 64 4 2) operations; bytes decide, counted by hand
    assert best.graph[0].args[1].args[1].shape == (64, 2)
    assert applied((product,), best.steps) == best.graph
    assert applied((product,), ["order 99"]) is None
    late = search((product,), "float32", 0.0)
    assert (late.checked, late.complete, late.variants) == (0, False, [])
