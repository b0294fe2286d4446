import json

import pytest

from pruner.data.workload import ARGUMENTS, fused_from_name, pad_amounts, parse_workload


def identity(key):
    return parse_workload(key).identity


def key(op, *arguments):
    return json.dumps([f"{op}_layer", *arguments])


@pytest.mark.parametrize(
    ("shape", "cuda", "mi50"),
    [
        (("conv2d", 128, 128, 28, 28, 128, 3, 3, 1), "SAME", 1),
        (("conv2d", 128, 1008, 21, 21, 168, 1, 1, 1), "SAME", 0),
        (("conv2d", 128, 512, 28, 28, 1024, 1, 1, 2), "VALID", 0),
        (("depthwise_conv2d", 128, 42, 83, 83, 7, 7, 1), "SAME", [3, 3]),
        (("pool", "avg", 128, 42, 83, 83, 3, 3, 1), "SAME", [1, 1, 1, 1]),
    ],
)
def test_the_same_shapes_are_the_same_work(shape, cuda, mi50):
    theirs = key(*shape, mi50)
    assert identity(key(*shape, cuda)) == identity(theirs) == identity(theirs.replace(" ", ""))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("conv2d", 1, 8, 14, 14, 8, 3, 3, 1, "SAME"), ("conv2d", 1, 8, 14, 14, 8, 3, 3, 1, 0)),
        (
            ("pool", "avg", 1, 8, 9, 9, 3, 3, 1, "SAME"),
            ("pool", "max", 1, 8, 9, 9, 3, 3, 1, "SAME"),
        ),
        (("matmul", 16, 1024, 1024), ("matmul", 1024, 16, 1024)),
        (("relu", 4096, 4096), ("add", 4096, 4096)),
    ],
)
def test_other_shapes_are_other_work(one, other):
    assert identity(key(*one)) != identity(key(*other))


@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 5, 7])
def test_same_padding_keeps_the_size_at_stride_one(kernel):
    """The property that gives SAME its name: size + pads - kernel + 1 = size."""
    top, left, bottom, right = pad_amounts("SAME", kernel, kernel)
    assert 14 + top + bottom - kernel + 1 == 14
    assert 14 + left + right - kernel + 1 == 14


@pytest.mark.parametrize(
    ("padding", "amounts"),
    [
        ("VALID", (0, 0, 0, 0)),
        ("SAME", (1, 2, 1, 1)),  # 3 x 4: the odd one of 3 goes to the left
        (2, (2, 2, 2, 2)),
        ([1, 0], (1, 0, 1, 0)),
        ([1, 2, 3, 4], (1, 2, 3, 4)),
    ],
)
def test_padding_in_elements(padding, amounts):
    assert pad_amounts(padding, 3, 4) == amounts


@pytest.mark.parametrize("padding", ["HALF", -1, [1], [1, -1], [1, 2, 3], True, None, 0.5])
def test_other_paddings_are_refused_and_stay_as_they_are_in_an_identity(padding):
    with pytest.raises(ValueError, match="padding must be SAME, VALID or integers >= 0"):
        pad_amounts(padding, 3, 3)
    key = json.dumps(["conv2d_layer", 1, 8, 9, 9, 8, 3, 3, 1, padding], separators=(",", ":"))
    assert identity(key) == key


def test_a_window_is_known_by_the_names_of_its_arguments(monkeypatch):
    """Any operator with an argument called padding: there is no other list to remember."""
    monkeypatch.setitem(ARGUMENTS, "toy", ("n", "padding", "w", "kw"))
    assert identity('["toy_layer", 1, "SAME", 9, 3]') == identity('["toy_layer", 1, [0, 1], 9, 3]')
    assert identity('["toy_layer", 1, "SAME", 9, 3]') != identity('["toy_layer", 1, 1, 9, 3]')
    assert parse_workload('["toy_layer", 1, 0, 9, 3]').named["kw"] == 3


def test_a_tenset_key_is_its_own_identity():
    workload = parse_workload('["0bcb8746286db050cd088f375c85372d", 1, 64, 64, 128]')
    assert workload.short_op == "subgraph"
    assert workload.identity == '["0bcb8746286db050cd088f375c85372d",1,64,64,128]'


@pytest.mark.parametrize(
    ("name", "fused"),
    [
        ("conv2d_add_relu_128_64_56_56_64_3_3_1_SAME", ("add", "relu")),
        ("conv2d_add_128_64", ("add",)),
        ("conv2d_relu_128_64", ("relu",)),
        ("ansor_conv2d_add_relu_128_64.log", ("add", "relu")),
        ("ansor_conv2d_128_2016_21_21_672_1_1_1_SAME_add.log", ("add",)),
        ("ansor_conv2d_128_3_230_230_64_7_7_2_VALID_add_relu.json.gz", ("add", "relu")),
        ("ansor_relu_128_1008_42_42.log", ()),
        ("ansor_conv2d_128_3_230_230_64_7_7_2_VALID.log", ()),
        ("matmul_relu_16_64_64", ("relu",)),
        ("conv2d_bias_add_relu_1_64_56_56", ("bias", "add", "relu")),
        ("network_run_2.log", ()),
        ("conv2d_128_64_56_56_64_3_3_1_SAME", ()),
        ("relu_4096_4096", ()),
        ("pool_avg_128_168_83_83_1_1_2_VALID", ()),
        ("depthwise_conv2d_128_84_83_83_5_5_2_SAME", ()),
        ("reduction_128_512_1024_2_False", ()),
        ("([0bcb8746286db050cd088f375c85372d,1,64],cuda)", ()),
        ("conv2d_add_on_128", ()),
    ],
)
def test_fused_operators_are_read_from_the_name(name, fused):
    assert fused_from_name(name) == fused


@pytest.mark.parametrize(
    ("key", "fused", "stem"),
    [
        ('["conv2d_layer", 1, 2, 3, "SAME"]', ("add", "relu"), "conv2d_add_relu_1_2_3_SAME"),
        ('["reduction_layer", [128, 2048], [1], false]', (), "reduction_128_2048_1_False"),
        ('["pool_layer", "avg", 128, 0.5]', (), "pool_avg_128_0.5"),
        ('["../../etc/passwd", 1]', (), "etc_passwd_1"),
    ],
)
def test_file_stems_are_plain_names(key, fused, stem):
    assert parse_workload(key).file_stem(fused) == stem


@pytest.mark.parametrize("operator", ARGUMENTS)
@pytest.mark.parametrize("fused", [(), ("relu",), ("bias", "add", "relu")])
def test_a_file_stem_names_the_fused_operators_of_every_operator(operator, fused):
    first = "avg" if operator == "pool" else 1
    assert fused_from_name(parse_workload(key(operator, first, 144, 28)).file_stem(fused)) == fused


def test_a_long_key_has_a_short_name():
    keys = [f'["x", {", ".join(["123456"] * 80)}, {last}]' for last in (1, 2)]
    names = [parse_workload(key).file_stem() for key in keys]
    assert len(set(names)) == 2
    assert max(map(len, names)) < 200
