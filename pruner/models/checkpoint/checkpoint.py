"""Checkpoints: weights, normalisation, and a description that prevents wrong use.

One safetensors file, readable without running code in it (:mod:`pruner.models.checkpoint.tensors`):
format number, name and arguments of the model (:mod:`pruner.models.registry`), state, feature-set
version, the full configuration, git commit, the tasks it was fitted and validated on, the models
that it continues, and the metrics of its run. Files of earlier versions have the same content.
"""

import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from pruner.data.tasks import TaskKey
from pruner.data.tenset.safe_pickle import first_line
from pruner.errors import DataError, PrunerError
from pruner.features.dataflow import NUM_ROWS, kind_of
from pruner.features.versions import unchanged_rows
from pruner.models.checkpoint.tensors import SUFFIX, load_content, save_tensors
from pruner.models.programs.scaler import ColumnScaler
from pruner.models.ranker import NeuralRanker, Ranker
from pruner.models.registry import MODELS, ModelSpec, ModelTable, Trainable
from pruner.models.trees.xgboost import TreeRanker
from pruner.paths import boxed_checkpoints

FORMAT = 2  # 1 had the dotted path of the class; it is still read
READABLE = (1, 2)
BEST = f"best{SUFFIX}"  # the checkpoint of the best epoch, in the folder of a fit
MODELS_FOLDER = "models"  # of a run that adapts
ADAPTED, SIAMESE = "adapted", "siamese"  # names of its models there
ADDED = ("seen_workloads", "lineage")  # fields that older files of format 2 do not have


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInfo:
    """The description in a checkpoint.

    `model` names the class and its arguments; `dataflow` is "paper" or "official"; `seen_tasks`
    maps a platform to the tasks used for fitting or validation, by this model or by a model that it
    continues; `seen_workloads` their identities (`TaskKey.identity`), platform to task to identity,
    as far as recorded. `lineage`: the models that it continues, the oldest first, each a mapping of
    ``checkpoint`` (a name for people), ``sha256`` of the file and ``says_seen``, whether that file
    lists its seen tasks.
    """

    model: ModelSpec
    feature_version: str
    dataflow: str
    config: Mapping[str, Any] = field(default_factory=dict)
    git_commit: str = "unknown"
    seen_tasks: Mapping[str, list[str]] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    seen_workloads: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    lineage: Sequence[Mapping[str, Any]] = field(default_factory=list)

    def has_seen(self, key: TaskKey) -> bool:
        """Whether the task, or the same work on its platform, was seen."""
        work = self.seen_workloads.get(key.platform, {})
        return key.task in self.seen_tasks.get(key.platform, ()) or key.identity in work.values()

    @property
    def identities(self) -> frozenset[str]:
        """Identities of the seen workloads on all platforms, as far as recorded."""
        return frozenset(one for tasks in self.seen_workloads.values() for one in tasks.values())

    def has_seen_work(self, key: TaskKey) -> bool:
        """Whether the task, or the same work on another platform, was used."""
        return self.has_seen(key) or key.identity in self.identities

    @property
    def says_seen(self) -> bool:
        """Whether all seen tasks are listed, also by the lineage."""
        return bool(self.seen_tasks) and all(one["says_seen"] for one in self.lineage)

    def with_seen(self, keys: Iterable[TaskKey]) -> "CheckpointInfo":
        """The same description with these tasks added to the seen tasks."""
        tasks = {platform: set(names) for platform, names in self.seen_tasks.items()}
        work = {platform: dict(known) for platform, known in self.seen_workloads.items()}
        for key in keys:
            tasks.setdefault(key.platform, set()).add(key.task)
            work.setdefault(key.platform, {})[key.task] = key.identity
        return replace(
            self,
            seen_tasks={platform: sorted(names) for platform, names in sorted(tasks.items())},
            seen_workloads={
                name: dict(sorted(known.items())) for name, known in sorted(work.items())
            },
        )

    def inherited(self, path: Path) -> dict[str, Any]:
        """Lineage and seen tasks of a model that continues this model of `path`."""
        own = {
            "checkpoint": "/".join(path.parts[-2:]),
            "sha256": sha256(path.read_bytes()).hexdigest(),
            "says_seen": self.says_seen,
        }
        return {
            "seen_tasks": self.seen_tasks,
            "seen_workloads": self.seen_workloads,
            "lineage": [*self.lineage, own],
        }


def save_checkpoint(
    path: Path, ranker: Ranker, info: CheckpointInfo, *, half: bool = False
) -> None:
    """Write a checkpoint atomically: readers get the old or the new file.

    With `half` the weights of a network are stored in float16, half the bytes; statistics of
    features, which exceed float16, stay float32. Reading gives float32 again. Raises PrunerError
    for weights beyond float16.
    """
    content: dict[str, Any] = {"format": FORMAT}  # in the order of the fields
    content |= {name: _plain(getattr(info, name)) for name in CheckpointInfo.__dataclass_fields__}
    content["model"] = {"name": info.model.name, "arguments": _plain(info.model.arguments)}
    content["state"] = _state(ranker, half=half)
    save_tensors(path, content)


