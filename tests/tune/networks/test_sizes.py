"""Sizes by name, and open sizes of files: what is given, what is left, by which words."""

import re

import pytest

from pruner.errors import PrunerError
from pruner.tune.networks.sizes import NetworkOptions, fixed_shapes
from pruner.tune.networks.source import NetworkSource

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
