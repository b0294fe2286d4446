"""Run folders ``<outputs>/<command>/<run id>/``, their configuration, and resuming."""

import shlex
import time
from collections.abc import Collection, Sequence
from hashlib import sha256
from pathlib import Path

import yaml
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pruner.cli.shared.options import NO_EFFECT, RENAMED, check_logger, check_options, plain
from pruner.cli.shared.trust import named_code
from pruner.errors import DataError, PrunerError
from pruner.files import METRICS_FILE, check_links, hold, load_metrics, write_text
from pruner.signing import is_own, signature

CONFIG_FILE = "config.yaml"
_VERIFY = {
    "_target_": "pruner.search.explorer.ExplorerSettings", "population": 1536, "keep": 64,
}  # fmt: skip
MAX_CHARS = 1 << 18  # of a configuration: runs write some kilobytes
_SHA256, _SIGNED = "# sha256 of the options below: ", ", signed "
# Errors of a file that is no configuration.
BROKEN = AssertionError, RecursionError, ValueError, yaml.YAMLError, OmegaConfBaseException
MAKERS = ("train", "import_checkpoint")  # commands whose runs end with a checkpoint
# Options that a resumed run may change: they affect how it runs, not its results.
RESUMABLE = (
    "outputs", "run_id", "resume", "stop_after", "method", "num_threads", "num_workers",
    "cache",
    "trainer.accelerator", "trainer.devices", "trainer.max_epochs",
)  # fmt: skip


def open_run(config: DictConfig, command: str, label: str, earlier: Path | None = None) -> Path:
    """Make and lock a run folder, or take the `earlier` folder; write the configuration."""
    folder = earlier or new_run_folder(Path(config.outputs), command, config.run_id, label)
    if earlier is None:
        hold(folder)
    save_config(folder, config)
    return folder


def new_run_folder(outputs: Path, command: str, run_id: str | float | None, label: str) -> Path:
    """Make a run folder, not locked; refuse a given id that exists."""
    parent = outputs / command
    parent.mkdir(parents=True, exist_ok=True)
    label = label.replace("/", "-")
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{label}" if run_id is None else str(run_id)
    # Two runs of one second: the later ones get a number.
    for candidate in [name, *(f"{name}-{i}" for i in range(2, 1000))] if run_id is None else [name]:
        try:
            (parent / candidate).mkdir()
        except FileExistsError:
            continue
        return parent / candidate
    raise PrunerError(
        f"run_id={name}: {parent / name} exists and is never overwritten; choose another"
    )


def save_config(folder: Path, config: DictConfig) -> None:
    """Write the configuration under its first command, SHA-256 and signature."""
    text = OmegaConf.to_yaml(config, resolve=True)
    signed = f"{_SIGNED}{own}" if (own := signature(text)) else ""
    text = f"{_SHA256}{sha256(text.encode()).hexdigest()}{signed}\n{text}"
    path = folder / CONFIG_FILE
    first = path.read_text(encoding="utf-8").partition("\n")[0] if path.is_file() else ""
    if first.startswith("# ") and not first.startswith(_SHA256):
        text = f"{first}\n{text}"
    elif HydraConfig.initialized():
        hydra = HydraConfig.get()
        text = f"# {shlex.join([hydra.help.app_name, *hydra.overrides.task])}\n{text}"
    write_text(path, text)


def last_checkpoint(outputs: Path) -> Path:
    """Find the newest checkpoint of a finished run; raise `PrunerError` if there is none."""
    found = [path for path in outputs.glob(f"*/*/{METRICS_FILE}") if path.parts[-3] in MAKERS]
    for path in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True):
        checkpoint = (load_metrics(path.parent) or {}).get("checkpoint")
        if isinstance(checkpoint, str) and Path(checkpoint).is_file():
            return Path(checkpoint)
    raise PrunerError(f"checkpoint=last: no finished run with a checkpoint in {outputs}")


