"""No option is accepted and ignored: the source of every command reads each key that it offers.

An option counts as read where the command's modules in ``pruner.cli`` take it from `config` by
name, or take the node that holds it and either build its `_target_`, spell its name, or hand the
node to something that refuses keys it does not know (`HANDED_ON`).
"""

import ast
from pathlib import Path

import pytest

from pruner.cli.shared.help import commands
from pruner.cli.shared.known import composed

# What every command shares: it handles options of all of them.
SHARED = {"door", "known", "help", "options", "output", "runs", "sweep", "progress"}
# What functions of shared.runs read of the options of the command that imports them.
READ_IN_RUNS = {"open_run": {("outputs",), ("run_id",)}, "continued": {("resume",)}}
# Nodes that go whole to a constructor or a check that refuses unknown names.
HANDED_ON = {
    "platform",  # device_from_mapping
    "workload",  # the table of operators
    "sizes",  # NetworkOptions
    "measure",  # MeasureSettings and Timing
    "budget",  # TuneBudget
    "checkpoints",  # names of the user
    "variants",
}


def cli_modules(command, repository):
    """Syntax trees of the command's module and of what it imports from `pruner.cli`."""
    found, waiting = {}, [f"pruner.cli.{command}"]
    while waiting:
        name = waiting.pop()
        path = repository / Path(*name.split(".")).with_suffix(".py")
        if name in found or name.rpartition(".")[2] in SHARED or not path.is_file():
            continue
        found[name] = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(found[name]):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pruner.cli"):
                waiting += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return list(found.values())


def chain(node):
    """``config.a.b`` as ("a", "b"), also with ``["b"]`` and ``.get("b")``; None for others."""
    if isinstance(node, ast.Name):
        return () if node.id == "config" else None
    if isinstance(node, ast.Attribute):
        above = chain(node.value)
        return None if above is None else (*above, node.attr)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        above = chain(node.value)
        return None if above is None else (*above, str(node.slice.value))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        above, first = chain(node.func.value), node.args[0]
        if above is not None and node.func.attr == "get" and isinstance(first, ast.Constant):
            return (*above, str(first.value))
    return None


def names(tree):
    """Attributes, words and strings of the code; docstrings have spaces and match nothing."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg


def leaves(node, path=()):
    if isinstance(node, dict) and node and "_target_" not in node and path[:1] != ("hydra",):
        for key, item in node.items():
            yield from leaves(item, (*path, key))
    else:
        yield path, isinstance(node, dict) and "_target_" in node


def unread(command, values, repository):
    trees = cli_modules(command, repository)
    reads = {found for tree in trees for node in ast.walk(tree) if (found := chain(node))}
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.ImportFrom):
            reads |= set().union(*(READ_IN_RUNS.get(alias.name, ()) for alias in node.names))
    words = {word for tree in trees for word in names(tree)}
    dotted = {tuple(word.split(".")) for word in words if "." in word and " " not in word}
    listed = {(word,) for word in words}  # ``config[name]`` over a tuple of names
    for path, is_built in leaves(values):
        if path in reads or path in dotted:
            continue
        held = any(path[:depth] in reads for depth in range(1, len(path)))
        known = is_built or path[0] in HANDED_ON or path[-1] in words
        if not (held and known) and not (len(path) == 1 and path in listed):
            yield ".".join(path)


@pytest.mark.parametrize("command", sorted(commands()))
def test_every_option_of_a_command_is_read(command, repository):
    assert list(unread(command, composed(command, []), repository)) == []


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("train", {"features": {"psa": False}}),
        ("adapt", {"split": {"name": "by_task", "seed": 0}}),
        ("adapt", {"data": {"root": "x", "duplicates": "drop"}}),
        ("evaluate", {"monitor": "valid/top1"}),
    ],
)
def test_an_option_that_nothing_reads_is_found(command, option, repository):
    assert list(unread(command, option, repository))
