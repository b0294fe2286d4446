"""From the data options of a command to programs in memory."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from pruner.cli.output import say
from pruner.cli.progress import track
from pruner.data.quarantine import Quarantine
from pruner.data.root import RecordRoot
from pruner.errors import DataError
from pruner.models.programs.assemble import Tally, featurized_tasks
from pruner.models.programs.store import ProgramStore
from pruner.places import datasets_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Featurised programs and how they came about; `platforms` are record folders."""

    store: ProgramStore
    platforms: tuple[str, ...]
    tally: Tally
    quarantined: Mapping[str, int]
    seconds: float

    def report(self) -> dict[str, Any]:
        """What a run writes down about its data."""
        return {
            "platforms": list(self.platforms),
            "num_records": self.tally.counts["records"],
            "num_measured": self.tally.counts["measured"],
            "quarantined": dict(self.quarantined),
            "num_not_featurised": self.tally.num_failed,
            "not_featurised": dict(self.tally.failures),
            "read_seconds": round(self.seconds, 2),
        }


def record_root(data: DictConfig) -> RecordRoot:
    """Open `data.root`; a relative one that is not here is looked for beside the sources."""
    path = Path(data.root)
    beside = datasets_folder().parent / path
    return RecordRoot(beside if not path.exists() and beside.is_dir() else path)


def chosen_platforms(data: DictConfig, platform: str | None, root: RecordRoot) -> tuple[str, ...]:
    """Record folders to use: `data.platform` (one, a list, "all") or that of the device.

    Every folder when neither is given; none when the device has no records. Raises DataError when
    `data.platform` names a folder that is not there.
    """
    wanted = data.platform
    if wanted is None and platform is not None:
        return (platform,) if platform in root.platforms else ()
    if wanted in (None, "all"):
        return root.platforms
    names = (wanted,) if isinstance(wanted, str) else tuple(wanted)
    missing = [name for name in names if name not in root.platforms]
    if missing or not names:
        raise DataError(
            f"data.platform={wanted}: no records in {root.path}; "
            f"there are records for: {', '.join(root.platforms)}"
        )
    return names


def required_platforms(config: DictConfig, root: RecordRoot) -> tuple[str, ...]:
    """Like `chosen_platforms`, for commands that can do nothing without records of the device."""
    name = config.platform.name if config.get("platform") else None
    chosen = chosen_platforms(config.data, name, root)
    if not chosen:
        raise DataError(
            f"{root.path}: no records for platform={name}; there are records for: "
            f"{', '.join(root.platforms)} (data.platform= names a folder that differs)"
        )
    return chosen


def load_dataset(
    root: RecordRoot,
    platforms: Sequence[str],
    *,
    dataflow: Any,
    duplicates: Any = "drop",
    folder: Path | None = None,
) -> Dataset:
    """Read and featurise; lines set aside are listed in ``<folder>/quarantine.jsonl``."""
    start, tally = time.perf_counter(), Tally()
    num_files = len(root.task_files(list(platforms)))
    report = folder / "quarantine.jsonl" if folder else None
    with Quarantine(report) as quarantine:
        tasks = featurized_tasks(
            root,
            platforms,
            quarantine=quarantine,
            tally=tally,
            dataflow=dataflow,
            duplicates=duplicates,
        )
        store = ProgramStore.build(track(tasks, f"reading {', '.join(platforms)}", num_files))
    dataset = Dataset(
        store=store,
        platforms=tuple(platforms),
        tally=tally,
        quarantined=dict(quarantine.counts),
        seconds=time.perf_counter() - start,
    )
    say(_summary(dataset))
    return dataset


def _summary(dataset: Dataset) -> str:
    store, rate = dataset.store, dataset.store.num_programs / max(dataset.seconds, 1e-9)
    aside = {**dataset.quarantined, **dataset.tally.failures}
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in aside.items())
    return (
        f"{store.num_programs:,} programs of {len(store.keys)} tasks "
        f"({', '.join(dataset.platforms)}) in {dataset.seconds:.1f} s, {rate:,.0f} a second"
        + (f"; left out: {reasons}" if reasons else "")
    )
