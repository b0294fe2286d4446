"""The record sets that come with the project, by device kind or platform.

A set is a folder of ``datasets/`` as ``pruner collect bundle=`` writes it, with a card and a frozen
split of the same name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pruner.paths import datasets_folder


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
