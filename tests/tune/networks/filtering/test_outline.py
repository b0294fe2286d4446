"""The outline of a network: the tasks of a tuning run, and bytes that are counted by hand."""

import pytest

from experiments.filter.space import Choices, subnet
from pruner.tune.networks.filtering.outline import _most, activation_bytes, outline
from pruner.tune.networks.lowering import NetworkFormat, lower
from pruner.tune.networks.network_tasks import network_tasks
from pruner.tune.networks.operators.program import from_exported
from pruner.tune.networks.signature import arguments_of, exported
from pruner.tune.networks.source import import_module
from tests.tune.networks import small_networks
from tests.tune.networks.lowered import imported, lowered

pytestmark = pytest.mark.tvm


def outlined(name, target, form=None):
    network, inputs = getattr(small_networks, name)()
    return outline(import_module(network, inputs, name), target, form or NetworkFormat())


BIASED = pytest.param("biased", marks=pytest.mark.slow)  # channels have convolutions and norms, too


@pytest.mark.parametrize("name", ["channels", BIASED, "causal_attention"])
def test_the_tasks_are_those_of_a_tuning_run(name, target):
    """With channels last, and weights that are packed: hash, calls and arithmetic of each."""
    form = NetworkFormat(layout="NHWC")
    tuned = network_tasks(lower(imported(name), target, form), target)
    found = outlined(name, target, form)
    assert {(t.key, t.weight, t.flops) for t in found.tasks} == {
        (t.key, t.weight, t.flops) for t in tuned
    }
    assert found.flops == sum(t.weight * t.flops for t in tuned)
    assert found.form == form


@pytest.mark.slow
def test_a_subnet_of_the_example_space_has_the_tasks_of_a_tuning_run(target):
    choices = Choices(resolution=32, width=0.5, stages=((1, 5, 3),) * 5)
    network, image = subnet(choices)
    form = NetworkFormat(layout="NHWC")
    found = outline(import_module(network, image, "net"), target, form)
    module = from_exported(exported(network, arguments_of(image)))
    tuned = network_tasks(lower(module, target, form), target)
    assert {(t.key, t.weight) for t in found.tasks} == {(t.key, t.weight) for t in tuned}
    # stem, expand, depthwise and project of each of five stages, two convolutions of each of
    # two excitations, the last convolution
    convolutions = sum(t.weight for t in found.tasks if "conv2d" in t.name)
    assert convolutions == 1 + 3 * 5 + 2 * 2 + 1


def test_bytes_of_weights_and_of_tensors_are_counted(target):
    """Linear 16 to 8 with a bias, ReLU, linear 8 to 8 without, of four rows of float32."""
    found = outlined("faint", target)
    assert found.parameter_bytes == 4 * (16 * 8 + 8 + 8 * 8)
    assert found.activation_bytes == 4 * (4 * 16 + 4 * 8 + 4 * 8)  # input, hidden, output


def test_a_view_takes_no_memory(target):
    """Rows of a table and their softmax; the second output is the rows in another shape."""
    rows = 4 * 4 * 6
    inputs = 8 * 4  # int64
    found = activation_bytes(lowered("two_outputs"))
    assert inputs + 2 * rows <= found < inputs + 3 * rows


def test_a_tensor_counts_from_its_call_to_its_last_reader():
    """Spans 0 to 1, 1 to 2 and 2 to 3: neighbours overlap, the most is 20 + 40."""
    assert _most([10, 20, 40], [[0, 1], [1, 2], [2, 3]], 4) == 60
    assert _most([10, 20, 40], [[0, 3], [1, 1], [2, 2]], 4) == 50
    assert _most([], [], 1) == 0


def test_a_task_with_a_draft_has_no_text(target):
    first, second = outlined("faint", target).tasks
    found = outline(imported("faint"), target, NetworkFormat(), {first.key})
    texts = {task.key: task.module for task in found.tasks}
    assert texts == {first.key: None, second.key: second.module}
    assert second.module
