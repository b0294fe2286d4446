"""Read a command line: compose it once, and check every name.

The files of ``conf/`` are the only source of names, defaults and kinds. A node of another package,
such as Lightning's Trainer, takes each argument of its class.
"""

import copy
import inspect
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from pruner.cli.shared.options import RENAMED, check_options, walk
from pruner.errors import PrunerError
from pruner.paths import conf_folder

_ANY = ("workload", "variants", "sizes")  # nodes whose keys only the command can judge
_SWEEP = ("-m", "--multirun")
_OURS = "pruner.models."  # would import torch: these files list every argument (see test_conf)
_NEAR = 0.6  # similarity above which a name is worth proposing
HELP = {"-h", "--help"}
# Option that a bare word or path gives.
POSITIONAL = {"compare": "runs", "get": "set", "import_checkpoint": "file"}
ONLY_INPUT = "input="  # of a file: its shape is a size like any other
NETWORK_POLICY = "policy=pruner_network"  # of a network, unless a policy is chosen ...
CHOOSERS = {"policy", "resume", "plot", "experiment"}  # ... by an option that brings its own
LOCAL = "cpu"  # platform=cpu: the described CPU that fits this machine
_ABSENT = ("null", "")  # values of an option that is not given after all
Options = TypeVar("Options")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """A command line with checked options.

    ``config`` has their values, for a sweep the values of the chosen files; ``hydra`` has the same
    and Hydra's own node. ``words`` are for Hydra. ``defaults`` are the values of the chosen files,
    for each choice of a sweep.
    """

    words: Sequence[str]
    config: DictConfig
    hydra: DictConfig
    sweep: bool
    defaults: Sequence[Mapping[str, Any]]


def command_file(command: str) -> dict[str, Any]:
    """Read the command's file of ``conf/``."""
    text = (conf_folder() / f"{command}.yaml").read_text(encoding="utf-8")
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded


@cache
def groups_of(command: str) -> dict[str, str | None]:
    """List the groups of choices of a command, with its defaults."""
    entries = [e for e in command_file(command)["defaults"] if isinstance(e, dict)]
    pairs = [pair for entry in entries for pair in entry.items()]
    return {name: chosen for name, chosen in pairs if not name.startswith("override ")}


def files_of(group: str) -> list[str]:
    """List the files of a group of choices."""
    return sorted(path.stem for path in (conf_folder() / group).glob("*.yaml"))


def full_words(command: str, words: Sequence[str]) -> list[str]:
    """Complete a command line by implied words; raise `PrunerError` if no platform fits."""
    if option := POSITIONAL.get(command):
        # bare paths are a value of the option; a path that exists may contain an equals sign
        bare = [w for w in words if w[:1] != "-" and ("=" not in w or Path(w).exists())]
        quoted = [_quoted(word) for word in bare]
        value = quoted[0] if option != "runs" and len(bare) == 1 else f"[{','.join(quoted)}]"
        return [*(w for w in words if w not in bare), *([f"{option}={value}"] if bare else [])]
    if command == "predict" and any(word.startswith("networks=") for word in words):
        return with_local_platform(words)
    if command != "tune":
        return list(words)
    words = [f"sizes.{word}" if word.startswith(ONLY_INPUT) else word for word in words]
    pairs = [word.lstrip("+").partition("=")[::2] for word in words]
    given = {name for name, value in pairs if value not in _ABSENT}
    variants = [value.lower() for name, value in pairs if name == "variants"]
    has_network, chosen = "network" in given or "true" in variants, given & CHOOSERS
    if not (has_network or chosen) and any("true" in value for value in variants):
        raise PrunerError(
            f"variants={variants[-1]}: an operator with variants has the policy of networks; name "
            "one policy= for all, or give each value a command of its own"
        )
    network = [NETWORK_POLICY] if has_network and not chosen else []
    return [*network, *with_local_platform(words)]


def with_local_platform(words: Sequence[str]) -> list[str]:
    """Add this machine's CPU where no other platform is named; raise as `local_platform`."""
    from pruner.tune.measure.targets import local_platform

    given = [word for word in words if word.startswith("platform=")]
    unasked = any(word in HELP or word.startswith(("resume=", "plot=")) for word in words)
    if given != [f"platform={LOCAL}"] and (given or unasked):
        return list(words)
    rest = [word for word in words if word not in given]
    host = [] if any(word.startswith("target=") for word in rest) else ["target=host"]
    return [*rest, f"platform={local_platform()}", *host]


