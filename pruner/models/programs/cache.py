"""Cache featurised programs on disk, a file for each record file.

An entry is a NumPy archive of plain arrays, compressed with Zstandard (``zstd -d`` gives the
``.npz``). It holds the result of reading and featurising a record file: programs, counts, the lines
that were set aside, and the programs that could not be replayed. An entry is valid only if the
content of the record file, the settings and the version of the code match.
"""

import io
import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

import pruner
from pruner import features
from pruner.archives import read_arrays
from pruner.data.root import RecordRoot, TaskFile
from pruner.data.tasks import TaskKey
from pruner.data.tenset.task_pickle import NETWORK_INFO
from pruner.errors import DataError
from pruner.features.batch import ProgramFeatures
from pruner.features.primitives import PrimitiveTokens
from pruner.files import digest_of, write_atomic
from pruner.models.programs.program_table import ProgramTable, TaskPrograms
from pruner.models.programs.reading import FilePrograms, ReadSpec, Tally
from pruner.paths import conf_folder
from pruner.program.tir import saved

log = logging.getLogger(__name__)

_ROOMS = ("data", "program", "features")  # their code determines the content of an entry
_DRAFT = "models/analyzer"  # and this code the analyzer's columns
_FEATURES = ("statement", "row_start", "dataflow", "workload", "valid")
_KNOWN = ("latency_s", "line", "digest", "timed_s")
_TOKENS = ("structure", "place", "skeleton", "number")
_EXTRA = "extra"  # with the option `draft` only
_LEVEL = 1  # features repeat themselves: a thirtieth of the size, faster than writing all bytes


class FeatureCache:
    """Entries ``<folder>/<platform>/<task>-<16 hex digits>.npz.zst``, one a file and settings.

    `content` is a digest of a record file, made before reading it.
    """

    def __init__(self, folder: Path, root: RecordRoot, spec: ReadSpec) -> None:
        self.folder = folder
        self._settings: dict[str, Any] = {"dataflow": spec.dataflow, "duplicates": spec.duplicates}
        # Named only where set: entries without them keep their names.
        self._settings |= {n: True for n in ("draft", "failures") if getattr(spec, n)}
        self._basis = {
            **self._settings,
            **basis_of(root.path),
            **({"analyzer": _analyzer_digest()} if spec.draft else {}),
        }
        # entries with the analyzer's columns serve without them, too
        more = None if spec.draft else replace(spec, draft=True)
        self._with_draft = None if more is None else FeatureCache(folder, root, more)

    def path(self, file: TaskFile) -> Path:
        """The path of a record file's entry."""
        place = json.dumps([str(file.path.resolve()), self._settings], sort_keys=True)
        name = f"{file.task}-{sha256(place.encode()).hexdigest()[:16]}.npz.zst"
        return self.folder / file.platform / name

    def _key(self, file: TaskFile, content: str) -> str:
        basis = {**self._basis, "platform": file.platform, "task": file.task, "content": content}
        return sha256(json.dumps(basis, sort_keys=True).encode()).hexdigest()

    def load(self, file: TaskFile, content: str) -> FilePrograms | None:
        """The entry of a record file; None without a good one for this content.

        Without the analyzer's columns, an entry that has them serves, too, if all programs have
        features.
        """
        path, found = self.path(file), None
        try:
            found = read_entry(path, self._key(file, content)) if path.is_file() else None
        except _DAMAGE as error:
            log.warning("%s: damaged, computed again (%s)", path, str(error).partition("\n")[0])
        if found is not None or self._with_draft is None:
            return found
        found = self._with_draft.load(file, content)
        if found is None or found.refused:
            return None
        bare = [replace(one, features=replace(one.features, extra=None)) for one in found.tasks]
        return replace(found, tasks=bare)

    def task(self, file: TaskFile, content: str, number: int) -> ProgramTable:
        """A single task of an entry; raises DataError if it is gone."""
        found = self.load(file, content)
        if found is None:
            raise DataError(f"{self.path(file)}: removed or changed since the start; start again")
        return ProgramTable.build([found.tasks[number]])

    def save(self, file: TaskFile, content: str, found: FilePrograms) -> None:
        """Write the entry of a record file."""
        write_entry(self.path(file), self._key(file, content), found)


def read_entry(path: Path, key: str) -> FilePrograms | None:
    """The entry in a file, None for another key; raises `_DAMAGE` where damaged."""
    stored = read_arrays(io.BytesIO(zstandard.decompress(path.read_bytes())))
    about = json.loads(stored["about"].tobytes())
    return _unpacked(about, stored) if about["key"] == key else None


