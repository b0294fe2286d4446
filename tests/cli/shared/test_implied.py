"""Choices that follow from another option: in a run, in ``--help``, and in conf/."""

import pytest

from pruner.cli.shared.help import help_text
from pruner.cli.shared.implied import IMPLIED, with_implied
from pruner.cli.shared.known import command_file, groups_of, read_words
from pruner.places import conf_folder

NETWORK = "policy=pruner_network"


@pytest.mark.parametrize(
    ("words", "first"),
    [
        (["network=resnet18"], NETWORK),
        (["seed=1", "network=a,b", "-m"], NETWORK),
        (["network=resnet18", "policy=random"], "network=resnet18"),
        (["network=resnet18", "experiment=paper_tuning"], "network=resnet18"),
        (["network=null"], "network=null"),
        (["workload=matmul"], "workload=matmul"),
        (["resume=outputs/tune/x", "network=resnet18"], "resume=outputs/tune/x"),
    ],
)
def test_a_network_has_its_policy_unless_another_is_chosen(words, first):
    found = with_implied("tune", words)
    assert found[0] == first
    assert found[-len(words) :] == words


def test_another_command_is_left_alone():
    assert with_implied("train", ["network=resnet18"]) == ["network=resnet18"]


def test_help_shows_what_a_run_would_take():
    shown = {
        given: help_text("tune", read_words("tune", [given]).words)
        for given in ("network=resnet18", "seed=0")
    }
    assert "now pruner_network)" in shown["network=resnet18"]
    assert "now pruner_live)" in shown["seed=0"]
    assert "\n  policy.draft.population=128" in shown["network=resnet18"]


@pytest.mark.parametrize("one", IMPLIED, ids=lambda one: one.group)
def test_what_is_implied_is_in_conf_and_said_there(one):
    assert one.group in groups_of(one.command)
    known = {*command_file(one.command), *groups_of(one.command)}
    assert {one.option, *one.unless} <= known
    assert (conf_folder() / one.group / f"{one.choice}.yaml").is_file()
    assert one.choice in (conf_folder() / f"{one.command}.yaml").read_text(encoding="utf-8")