def read_words(command: str, given: Sequence[str]) -> CommandLine:
    """Compose a command line's configuration and check every option.

    Raises `PrunerError` for an option or a value, `HydraException` for a word or a choice.
    """
    given = full_words(command, given)
    words = [word for word in given if word not in (*_SWEEP, *HELP)]
    groups = groups_of(command)
    chosen: list[str] = []  # words that Hydra composes
    values: list[Override] = []  # options that are set afterwards
    in_order: list[str] = []  # all words, in the order of a sweep
    for word in words:
        override = _override(word)
        is_choice = override is not None and override.key_or_group in groups
        if override is None or (is_choice and not isinstance(override.value(), dict)):
            chosen.append(word)
        else:
            values.append(override)
            word = f"++{word.lstrip('+')}"
        in_order.append(word)
    sweep = any(word in _SWEEP for word in given)
    cells = list(_cells(chosen))
    for word in {word: None for cell in cells for word in cell}:
        _check_choice(word, groups)
    found = [_compose(command, cell) for cell in cells]
    whole, defaults = found[0], [plain_values(config) for config in found]
    sweep = sweep or whole.hydra.mode == RunMode.MULTIRUN
    _check_names(values, groups, defaults)
    if not sweep:
        for word in chosen:
            _refuse_sweep(_override(word))
        _set(whole, values)
    with open_dict(whole):
        whole.hydra.overrides.task = [w for w in words if not w.lstrip("+~").startswith("hydra")]
        config = whole.copy()
        del config["hydra"]
    if not sweep:
        check_options(config, defaults)
    return CommandLine(words=in_order, config=config, hydra=whole, sweep=sweep, defaults=defaults)


def read_fields(kind: type[Options], words: Sequence[str]) -> Options:
    """Fill a dataclass from words; raise `PrunerError` for other words or values."""
    config = OmegaConf.structured(kind)
    values = plain_values(config)
    try:
        overrides = [(word, _override(word)) for word in words]
        for word, override in overrides:
            if override is None:
                raise PrunerError(f"{word}: options are name=value; see --help")
        given = [override for _, override in overrides if override is not None]
        _check_names(given, {}, [values])
        _set(config, given)
        return cast(Options, OmegaConf.to_object(config))
    except MissingMandatoryValue as error:
        raise PrunerError(f"give {error.full_key}=, it has no default; see --help") from error
    except OmegaConfBaseException as error:
        if "is not a ListConfig" in str(error):
            raise PrunerError(f"{error.full_key}: a list; write {error.full_key}=[a,b]") from error
        raise PrunerError(f"{error.full_key}: {str(error).splitlines()[0]}") from error


def composed(command: str, words: Sequence[str]) -> dict[str, Any]:
    """Compose a command's options as plain values, with interpolations unresolved."""
    return plain_values(_compose(command, words))


def check_idle(command: str, config: DictConfig, idle: Iterable[str], reason: str) -> None:
    """Refuse options with other values than their defaults, for a `reason`."""
    defaults = OmegaConf.create(command_file(command))
    for name in idle:
        if OmegaConf.select(config, name) != OmegaConf.select(defaults, name):
            raise PrunerError(f"leave {name}= out: {reason}")


def chosen(group: str, name: str) -> DictConfig:
    """Load a file of a group, with the files of its `defaults`."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Defaults list is missing")  # of any group's
        found: DictConfig = _compose(f"{group}/{name}", ())[group]
    return found


def plain_values(config: DictConfig) -> dict[str, Any]:
    """Convert options to plain values, with interpolations unresolved."""
    found = OmegaConf.to_container(config)
    assert isinstance(found, dict), type(found)
    return {str(name): value for name, value in found.items() if name != "hydra"}


def _compose(command: str, words: Sequence[str]) -> DictConfig:
    """Compose with Hydra's own node, once a process, since it takes 0.3 s."""
    config = copy.deepcopy(_composed(command, tuple(words)))
    OmegaConf.clear_cache(config)  # of times
    with open_dict(config):
        config.hydra.runtime.cwd = str(Path.cwd())
    return config


@lru_cache(maxsize=64)
def _composed(command: str, words: Sequence[str]) -> DictConfig:
    """Compose, and restore Hydra's state: the caller may be another Hydra application."""
    before = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(conf_folder()), version_base="1.3"):
            return compose(command, overrides=list(words), return_hydra_config=True)
    finally:
        GlobalHydra.instance().hydra = before


