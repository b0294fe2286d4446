"""Read options: check values, make plain values, build objects of `_target_`."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from hydra.utils import get_class, instantiate
from omegaconf import DictConfig, OmegaConf

from pruner.errors import PrunerError


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition on an option: ``accepts`` its value, ``wanted`` in words."""

    accepts: Callable[[Any], bool]
    wanted: str


MAX_WHOLE = 2**53  # numbers beyond it are not exact as floats
MAX_SEED = 2**63 - 1
MAX_THREADS = 1024  # so many crash no allocator
MAX_WIDTH = 1 << 16  # of a layer: its square is a matrix of 16 GB
MAX_EXTENT = 2**31 - 1  # of a loop: TVM counts in 32 bits


def _whole(least: int, most: int = MAX_WHOLE) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and least <= value <= most


def _optional(accepts: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or accepts(value)


def _one_of(*known: str) -> Rule:
    return Rule(lambda value: value in known, f"one of {', '.join(known)}")


def _list_of(accepts: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(accepts, value))


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _path(value: Any) -> bool:
    return isinstance(value, str) and value != ""  # that of a shell's variable without a value


def _between_0_and_1(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value <= 1


def _number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < math.inf


def _positive(value: Any) -> bool:
    return _number(value) and value > 0


def _not_negative(value: Any) -> bool:
    return _number(value) and value >= 0


def _objective(value: Any) -> bool:
    if value == "latency":  # the default; the list of all needs NumPy, which help does without
        return True
    names = (value,) if isinstance(value, str) else value
    known = import_module("pruner.search.objectives").KNOWN
    return isinstance(names, tuple | list) and tuple(names) in known


def _name(value: Any) -> bool:
    if type(value) not in (str, int, float):
        return False
    return str(value) not in ("", ".", "..") and not {"/", "\\"} & set(str(value))


COUNT = Rule(_whole(0), "a whole number, 0 or more")
COUNT_OR_NULL = Rule(_optional(_whole(0)), "a whole number, 0 or more, or null")
POSITIVE = Rule(_whole(1), "a whole number, 1 or more")
POSITIVE_OR_NULL = Rule(_optional(_whole(1)), "a whole number, 1 or more, or null")
SIZE = Rule(
    lambda v: v is None or _text(v) or _whole(1)(v),
    "a whole number, 1 or more, or the shape of an input",
)
SHARE = Rule(lambda v: _number(v) and 0 <= v <= 1, "a number from 0 to 1")
POSITIVE_NUMBER = Rule(_positive, "a number above 0")
POSITIVE_NUMBER_OR_NULL = Rule(_optional(_positive), "a number above 0, or null")
NOT_NEGATIVE = Rule(_not_negative, "a number, 0 or more")
SEED = Rule(_whole(0, MAX_SEED), f"a whole number from 0 to {MAX_SEED}")
WIDTH = Rule(_whole(1, MAX_WIDTH), f"a whole number from 1 to {MAX_WIDTH}")
THREADS = Rule(
    _optional(_whole(1, MAX_THREADS)), f"a whole number from 1 to {MAX_THREADS}, or null"
)
EXTENT = Rule(_whole(0, MAX_EXTENT), f"a whole number from 0 to {MAX_EXTENT}")
TRUE_OR_FALSE = Rule(lambda value: isinstance(value, bool), "true or false")
TRUE_FALSE_OR_NULL = Rule(lambda v: v is None or isinstance(v, bool), "true, false or null")

TEXT = Rule(_optional(_path), "a path (a number in quotes: \"'3'\")")
WORDS = Rule(_optional(_text), "text (a number in quotes: \"'3'\")")
NAMES = Rule(_list_of(_text), "a list [...]")
ONE_OR_SEVERAL = Rule(
    lambda v: v is None or _text(v) or _list_of(lambda x: type(x) in (str, int, float))(v),
    "a name or a list [...] of them",
)
NUMBERS = Rule(_list_of(_number), "a list [...] of numbers")
ENTRIES = Rule(_list_of(lambda x: type(x) is dict), "a list [...] of entries {...}")
CHOSEN = Rule(  # the choice of a group, which some commands take as a plain name
    lambda v: isinstance(v, dict) or ONE_OR_SEVERAL.accepts(v), ONE_OR_SEVERAL.wanted
)
MADE = Rule(
    _optional(lambda v: isinstance(v, dict) and "_target_" in v), "null, or {...} with a _target_"
)
NOT_GIVEN = Rule(lambda _: False, "left out: the run gives it; run_id=NAME names the run")
# Options (of "data." all) that have another default and may be null all the same.
MAY_BE_NULL = {
    "cache", "data.", "drafts", "logger.", "optimizer.", "platform.", "trainer.",
    "compare", "references", "tasks", "workload.epilogue",
}  # fmt: skip
SEVERAL_BY_DEFAULT_ONE = {"method", "workload", "platform"}  # text that may be a list

# Options of earlier versions and their present names; old run folders are read through it.
NO_EFFECT = ("name", "folder", "about")  # of logger=; earlier versions took and ignored them
RENAMED = {"beside": "baselines", "measure.alone": "measure.exclusive"}

# Options that share a rule. Some have no default that would show their kind.
_SHARED: Sequence[tuple[Rule, str]] = (
    (TEXT, "outputs checkpoint resume out bundle work_dir policy.weights"),
    (NAMES, "models.own split.held_out"),
    (SEED, "seed split.seed"),
    (POSITIVE_OR_NULL,
     "batches.per_task batches.window stop_after patience budget.trials budget.patience "
     "budget.max_steps adaptation.fit.max_steps measure.builders measure.devices trials "
     "candidates"),
    (SIZE, "sizes.batch sizes.image sizes.length sizes.layers"),
    (POSITIVE,
     "min_programs schedule.soup_epochs budget.batch budget.tasks budget.least budget.held_out "
     "budget.label_tasks budget.source_programs measure.number measure.repeats runner.port "
     "runner.session_timeout_s"),
    (TRUE_OR_FALSE,
     "train_failures policy.draft_leads verify compile_only "
     "measure.flush_cache measure.check inputs.relative features.psa check setup"),
    (COUNT, "trainer.max_epochs measure.min_repeat_ms"),
    (COUNT_OR_NULL, "effort.patience measure.finalists"),
    (POSITIVE_NUMBER,
     "optimizer.lr budget.spread measure.build_timeout_s measure.run_timeout_s "
     "measure.reference_timeout_s measure.memory_gib runner.health_timeout_s loss.weight "
     "program_timeout_s workload.weight"),
    (NOT_NEGATIVE, "refit energy optimizer.weight_decay budget.tolerance policy.prior"),
    (WIDTH,
     "model.width model.num_heads model.num_dataflow_rows model.dataflow_hidden "
     "model.dataflow_width model.draft_width model.device_width"),
    (POSITIVE_NUMBER_OR_NULL,
     "below_ms budget.seconds effort.seconds platform.half_flops_per_s "
     "platform.tensor_half_flops_per_s "
     "platform.tensor_half_into_half_flops_per_s platform.tensor_bfloat16_flops_per_s "
     "platform.tensor_int8_ops_per_s platform.official_peak_flops_per_s "
     "platform.official_dram_bytes_per_s measure.cv_limit measure.stop_above"),
    (THREADS, "num_threads num_workers"),
    (MADE, "adaptation.fit loss.beside online_fit policy.draft schedule.factory"),
    (WORDS,
     "logger.group authors entry file learned_from machine network notes origin report results set "
     "source platform.name workload.function"),
    (TRUE_FALSE_OR_NULL, "logger.offline measure.exclusive measure.baseline"),
    (SHARE, "policy.epsilon policy.measured_share"),
    (ONE_OR_SEVERAL, "baselines data.platform model.without only plot warm_start"),
)  # fmt: skip
RULES: dict[str, Rule] = {
    **{name: rule for rule, names in _SHARED for name in names.split()},
    "platform": CHOSEN,
    **dict.fromkeys((f"logger.{name}" for name in NO_EFFECT), NOT_GIVEN),
    "data.root": Rule(_optional(_path), "a folder (a number in quotes: \"'3'\")"),
    "networks": Rule(lambda v: WORDS.accepts(v) or NAMES.accepts(v), "a list [...] of names"),
    "leave_out": Rule(
        lambda value: value in (None, "all", "none") or NAMES.accepts(value),
        "all, none, null or a list [...] of names",
    ),
    "seeds": Rule(
        _optional(lambda v: bool(v) and _list_of(_whole(0, MAX_SEED))(v) and len({*v}) == len(v)),
        "a list with at least one seed, each once, or null",
    ),
    "trainer.strategy": _one_of("auto", "ddp"),
    "policy.first": _one_of("random", "lm"),
    "train_share": Rule(_between_0_and_1, "a number above 0, at most 1"),
    "train_pick": _one_of("random", "spread", "tasks"),
    "scaler": Rule(lambda value: value in (None, "keep", "renew"), "keep, renew or null"),
    "keep": _one_of("best", "last"),
    "trainer.devices": Rule(
        lambda v: isinstance(v, str | list) or _whole(-1, MAX_THREADS)(v), "a number of devices"
    ),
    "trainer.num_sanity_val_steps": Rule(_whole(-1), "a whole number, 0 or more, or -1 for all"),
    "trainer.gradient_clip_val": Rule(_optional(_not_negative), "a number, 0 or more, or null"),
    "budget.labels": Rule(
        _list_of(lambda x: x == "all" or _whole(0)(x)),
        "a list of whole numbers, 0 or more, and all",
    ),
    "measure.device": Rule(
        lambda v: TEXT.accepts(v) or (type(v) is int and v >= 0),
        "a device's number, or words of its name",
    ),
    "workload.padding": Rule(
        lambda v: v in ("SAME", "VALID") or EXTENT.accepts(v), "a whole number, SAME or VALID"
    ),
    "runner.kind": _one_of("local", "rpc"),
    "policy.first_apart": Rule(_optional(_not_negative), "a number, 0 or more, or null"),
    "measure.lag": Rule(_optional(_whole(0, 8)), "a whole number from 0 to 8, or null"),
    "inputs.scale": _one_of("standard", "max"),
    "features.dataflow": _one_of("paper", "official", "fragments"),
    "data.duplicates": _one_of("drop", "keep"),
    "draft.form": _one_of("hardware", "paper", "official"),
    "task_order": _one_of("gradient", "round_robin"),
    "objective": Rule(
        _objective,
        "latency, energy, edp, [latency,size] or [latency,energy]",
    ),
    "spaces": _one_of("batched", "replay"),
    "run_id": Rule(_optional(_name), "a folder name without separators"),
    "loss.share": Rule(_between_0_and_1, "a number above 0, below 1"),
    "pool": Rule(
        lambda v: isinstance(v, dict) or POSITIVE_OR_NULL.accepts(v), POSITIVE_OR_NULL.wanted
    ),
    "target": Rule(
        lambda v: isinstance(v, dict) or WORDS.accepts(v), "a name, or {...} as TVM takes it"
    ),
    "workloads": Rule(
        lambda v: WORDS.accepts(v) or ENTRIES.accepts(v), "a name, or a list [...] of {...}"
    ),
    # "true" of fewer or more bits would convert a batch's frozen values, which Lightning cannot
    "trainer.precision": _one_of("32-true", "16-mixed", "bf16-mixed"),
}  # fmt: skip


def check_options(config: DictConfig, defaults: Sequence[Mapping[str, Any]] = ()) -> None:
    """Refuse values that break a rule (`PrunerError`); skip options that are absent.

    An option without a rule of its own keeps the kind of its value in `defaults`, the values of the
    chosen files: truth value, finite number (whole or not negative as it is), text, list, or
    options of its own.
    """
    values: dict[str, Any] = plain(config)
    judged = set()
    for name, rule in RULES.items():
        found, value = _at(values, name)
        if found:
            judged.add(name)
            _check(name, value, rule)
    for given in defaults:
        for name, default in walk(given):
            found, value = _at(values, name)
            like = _like(name, default)
            may_be_null = {name, "".join(name.partition(".")[:2])} & MAY_BE_NULL
            if not found or like is None or (value is None and may_be_null):
                continue
            is_text = isinstance(default, str)
            if value is None and (is_text or (isinstance(default, list) and name not in judged)):
                raise PrunerError(f"{name}=null: it must be {like.wanted}")
            if name not in judged:
                _check(name, value, like)


def _at(values: Mapping[str, Any], name: str) -> tuple[bool, Any]:
    """Look an option up by dotted name: whether it exists, its value."""
    value: Any = values
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            return False, None
        value = value[part]
    return True, value


def walk(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted names and values of everything in nested mappings, mappings first."""
    for key, value in values.items():
        name = f"{path}.{key}" if path else str(key)
        yield name, value
        if isinstance(value, Mapping):
            yield from walk(value, name)


def _like(name: str, default: Any) -> Rule | None:
    """Choose the rule of a default's kind; None where it has none."""
    if isinstance(default, Mapping):
        first = next((key for key in default if not str(key).startswith("_")), "NAME")
        wanted = f"given by its own options, such as {name}.{first}="
        return Rule(lambda value: isinstance(value, Mapping), wanted)
    if isinstance(default, bool):
        return TRUE_OR_FALSE
    if name.startswith("workload.") and isinstance(default, int):
        return EXTENT
    if isinstance(default, int) and default >= 0:
        return COUNT
    if isinstance(default, int | float):
        return NOT_NEGATIVE if default >= 0 else Rule(_number, "a number")
    if isinstance(default, str) and "${" not in default:
        return ONE_OR_SEVERAL if name in SEVERAL_BY_DEFAULT_ONE else WORDS
    if isinstance(default, list):
        if any(isinstance(item, dict) for item in default):
            return ENTRIES
        return NUMBERS if default and all(map(_number, default)) else ONE_OR_SEVERAL
    return None


def _check(name: str, value: Any, rule: Rule) -> None:
    if not rule.accepts(value):
        raise PrunerError(f"{name}={value}: it must be {rule.wanted}")


def plain(config: Any) -> Any:
    """Resolve a configuration node into dicts, lists and scalars."""
    if OmegaConf.is_config(config):
        return OmegaConf.to_container(config, resolve=True)
    return config


def several(given: Any) -> list[str]:
    """Convert nothing, a name or a list of names to a list."""
    named = plain(given)
    return [] if named is None else [named] if isinstance(named, str) else list(named)


def choice(group: str) -> str:
    """Return the chosen file of a configuration group."""
    return str(HydraConfig.get().runtime.choices[group])


def words_of(group: str) -> list[str]:
    """List the words of the command line for a group of options."""
    words = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    return [w for w in words if w.lstrip("+~").split("=")[0].split(".")[0] == group]


def build(config: DictConfig | Mapping[str, Any], **kwargs: Any) -> Any:
    """Instantiate a `_target_`; raise `PrunerError` if its constructor refuses."""
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


def check_logger(config: DictConfig) -> None:
    """Refuse a logger that cannot begin (`PrunerError`); CSV files always can."""
    target = OmegaConf.select(config, "logger._target_")
    if target not in (None, "pruner.cli.shared.loggers.csv"):
        import_module("pruner.cli.shared.loggers").check(config)  # imports torch


def own_models(paths: Sequence[str]) -> list[type[Any]]:
    """Import the user's classes (``models.own=``); raise `PrunerError` if an import fails."""
    found = []
    for path in paths:
        try:
            found.append(get_class(path))
        except (ImportError, ValueError) as error:
            message = " ".join(line.strip() for line in str(error).splitlines()[:2])
            raise PrunerError(f"models.own={path}: {message}") from error
    return found
