"""Wrong options, generated from the configuration tree: each is one line, before any work."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf

from pruner.cli.shared.door import run_door
from pruner.cli.shared.known import POSITIONAL, composed, groups_of
from pruner.cli.shared.options import MAX_THREADS, RULES, check_options, walk
from pruner.errors import PrunerError
from pruner.paths import conf_folder

COMMANDS = sorted(path.stem for path in conf_folder().glob("*.yaml"))
CHOICES = sorted(
    {
        (command, group, path.stem)
        for command in COMMANDS
        for group in groups_of(command)
        for path in (conf_folder() / group).glob("*.yaml")
    }
)
NO_NUMBERS = (float("nan"), float("inf"), -float("inf"), "maybe", [1], True)
WRONG: Mapping[type, tuple[Any, ...]] = {
    bool: ("maybe", 7, 0.5, [True]),
    int: (*NO_NUMBERS, -7),
    float: (*NO_NUMBERS, -7.5),
    str: ({"a": 1}, [["x"]], 7.5, True),
    list: ({"a": 1}, [[["x"]]], 7.5, True),
    type(None): ({"a": 1}, [["x"]]),
    dict: ("maybe", 7, [["x"]], True, None),
}
JUDGED_ELSEWHERE = {"trainer.devices"}  # by Lightning, which also takes words and lists
# What takes values that the tables above call wrong, by name: nothing else may.
ALSO_TAKES: Mapping[str, type] = {
    "platform": dict,  # a group in most commands, and of pruner collect a name
    "pool": dict,
    "target": dict,  # TVM's own form
    "policy.draft": dict,  # settings, which are judged by the types of their class
    "schedule.factory": dict,
}


def leaves(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in walk(values):
        if not isinstance(value, dict) and not name.rpartition(".")[2].startswith("_"):
            yield name, value


def accepted(values: dict[str, Any]) -> tuple[int, list[tuple[str, Any]]]:
    tried, taken = 0, []
    config = OmegaConf.create(values)
    sections = [(name, value) for name, value in values.items() if isinstance(value, dict)]
    for name, default in [*leaves(values), *((n, v) for n, v in sections if n not in RULES)]:
        for wrong in WRONG[type(default)] if name not in JUDGED_ELSEWHERE else ():
            if isinstance(wrong, ALSO_TAKES.get(name, ())):
                continue
            OmegaConf.update(config, name, wrong, merge=False)
            tried += 1
            try:
                check_options(config, [values])
            except PrunerError as error:
                told = str(error)
                if "\n" not in told and name in told:
                    continue
            taken.append((name, wrong))
        OmegaConf.update(config, name, default, merge=False)
    return tried, taken


@pytest.mark.parametrize(
    ("commands", "least"),
    [(("train", "collect"), 200), pytest.param(COMMANDS, 1000, marks=pytest.mark.slow)],
    ids=["some", "all"],
)
def test_wrong_values_of_every_command_are_refused(commands, least, record_property):
    found = {command: accepted(composed(command, [])) for command in commands}
    record_property("tried", sum(tried for tried, _ in found.values()))
    record_property("failed", sum(len(taken) for _, taken in found.values()))
    assert not {command: taken for command, (_, taken) in found.items() if taken}
    assert sum(tried for tried, _ in found.values()) > least


@pytest.mark.slow
@pytest.mark.parametrize(("command", "group", "choice"), CHOICES, ids=str)
def test_wrong_values_of_every_choice_are_refused(command, group, choice, record_property):
    try:
        values = composed(command, [f"{group}={choice}"])
    except ConfigCompositionException:
        pytest.skip("an experiment of other commands")
    tried, taken = accepted(values)
    record_property("tried", tried)
    record_property("failed", len(taken))
    assert not taken


@pytest.mark.parametrize(
    ("command", "name", "wrong"),
    [
        ("train", "num_threads", MAX_THREADS + 1),  # 100,000 of them ended in a crash of torch
        ("train", "trainer.max_epochs", 10**20),
        ("train", "seed", 2**63),
        ("train", "model.width", 10**7),
        ("train", "optimizer.weight_decay", -1),
        ("tune", "workload.m", 2**31),  # TVM counts in 32 bits
        ("tune", "policy.random_sample", -5),
        ("tune", "platform.num_cores", -1),
    ],
)
def test_values_beyond_what_can_work_are_refused(command, name, wrong):
    values = composed(command, [])
    config = OmegaConf.create(values)
    OmegaConf.update(config, name, wrong)
    with pytest.raises(PrunerError, match=f"^{name}={wrong}: it must be"):
        check_options(config, [values])


NONSENSE = ("nosuchoption=1", "+nosuch.option=1", "--nosuch", "nothing", "outputs=[", "a b=1")


@pytest.mark.parametrize("command", COMMANDS)
def test_wrong_words_end_every_door_in_one_line(command, capsys, record_property):
    """Nonsense, and the first number of the command as a word."""
    numbers = [name for name, value in leaves(composed(command, [])) if type(value) is int]
    nonsense = [word for word in NONSENSE if command not in POSITIONAL or word != "nothing"]
    words = [*nonsense, *(f"{name}=maybe" for name in numbers[:2])]
    record_property("tried", len(words))
    taken: list[Any] = []
    for word in words:
        with pytest.raises(SystemExit) as stop:
            run_door(command, [word], lambda config: taken.append(config) or {})
        told = capsys.readouterr()
        assert (stop.value.code, told.out) == (2, ""), word
        assert len(told.err.strip().splitlines()) == 1, told.err
    assert not taken
