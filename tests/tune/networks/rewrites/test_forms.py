"""A network in every form: same results, same weights in another order, every space batched."""

import numpy as np
import pytest
import torch

from pruner.errors import PrunerError
from pruner.program.tir.lower import lower as loop_nests
from pruner.tune.networks.lowering import NetworkFormat, lower, lower_somehow
from pruner.tune.networks.network_tasks import network_tasks
from pruner.tune.networks.operators.program import from_exported
from pruner.tune.networks.rewrites.layout import chosen_layout, chosen_precision
from pruner.tune.spaces.batched.space import BatchedSpace
from pruner.tune.spaces.design import design_spaces
from tests.tune import tir_truth
from tests.tune.networks import lowered as networks
from tests.tune.networks.operators.against_torch import Function
from tests.tune.some_slow import some_slow
from tests.tune.targets import target_of

CHANNELS = networks.source("channels")


@pytest.fixture(scope="module")
def target(tvm):
    return target_of(2)


@pytest.fixture(scope="module")
def imported(tvm):
    return networks.imported("channels")


@pytest.fixture(scope="module")
def lowered(imported, target):
    """The network by layout and precision."""
    forms = [("NCHW", "float32"), ("NHWC", "float32"), ("NHWC", "float16")]
    return {
        form: lower(imported, target, NetworkFormat(layout=form[0], precision=form[1]))
        for form in forms
    }


@pytest.mark.tvm
@some_slow(
    ("form", "tolerance"),
    [(("NCHW", "float32"), 1e-5), (("NHWC", "float16"), 1e-2)],
    [(("NHWC", "float32"), 1e-5)],
)
def test_results_are_those_of_torch(form, tolerance, lowered):
    assert networks.torch_error(CHANNELS, lowered[form]) < tolerance


@pytest.mark.tvm
def test_channels_last_transposes_at_the_ends_only_and_weights_are_packed(lowered, target):
    """The image once; what is left at the other end is one pixel, and no transposed constant."""
    found = network_tasks(lowered["NHWC", "float32"], target)
    moved = {t.name[:-9]: t.shapes[0][0] for t in found if "transpose" in t.name}
    shuffle = moved.pop("reshape_transpose_reshape_strided_slice_add_tanh")
    assert shuffle[-1] == 4 * 16  # channels of the four phases
    assert sorted(moved.values()) == [(1, 1, 1, 16), (1, 3, 33, 33)]
    shapes = {
        form: {shape for t in network_tasks(module, target) for shape, _ in t.shapes}
        for form, module in lowered.items()
    }
    last = shapes["NHWC", "float32"]
    assert {(1, 3, 3, 32, 32), (3, 1, 1, 64, 16), (2, 2, 2, 48, 32)} <= last
    assert (3, 3, 1, 32) in last  # depthwise: nothing is added up over channels
    assert (1, 16, 32) in last  # the linear layer
    assert (32, 32, 3, 3) in shapes["NCHW", "float32"]


@pytest.mark.tvm
def test_half_precision_takes_half_and_adds_whole_numbers(lowered):
    text = lowered["NHWC", "float16"].script()
    sums = [line for line in text.splitlines() if "= conv2d_nhwc_intermediate[" in line]
    assert sums
    assert all('T.Cast("float32"' in line for line in sums)
    assert '"float16"' in text


@pytest.mark.tvm
@some_slow("programs", [1], [3])
def test_packed_spaces_are_batched_and_equal_tvm(lowered, target, tvm, programs):
    compared = 0
    for task in network_tasks(lowered["NHWC", "float32"], target):
        if "conv2d" not in task.name:
            continue
        for design in design_spaces(task.module, target):
            space = BatchedSpace(design)
            rows = space.sample_any(programs, np.random.default_rng(0))
            groups, refused = space._trees(rows)
            assert not refused
            compared += tir_truth.assert_programs_are_tvms(tvm, design, space, rows)
            for numbers, tree in groups:  # all of TVM's buffers, too
                nests = loop_nests(tree)
                for place, row in enumerate(numbers):
                    schedule, _ = tir_truth.replayed(tvm, design, rows[row])
                    ours = tir_truth.our_buffers(tree, nests, place)
                    assert ours == tir_truth.tvm_buffers(tvm, schedule)
    assert compared >= 13 * programs


@pytest.mark.tvm
def test_packed_indices_are_plain(lowered):
    """No quotient is left: MetaSchedule inlines a sum only where its indices are iterators."""
    texts = [
        function.script()
        for name, function in lowered["NHWC", "float32"].functions_items()
        if name.name_hint.startswith("fused_conv2d")
    ]
    assert texts
    assert all(" // " not in text and " % " not in text for text in texts)


def test_auto_is_channels_last_where_vectors_want_it():
    assert chosen_layout("auto", device="cpu", precision="float32") == "NHWC"
    assert chosen_layout("auto", device="cuda", precision="float32") == "NCHW"
    assert chosen_layout("auto", device="cuda", precision="float16") == "NHWC"
    assert chosen_layout("NCHW", device="cpu", precision="float32") == "NCHW"
    with pytest.raises(PrunerError, match="layout=NCWH: choose auto, NCHW or NHWC"):
        chosen_layout("NCWH", device="cpu", precision="float32")
    with pytest.raises(PrunerError, match="precision=half: choose float32 or float16"):
        chosen_precision("half")


@pytest.mark.tvm
@pytest.mark.parametrize("kind", ["float64", "int64"])
def test_products_that_half_precision_would_round_are_refused(kind, target):
    x = torch.ones(2, 2, dtype=getattr(torch, kind))
    program = torch.export.export(Function(lambda x: x @ x), (x,))
    form = NetworkFormat(layout="NHWC", precision="float16")
    with pytest.raises(PrunerError, match=f"float16: .* products of {kind}, .*precision=float32"):
        lower_somehow(from_exported(program), target, form)
