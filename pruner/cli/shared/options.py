"""Reading options: plain values, objects from a `_target_`, and what a command would misread."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from hydra.utils import get_class, instantiate
from omegaconf import DictConfig, OmegaConf

from pruner.cli.shared.known import kinds
from pruner.errors import PrunerError


@dataclass(frozen=True, slots=True)
class Rule:
    """What an option must be: ``accepts`` its value, ``wanted`` in words."""

    accepts: Callable[[Any], bool]
    wanted: str


def _whole(least: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and value >= least


def _optional(accepts: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or accepts(value)


def _one_of(*known: str) -> Rule:
    return Rule(lambda value: value in known, f"one of {', '.join(known)}")


def _seeds(value: Any) -> bool:
    if not isinstance(value, list) or not value or not all(map(_whole(0), value)):
        return False
    return len(set(value)) == len(value)


def _labels(value: Any) -> bool:
    return isinstance(value, list) and all(item == "all" or _whole(0)(item) for item in value)


def _between_0_and_1(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value <= 1


def _positive(value: Any) -> bool:
    return type(value) in (int, float) and value > 0


def _not_negative(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf


def _name(value: Any) -> bool:
    return str(value) not in ("", ".", "..") and not {"/", "\\"} & set(str(value))


COUNT = Rule(_whole(0), "a whole number, 0 or more")
POSITIVE = Rule(_whole(1), "a whole number, 1 or more")
POSITIVE_OR_NULL = Rule(_optional(_whole(1)), "a whole number, 1 or more, or null")
POSITIVE_NUMBER = Rule(_positive, "a number above 0")
POSITIVE_NUMBER_OR_NULL = Rule(_optional(_positive), "a number above 0, or null")
TRUE_OR_FALSE = Rule(lambda value: isinstance(value, bool), "true or false")

TEXT = Rule(lambda v: v is None or isinstance(v, str), "a path (a number in quotes: \"'3'\")")
NAMES = Rule(lambda v: isinstance(v, list) and all(isinstance(x, str) for x in v), "a list [...]")

# What an argument of one of our classes must be, by the types in its signature.
KINDS: dict[frozenset[str], Rule] = {
    frozenset({"int"}): COUNT,
    frozenset({"float"}): Rule(lambda value: type(value) in (int, float), "a number"),
    frozenset({"bool"}): TRUE_OR_FALSE,
}

RULES: dict[str, Rule] = {
    "data.root": TEXT,
    "outputs": TEXT,
    "checkpoint": TEXT,
    "resume": TEXT,
    "out": TEXT,
    "work_dir": TEXT,
    "models.own": NAMES,
    "split.held_out": NAMES,
    "leave_out": Rule(
        lambda value: value in (None, "all", "none") or NAMES.accepts(value),
        "all, none, null or a list [...] of names",
    ),
    "seed": COUNT,
    "seeds": Rule(_optional(_seeds), "a list with at least one seed, each once, or null"),
    "split.seed": COUNT,
    "num_threads": POSITIVE_OR_NULL,
    "num_workers": POSITIVE_OR_NULL,
    "stop_after": POSITIVE_OR_NULL,
    "min_programs": POSITIVE,
    "train_share": Rule(_between_0_and_1, "a number above 0, at most 1"),
    "train_pick": _one_of("random", "spread", "tasks"),
    "trainer.max_epochs": POSITIVE,
    "optimizer.lr": POSITIVE_NUMBER,
    "model.width": POSITIVE,
    "model.num_heads": POSITIVE,
    "model.num_dataflow_rows": POSITIVE,
    "model.dataflow_hidden": POSITIVE,
    "model.dataflow_width": POSITIVE,
    "budget.trials": POSITIVE_OR_NULL,
    "budget.patience": POSITIVE_OR_NULL,
    "budget.tolerance": Rule(_not_negative, "a number, 0 or more"),
    "budget.batch": POSITIVE,
    "budget.seconds": POSITIVE_NUMBER_OR_NULL,
    "budget.tasks": POSITIVE,
    "budget.least": POSITIVE,
    "budget.spread": POSITIVE_NUMBER,
    "budget.held_out": POSITIVE,
    "budget.label_tasks": POSITIVE,
    "budget.labels": Rule(_labels, "a list of whole numbers, 0 or more, and all"),
    "budget.max_steps": POSITIVE,
    "budget.source_programs": POSITIVE,
    "policy.prior": Rule(_not_negative, "a number, 0 or more"),
    "policy.draft_leads": TRUE_OR_FALSE,
    "policy.verify_only_draft": TRUE_OR_FALSE,
    "verify": TRUE_OR_FALSE,
    "compile_only": TRUE_OR_FALSE,
    "measure.number": POSITIVE,
    "measure.repeats": POSITIVE,
    "measure.min_repeat_ms": COUNT,
    "measure.cv_limit": POSITIVE_NUMBER_OR_NULL,
    "measure.flush_cache": TRUE_OR_FALSE,
    "measure.builders": POSITIVE_OR_NULL,
    "measure.build_timeout_s": POSITIVE_NUMBER,
    "measure.run_timeout_s": POSITIVE_NUMBER,
    "measure.memory_gib": POSITIVE_NUMBER,
    "measure.alone": Rule(
        lambda value: value is None or isinstance(value, bool), "true, false or null"
    ),
    "measure.check": TRUE_OR_FALSE,
    "runner.port": POSITIVE,
    "runner.session_timeout_s": POSITIVE,
    "runner.health_timeout_s": POSITIVE_NUMBER,
    "inputs.relative": TRUE_OR_FALSE,
    "inputs.scale": _one_of("standard", "max"),
    "features.psa": TRUE_OR_FALSE,
    "check": TRUE_OR_FALSE,
    "setup": TRUE_OR_FALSE,
    "features.dataflow": _one_of("paper", "official"),
    "data.duplicates": _one_of("drop", "keep"),
    "task_order": _one_of("gradient", "round_robin"),
    "spaces": _one_of("batched", "replay"),
    "run_id": Rule(_optional(_name), "a folder name without separators"),
}


def check_options(config: DictConfig) -> None:
    """Refuse values that break a rule; options that a command does not have are skipped.

    Raises:
        PrunerError: names the option, the value and what is wanted.
    """
    values: dict[str, Any] = plain(config)
    for name, rule in RULES.items():
        value: Any = values
        for part in name.split("."):
            if not isinstance(value, dict) or part not in value:
                break
            value = value[part]
        else:
            _check(name, value, rule)
    for name, value, kind in kinds(values):
        rest = kind - {"None"}
        if rest in KINDS and not (value is None and "None" in kind):
            _check(name, value, KINDS[rest])


def _check(name: str, value: Any, rule: Rule) -> None:
    if not rule.accepts(value):
        raise PrunerError(f"{name}={value}: it must be {rule.wanted}")


def plain(config: Any) -> Any:
    """Resolve a configuration node into dicts, lists and scalars."""
    if OmegaConf.is_config(config):
        return OmegaConf.to_container(config, resolve=True)
    return config


def choice(group: str) -> str:
    """Which file of a configuration group was chosen."""
    return str(HydraConfig.get().runtime.choices[group])


def build(config: DictConfig | Mapping[str, Any], **kwargs: Any) -> Any:
    """Instantiate a `_target_`; a value its constructor refuses becomes a PrunerError."""
    try:
        return instantiate(config, **kwargs)
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, PrunerError):
            raise cause from None
        if isinstance(cause, ValueError | TypeError):
            raise PrunerError(str(cause).splitlines()[0]) from error
        if str(error).startswith("Error locating target"):  # cut: Hydra's advice for developers
            raise PrunerError(f"{str(error).partition(',')[0]}; was it moved?") from error
        raise


def own_models(paths: Sequence[str]) -> list[type[Any]]:
    """The user's own classes that a checkpoint may name: ``models.own=[package.module.Class]``.

    Raises PrunerError for one that cannot be imported.
    """
    found = []
    for path in paths:
        try:
            found.append(get_class(path))
        except (ImportError, ValueError) as error:
            told = " ".join(line.strip() for line in str(error).splitlines()[:2])
            raise PrunerError(f"models.own={path}: {told}") from error
    return found
