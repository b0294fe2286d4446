"""Variants of whole networks: read, searched, written and run."""

import json
from types import SimpleNamespace

import pytest
import torch

from pruner.tune.networks.extraction import read_tasks
from pruner.tune.networks.lowering import NetworkFormat, formed, lower
from pruner.tune.networks.request import REQUEST, NetworkRequest
from pruner.tune.networks.source import import_module
from pruner.tune.networks.variants import search as module
from pruner.tune.networks.variants.check import Checker
from pruner.tune.networks.variants.choosing import VariantReport, write_variants
from pruner.tune.networks.variants.graph import GraphNode, contract, leaf, nodes
from pruner.tune.networks.variants.network_regions import GraphRegion, _split, read_regions
from pruner.tune.networks.variants.search import applied, find, search, with_variants
from tests.tune.networks.lowered import ONE_CORE, imported, source, torch_error
from tests.tune.some_slow import some_slow

pytestmark = pytest.mark.tvm


@some_slow(
    ("name", "layout", "steps"),
    [
        ("biased", "NHWC", {"winograd 1"}),
        ("encoder", "NHWC", {"join 0", "softmax 0"}),
        ("linear_attention", "NHWC", {"order 0"}),
    ],
    [("residual", "NCHW", {"winograd 0"})],
)
def test_a_network_of_variants_computes_what_torch_computes(name, layout, steps, target):
    regions = read_regions(formed(imported(name), NetworkFormat(layout=layout))).found
    chosen = {region.key: [] for region in regions}
    for region in regions:
        for step in sorted(steps):
            if applied(region.graph, [*chosen[region.key], step]) is not None:
                chosen[region.key].append(step)
    assert {step for some in chosen.values() for step in some} == steps
    lowered = lower(imported(name), target, NetworkFormat(layout=layout, variants=chosen))
    names = " ".join(str(name) for name, _ in lowered.functions_items())
    assert "contract" in names
    assert torch_error(source(name), lowered) < 1e-4


def test_a_network_without_variants_is_not_written_anew(tvm, caplog):
    module = imported("encoder")
    assert with_variants(module, {}) is module
    assert with_variants(module, {"of another network": ["winograd 0"]}) is module
    assert "winograd 0 of the class of another network fit no part" in caplog.text


def test_a_class_is_of_all_outputs_of_its_graph():
    def key(*extents):
        graph = tuple(leaf(f"x{i}", (extent,)) for i, extent in enumerate(extents))
        empty = {"inputs": {}, "outputs": [], "calls": {}, "members": frozenset()}
        return GraphRegion(graph=graph, **empty).key

    assert key(2, 2, 2, 2, 2) == key(2, 2, 2, 2, 2)
    assert key(2, 2, 2, 2, 2) != key(2, 2, 2, 2, 3)


def test_regions_hold_connected_products_and_end_behind_a_function(tvm):
    regions = read_regions(formed(imported("encoder"), NetworkFormat())).found
    products = [sum(node.op == "contract" for node in nodes(region.graph)) for region in regions]
    # per layer: three projections, scores, mixture and its projection; two of the feed-forward
    assert products[:6] == [6, 1, 1] * 2
    assert len({region.key for region in regions}) < len(regions)
    for region in regions:
        functions = [node for node in nodes(region.graph) if node.op == "call"]
        assert all(node in region.graph for node in functions)


def test_a_split_is_read_where_all_its_parts_have_elements(tvm):
    found = {
        sections: _split(
            SimpleNamespace(axis=0, indices_or_sections=tvm.tirx.IntImm("int64", sections)),
            [leaf("x", (10,))],
            (),
        )
        for sections in (4, 5, 6)
    }
    parts = {n: None if some is None else [one.shape for one in some] for n, some in found.items()}
    assert parts == {4: [(3,), (3,), (3,), (1,)], 5: [(2,)] * 5, 6: None}


def test_a_rule_that_fails_or_is_wrong_is_left_out(monkeypatch):
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


def test_variants_of_halves_compute_what_torch_computes(target):
    """1x1 convolutions as products of float16 matrices; the check has foreseen the error."""
    plain = NetworkFormat(layout="NHWC")
    regions = read_regions(formed(imported("biased"), plain)).found
    steps = ["pointwise 0"]
    changed = {one: new for one in regions if (new := applied(one.graph, steps)) is not None}
    foreseen = [Checker(one.graph, "float16")(new) for one, new in changed.items()]
    assert foreseen
    assert all(one.refused is None for one in foreseen)
    variants = {one.key: steps for one in changed}
    form = NetworkFormat(layout="NHWC", precision="float16", variants=variants)
    lowered = lower(imported("biased"), target, form)
    assert '"float16"' in lowered.script()
    # of five layers
    assert 1e-5 < torch_error(source("biased"), lowered) < 5 * max(one.error for one in foreseen)


def test_variants_of_a_network_of_halves_have_tasks_of_halves(tvm, tmp_path):
    form = NetworkFormat(layout="NHWC", precision="float16")
    request = NetworkRequest(source=source("biased"), target=json.loads(ONE_CORE), form=form)
    request.save(tmp_path / REQUEST)
    write_variants(tmp_path)
    report = VariantReport.read(tmp_path)
    steps = [step for one in report.classes for way in one.ways for step in way.steps]
    assert "pointwise 0" in steps
    assert not any("winograd" in step or "split" in step for step in steps)
    assert any("such as Winograd's: TVM converts no functions" in one for one in report.left_out)
    assert all(1e-5 < way.error < 3e-3 for one in report.classes for way in one.ways)
    dtypes = {
        dtype for task in read_tasks(tmp_path / "variant_tasks.json") for _, dtype in task.shapes
    }
    assert "float16" in dtypes


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda nn: (nn.Conv2d(8, 8, 3, groups=2), (1, 8, 6, 6)), "1 nn.conv2d of float32"),
        (lambda nn: (nn.Conv1d(4, 4, 3), (1, 4, 9)), "1 nn.conv1d of float32"),
        (lambda nn: (nn.Linear(4, 4, bias=False).half(), (2, 4)), "1 matmul of float16"),
        (lambda nn: (nn.Softmax(-1), (2, 4)), "no product of matrices and no convolution"),
    ],
)
def test_what_no_rule_reads_is_left_out_with_a_line(make, line, tvm):
    module, shape = make(torch.nn)
    dtype = next((one.dtype for one in module.parameters()), torch.float32)
    found = find(import_module(module.eval(), torch.ones(shape, dtype=dtype), "net"))
    assert found.classes == []
    (told,) = found.left_out
    assert line in told
