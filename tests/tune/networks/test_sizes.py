"""Sizes of networks by name and by file, and the memory that they take."""

import re

import pytest
import torch

from pruner.errors import PrunerError
from pruner.tune.networks import host_memory
from pruner.tune.networks.catalog import NETWORKS
from pruner.tune.networks.sizes import NetworkOptions, fixed_shapes
from pruner.tune.networks.source import NetworkSource, import_network
from tests.tune.some_slow import some_slow

PICTURE = {"x": ("batch_size", 3, "", 64)}
PAIR = {"ids": ("s0", "s1"), "mask.1": ("s0", "s1"), "width": (8,)}


def fixed(inputs, **sizes):
    return fixed_shapes("net.onnx", inputs, NetworkOptions(**sizes))


@pytest.mark.parametrize(
    ("inputs", "sizes", "wanted"),
    [
        (PICTURE, {"input": "2x3x32x64"}, {"x": (2, 3, 32, 64)}),
        (PICTURE, {"x": "2x3x32x64"}, {"x": (2, 3, 32, 64)}),
        (PAIR, {"s0": 2, "s1": 16}, {"ids": (2, 16), "mask.1": (2, 16), "width": (8,)}),
        (PAIR, {"batch": 2, "s1": 16}, {"ids": (2, 16), "mask.1": (2, 16), "width": (8,)}),
        (PAIR, {"mask_1": "2x16"}, {"ids": (2, 16), "mask.1": (2, 16), "width": (8,)}),
        ({"a": ("", 4), "b": ("", 5)}, {"batch": 3}, {"a": (3, 4), "b": (3, 5)}),
        ({"a": ("", 4), "b": ("", 5)}, {"a": "3x4", "b": "2x5"}, {"a": (3, 4), "b": (2, 5)}),
        ({"batch": ("n",)}, {"batch": 3}, {"batch": (3,)}),
        ({"a": (3, 4), "n": ()}, {}, {"a": (3, 4), "n": ()}),
    ],
)
def test_open_sizes_are_filled(inputs, sizes, wanted):
    assert fixed(inputs, **sizes) == wanted


@pytest.mark.parametrize(
    ("inputs", "sizes", "told"),
    [
        (PICTURE, {}, "batch_sizex3xx.2x64; give them (sizes.batch=1 sizes.x_2=1) or whole"),
        (PICTURE, {"batch": 2}, "sizes are open: x 2x3xx.2x64"),
        (PICTURE, {"x": "2x3x32"}, "leave sizes.x=2x3x32 out"),
        (PICTURE, {"x": "2x4x32x64"}, "leave sizes.x=2x4x32x64 out"),
        (PAIR, {"s2": 4}, "leave sizes.s2=4 out; sizes are open: ids s0xs1, mask.1 s0xs1; give"),
        (PAIR, {"input": "2x16"}, "leave sizes.input=2x16 out"),
        ({"a": ("n", 4), "b": ("n", 4)}, {"a": "3x4", "b": "2x4"}, "leave sizes.b=2x4 out"),
        ({"a": ("n",), "b": ("2*n",)}, {"batch": 3}, "open: b 2*n; give them (sizes.2_n=1)"),
        ({"a": (3, 4)}, {"batch": 3}, "leave sizes.batch=3 out; its sizes are fixed: a 3x4"),
    ],
)
def test_sizes_that_are_left_or_do_not_fit_are_told_with_their_words(inputs, sizes, told):
    with pytest.raises(PrunerError, match=re.escape(told)):
        fixed(inputs, **sizes)


@pytest.mark.parametrize("size", [0, -1, 1.5, "3x0", "x", True, ""])
def test_a_size_is_a_whole_number_or_a_shape(size):
    with pytest.raises(PrunerError, match="whole number, 1 or more, or the shape"):
        NetworkOptions(image=size)


def test_a_shape_is_no_number():
    assert NetworkOptions(image="1x3x8x8").given == {"image": "1x3x8x8"}
    with pytest.raises(PrunerError, match="whole number here"):
        _ = NetworkOptions(image="1x3x8x8").image
    assert (NetworkOptions().batch, NetworkOptions(image=None).image) == (1, None)


