"""Lists of networks, and generators of candidates."""

import pytest

from pruner.errors import PrunerError
from tests.tune.networks.lowered import ONE_CORE

pytestmark = pytest.mark.tvm
SPACES = "tests.tune.networks.filtering.spaces"


def outlined(**given):
    from pruner.tune.networks.filtering.candidates import Candidates
    from pruner.tune.networks.lowering import NetworkFormat

    return list(Candidates(**given).outlined(ONE_CORE, NetworkFormat(), ()))


def test_a_list_has_networks_with_their_sizes_and_remarks(tmp_path):
    from pruner.tune.networks.filtering.candidates import read_networks

    path = tmp_path / "nets.txt"
    path.write_text("# mine\n\nresnet18 image=64 batch=2\n  pkg:make\nresnet18 sizes.image=32\n")
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
    ],
)
def test_a_wrong_line_is_refused(text, message, tmp_path):
    from pruner.tune.networks.filtering.candidates import read_networks

    (tmp_path / "nets.txt").write_text(text)
    with pytest.raises(PrunerError, match=message) as refused:
        read_networks(tmp_path / "nets.txt")
    assert "\n" not in str(refused.value)


@pytest.mark.usefixtures("drafts_here")
def test_candidates_of_a_generator_come_in_order_until_its_end():
    found = outlined(generator=f"{SPACES}:two")
    assert [one.name for one in found] == ["first", "second"]
    first, second = ({task.key for task in one.outline.tasks} for one in found)
    assert first < second  # both layers of the first network
    assert [one.name for one in outlined(generator=f"{SPACES}:two", most=1)] == ["first"]


@pytest.mark.usefixtures("drafts_here")
def test_a_candidate_that_cannot_be_imported_has_a_reason_and_the_next_follows():
    found = outlined(generator=f"{SPACES}:one_is_refused")
    assert [(one.name, one.outline is None) for one in found] == [
        ("first", False), ("branches", True), ("third", False)
    ]  # fmt: skip
    assert found[1].reason.startswith("network=branches: ")
    assert "\n" not in found[1].reason


@pytest.mark.usefixtures("drafts_here")
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


@pytest.mark.usefixtures("drafts_here")
def test_a_process_that_replaces_another_finds_an_earlier_candidate():
    from pruner.tune.networks.filtering.candidates import _Generator

    found = _Generator(f"{SPACES}:two")
    assert [found.take(number)[0] for number in (1, 0, 1)] == ["second", "first", "second"]
    assert found.take(2) is None


def test_a_package_that_does_not_exist_is_refused_before_any_work():
    from pruner.tune.networks.filtering.candidates import Candidates

    for word in ("no_such_package:f", f"{SPACES}:", "no.such:f"):
        with pytest.raises(PrunerError, match=f"networks={word}: no such package or function"):
            Candidates(generator=word).check()
    Candidates(generator=f"{SPACES}:two").check()
