"""Make the text of ``--help`` from the files of ``conf/`` and their comments."""

import re
import textwrap
from collections.abc import Iterator, Mapping
from itertools import dropwhile
from pathlib import Path
from typing import Any

import yaml

from pruner.cli.shared.known import CommandLine, command_file, files_of, groups_of, plain_values
from pruner.paths import conf_folder

WIDTH = 100
_MEANING_AT = 38  # column of the meanings
_KEY = re.compile(r"(\s*)([\w-]+):(.*)")
_FILES = re.compile(r"a file of conf/(\w+)")
_COMMENT = re.compile(r"(?:^|\s)#\s?(.*)")


def commands() -> dict[str, str]:
    """List every command, a file of ``conf/``, with its purpose."""
    return {path.stem: purpose(path.stem) for path in sorted(conf_folder().glob("*.yaml"))}


def purpose(command: str) -> str:
    """Return the first line of a command's help."""
    return str(command_file(command)["hydra"]["help"]["template"]).splitlines()[0]


def list_of_commands() -> str:
    """Make the text of ``pruner --help``."""
    found = commands()
    width = max(map(len, found))
    rows = [f"  {name:<{width}}  {line}" for name, line in found.items()]
    return "\n".join(
        ["Usage: pruner COMMAND [option=value ...]", "", "Commands (each has --help)", *rows]
    )


def help_text(command: str, command_line: CommandLine) -> str:
    """Make a command's help, with the options' values for its words."""
    values, groups = plain_values(command_line.config), groups_of(command)
    pairs = [word.lstrip("+").split("=", 1) for word in command_line.words if "=" in word]
    chosen = groups | {name: value for name, value in pairs if name in groups}
    lines = [str(command_file(command)["hydra"]["help"]["template"]).rstrip(), ""]
    shown = {name: now for name, now in chosen.items() if not _of_hydra(name)}
    if shown:
        lines.append("Choices (group=name), with the one that is chosen now")
        for group, now in shown.items():
            text = f"  {group}: {', '.join(files_of(group))} (now {now or 'none'})"
            lines += textwrap.wrap(text, WIDTH, subsequent_indent="      ", break_on_hyphens=False)
        lines.append("")
    lines.append("Options and their values now (option=value)")
    own = comments(conf_folder() / f"{command}.yaml")
    for name, value in values.items():
        if name not in groups:
            lines += _options(name, value, own)
    for name, now in shown.items():
        if name not in values or not now:
            continue
        path = conf_folder() / name / f"{now}.yaml"
        lines += ["", *_wrapped(f"  {name}={now}", header(path))]
        lines += _options(name, values[name], _notes(path) | own)
    return "\n".join(lines)


def _notes(path: Path) -> dict[str, str]:
    """Collect comments by dotted option, of a choice and its defaults."""
    text = path.read_text(encoding="utf-8")
    group = "" if text.startswith("# @package _global_") else f"{path.parent.name}."
    changed = (yaml.safe_load(text) or {}).get("defaults", ())
    found: dict[str, str] = {}
    for name in changed:
        found |= _notes(path.with_name(f"{str(name).partition('@')[0]}.yaml"))
    return found | {f"{group}{key}": note for key, note in comments(path).items()}


def _of_hydra(group: str) -> bool:
    return all(
        path.read_text(encoding="utf-8").startswith("# @package hydra")
        for path in (conf_folder() / group).glob("*.yaml")
    )


def _options(name: str, value: Any, notes: Mapping[str, str]) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            if key not in ("_target_", "_partial_"):
                yield from _options(f"{name}.{key}", item, notes)
        target = str(value.get("_target_", ""))
        if target and not target.startswith("pruner."):
            yield from _wrapped(f"  {name}.NAME=", f"any other argument of {target}")
        return
    meaning = _FILES.sub(
        lambda found: f"{found[0]} ({', '.join(files_of(found[1]))})", notes.get(name, "")
    )
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000)
    text = text.removesuffix("\n").removesuffix("\n...").replace(", ", ",")
    yield from _wrapped(f"  {name}={text}", meaning)


def _wrapped(option: str, meaning: str) -> Iterator[str]:
    if not meaning:
        yield option
        return
    column = " " * _MEANING_AT
    rows = textwrap.wrap(meaning, WIDTH - _MEANING_AT, break_on_hyphens=False)
    if len(option) + 2 > _MEANING_AT:
        yield option
        yield from (column + row for row in rows)
    else:
        yield f"{option:<{_MEANING_AT}}{rows[0]}"
        yield from (column + row for row in rows[1:])


def header(path: Path) -> str:
    """Read the comment at the top of a file of choices."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        text = line.lstrip("# ")
        if text.startswith("["):  # the sources of numbers, for readers of the file
            break
        if not text.startswith("@package"):
            rows.append(text)
    return " ".join(rows)


def comments(path: Path) -> dict[str, str]:
    """Collect comments beside, before or below options, by dotted name."""
    found: dict[str, str] = {}
    stack: list[tuple[int, str]] = []
    before: list[str] = []
    lines = path.read_text(encoding="utf-8").splitlines()
    for line in dropwhile(lambda line: line.startswith("#"), lines):
        key = _KEY.match(line)
        if line.lstrip().startswith("#"):
            text = line.strip().lstrip("# ")
            depth = len(line) - len(line.lstrip())
            if stack and depth > stack[-1][0] + 2:  # under the comment of the option above
                name = ".".join(part for _, part in stack)
                found[name] = f"{found.get(name, '')} {text}".strip()
            else:
                before.append(text)
        elif key:
            indent, word = len(key[1]), key[2]
            stack = [(depth, part) for depth, part in stack if depth < indent] + [(indent, word)]
            beside = _COMMENT.search(key[3])
            texts = [*before, *([beside[1]] if beside else [])]
            if texts:
                found[".".join(part for _, part in stack)] = " ".join(texts)
            before = []
    return found
