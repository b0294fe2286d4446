"""Which options a command knows: its files in ``conf/`` and the arguments of what they build.

Hydra alone takes ``+x=1`` for any x, which nobody reads, and wants a plus for an argument that no
file names. Here an option is known when the composed files have it, or when the constructor behind
`_target_` takes it; anything else is refused with the nearest known name.
"""

import ast
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.utils import get_object
from omegaconf import OmegaConf

from pruner.cli.shared.implied import with_implied
from pruner.errors import PrunerError
from pruner.places import conf_folder, sources_folder

_ANY = ("workload", "variants")  # nodes whose keys only the command can judge
_PLAIN = {"int", "float", "str", "bool", "None", "Sequence", "tuple", "list", "Literal"}
_FLAGS = {
    *("-m", "--multirun", "-c", "--cfg", "--resolve", "-p", "--package", "-i", "--info"),
    *("--version", "--hydra-help", "-cd", "--config-dir", "-sc", "--shell-completion"),
}  # Hydra's own
_NEAR = 0.6  # similarity above which a name is worth proposing


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A command line whose options are all known.

    ``words`` are for Hydra. ``own`` are options that it would take for the choice of a group:
    ``platform=v100`` of a command that has no devices to choose from. ``defaults`` is what the
    chosen files hold, one for each choice of a sweep; empty where nothing but choices is given.
    """

    words: Sequence[str]
    own: Mapping[str, Any]
    defaults: Sequence[Mapping[str, Any]] = ()


def command_file(command: str) -> dict[str, Any]:
    """The command's file in ``conf/`` as it stands."""
    text = (conf_folder() / f"{command}.yaml").read_text(encoding="utf-8")
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded


def groups_of(command: str) -> dict[str, str | None]:
    """Groups of choices that the command uses, and its default of each."""
    entries = [e for e in command_file(command)["defaults"] if isinstance(e, dict)]
    pairs = [pair for entry in entries for pair in entry.items()]
    return {name: chosen for name, chosen in pairs if not name.startswith("override ")}


def read_words(command: str, given: Sequence[str]) -> Asked:
    """Check every option of a command line.

    Raises:
        PrunerError: an option that the command does not know.
        HydraException: a word that is no option, a choice that a group does not have.
    """
    groups, own_names = groups_of(command), set(command_file(command))
    given = with_implied(command, given)
    chosen: list[Override] = []
    found: list[str | Override] = []  # what Hydra takes as it is, and what is to be checked
    own: dict[str, Any] = {}
    for word in given:
        if word.startswith("-") and word.partition("=")[0] not in _FLAGS:
            raise PrunerError(f"{word} is unknown; see --help")
        if word.startswith(("-", "~", "hydra.", "hydra/", "+hydra")) or "=" not in word:
            found.append(word)
            continue
        (override,) = OverridesParser.create().parse_overrides([word])
        name = override.key_or_group
        if name in groups and override.value() is None and groups[name] is not None:
            files = sorted(path.stem for path in (conf_folder() / name).glob("*.yaml"))
            raise PrunerError(f"{name}=null: choose one of {', '.join(files)}")
        if name in groups and not isinstance(override.value(), dict):
            chosen.append(override)
            found.append(word)
        elif name in own_names and (conf_folder() / name).is_dir() and name not in groups:
            own[name] = override.value()
        else:
            found.append(override)
    values = any(isinstance(item, Override) for item in found)
    references = list(_references(command, chosen)) if values else []
    words = [x if isinstance(x, str) else _known(x, groups, references) for x in found]
    return Asked(words=words, own=own, defaults=references)


