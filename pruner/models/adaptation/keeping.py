"""Save an adaptation's models as checkpoints, with the tasks they have seen."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pruner import features
from pruner.data.tasks import TaskKey
from pruner.errors import PrunerError
from pruner.features.dataflow import DataflowKind
from pruner.models.adaptation.base import Adaptation
from pruner.models.checkpoint.checkpoint import CheckpointInfo, git_commit, save_checkpoint
from pruner.models.registry import ModelSpec
from pruner.models.training.start import Start


def fresh_info(adaptation: Adaptation, dataflow: DataflowKind) -> CheckpointInfo:
    """The description of a model with random weights; raises PrunerError for an unknown class."""
    return CheckpointInfo(
        model=ModelSpec.of(adaptation.setting.make_network),
        feature_version=features.FEATURE_SET_VERSION,
        dataflow=dataflow,
    )


def adapted_info(
    adaptation: Adaptation, start: Start | None, dataflow: DataflowKind, keys: Iterable[TaskKey]
) -> CheckpointInfo:
    """The description of an adaptation's models: the tasks that they have seen.

    These are the tasks of `start` and the tasks `keys` of the target, as far as they are still in
    the weights: training from scratch drops those of `start`, and a model without updates has none
    of the target.
    """
    if start is None:
        info = fresh_info(adaptation, dataflow)
    elif adaptation.keeps_source:
        info = replace(start.info, **start.inherited)
    else:
        info = replace(start.info, seen_tasks={}, seen_workloads={}, lineage=[])
    info = replace(
        info, feature_version=features.FEATURE_SET_VERSION, metrics={}, git_commit=git_commit()
    )
    return info.with_seen(keys) if adaptation.learns else info


def save_models(
    adaptation: Adaptation,
    path_of: Callable[[str], Path],
    *,
    start: Start | None,
    dataflow: DataflowKind,
    keys: Iterable[TaskKey],
    about: Mapping[str, Any],
) -> dict[str, Path]:
    """Write every model of an adaptation; returns file by name.

    `start` is the source model that it began with, `keys` the tasks that it has learned from since,
    `about` goes into the configuration as information. Nothing is written where no checkpoint can
    name the model.
    """
    try:
        info = adapted_info(adaptation, start, dataflow, keys)
    except PrunerError:  # made by a function: nobody could build it again
        return {}
    written = {}
    for name, ranker in adaptation.models.items():
        path = written[name] = path_of(name)
        adapted = {**about, "model": name}
        save_checkpoint(path, ranker, replace(info, config={**info.config, "adapted": adapted}))
    return written
