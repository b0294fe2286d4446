"""The network of a run as it was so many seconds into tuning, built from its first records."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pruner.errors import DataError
from pruner.tune.deploy.build import BuildRequest, Built, build_network
from pruner.tune.deploy.files import LIBRARY
from pruner.tune.deploy.network import DRAFTED, MEASURED
from pruner.tune.networks.tasks import NetworkTask
from pruner.tune.run.database import RECORDS, WORKLOADS
from pruner.tune.run.journal import JOURNAL_FILE, read_trials


def copy_records(folder: Path, until_s: float, place: Path) -> int:
    """Copy what a run had measured after `until_s` seconds into a database in `place`; how much.

    A record is known by the seconds of its repeats, which the journal has too.

    Raises:
        DataError: the database lacks measurements that the journal tells of.
    """
    trials = read_trials(folder / JOURNAL_FILE)
    early = [t for t in trials if t.error is None and t.elapsed_s <= until_s]
    wanted = Counter(tuple(trial.costs_s) for trial in early)
    lines = (folder / RECORDS).read_bytes().splitlines(keepends=True) if early else []
    kept = []
    for line in lines:
        costs_s = tuple(json.loads(line)[1][1])
        if wanted[costs_s]:
            wanted[costs_s] -= 1
            kept.append(line)
    if wanted.total():
        raise DataError(f"{folder}: {wanted.total()} measurements of the journal have no record")
    place.mkdir(parents=True, exist_ok=True)
    if kept:
        shutil.copyfile(folder / WORKLOADS, place / WORKLOADS)
    (place / RECORDS).write_bytes(b"".join(kept))
    return len(kept)


def build_prefix(
    folder: Path,
    tasks: Sequence[NetworkTask],
    until_s: float,
    place: Path,
    *,
    drafts: Path | None,
    threads: int,
) -> Built:
    """Build a run's network into `place` from its records until then, drafted ones for the rest.

    Raises:
        PrunerError: see :func:`pruner.tune.deploy.build.build_network`.
    """
    records = place / "records"
    sources = {MEASURED: str(records)} if copy_records(folder, until_s, records) else {}
    if drafts is not None and (drafts / RECORDS).is_file():
        sources[DRAFTED] = str(drafts)
    library = place / LIBRARY
    request = BuildRequest.of_run(folder, tasks, sources, library, reference=False, threads=threads)
    return build_network(request, place / "build.log")
