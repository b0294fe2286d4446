"""From the data options of a command to programs in memory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pruner.cli.shared.output import say
from pruner.cli.shared.progress import track
from pruner.data.root import RecordRoot
from pruner.models.programs.dataset import Dataset, load_as
from pruner.models.programs.forms import Form, Store


def load_dataset(
    form: Form[Any, Store],
    root: RecordRoot,
    platforms: Sequence[str],
    *,
    dataflow: Any,
    duplicates: Any = "drop",
    draft: bool = False,
    failures: bool = False,
    folder: Path | None = None,
    cache: str | Path | None = None,
) -> Dataset[Store]:
    """`load_as` with a bar and a last line; see there.

    Lines set aside are listed in ``<folder>/quarantine.jsonl``.
    """
    dataset = load_as(
        form,
        root,
        platforms,
        dataflow=dataflow,
        duplicates=duplicates,
        draft=draft,
        failures=failures,
        cache=None if cache is None else Path(cache),
        report=folder / "quarantine.jsonl" if folder else None,
        watch=lambda files, num: track(files, f"reading {', '.join(platforms)}", num),
    )
    say(_summary(dataset))
    return dataset


def _summary(dataset: Dataset[Any]) -> str:
    store, rate = dataset.store, dataset.store.num_programs / max(dataset.seconds, 1e-9)
    aside = {**dataset.quarantined, **dataset.tally.failures}
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in aside.items())
    return (
        f"{store.num_programs:,} programs of {len(store.keys)} tasks "
        f"({', '.join(dataset.platforms)}) in {dataset.seconds:.1f} s, {rate:,.0f} a second"
        + (f", {dataset.num_cached} files from the cache" if dataset.num_cached else "")
        + (f"; left out: {reasons}" if reasons else "")
    )
