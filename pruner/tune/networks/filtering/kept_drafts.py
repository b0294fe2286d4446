"""Keep drafts of tasks on disk, shared by all networks.

A folder has the drafts for one target, analyzer, seed and version of the code that drafts; a file
has a draft, and its name is the structural hash of the task. So a task of many networks is drafted
once, and another analyzer or another version drafts it anew. The folders that were not used for
longest are removed where all take too much space.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

import pruner
from pruner.errors import DataError
from pruner.files import as_written, digest_of, read_json, write_json
from pruner.models.analyzer.analyzer import Analyzer
from pruner.tune.networks.draft_network import SUMMARY, read_drafts
from pruner.tune.networks.draft_task import NONE, Depth, Draft, Drafted
from pruner.tune.networks.kept_imports import drop_oldest
from pruner.tune.networks.network_tasks import NetworkTask
from pruner.tune.run.database import Database

_CODE = ("program", "features", "models/analyzer", "search", "tune")  # decides what is drafted
_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "numpy")
_DIGITS = 32  # of a folder's name
_MOST_BYTES = 1 << 30  # of all folders but the one in use


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSettings:
    """All that decides the draft of a task, besides the task and the code."""

    target: str
    analyzer: Analyzer
    depth: Depth
    seed: int

    @property
    def digest(self) -> str:
        """Return a name for the folder of the drafts."""
        about = {
            "target": self.target,
            # plain numbers and words alone
            "analyzer": [type(self.analyzer).__name__, asdict(self.analyzer)],
            "depth": asdict(self.depth),
            "seed": self.seed,
            "versions": [version(name) for name in _PACKAGES],
            "code": _code(),
        }
        return sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()[:_DIGITS]


class KeptDrafts(Mapping[str, Drafted]):
    """The drafts of tasks by structural hash, in memory and below a folder.

    ``folder`` None: in memory alone.
    """

    def __init__(self, folder: Path | None, settings: DraftSettings) -> None:
        self._folder = None if folder is None else folder / settings.digest
        self._known: dict[str, Drafted] = {}
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(self._folder.glob("*.json")):
                with suppress(DataError):  # damaged: drafted again
                    self._known[path.stem] = _read(path)
            with suppress(OSError):  # of another user, or removed meanwhile
                os.utime(self._folder)
                # the user may keep other folders beside ours
                ours = set(self._folder.parent.glob("[0-9a-f]" * _DIGITS)) - {self._folder}
                drop_oldest(ours, _MOST_BYTES)

    def __getitem__(self, key: str) -> Drafted:
        """Return the draft of a task."""
        return self._known[key]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the structural hashes of drafted tasks."""
        return iter(self._known)

    def __len__(self) -> int:
        """Count the drafted tasks."""
        return len(self._known)

    def keep(self, key: str, drafted: Drafted) -> None:
        """Store a draft; without a program in memory alone."""
        self._known[key] = drafted
        # a task without a program has lost it perhaps to a time limit, or to a lack of memory
        if self._folder is not None and drafted.draft.how != NONE:
            write_json(self._folder / f"{key}.json", asdict(drafted))


def _read(path: Path) -> Drafted:
    with as_written(path):
        row = read_json(path, dict)
        return Drafted(draft=Draft(**row["draft"]), record=row["record"])


@cache
def _code() -> str:
    folder = Path(pruner.__path__[0])
    parts = sorted(path for part in _CODE for path in (folder / part).rglob("*.py"))
    return digest_of([folder / "arrays.py", *parts])


def hand_over(drafts: Mapping[str, Drafted], tasks: Sequence[NetworkTask], folder: Path) -> None:
    """Write the kept drafts of a network's tasks into the drafts of its run.

    :func:`~pruner.tune.networks.draft_network.draft_tasks` keeps these and drafts the others. Equal
    tasks may have other names of blocks, by which a trace finds them: such a task is left out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    database, known = Database(folder), read_drafts(folder)
    for task in tasks:
        found = drafts.get(task.key)
        if found is None or task.name in known:
            continue
        if found.record is not None:
            try:
                database.commit_json(task.module, found.record)
            except Exception:  # TVM's kinds: the trace names blocks that are called otherwise here
                continue
        known[task.name] = replace(found.draft, task=task.name)
    write_json(folder / SUMMARY, [asdict(draft) for draft in known.values()], indent=1)
