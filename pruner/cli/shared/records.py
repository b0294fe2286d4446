"""Choose the record folders of a command, read their programs, and split their tasks."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from omegaconf import DictConfig

from pruner.cli.shared.options import plain, several
from pruner.cli.shared.output import say
from pruner.cli.shared.progress import track
from pruner.data.frozen import AUTO, BUNDLED, fitting_split
from pruner.data.networks import networks_of
from pruner.data.root import RecordRoot
from pruner.data.splits import TaskSplit, make_split
from pruner.data.tasks import TaskKey
from pruner.errors import DataError
from pruner.features.device_vector import platform_kind
from pruner.models.checkpoint.checkpoint import CheckpointInfo
from pruner.models.programs.dataset import Dataset, load_programs
from pruner.models.programs.reading import ReadSpec
from pruner.paths import datasets_folder


def record_root(data: DictConfig, kind: str | None = None) -> RecordRoot:
    """Open `data.root`, here or beside the sources, or bundled records.

    Bundled are records of the device of `data.platform`, or of its kind; else of `kind`, a key of
    `BUNDLED`; else of CPUs. Raises `DataError` for none.
    """
    if data.root is None:
        named = [bundled_of(name) for name in several(data.platform)]
        chosen = BUNDLED[next(filter(None, [*named, kind]), "cpu")]
        if not chosen.folder.is_dir():
            raise DataError(
                f"{chosen.folder}: no such folder, so no records of that kind are bundled; give "
                "data.root=DIR (datasets/README.md lists public records)"
            )
        return RecordRoot(chosen.folder)
    path = Path(data.root)
    beside = datasets_folder().parent / path
    return RecordRoot(beside if not path.exists() and beside.is_dir() else path)


def bundled_of(platform: str) -> str | None:
    """Return the key in `BUNDLED` for a platform; None for unknown names."""
    return platform if platform in BUNDLED else platform_kind(platform)


def kind_of(config: DictConfig, info: CheckpointInfo | None) -> str | None:
    """Return the key in `BUNDLED` of ``platform=``, or of a checkpoint's records."""
    if config.get("platform"):
        return bundled_of(str(config.platform.name))
    seen = [] if info is None else list(info.seen_tasks)
    return next(filter(None, map(bundled_of, seen)), None)


def chosen_platforms(data: DictConfig, platform: str | None, root: RecordRoot) -> tuple[str, ...]:
    """List the record folders of `data.platform` (name, list, all), or of the device.

    All without both; none for a device without records. Raises `DataError` for an unknown folder.
    """
    wanted = data.platform
    if wanted is None and platform is not None:
        return (platform,) if platform in root.platforms else ()
    if wanted in (None, "all"):
        return root.platforms
    names = tuple(dict.fromkeys(map(str, several(wanted))))
    missing = [name for name in names if name not in root.platforms]
    if missing or not names:
        raise DataError(
            f"data.platform={wanted}: no records in {root.path}; "
            f"there are records for: {', '.join(root.platforms)}"
        )
    return names


def required_platforms(config: DictConfig, root: RecordRoot) -> tuple[str, ...]:
    """List record folders as `chosen_platforms`; raise `DataError` for a device without records."""
    name = config.platform.name if config.get("platform") else None
    chosen = chosen_platforms(config.data, name, root)
    if not chosen:
        raise DataError(
            f"{root.path}: no records for platform={name}; there are records for: "
            f"{', '.join(root.platforms)}; choose one of them: data.platform={root.platforms[0]}"
        )
    return chosen


def split_of(
    options: DictConfig, keys: Sequence[TaskKey], root: RecordRoot, seed: int | None = None
) -> TaskSplit:
    """Split tasks by ``split=``, with its own seed or the given, as `make_split`."""
    given = plain(options) | {"networks": partial(networks_of, root.path)}
    name, own_seed = given.pop("name"), given.pop("seed")
    name = fitting_split(root.path) if name == AUTO else name
    return make_split(name, keys, own_seed if seed is None else seed, **given)


def load_dataset(
    root: RecordRoot, platforms: Sequence[str], spec: ReadSpec, *, folder: Path | None = None
) -> Dataset:
    """Call `load_programs` with a progress bar, print a summary, quarantine."""
    dataset = load_programs(
        root,
        platforms,
        spec,
        report=folder / "quarantine.jsonl" if folder else None,
        watch=lambda files, num: track(files, f"reading {', '.join(platforms)}", num),
    )
    store, rate = dataset.store, dataset.store.num_programs / max(dataset.seconds, 1e-9)
    aside = {**dataset.quarantined, **dataset.tally.failures}
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in aside.items())
    say(
        f"{store.num_programs:,} programs of {len(store.keys)} tasks "
        f"({', '.join(dataset.platforms)}) in {dataset.seconds:.1f} s, {rate:,.0f} a second"
        + (f", {dataset.num_cached} files from the cache" if dataset.num_cached else "")
        + (f"; left out: {reasons}" if reasons else "")
    )
    return dataset