def test_sources_of_earlier_versions_are_read():
    """They wrote every size, and a batch of 1 where none was given."""
    old = {"batch": 1, "image": None, "length": None, "layers": None}
    read = NetworkSource.read({"name": "net.pt2", "options": old, "seed": 0})
    assert read == NetworkSource(name="net.pt2")
    old |= {"batch": 8, "layers": 2}
    read = NetworkSource.read({"name": "opt", "options": old, "seed": 0})
    assert read.options == NetworkOptions(batch=8, layers=2)


LARGE = ("densenet121", "inception_v3", "wide_resnet50_2", "resnet50")  # as others, deeper
SMALL = "tests.tune.networks.small_networks:faint"  # 16 x 8 + 8 + 8 x 8 parameters
SMALL_BYTES = 4 * (16 * 8 + 8 + 8 * 8)
# Two matrices of queries and outputs, two of keys and values, three of SwiGLU, two norms.
MISTRAL_LAYER = 2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096
MISTRAL_REST = 2 * 32000 * 4096 + 4096  # words, output layer, last norm
MISTRAL_CONSTANTS = 128 * 128 + 2 * 128 * 128  # mask and rotations of 128 tokens


@pytest.mark.parametrize("layers", [2, 32])
def test_bytes_of_a_named_network_by_hand(layers):
    numbers = layers * MISTRAL_LAYER + MISTRAL_REST + MISTRAL_CONSTANTS
    assert host_memory.named_bytes("mistral", NetworkOptions(layers=layers)) == 4 * numbers


@some_slow("name", [name for name in NETWORKS if name not in LARGE], LARGE)
def test_every_name_is_counted_without_its_weights(name):
    assert 1e6 < host_memory.named_bytes(name, NetworkOptions()) < 30e9


def test_what_does_not_fit_is_refused_with_how_much_and_what_would():
    whole = NetworkOptions()
    with pytest.raises(PrunerError) as refused:
        host_memory.check_named("mistral", whole, free=20e9)
    told = str(refused.value)
    assert told.startswith("network=mistral: 29.0 GB of weights take about 116 GB")
    assert "20 GB are free; sizes.layers=2 takes 11 GB and has the same tasks" in told
    assert "\n" not in told
    host_memory.check_named("mistral", whole, free=117e9)
    host_memory.check_named("mistral", NetworkOptions(layers=2), free=12e9)
    with pytest.raises(PrunerError, match="free memory, or take a smaller network"):
        host_memory.check_named("resnet18", whole, free=1e6)
    # copies that are there are not counted again
    host_memory.check("net", 10e9, held=1, free=30e9)
    with pytest.raises(PrunerError, match="about 40 GB"):
        host_memory.check("net", 10e9, held=0, free=30e9)


def test_own_modules_and_files_are_refused_too(tmp_path, monkeypatch):
    path = tmp_path / "net.pt2"
    with torch.no_grad():
        network, inputs = torch.nn.Linear(16, 8).eval(), (torch.randn(4, 16),)
        torch.export.save(torch.export.export(network, inputs), path)
    monkeypatch.setattr(
        host_memory, "free_bytes", lambda: (host_memory.COPIES - 1) * SMALL_BYTES - 1.0
    )
    for name in (SMALL, str(path)):
        with pytest.raises(PrunerError, match="GB of weights take about"):
            import_network(NetworkSource(name=name))


def test_free_memory_is_the_least_of_the_machines_and_the_groups(tmp_path, monkeypatch):
    info, limit = tmp_path / "meminfo", tmp_path / "memory.max"
    monkeypatch.setattr(host_memory, "_MEMINFO", info)
    monkeypatch.setattr(host_memory, "_LIMIT", limit)
    assert host_memory.free_bytes() == float("inf")  # neither is told here
    info.write_text("MemTotal:  9 kB\nMemAvailable:     3000 kB\nCached: 7 kB\n")
    limit.write_text("max\n")
    assert host_memory.free_bytes() == 3000 * 1024
    limit.write_text("4096\n")
    assert host_memory.free_bytes() == 4096