def read_config(path: Path, named: Collection[str] = ()) -> DictConfig:
    """Read the file of `save_config`; raise `DataError` where it was changed.

    Also where another user wrote it, and it names code that neither ``conf/`` nor `named` has.
    """
    try:
        text = path.read_text(encoding="utf-8")
        _, found, rest = text.partition(_SHA256)
        seal, _, options = rest.partition("\n")
        written, _, signed = seal.strip().partition(_SIGNED)
        if found and sha256(options.encode()).hexdigest() != written:
            raise DataError(
                f"{path}: not as the run wrote it (its SHA-256 differs); put it back, or start a "
                "new run"
            )
        if len(text) > MAX_CHARS:
            raise ValueError(f"more than {MAX_CHARS} characters")
        # a few aliases of YAML expand in memory
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            raise ValueError("parts that stand for others, which no run writes")
        config = OmegaConf.create(text)
        if not isinstance(config, DictConfig):
            raise DataError(f"{path}: no configuration; start a new run")
        rename_options(config)
        for word in () if is_own(options, signed) else named_code(plain(config)):
            if word not in named:
                raise DataError(
                    f"{path}: it executes {word}, and another user or another machine began this "
                    "run; if you trust it, give the option again with resume=, or start a new run"
                )
        check_options(config)
    except BROKEN as error:
        message = " ".join(str(error).split())[:120]
        raise DataError(f"{path}: no configuration ({message}); start a new run") from error
    except DataError:
        raise
    except PrunerError as error:  # a value that was changed by hand
        raise DataError(f"{path}: {error}; put it back, or start a new run") from error
    return config


def rename_options(config: DictConfig) -> None:
    """Give options of earlier versions their present names; drop those without effect."""
    if isinstance(config.get("logger"), DictConfig):
        for name in NO_EFFECT:
            config.logger.pop(name, None)
    policy = config.get("policy")
    if isinstance(policy, DictConfig):
        if str(policy.get("_target_")).endswith(".AdaTuneSettings"):
            policy.pop("epsilon", None)  # the spread of its forest overwrote it
        if policy.pop("verify_only_draft", False):
            if "verify" not in policy:  # older files leave it to its default
                policy.verify = _VERIFY
            OmegaConf.update(policy, "verify.generations", 0, force_add=True)
    for old, new in RENAMED.items():
        path, _, key = old.rpartition(".")
        node = OmegaConf.select(config, path) if path else config
        if isinstance(node, DictConfig) and key in node:
            OmegaConf.update(config, new, node.pop(key), force_add=True)


def continued(config: DictConfig) -> tuple[DictConfig, Path | None]:
    """Return configuration and folder of the run of ``resume=``; else `config` and None."""
    if config.resume is None:
        return config, None
    return resumed_config(Path(config.resume), config), Path(config.resume)


def epochs_before(folder: Path) -> int:
    """Return the max_epochs that a resumed run has had so far."""
    return int(OmegaConf.load(folder / CONFIG_FILE).trainer.max_epochs)


def resumed_config(folder: Path, config: DictConfig, more: Sequence[str] = ()) -> DictConfig:
    """Lock an earlier run; return its configuration with changes of `config`.

    Raises `DataError` for another folder, `PrunerError` for a change beyond `RESUMABLE` and `more`.
    """
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise DataError(f"resume={folder}: no {CONFIG_FILE} there; name a run folder")
    check_links(folder)
    hold(folder)
    earlier = read_config(path, HydraConfig.get().overrides.task)
    lacking = sorted(str(name) for name in config if name not in earlier and name not in RESUMABLE)
    if lacking:
        raise DataError(
            f"resume={folder}: a run of another command or an older version, it has no option "
            f"{lacking[0]}; start a new run"
        )
    earlier.stop_after = None
    refused = []
    for override in HydraConfig.get().overrides.task:
        name = override.lstrip("+~").split("=")[0]
        value = plain(OmegaConf.select(config, name))
        if name in (*RESUMABLE, *more):
            OmegaConf.update(earlier, name, value, merge=False)  # replaces a group completely
        elif name == "experiment" or value != plain(OmegaConf.select(earlier, name)):
            refused.append(override)
    if refused:
        raise PrunerError(
            f"resume continues the run as it was, with its experiment=; leave out "
            f"{' '.join(refused)}, or start a new run"
        )
    check_logger(earlier)
    return earlier
