"""A model that travels along: learned from another device's records, for ``checkpoint=`` there."""

from dataclasses import dataclass
from pathlib import Path

from pruner.errors import PrunerError
from pruner.progress import Tell
from pruner.study.steps.command import quoted, run_command, started

_CHECKPOINT = "best.pt"  # what train.py leaves; its own name of it would import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceModel:
    """A model that learns from the records of ``platform`` below the data root ``records``."""

    records: Path
    platform: str

    @property
    def file(self) -> str:
        """Its name in the package."""
        return f"{self.platform}.pt"

    def words(self, outputs: Path) -> list[str]:
        """The command that trains it: the defaults of ``train.py``."""
        told = ["train", f"platform={self.platform}", f"data.root={quoted(self.records.resolve())}"]
        return [*told, f"outputs={quoted(outputs)}", f"run_id={self.platform}"]


def train_model(model: SourceModel, place: Path, sources: Path, tell: Tell) -> Path:
    """Train it into the folder `place`, by the checkout `sources` and its cache of features; the
    checkpoint.

    Raises:
        PrunerError: it could not be trained, with the reason that ``train.py`` gives.
    """
    tell(f"training on the records of {model.platform}, some minutes")
    ended = run_command(started(model.words(place), sources), place / "train.log", place=sources)
    found = place / "train" / model.platform / _CHECKPOINT
    if not ended.well or not found.is_file():
        raise PrunerError(f"model.records={model.records}: {ended.line}")
    return found
