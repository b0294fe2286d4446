"""Lists of networks, and generators of candidates."""

from concurrent.futures import Future

import pytest

from pruner.errors import PrunerError
from pruner.processes import MEMORY, Reply
from pruner.tune.networks.filtering import candidates
from pruner.tune.networks.filtering.candidates import Candidates, _Generator, read_networks
from pruner.tune.networks.lowering import NetworkFormat
from tests.tune.networks.filtering.in_process import OutlinesHere
from tests.tune.networks.lowered import ONE_CORE

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


def test_a_process_that_replaces_another_finds_an_earlier_candidate():
    found = _Generator(f"{SPACES}:two")
    assert [found.take(number)[0] for number in (1, 0, 1)] == ["second", "first", "second"]
    assert found.take(2) is None


def test_random_numbers_of_a_generator_do_not_depend_on_the_process():
    """A process that makes other networks draws the same."""
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
