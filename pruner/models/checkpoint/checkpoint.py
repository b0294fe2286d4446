"""Checkpoints: weights, normalisation and everything needed to refuse a wrong use of them.

One file, readable without running code in it (`torch.load(weights_only=True)`): format number, name
and arguments of the model (:mod:`pruner.models.registry`), state, feature-set version, the full
configuration, git commit, the tasks it was fitted and validated on, and the metrics of its run.
"""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from pruner.data.tasks import TaskKey
from pruner.data.tenset.safe_pickle import first_line
from pruner.errors import DataError, PrunerError
from pruner.features.dataflow import NUM_ROWS
from pruner.files import write_whole
from pruner.models.checkpoint.archive import load_archive
from pruner.models.programs.scaler import ColumnScaler
from pruner.models.ranker import NeuralRanker, Ranker
from pruner.models.registry import MODELS, ModelSpec, Trainable
from pruner.models.trees.xgboost import TreeRanker

FORMAT = 2  # 1 had the dotted path of the class; it is still read
READABLE = (1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInfo:
    """What a checkpoint says about itself.

    `model` names the class and its arguments; `dataflow` is "paper" or
    "official"; `seen_tasks` maps a platform to the tasks used for fitting or validation.
    """

    model: ModelSpec
    feature_version: str
    dataflow: str
    config: Mapping[str, Any] = field(default_factory=dict)
    git_commit: str = "unknown"
    seen_tasks: Mapping[str, list[str]] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)

    def has_seen(self, key: TaskKey) -> bool:
        """Whether the task was used for fitting or validation."""
        return key.task in self.seen_tasks.get(key.platform, ())


def save_checkpoint(path: Path, ranker: Ranker, info: CheckpointInfo) -> None:
    """Write one checkpoint, atomically: a reader sees the old file or the whole new one."""
    content = {
        "format": FORMAT,
        "model": {"name": info.model.name, "arguments": _plain(info.model.arguments)},
        "feature_version": info.feature_version,
        "dataflow": info.dataflow,
        "config": _plain(info.config),
        "git_commit": info.git_commit,
        "seen_tasks": _plain(info.seen_tasks),
        "metrics": _plain(info.metrics),
        "state": _state(ranker),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    # into an open file: given a path, torch writes its name into the archive
    with write_whole(path) as partial, partial.open("wb") as file:
        torch.save(content, file)


def load_checkpoint(
    path: Path,
    *,
    feature_version: str | None = None,
    models: Mapping[str, type[Trainable]] = MODELS,
) -> tuple[Ranker, CheckpointInfo]:
    """Read a checkpoint, in evaluation mode, on the CPU.

    With `feature_version` (the version of the features it is going to score) a checkpoint of
    another version is refused. `models` are the classes that it may name. Raises DataError for a
    missing, damaged or mismatching file, or another name.
    """
    content = _read(path)
    try:
        info = _info(content)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: not what a checkpoint says about itself ({error!r})") from error
    if feature_version is not None and info.feature_version != feature_version:
        raise DataError(
            f"{path}: made for feature-set version {info.feature_version!r}, this installation "
            f"computes {feature_version!r}; retrain, or check out commit {info.git_commit[:10]}"
        )
    try:
        return _restored(info.model, content["state"], models), info
    except PrunerError as error:
        raise type(error)(f"{path}: {error}") from error
    except Exception as error:  # arguments and states of every model fail in ways of their own
        told = first_line(error)
        raise DataError(
            f"{path}: its state does not fit a {info.model.name} ({type(error).__name__}: {told})"
        ) from error


def _info(content: Mapping[str, Any]) -> CheckpointInfo:
    """What a file says about itself; raises KeyError, TypeError or ValueError."""
    fields = {name: content[name] for name in CheckpointInfo.__dataclass_fields__}
    info = CheckpointInfo(**fields | {"model": ModelSpec.from_content(content["model"])})
    for value in (info.feature_version, info.git_commit):
        if not isinstance(value, str):
            raise TypeError(f"{value!r:.40} is no text")
    for mapping in (info.config, info.seen_tasks, info.metrics):
        if not isinstance(mapping, dict):
            raise TypeError(f"{mapping!r:.40} is no mapping")
    if info.dataflow not in NUM_ROWS:
        raise ValueError(f"dataflow {info.dataflow!r:.40}")
    if not all(isinstance(tasks, list) for tasks in info.seen_tasks.values()):
        raise TypeError("seen tasks that are no lists")
    return info


def _state(ranker: Ranker) -> dict[str, Any]:
    match ranker:
        case NeuralRanker():
            return {
                "network": {k: v.detach().cpu() for k, v in ranker.network.state_dict().items()},
                "scaler": {k: v.detach().cpu() for k, v in ranker.scaler.state_dict().items()},
                "relative": ranker.relative,
            }
        case TreeRanker():
            return {"booster": ranker.state()}
        case _:
            raise TypeError(f"cannot store a {type(ranker).__name__}")


def _restored(
    spec: ModelSpec, state: Mapping[str, Any], models: Mapping[str, type[Trainable]]
) -> Ranker:
    """The model with what `_state` gave."""
    with torch.device("meta"):  # costs no memory, whatever size the arguments claim
        model = spec.build(models)
    if isinstance(model, TreeRanker):
        model.load_state(state["booster"])
        return model
    _check_weights(model.state_dict(), state["network"])
    network = spec.build(models)
    assert not isinstance(network, TreeRanker)
    network.load_state_dict(state["network"])
    scaler = ColumnScaler()
    _check_numbers(state["scaler"])
    scaler.load_state_dict(state["scaler"])
    if not isinstance(state["relative"], bool):
        raise DataError("inputs.relative is neither true nor false")
    return NeuralRanker(network, scaler, relative=state["relative"]).eval()


def _check_weights(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Raise DataError where weights are not those of the model."""
    odd = sorted(wanted.keys() ^ found.keys())
    odd += [k for k in wanted.keys() & found.keys() if wanted[k].shape != found[k].shape]
    if odd:
        raise DataError(f"the weights are not those of the model; they differ in {odd[0]}")
    _check_numbers(found)


def _check_numbers(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if bool(torch.isnan(value).any()):
            raise DataError(f"{name} holds values that are not numbers")


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise DataError(f"checkpoint {path} does not exist; train one with train.py")
    try:
        content = load_archive(path)
    except DataError as error:
        raise DataError(
            f"{path} is not a Pruner checkpoint, or a damaged one; train.py writes them ({error})"
        ) from error
    if not isinstance(content, dict) or content.get("format") not in READABLE:
        raise DataError(f"{path} is not a Pruner checkpoint of format 1 or 2")
    return content


def _plain(value: Any) -> Any:
    """Reduce mappings and sequences to dict and list, so that reading needs no class of ours."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def git_commit() -> str:
    """Commit of the source tree this code runs from, with "+changes", or "unknown"."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments],
            cwd=Path(__file__).parent,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
