"""Load the programs of a command's data options."""

from collections.abc import Sequence
from pathlib import Path

from pruner.cli.shared.output import say
from pruner.cli.shared.progress import track
from pruner.data.root import RecordRoot
from pruner.models.programs.dataset import Dataset, load_programs
from pruner.models.programs.reading import ReadSpec


def load_dataset(
    root: RecordRoot, platforms: Sequence[str], spec: ReadSpec, *, folder: Path | None = None
) -> Dataset:
    """Call `load_programs` with a progress bar and print a summary.

    Lines set aside are listed in ``<folder>/quarantine.jsonl``.
    """
    dataset = load_programs(
        root,
        platforms,
        spec,
        report=folder / "quarantine.jsonl" if folder else None,
        watch=lambda files, num: track(files, f"reading {', '.join(platforms)}", num),
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
        + (f", {dataset.num_cached} files from the cache" if dataset.num_cached else "")
        + (f"; left out: {reasons}" if reasons else "")
    )
