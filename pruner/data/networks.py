"""Read networks: how often each calls the recorded tasks.

A data root may have two kinds beside its records:

* ``network_info/*.task.pkl``, TenSet's, one file for each network, input size and compiler target;
* ``networks/<platform>/<name>/tasks.json``, ours: `pruner collect network=` writes them, and
  `tune.py network= list=true` the same file into its run folder.

`HELD_OUT` names the networks of published protocols. A name stands for a network at one input size
(``resnet_50@1x3x224x224``), or at every size (``resnet_50``).
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pruner.data.quarantine import MalformedError
from pruner.data.tasks import TaskKey
from pruner.data.tenset.task_pickle import NETWORK_INFO, PATTERN, read_task_pickle
from pruner.data.workload import parse_workload
from pruner.errors import DataError
from pruner.files import read_json

FOLDER = "networks"
TASKS = "tasks.json"
HELD_OUT: dict[str, tuple[str, ...]] = {
    # Section 7.3 of docs/paper.md, and the release's script that judges its analyzer.
    "pruner": (
        "resnet_50@1x3x224x224", "mobilenet_v2@1x3x224x224", "resnet3d_18@1x3x112x112x16",
        "bert_base@1x128", "bert_tiny@1x128",
    ),
    # TenSet's scripts/eval_model.py.
    "tenset": (
        "resnet_50@1x3x224x224", "mobilenet_v2@1x3x224x224", "resnext_50@1x3x224x224",
        "bert_base@1x128", "bert_tiny@1x128",
    ),
}  # fmt: skip
_TENSET_NAME = re.compile(r"\(\((\w+),\[(.*)\]\),\w+\)")
_SHAPE = re.compile(r"\(([\d,]+?),?\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedNetwork:
    """A network at one input size; `calls` of each task by its work's identity."""

    name: str
    calls: Mapping[str, int]
    kind: str | None = None
    platform: str | None = None

    @property
    def family(self) -> str:
        """Name without the input size."""
        return self.name.partition("@")[0]

    def weight(self, key: TaskKey) -> int:
        """Return the calls of a task, 0 for another target, platform or work."""
        if self.platform not in (None, key.platform):
            return 0
        if self.kind not in (None, key.target.partition(" ")[0]):
            return 0
        return self.calls.get(key.identity, 0)


def networks_of(data_root: Path | str) -> tuple[RecordedNetwork, ...]:
    """Read the networks beside a data root's records; raises `DataError` for a damaged file."""
    root = Path(data_root)
    pickled = sorted((root / NETWORK_INFO).glob(PATTERN))
    listed = sorted((root / FOLDER).glob(f"*/*/{TASKS}"))
    return (*map(_of_tenset, pickled), *map(_listed, listed))


def chosen_networks(
    networks: Sequence[RecordedNetwork], names: Sequence[str]
) -> tuple[RecordedNetwork, ...]:
    """Choose networks by protocol (`HELD_OUT`), family, or name; raises `DataError` without any."""
    if not networks:
        raise DataError(
            f"these records have no networks: expected {NETWORK_INFO}/{PATTERN} of TenSet, or "
            f"{FOLDER}/PLATFORM/NAME/{TASKS} of tune.py network=NAME list=true"
        )
    wanted = [each for name in names for each in HELD_OUT.get(name, (name,))]
    known = {name for network in networks for name in (network.name, network.family)}
    if missing := [name for name in wanted if name not in known]:
        raise DataError(
            f"networks {', '.join(missing)} are not with these records; known: "
            f"{', '.join(sorted({network.name for network in networks}))}"
        )
    return tuple(each for each in networks if {each.name, each.family} & set(wanted))


def _of_tenset(path: Path) -> RecordedNetwork:
    tasks = read_task_pickle(path)
    stem = path.name.removesuffix(PATTERN.removeprefix("*"))
    match = _TENSET_NAME.fullmatch(stem)
    sizes = "+".join(shape.replace(",", "x") for shape in _SHAPE.findall(match[2])) if match else ""
    kinds = {task.target.partition(" ")[0] for task in tasks}
    if len(kinds) != 1:
        raise DataError(f"{path}: tasks of one kind of target expected, found {sorted(kinds)}")
    return RecordedNetwork(
        name=f"{match[1]}@{sizes}" if match else stem,
        calls=_summed(path, [(task.workload_key, task.weight) for task in tasks]),
        kind=kinds.pop(),
    )


def _listed(path: Path) -> RecordedNetwork:
    try:
        rows = [(json.dumps(["tir", str(row["key"])]), row["weight"]) for row in read_json(path)]
    except (TypeError, KeyError) as error:
        raise DataError(f"{path}: no list of tasks with a key and a weight each") from error
    calls, platform = _summed(path, rows), path.parent.parent.name
    return RecordedNetwork(name=path.parent.name, calls=calls, platform=platform)


def _summed(path: Path, rows: Sequence[tuple[str, Any]]) -> dict[str, int]:
    calls: Counter[str] = Counter()
    for key, weight in rows:
        if type(weight) is not int or weight < 1:
            raise DataError(f"{path}: a task is called {weight!r} times; 1 or more was expected")
        try:
            calls[parse_workload(key).identity] += weight
        except MalformedError as error:
            raise DataError(f"{path}: {error}") from error
    return dict(calls)