def composed(command: str, words: Sequence[str]) -> dict[str, Any]:
    """The options of a command as plain values, interpolations unresolved."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_folder()), version_base="1.3"):
        found = OmegaConf.to_container(compose(command, overrides=list(words)))
    assert isinstance(found, dict), type(found)
    return {str(name): value for name, value in found.items()}


def _references(command: str, chosen: Sequence[Override]) -> Iterator[dict[str, Any]]:
    """What the chosen files hold; of a sweep over choices one composition for each."""
    sweeps = [
        list(o.sweep_string_iterator()) if o.is_sweep_override() else [o.get_value_string()]
        for o in chosen
    ]
    for number in range(max(map(len, sweeps), default=1)):
        picked = [sweep[min(number, len(sweep) - 1)] for sweep in sweeps]
        words = [f"{o.key_or_group}={p}" for o, p in zip(chosen, picked, strict=True)]
        yield composed(command, words)


def _known(
    override: Override, groups: Mapping[str, Any], references: Sequence[dict[str, Any]]
) -> str:
    """The option as Hydra accepts it; a PrunerError where no reference knows it."""
    name, word = override.key_or_group, str(override.input_line).lstrip("+")
    parts = name.split(".")
    if any(_holds(values, parts) for values in references):
        return word if not str(override.input_line).startswith("+") else f"++{word}"
    if any(_accepts(values, parts) for values in references):
        return f"++{word}"
    near = nearest(name, {*groups, *(n for values in references for n in _names(values, parts))})
    raise PrunerError(f"{name} is unknown; " + (f"did you mean {near}?" if near else "see --help"))


def _holds(node: Any, parts: Sequence[str]) -> bool:
    for part in parts:
        if isinstance(node, list) and part.isdigit() and int(part) < len(node):
            node = node[int(part)]
        elif isinstance(node, dict) and part in node:
            node = node[part]
        else:
            return False
    return True


def _accepts(node: Any, parts: Sequence[str]) -> bool:
    """Whether the innermost node on the way takes the next part as an argument."""
    for depth, part in enumerate(parts):
        if not isinstance(node, dict):
            return False
        if part not in node:
            path = ".".join(parts[:depth])
            if depth and (not node or path in _ANY):
                return True
            target = _target(path, node)
            return target is not None and takes(target, part)
        node = node[part]
    return True


def _target(path: str, node: Mapping[str, Any]) -> str | None:
    """What is called with the keys of a node."""
    if path == "platform":
        return f"pruner.program.device.{'GpuDevice' if node.get('kind') == 'gpu' else 'CpuDevice'}"
    found = {"split": "pruner.data.splits.make_split"}.get(path, node.get("_target_"))
    return None if found is None else str(found)


def takes(target: str, name: str) -> bool:
    """Whether a class or function of that dotted name has an argument of that name."""
    if name in arguments(target):
        return True
    parameters = inspect.signature(get_object(target)).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def arguments(target: str) -> Mapping[str, Any]:
    """Arguments of one of our classes or functions that an option can give, with their defaults.

    Read from the source: nothing is imported. Empty for what other packages define.
    """
    return _plain(_signature(target))


def kinds(values: Mapping[str, Any]) -> Iterator[tuple[str, Any, frozenset[str]]]:
    """Options that are plain arguments: dotted name, value, and the names of types it may have."""
    stack: list[tuple[str, Any]] = [("", values)]
    while stack:
        path, node = stack.pop()
        if not isinstance(node, dict):
            continue
        stack += [(f"{path}.{key}" if path else str(key), item) for key, item in node.items()]
        for name, annotation, _ in _signature(_target(path, node) or ""):
            if annotation is not None and name in node:
                yield f"{path}.{name}", node[name], _words(annotation)


Argument = tuple[str, ast.expr | None, ast.expr | None]  # name, annotation, default


@cache
def _signature(target: str) -> tuple[Argument, ...]:
    module, _, name = target.rpartition(".")
    path = sources_folder() / f"{module.replace('.', '/')}.py"
    if not module.startswith("pruner.") or not path.is_file():
        return ()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return tuple(_of_function(node.args))
        if isinstance(node, ast.ClassDef) and node.name == name:
            return tuple(_of_class(node))
    return ()


def _of_class(node: ast.ClassDef) -> Iterator[Argument]:
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            return _of_function(item.args)
    fields = (item for item in node.body if isinstance(item, ast.AnnAssign))
    return ((ast.unparse(f.target), f.annotation, f.value) for f in fields)


def _of_function(given: ast.arguments) -> Iterator[Argument]:
    absent = [None] * (len(given.args) - len(given.defaults))
    pairs = [*zip(given.args, [*absent, *given.defaults], strict=True)]
    pairs += zip(given.kwonlyargs, given.kw_defaults, strict=True)
    return ((argument.arg, argument.annotation, default) for argument, default in pairs)


def _words(annotation: ast.expr) -> frozenset[str]:
    named = {
        "None" if isinstance(node, ast.Constant) and node.value is None else getattr(node, "id", "")
        for node in ast.walk(annotation)
    }
    return frozenset(named - {""})


def _plain(found: Iterable[Argument]) -> dict[str, Any]:
    """Those that hold words, numbers and lists of them, with a default that is written out."""
    result = {}
    for name, annotation, default in found:
        if annotation is None or default is None:
            continue
        if _words(annotation) <= _PLAIN:
            with suppress(ValueError):  # a default that is computed
                result[name] = ast.literal_eval(default)
    return result


def _names(values: Mapping[str, Any], asked: Sequence[str]) -> Iterator[str]:
    """Dotted names of everything in `values`, with arguments of what `asked` names."""
    stack: list[tuple[str, Any]] = [("", values)]
    while stack:
        path, node = stack.pop()
        if path:
            yield path
        if not isinstance(node, dict):
            continue
        stack += [(f"{path}.{key}" if path else str(key), item) for key, item in node.items()]
        target = _target(path, node)
        if target is not None and path == ".".join(asked[:-1]):
            yield from (f"{path}.{name}" for name in arguments(target))


def nearest(name: str, known: set[str]) -> str | None:
    """The known name that is most like `name`, as a whole or by its last part."""

    def likeness(other: str) -> float:
        whole = SequenceMatcher(None, name, other).ratio()
        last = SequenceMatcher(None, name.rpartition(".")[2], other.rpartition(".")[2]).ratio()
        return max(whole, 0.95 * last)

    best = max(sorted(known), key=likeness, default=None)
    return best if best is not None and likeness(best) >= _NEAR else None
