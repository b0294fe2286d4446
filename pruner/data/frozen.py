"""Frozen splits: committed lists of the workloads per side, hashed.

``datasets/splits/<name>.json`` (other draws: ``<name>-seed<seed>.json``) lists workload identities
(`ParsedKey.identity` of `pruner.data.workload`). A list that was edited after it was drawn does not
load.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, Self

import orjson

from pruner.errors import DataError
from pruner.files import write_atomic
from pruner.paths import datasets_folder

Side = Literal["train", "valid", "test"]
SIDES: tuple[Side, ...] = ("train", "valid", "test")
SPLITS_FOLDER = datasets_folder() / "splits"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenSplit:
    """The workload identities of each side, and how they were drawn."""

    name: str
    seed: int
    how: str
    train: tuple[str, ...]
    valid: tuple[str, ...]
    test: tuple[str, ...]

    @property
    def sha256(self) -> str:
        """Hash over name, seed and lists, independent of file formatting."""
        content = [self.name, self.seed, *(sorted(self.side(side)) for side in SIDES)]
        return sha256(orjson.dumps(content)).hexdigest()

    def side(self, side: Side) -> tuple[str, ...]:
        """Return the identities on one side."""
        return {"train": self.train, "valid": self.valid, "test": self.test}[side]

    @property
    def sides(self) -> dict[str, Side]:
        """Side of each identity."""
        return {identity: side for side in SIDES for identity in self.side(side)}

    def save(self, folder: Path = SPLITS_FOLDER) -> Path:
        """Write the file; refuse to overwrite, since frozen lists never change."""
        path = folder / file_name(self.name, self.seed)
        if path.exists():
            raise DataError(f"{path} exists and is frozen; draw under another name or seed")
        content = {name: getattr(self, name) for name in ("name", "seed", "how", "sha256")}
        content |= {side: sorted(self.side(side)) for side in SIDES}
        with write_atomic(path) as part:
            part.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")
        return path

    @classmethod
    def load(cls, name: str, seed: int, folder: Path = SPLITS_FOLDER) -> Self | None:
        """Load the frozen split of that name and seed, if any.

        Raises `DataError` for an unreadable or edited file, or an absent folder (an installation).
        """
        path = folder / file_name(name, seed)
        if not folder.is_dir():
            raise DataError(f"{folder}: no such folder; install from a checkout: pip install -e .")
        if not path.exists():
            return None
        try:
            content = orjson.loads(path.read_bytes())
            given: dict[str, Any] = {key: content[key] for key in ("name", "seed", "how")}
            split = cls(**given | {side: tuple(content[side]) for side in SIDES})
            stored = content["sha256"]
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise DataError(f"{path}: not a split file ({error!r})") from error
        if split.sha256 != stored or (split.name, split.seed) != (name, seed):
            raise DataError(f"{path}: the lists do not match their sha256; restore the file")
        return split


def file_name(name: str, seed: int) -> str:
    """Return the file name of a frozen split; seed 0 is omitted."""
    return f"{name}.json" if seed == 0 else f"{name}-seed{seed}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class BundledSet:
    """A folder of ``datasets/`` with records; `what` and `better` are phrases for messages."""

    name: str
    what: str
    better: str

    @property
    def folder(self) -> Path:
        """Data root of the set."""
        return datasets_folder() / self.name


BUNDLED: Mapping[str, BundledSet] = {
    "cpu": BundledSet(
        name="bundled", what="of one machine", better="measure your own: docs/pools.md"
    ),
    "gpu": BundledSet(
        name="opencl-pocl",
        what="GPU programs, timed on a CPU",
        better="public records of GPUs: datasets/README.md",
    ),
    "h200": BundledSet(name="h200", what="of an H200", better="measure your own: docs/pools.md"),
}
"""By the name of a platform, or by the kind of all other devices."""
AUTO = "auto"  # the split that fits the records


def fitting_split(root: Path) -> str:
    """Return a bundled set's frozen split; ``by_task`` for other roots."""
    names = [one.name for one in BUNDLED.values() if one.folder.resolve() == root.resolve()]
    return names[0] if names else "by_task"