def _override(word: str) -> Override | None:
    """Parse a word as an option; None for words of Hydra itself.

    Hydra refuses the words that it does not know.
    """
    if word.startswith("-"):
        raise PrunerError(f"{word} is unknown; see --help")
    if word.startswith(("~", "hydra.", "hydra/", "+hydra")) or "=" not in word:
        return None
    (override,) = OverridesParser.create().parse_overrides([_with_quotes(word)])
    return override


def _with_quotes(word: str) -> str:
    """Quote a value that is an existing path, unless it is plain: ``network=net (1).onnx``."""
    name, _, value = word.partition("=")
    is_plain = re.fullmatch(r"[\w./:-]*", value, re.ASCII)
    is_path = os.path.exists(value)  # noqa: PTH110 - Path raises an error for long values
    return f"{name}={_quoted(value)}" if is_path and not is_plain else word


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _cells(chosen: Sequence[str]) -> Iterator[list[str]]:
    """Yield each choice of a sweep with other choices, or the words."""
    overrides = [(word, _override(word)) for word in chosen]
    sweeps = [
        [f"{o.key_or_group}={value}" for value in o.sweep_string_iterator()]
        if o is not None and o.is_sweep_override()
        else [word]
        for word, o in overrides
    ]
    for number in range(max(map(len, sweeps), default=1)):
        yield [sweep[min(number, len(sweep) - 1)] for sweep in sweeps]


def _check_choice(word: str, groups: Mapping[str, Any]) -> None:
    """Refuse a number (Hydra raises `ValueError`) or a list, which it would merge."""
    override = _override(word)
    if override is None:
        return
    name, value = override.key_or_group, override.value()
    if not isinstance(value, str) and not (value is None and groups[name] is None):
        raise PrunerError(f"{word}: choose one of {', '.join(files_of(name))}")


def _refuse_sweep(override: Override | None) -> None:
    if override is not None and override.is_sweep_override():
        raise PrunerError(
            f"{override.input_line}: several values are a sweep, add -m; a list is [a,b]"
        )


def _check_names(
    values: Sequence[Override], groups: Mapping[str, Any], defaults: Sequence[Mapping[str, Any]]
) -> None:
    names = [name for held in defaults for name, _ in walk(held)]
    for override in values:
        option, value = override.key_or_group, override.value()
        given = [option]  # and the names in its mapping
        has_parts = any(name.startswith(f"{option}.") for name in names)
        if has_parts and isinstance(value, Mapping) and "_target_" not in value:
            given += [name for name, _ in walk(value, option)]
        for name in given:
            parts = name.split(".")
            if override.package is not None or not any(_accepts(d, parts) for d in defaults):
                raise PrunerError(unknown(name, {*groups, *names}))


def _set(config: DictConfig, values: Sequence[Override]) -> None:
    for override in values:
        _refuse_sweep(override)
        OmegaConf.update(config, override.key_or_group, override.value(), force_add=True)


def _accepts(node: Any, parts: Sequence[str]) -> bool:
    for depth, part in enumerate(parts):
        if isinstance(node, list) and part.isdigit() and int(part) < len(node):
            node = node[int(part)]
        elif not isinstance(node, Mapping):
            return False
        elif part in node:
            node = node[part]
        else:
            path = ".".join(parts[:depth])
            if depth and (not node or path in _ANY):
                return True
            target = _target(path, node)
            return target is not None and not target.startswith(_OURS) and takes(target, part)
    return True


def _target(path: str, node: Mapping[str, Any]) -> str | None:
    if path == "platform":
        return f"pruner.program.device.{'GpuDevice' if node.get('kind') == 'gpu' else 'CpuDevice'}"
    found = {"split": "pruner.data.splits.make_split"}.get(path, node.get("_target_"))
    return None if found is None else str(found)


def takes(target: str, name: str) -> bool:
    """Check whether the target has an argument of that name."""
    parameters = inspect.signature(get_object(target)).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def unknown(name: str, known: Iterable[str]) -> str:
    """Make the message for an unknown name, with the nearest name."""
    known = set(known)
    if (now := RENAMED.get(name)) in known:
        return f"{name} is now called {now}"
    near = nearest(name, known)
    return f"{name} is unknown; " + (f"did you mean {near}?" if near else "see --help")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Find the name of `known` most like `name`, complete or last part."""

    def likeness(other: str) -> float:
        whole = SequenceMatcher(None, name, other).ratio()
        last = SequenceMatcher(None, name.rpartition(".")[2], other.rpartition(".")[2]).ratio()
        return max(whole, 0.95 * last)

    best = max(sorted(known), key=likeness, default=None)
    return best if best is not None and likeness(best) >= _NEAR else None
