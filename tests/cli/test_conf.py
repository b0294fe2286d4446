"""Configuration files: each composes, chooses only our own or torch's classes, and can be built."""

import inspect
import re
import shlex
from dataclasses import fields
from functools import cache, partial
from itertools import pairwise

import pytest
from hydra.utils import get_class, get_method
from omegaconf import OmegaConf

from pruner.cli.shared.help import commands, help_text
from pruner.cli.shared.known import command_file, read_words
from pruner.cli.shared.recipe_options import recipe_of
from pruner.models.training.recipe import Recipe
from pruner.models.training.training import TRAINER
from tests.cli.outcome import composed
from tests.paths import CONF, PAGES

ALLOWED = ("pruner.", "torch.optim.", "pytorch_lightning.")
LEARNING = ["model", "loss", "batches", "optimizer", "schedule", "trainer", "store", "logger"]
GROUPS = {
    "train": ["platform", "data", "split", "features", *LEARNING],
    "evaluate": ["platform", "data", "features", "model"],
    "featurize": ["platform", "features"],
    "adapt": ["policy", "budget", "model"],
    "tune": ["platform", "workload", "policy", "effort", "model", "adaptation", "runner", "logger"],
}
ELSEWHERE = {("train", "platform"), ("evaluate", "platform"), ("featurize", "platform")}  # in tune


def rounds(command):
    """Choices of all groups, so many at once that each is made at least once."""
    groups = [group for group in GROUPS[command] if (command, group) not in ELSEWHERE]
    names = {group: sorted(p.stem for p in (CONF / group).glob("*.yaml")) for group in groups}
    for number in range(max(map(len, names.values()))):
        yield command, *(f"{g}={found[number % len(found)]}" for g, found in names.items())


ROUNDS = {command: list(rounds(command)) for command in GROUPS}
GIVEN_BY_CODE = {"about"}  # of a logger: what it writes about
WITHOUT_MEANING = {f"platform.{name}" for name in ("name", "kind", "title")} | {"workload.operator"}


@cache
def container(command, *choices):
    return OmegaConf.to_container(composed(command, *choices), resolve=True)


def targets(node):
    if isinstance(node, dict):
        if "_target_" in node:
            yield node
        for value in node.values():
            yield from targets(value)


# Choices of the other commands are in the rounds of these two; of each the first is taken, and of
# adapt as many as there are budgets, the only group of adapt that train and tune lack.
WHOLE = ("train", "tune")
FIRST = {"adapt": len(list((CONF / "budget").glob("*.yaml")))}


def is_fast(command, number):
    return command in WHOLE or number < FIRST.get(command, 1)


EVERY = pytest.mark.parametrize(
    "words",
    [
        pytest.param(
            words, id=" ".join(words), marks=() if is_fast(command, number) else pytest.mark.slow
        )
        for command, found in ROUNDS.items()
        for number, words in enumerate(found)
    ],
)


@EVERY
def test_every_choice_composes_and_names_allowed_classes_and_each_of_their_arguments(words):
    """So a name, a default and a meaning stand there, and `--help` needs no constructor."""
    for node in targets(container(*words)):
        target = node["_target_"]
        assert target.startswith(ALLOWED)
        is_class = target.rpartition(".")[2][:1].isupper()
        accepted = inspect.signature((get_class if is_class else get_method)(target)).parameters
        given = {key for key in node if key not in ("_target_", "_partial_")}
        takes_any = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
        assert takes_any or given <= set(accepted), (target, given - set(accepted))
        if target.startswith("pruner."):
            written = {n for n, p in accepted.items() if p.default is not p.empty} - GIVEN_BY_CODE
            assert written <= given, (target, written - given)


@pytest.mark.parametrize("command", sorted(commands()))
def test_every_option_of_a_command_has_a_meaning(command):
    shown = help_text(command, read_words(command, ["--help"])).partition("Options and their")[2]
    lines = shown.splitlines()
    bare = [
        line.partition("=")[0].strip()
        for line, after in pairwise([*lines, ""])
        if re.fullmatch(r"  [\w.]+=.*", line)
        and not re.fullmatch(r"  \S+=.* {2,}\S.*", line)
        and not after.startswith(" " * 10)
    ]
    assert set(bare) <= WITHOUT_MEANING


def parts_of(value):
    if isinstance(value, partial):
        return value.func, parts_of(value.func)[1] | value.keywords
    if isinstance(value, type) or (callable(value) and not hasattr(value, "of_lists")):
        parameters = inspect.signature(value).parameters
        return value, {n: p.default for n, p in parameters.items() if p.default is not p.empty}
    return (type(value), vars(value)) if hasattr(value, "__dict__") else value


def test_a_recipe_from_python_is_that_of_the_command():
    given, default = recipe_of(composed("train")), Recipe()
    for name in (field.name for field in fields(Recipe) if field.name != "trainer"):
        assert parts_of(getattr(given, name)) == parts_of(getattr(default, name)), name
    assert given.trainer == TRAINER


COMMANDS = sorted(commands())
_COMMAND = re.compile(r"(?:python -m pruner\.cli\.|python |pruner )(\w+)(?:\.py)? (.*)")
_START = r"(?:python|pruner) "


def shown(text):
    """Command and words of every command line: blocks, and words in backticks."""
    text = re.sub(r"\\\n\s*|\n {12,}(?=[\"'])", " ", text)
    fenced = "".join(re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    lines = re.findall(rf"^ {{2,}}({_START}.*)$", text, re.MULTILINE)
    lines += re.findall(rf"^{_START}.*$", fenced, re.MULTILINE)
    lines = [re.split(r" {2,}|\s#", line)[0] for line in lines]  # what follows is a remark
    lines += re.findall(rf"`({_START}[^`\n]*)`", text)
    for found in filter(None, map(_COMMAND.fullmatch, lines)):
        words = [word for word in shlex.split(found[2]) if "=" in word or word == "-m"]
        if found[1] in COMMANDS and words:
            named = {"platform=NAME": "platform=v100", "model=NAME": "model=pacm"}
            known = [named.get(word, word) for word in words]
            yield found[1], tuple(word for word in known if "<" not in word)


def documented():
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    texts += [command_file(command)["hydra"]["help"]["template"] for command in COMMANDS]
    return sorted({one for text in texts for one in shown(text)})


def test_commands_are_found_in_pages_and_help():
    found = documented()
    assert len(found) > 100
    assert {command for command, _ in found} >= {"tune", "deploy", "train", "adapt"}
    assert ("tune", ("network=resnet18", "list=true")) in found


@pytest.mark.slow  # every command line is composed
@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_that_is_shown_is_known(command):
    for shown_command, words in documented():
        if shown_command == command:
            read_words(command, words)  # raises, with the nearest name
