"""What TVM makes of a network without tuning: as it comes, and with drafted schedules only."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pruner.errors import DataError, PrunerError
from pruner.models.analyzer.analyzer import Analyzer
from pruner.progress import Tell, silent
from pruner.tune.contenders.lineup import BESIDE, DRAFT, OURS, UNTUNED, Library
from pruner.tune.deploy.build import BuildRequest, build_network
from pruner.tune.deploy.files import LIBRARY
from pruner.tune.deploy.network import DRAFTED
from pruner.tune.measure.measurer import Platform
from pruner.tune.networks import drafted
from pruner.tune.networks.drafting import is_view
from pruner.tune.networks.extraction import TASKS, read_tasks
from pruner.tune.networks.request import REQUEST, NetworkRequest
from pruner.tune.networks.tasks import NetworkTask


def check_others(folder: Path, others: Sequence[Path]) -> None:
    """Raise `PrunerError` where `others` are not each another run of the same network."""
    asked = _request(folder)
    check_run_names(folder, others)
    for other in others:
        found = _request(other)
        if _equal_parts(found) != _equal_parts(asked):
            raise PrunerError(
                f"compare={other}: a run of another network, precision or target, "
                f"{found.source.label} with seed {found.source.seed}, {found.form.precision} and "
                f"{dict(found.target)}; compare runs of equal ones"
            )


def check_run_names(folder: Path, others: Sequence[Path]) -> None:
    """Raise `DataError` where a run folder has the name of a contender or of another run."""
    taken = [_name(folder), OURS, *BESIDE]
    for other in others:
        if (name := _name(other)) in taken:
            raise DataError(
                f"compare={other}: {name} is taken by a baseline or another run; "
                "give every run folder its own name"
            )
        taken.append(name)


def _equal_parts(request: NetworkRequest) -> tuple[Any, ...]:
    """What runs that are compared have in common; a layout is the choice of each."""
    return request.source, request.target, request.form.precision


def _request(folder: Path) -> NetworkRequest:
    if not (folder / REQUEST).is_file():
        raise DataError(f"{folder}: no {REQUEST} there; name the run folder of a network")
    return NetworkRequest.read(folder / REQUEST)


def _name(folder: Path) -> str:
    return folder.resolve().name


def run_libraries(
    folder: Path,
    names: Sequence[str],
    others: Sequence[Path],
    place: Path,
    *,
    platform: Platform,
    analyzer: Analyzer | None,
    tell: Tell = silent,
) -> dict[str, Library]:
    """The library of a deployed run, those of `others`, and those of TVM that `names` ask for.

    The latter are built into `place`. What cannot be had says why.
    """
    found = {OURS: _deployed(folder, "ours")}
    for other in others:
        found[_name(other)] = _deployed(other, _name(other))
    tasks = read_tasks(folder / TASKS) if {UNTUNED, DRAFT} & set(names) else []
    if UNTUNED in names:
        found[UNTUNED] = _built(folder, tasks, {}, place / UNTUNED, "TVM untuned", {})
    if DRAFT in names:
        start, database = time.perf_counter(), place / "drafts"
        shutil.rmtree(database, ignore_errors=True)  # how long it takes is a fact of the contender
        rest = [task.workload for task in tasks if not is_view(task.module)]
        tell(f"drafting {len(rest)} tasks")
        seed = _request(folder).source.seed
        drafted.draft_tasks(rest, platform, analyzer, database, seed=seed)
        facts = {"draft_s": time.perf_counter() - start}
        sources = {DRAFTED: str(database)}
        found[DRAFT] = _built(folder, tasks, sources, place / DRAFT, "TVM, drafted only", facts)
    return found


def _deployed(folder: Path, label: str) -> Library:
    path = folder / LIBRARY
    if not path.is_file():
        return Library(label=label, missing=f"no {LIBRARY}; run: pruner deploy run={folder}")
    return Library(label=label, path=path)


def _built(
    folder: Path,
    tasks: Sequence[NetworkTask],
    sources: Mapping[str, str],
    place: Path,
    label: str,
    facts: Mapping[str, Any],
) -> Library:
    request = BuildRequest.of_run(folder, tasks, sources, place / LIBRARY, reference=False)
    start = time.perf_counter()
    try:
        built = build_network(request, place.with_suffix(".log"))
    except PrunerError as error:
        return Library(label=label, missing=str(error))
    facts = {**facts, "build_s": time.perf_counter() - start}
    return Library(label=label, path=built.library, facts=facts)
