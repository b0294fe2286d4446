"""``--help`` says of every option what stands beside it in conf/, and starts quickly."""

import subprocess
import sys

import pytest

from pruner.cli.shared.help import commands, comments, help_text, list_of_commands, purpose
from pruner.cli.shared.known import groups_of, read_words
from pruner.paths import conf_folder
from tests.commands import python

FILE = """# what the choice is
first: 1 # beside it
# before it
second:
  third: a#b  # it goes on
              # below
  fourth: 2
"""


def test_comments_go_to_their_options(tmp_path):
    path = tmp_path / "group.yaml"
    path.write_text(FILE)
    assert comments(path) == {
        "first": "beside it",
        "second": "before it",
        "second.third": "it goes on below",
    }


def shown(command, words):
    return help_text(command, read_words(command, [*words, "--help"]))


@pytest.mark.parametrize("command", sorted(commands()))
def test_help_lists_the_groups_of_the_command_and_no_other(command):
    text = shown(command, [])
    assert text.startswith(purpose(command))
    names = {line.split(":")[0].strip() for line in text.splitlines()}
    used = set(groups_of(command)) - {"sweep"}
    folders = {path.name for path in conf_folder().iterdir() if path.is_dir()} - {"hydra"}
    assert used <= names
    choices = text.partition("Choices (group=name)")[2].partition("Options and their")[0]
    assert {w for w in folders - used if f"\n  {w}: " in choices} == set()
    assert "$" not in text.replace("${", "")


def test_an_option_stands_there_with_its_value_and_meaning():
    lines = shown("train", ["seed=7"]).splitlines()
    (seed,) = [line for line in lines if line.startswith("  seed=7 ")]
    assert "of weights, batches" in seed
    assert lines[lines.index(seed) + 1].strip() == "chooses the held-out tasks"
    assert ["batches.tasks=8", "tasks per batch"] in [line.split(None, 1) for line in lines]


def test_the_list_of_commands_has_one_line_each():
    lines = list_of_commands().splitlines()
    for command in ("train", "evaluate", "featurize", "adapt", "tune", "collect", "import_logs"):
        assert len([line for line in lines if line.split()[:1] == [command]]) == 1


PROBE = """
import sys
from pruner.cli.shared.door import run_door
for command in sys.argv[1:]:
    run_door(command, ["--help"])
    slow = {"torch", "tvm", "pytorch_lightning", "pandas", "xgboost", "numpy"}
    heavy = sorted(slow & set(sys.modules))
    print(command, heavy, file=sys.stderr)
"""


def test_help_needs_no_heavy_library():
    done = python("-c", PROBE, *sorted(commands()))
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [f"{command} []" for command in sorted(commands())]


def test_a_reader_that_has_seen_enough_is_no_error():
    code = "from pruner.cli.shared.output import print_text; print_text('x' * 1_000_000)"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0