def load_checkpoint(
    path: Path,
    *,
    feature_version: str | None = None,
    models: ModelTable = MODELS,
) -> tuple[Ranker, CheckpointInfo]:
    """Read a checkpoint, in evaluation mode, on the CPU.

    With `feature_version` (the version of the features to score) a checkpoint of another version is
    refused, unless no column that it learned from has changed since. `models` are the allowed
    classes by name. Raises DataError for a missing, damaged or mismatching file, or another name.
    """
    content = _read(path)
    try:
        info = _info(content)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: no valid description of a checkpoint ({error!r})") from error
    try:
        if feature_version is not None:
            _check_features(info, feature_version, models)
        return _restored(info.model, content["state"], models), info
    except PrunerError as error:
        raise type(error)(f"{path}: {error}") from error
    except Exception as error:  # arguments and states of every model fail in ways of their own
        message = first_line(error)
        raise DataError(
            f"{path}: its state does not fit a {info.model.name} ({type(error).__name__}: "
            f"{message})"
        ) from error


def _info(content: Mapping[str, Any]) -> CheckpointInfo:
    """The description in a file; raises KeyError, TypeError or ValueError."""
    known = [n for n in CheckpointInfo.__dataclass_fields__ if n in content or n not in ADDED]
    fields = {name: content[name] for name in known}
    info = CheckpointInfo(**fields | {"model": ModelSpec.from_content(content["model"])})
    for names, kind, what in (
        (("feature_version", "git_commit"), str, "text"),
        (("config", "seen_tasks", "metrics", "seen_workloads"), dict, "mapping"),
    ):
        for value in (getattr(info, name) for name in names):
            if not isinstance(value, kind):
                raise TypeError(f"{value!r:.40} is no {what}")
    if info.dataflow not in NUM_ROWS:
        raise ValueError(f"dataflow {info.dataflow!r:.40}")
    if not all(isinstance(tasks, list) for tasks in info.seen_tasks.values()):
        raise TypeError("seen tasks that are no lists")
    for found in info.seen_workloads.values():
        if not isinstance(found, dict) or not all(isinstance(one, str) for one in found.values()):
            raise TypeError("seen workloads that are no mappings of texts")
    if not isinstance(info.lineage, list) or not all(
        isinstance(one, dict) and isinstance(one.get("says_seen"), bool) for one in info.lineage
    ):
        raise TypeError("a lineage that is no list of checkpoints")
    return info


def _check_features(info: CheckpointInfo, version: str, models: ModelTable) -> None:
    """Raise DataError where columns of the model changed up to `version`."""
    if info.feature_version == version:
        return
    platforms = list(info.seen_tasks) if info.says_seen else []
    unchanged = unchanged_rows(info.feature_version, version, platforms)
    if unchanged:
        rows = _without_weights(info.model, models).num_dataflow_rows
        if (None if rows is None else kind_of(rows)) in unchanged:
            return
    raise DataError(
        f"made for feature-set version {info.feature_version!r}, this installation computes "
        f"{version!r}; retrain, or check out commit {info.git_commit[:10]}"
    )


def _state(ranker: Ranker, *, half: bool) -> dict[str, Any]:
    """The state; with `half` parameters in float16, buffers (running statistics) as they are."""
    if isinstance(ranker, TreeRanker):
        return {"booster": ranker.state()}
    if not isinstance(ranker, NeuralRanker):
        raise TypeError(f"cannot store a {type(ranker).__name__}")
    parts = {"network": ranker.network, "scaler": ranker.scaler}
    found = {n: {k: v.detach().cpu() for k, v in p.state_dict().items()} for n, p in parts.items()}
    network = found["network"]
    for name, _ in ranker.network.named_parameters() if half else ():
        network[name] = network[name].half()
        if not bool(torch.isfinite(network[name]).all()):
            raise PrunerError(f"{name} has weights beyond float16; store it in float32")
    return {**found, "relative": ranker.relative}


def _restored(spec: ModelSpec, state: Mapping[str, Any], models: ModelTable) -> Ranker:
    model = _without_weights(spec, models)
    if isinstance(model, TreeRanker):
        _check_numbers({"booster": state["booster"]})
        model.load_state(state["booster"])
        return model
    # Against the meta network, before the real one: a file may claim layers of any size.
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


def _without_weights(spec: ModelSpec, models: ModelTable) -> Trainable:
    try:
        with torch.device("meta"):  # costs no memory, whatever size the arguments claim
            return spec.build(models)
    except (NotImplementedError, RuntimeError):  # a user's class that reads a value of a tensor
        return spec.build(models)


def _check_weights(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    odd = sorted(wanted.keys() ^ found.keys())
    odd += [k for k in wanted.keys() & found.keys() if wanted[k].shape != found[k].shape]
    if odd:
        raise DataError(f"the weights are not those of the model; they differ in {odd[0]}")
    _check_numbers(found)


def _check_numbers(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        # Earlier files could repeat a value without holding it: a few bytes of any shape.
        if not value.is_contiguous():
            raise DataError(f"{name} claims more values than the file has")
        if bool(torch.isnan(value).any()):
            raise DataError(f"{name} holds values that are not numbers")


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise DataError(
            f"checkpoint {path} does not exist; train one with train.py, or give "
            f"{' or '.join(boxed_checkpoints())}, which come with the project"
        )
    try:
        content = load_content(path)
    except DataError as error:
        raise DataError(
            f"{path} is not a Pruner checkpoint, or a damaged one; train.py writes them ({error})"
        ) from error
    if not isinstance(content, dict) or content.get("format") not in READABLE:
        raise DataError(f"{path} is not a Pruner checkpoint of format 1 or 2")
    return content


def _plain(value: Any) -> Any:
    """Reduce to dict and list, so that reading needs no class of ours."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def git_commit() -> str:
    """Commit of this code's source tree, with "+changes" if there are any, or "unknown"."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments],
            cwd=Path(__file__).parent,
            # `git status` would otherwise lock the index, which a user's own git may need.
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