def write_entry(path: Path, key: str, found: FilePrograms) -> None:
    """Write an entry atomically."""
    arrays, about = _packed(found)
    arrays["about"] = np.frombuffer(json.dumps({**about, "key": key}).encode(), np.uint8)
    packed = io.BytesIO()
    np.savez(packed, **arrays)  # type: ignore[arg-type]  # the stub knows one keyword only
    path.parent.mkdir(parents=True, exist_ok=True)
    # a damaged entry is computed again, and waiting for the disk takes longer than writing
    with write_atomic(path, lasting=False) as partial:
        partial.write_bytes(zstandard.compress(packed.getvalue(), _LEVEL))


# Errors from reading bytes that are not a complete archive of ours.
_DAMAGE = (
    DataError, IndexError, KeyError, MemoryError, OSError, TypeError, ValueError,
    zstandard.ZstdError,
)  # fmt: skip


def _packed(found: FilePrograms) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays by ``<task number>.<name>``, and all other content as JSON."""
    arrays: dict[str, np.ndarray] = {}
    tasks = []
    for number, task in enumerate(found.tasks):
        of_task = {name: getattr(task, name) for name in _KNOWN}
        of_task |= {name: getattr(task.features, name) for name in _FEATURES}
        if task.features.extra is not None:
            of_task[_EXTRA] = task.features.extra
        if task.features.tokens is not None:
            of_task |= {name: getattr(task.features.tokens, name) for name in _TOKENS}
        arrays |= {f"{number}.{name}": values for name, values in of_task.items()}
        tasks.append({"key": asdict(task.key), "num_failed": task.num_failed})
    return arrays, {
        "tasks": tasks,
        "set_aside": list(found.quarantined),
        "refused": list(found.refused),
        "failures": dict(found.tally.failures),
        "counts": dict(found.tally.counts),
        "left_out": found.tally.left_out,
    }


def _unpacked(about: Mapping[str, Any], stored: Mapping[str, np.ndarray]) -> FilePrograms:
    by_task: list[dict[str, np.ndarray]] = [{} for _ in about["tasks"]]
    for full in stored:
        number, dot, name = full.partition(".")
        if dot:
            by_task[int(number)][name] = stored[full]
    failures, counts = Counter(about["failures"]), Counter(about["counts"])
    return FilePrograms(
        tasks=[_task(arrays, known) for arrays, known in zip(by_task, about["tasks"], strict=True)],
        quarantined=[tuple(line) for line in about["set_aside"]],
        refused=[tuple(line) for line in about["refused"]],
        tally=Tally(failures=failures, counts=counts, left_out=about["left_out"]),
    )


def _task(arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> TaskPrograms:
    def named(names: Iterable[str]) -> dict[str, Any]:
        return {name: arrays[name] for name in names}

    tokens = PrimitiveTokens(**named(_TOKENS)) if _TOKENS[0] in arrays else None
    return TaskPrograms(
        **named(_KNOWN),
        key=TaskKey(**{**about["key"], "fused": tuple(about["key"]["fused"])}),
        features=ProgramFeatures(
            **named(_FEATURES), failures={}, tokens=tokens, extra=arrays.get(_EXTRA)
        ),
        num_failed=about["num_failed"],
    )


def basis_of(root: Path) -> dict[str, str]:
    """Digests of the code and definitions on which the features of records depend."""
    return {
        "feature_version": features.FEATURE_SET_VERSION,
        "code": _code_digest(),
        "network_info": _names_and_sizes(root / NETWORK_INFO),
        "design_spaces": _names_and_sizes(root / saved.FOLDER),
    }


def _names_and_sizes(folder: Path) -> str:
    # without files that are being written, ".x.part"
    found = [(path.name, path.stat().st_size) for path in sorted(folder.glob("[!.]*"))]
    return sha256(json.dumps(found).encode()).hexdigest()


@cache
def _code_digest() -> str:
    """A digest of the sources that determine an entry.

    A changed rule makes an entry invalid even if no version was raised.
    """
    return digest_of(
        path
        for room in _ROOMS
        for path in sorted((Path(pruner.__file__).parent / room).rglob("*.py"))
    )


@cache
def _analyzer_digest() -> str:
    """A digest of the analyzer's code and devices, for its columns."""
    code = sorted((Path(pruner.__file__).parent / _DRAFT).rglob("*.py"))
    return digest_of([*code, *sorted((conf_folder() / "platform").glob("*.yaml"))])
