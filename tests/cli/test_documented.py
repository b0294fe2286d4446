"""Every command that a page or ``--help`` shows has options that its command knows."""

import re
import shlex

import pytest

from pruner.cli.shared.help import commands
from pruner.cli.shared.known import command_file, read_words
from tests.paths import PAGES

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
            known = [word.replace("platform=NAME", "platform=v100") for word in words]
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
