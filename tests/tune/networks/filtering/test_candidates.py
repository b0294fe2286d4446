"""Lists of networks, generators of candidates, and outlines with bytes counted by hand."""

from concurrent.futures import Future
from unittest.mock import Mock

import pytest

from experiments.filter.space import Choices, subnet
from pruner.errors import PrunerError
from pruner.processes import MEMORY, TIMEOUT, Reply
from pruner.tune.networks.filtering import candidates
from pruner.tune.networks.filtering.candidates import Candidates, _Generator, read_networks
from pruner.tune.networks.filtering.outline import _most, activation_bytes, outline
from pruner.tune.networks.lowering import NetworkFormat, lower
from pruner.tune.networks.network_tasks import network_tasks
from pruner.tune.networks.operators.program import from_exported
from pruner.tune.networks.plain import arguments_of
from pruner.tune.networks.signature import exported
from pruner.tune.networks.source import NetworkSource, import_module
from tests.tune.networks import small_networks
from tests.tune.networks.filtering.in_process import OutlinesHere
from tests.tune.networks.lowered import ONE_CORE, imported, lowered
from tests.tune.some_slow import some_slow

pytestmark = [pytest.mark.tvm, pytest.mark.usefixtures("drafts_here")]
SPACES = "tests.tune.networks.filtering.spaces"


def outlined(form=None, **given):
    return list(Candidates(**given).outlined(ONE_CORE, form or NetworkFormat(), ()))


def test_a_list_has_networks_with_their_sizes_and_remarks(tmp_path):
    path = tmp_path / "nets.txt"
    text = "# mine\n\nresnet18 image=64 batch=2\n  pkg:make\nresnet18 sizes.image=32\n"
    path.write_text(text, encoding="utf-8-sig")  # as editors of Windows write it
    found = read_networks(path, 3)
    assert [(one.name, dict(one.options.given), one.seed) for one in found] == [
        ("resnet18", {"image": 64, "batch": 2}, 3),
        ("pkg:make", {}, 3),
        ("resnet18", {"image": 32}, 3),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# nothing\n", "names no network"),
        ("resnet19\n", "network=resnet19 is unknown"),
        ("resnet18 64\n", "write sizes as image=160"),
        ("resnet18 image=0\n", "sizes.image=0: it must be a whole number"),
        (b"PK\x03\x04\xff\xfe", "it is no text; give a file with a network in each line"),
    ],
)
def test_a_wrong_line_is_refused(text, message, tmp_path):
    (tmp_path / "nets.txt").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(PrunerError, match=message) as refused:
        read_networks(tmp_path / "nets.txt")
    assert "\n" not in str(refused.value)


def test_candidates_of_a_generator_come_in_order_until_its_end():
    found = outlined(generator=f"{SPACES}:two")
    assert [one.name for one in found] == ["first", "second"]
    first, second = ({task.key for task in one.tasks} for one in found)
    assert first < second  # both layers of the first network
    assert [one.name for one in outlined(generator=f"{SPACES}:two", most=1)] == ["first"]


def test_a_candidate_that_is_not_made_or_imported_has_a_reason_and_the_next_follows():
    found = outlined(generator=f"{SPACES}:two_are_refused")
    assert [one.name for one in found] == ["refused", "first", "branches", "third"]
    assert [found[n].reason for n in (0, 1, 3)] == ["ValueError: no such choice", "", ""]
    assert found[2].reason.startswith("network=branches: ")
    assert "\n" not in found[2].reason


def test_a_pass_that_ends_the_process_is_left_out(monkeypatch):
    wanted = NetworkFormat(layout="NHWC")

    class Crashes(OutlinesHere):
        """With channels last."""

        def submit(self, job, *arguments):
            if wanted not in arguments:
                return super().submit(job, *arguments)
            crashed = Future()
            crashed.set_result(Reply(error=MEMORY, message="std::bad_alloc"))
            return crashed

    monkeypatch.setattr(candidates, "WorkerPool", lambda *_, **__: Crashes())
    found = outlined(wanted, generator=f"{SPACES}:two", most=2)
    assert [one.name for one in found] == ["first", "second"]
    assert all(one.form == wanted.plain for one in found)


def test_a_generator_that_ends_its_processes_is_given_up(monkeypatch):
    late = Mock()
    late.submit.return_value.result.return_value = Reply(error=TIMEOUT, message="stopped after 9 s")
    monkeypatch.setattr(candidates, "WorkerPool", lambda *_, **__: late)
    with pytest.raises(PrunerError, match=f"{SPACES}:two: it hangs, .* 3 .*stopped after 9 s"):
        outlined(generator=f"{SPACES}:two", most=9)
    # a list has an end
    assert len(outlined(sources=[NetworkSource(name="resnet18")] * 4)) == 4


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("wrong", "it yields int"),
        ("failing", "RuntimeError: no more layers"),
        ("missing", "has no attribute 'missing'"),
    ],
)
def test_a_wrong_generator_ends_in_one_line(function, message):
    with pytest.raises(PrunerError, match=message) as refused:
        outlined(generator=f"{SPACES}:{function}")
    assert str(refused.value).startswith(f"networks={SPACES}:{function}: ")
    assert "\n" not in str(refused.value)


def test_a_process_that_replaces_another_finds_equal_candidates():
    found = _Generator(f"{SPACES}:two")
    assert [found.take(number)[0] for number in (1, 0, 1)] == ["second", "first", "second"]
    assert found.take(2) is None
    # A process that makes other networks draws the same.
    one, other = (_Generator(f"{SPACES}:drawn") for _ in range(2))
    names = [one.take(number)[0] for number in range(4)]
    assert other.take(3)[0] == names[3]
    assert len(set(names)) == 4


def test_a_package_that_does_not_exist_is_refused_before_any_work(tmp_path, monkeypatch):
    for word in ("no_such_package:f", f"{SPACES}:", "no.such:f"):
        with pytest.raises(PrunerError, match=f"networks={word}: no such package or function"):
            Candidates(generator=word).check()
    Candidates(generator=f"{SPACES}:two").check()
    (tmp_path / "failing_package").mkdir()
    (tmp_path / "failing_package" / "__init__.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PrunerError) as refused:
        Candidates(generator="failing_package.nets:f").check()
    assert str(refused.value).endswith(": ZeroDivisionError: division by zero")


def outline_of(name, target, form=None):
    network, inputs = getattr(small_networks, name)()
    return outline(import_module(network, inputs, name), target, form or NetworkFormat())


@some_slow("name", ["channels", "causal_attention"], ["biased"])
def test_the_tasks_are_those_of_a_tuning_run(name, target):
    """With channels last, and weights that are packed: hash, calls and arithmetic of each."""
    form = NetworkFormat(layout="NHWC")
    tuned = network_tasks(lower(imported(name), target, form), target)
    found = outline_of(name, target, form)
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


def test_bytes_of_weights_and_of_tensors_are_counted_and_a_view_takes_none(target):
    """Linear 16 to 8 with a bias, ReLU, linear 8 to 8 without, of four rows of float32."""
    found = outline_of("faint", target)
    assert found.parameter_bytes == 4 * (16 * 8 + 8 + 8 * 8)
    assert found.activation_bytes == 4 * (4 * 16 + 4 * 8 + 4 * 8)  # input, hidden, output
    # Rows of a table and their softmax; the second output is the rows in another shape.
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
    first, second = outline_of("faint", target).tasks
    found = outline(imported("faint"), target, NetworkFormat(), {first.key})
    texts = {task.key: task.module for task in found.tasks}
    assert texts == {first.key: None, second.key: second.module}
    assert second.module
