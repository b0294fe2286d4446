"""Two forms of a network, with algebraic variants and without: the faster is built.

A run tunes the tasks of both within its budget. The run folder has the form that is built, and the
folder :data:`OTHER` in it the tasks of the other form.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pruner.errors import PrunerError
from pruner.models.analyzer.analyzer import Analyzer
from pruner.progress import Log, silent
from pruner.tune.compare.baselines import Library, network_baselines
from pruner.tune.compare.benchmark import SHORT_BENCHMARK, run_interleaved
from pruner.tune.deploy.build import INPUTS
from pruner.tune.deploy.built_files import LOADER, WORK, deploying, remove_built
from pruner.tune.deploy.network import Deployed, cannot_run, deploy_network, put
from pruner.tune.measure.measurer import Platform
from pruner.tune.networks.extraction import TASKS, extract_tasks
from pruner.tune.networks.request import LOWERED, REQUEST, WEIGHTS, NetworkRequest
from pruner.tune.networks.variants.choosing import WITH, WITHOUT, VariantReport, measured_lines

OTHER = "other_form"
_TURNS = "turns"  # in OTHER: logs and outputs of the timing


def forms(folder: Path) -> dict[str, Path]:
    """Return the folders of a network's forms by name, with variants first."""
    found = {}
    for place in (folder, folder / OTHER):
        if (place / TASKS).is_file():
            form = NetworkRequest.read(place / REQUEST).form
            found[WITH if form.variants else WITHOUT] = place
    return dict(sorted(found.items(), key=lambda one: one[0] != WITH))


def extract_original(
    folder: Path, target_json: str, *, cache: Path | None = None, log: Log = silent
) -> None:
    """Extract the tasks of a network without its variants, if it has some.

    Raises:
        PrunerError: see :func:`~pruner.tune.networks.extraction.extract_tasks`.
    """
    request = NetworkRequest.read(folder / REQUEST)
    if request.form.variants and list(forms(folder)) == [WITH]:
        plain = replace(request.form, variants={})
        how: dict[str, Any] = {"keep": True, "cache": cache, "log": log}
        extract_tasks(request.source, target_json, folder / OTHER, plain, **how)


def deploy_faster(
    folder: Path,
    platform: Platform,
    analyzer: Analyzer | None,
    *,
    database: Path | None = None,
    log: Log = silent,
    **how: Any,
) -> Deployed:
    """Deploy a network; of two forms, deploy the faster.

    Both libraries are timed in turns; ``variants.json`` gets their seconds. A form that cannot be
    built, or whose outputs are wrong, loses. `how`: see
    :func:`~pruner.tune.deploy.network.deploy_network`.

    Raises:
        PrunerError: see there; of two forms, both fail.
    """
    places = forms(folder)
    if len(places) < 2 or cannot_run(platform) is not None:
        return deploy_network(folder, platform, analyzer, database=database, log=log, **how)
    built: dict[str, Deployed] = {}
    failures = []
    for name, place in places.items():
        log(f"the form {name}:")
        try:
            with deploying(place):
                built[name] = deploy_network(
                    place, platform, analyzer, database=database or folder, log=log, **how
                )
        except PrunerError as error:
            log(f"{name}: {error}")
            failures.append(error)
    if not built:
        raise failures[0]
    latencies_s = _timed(folder, built, log) if len(built) == len(places) else {}
    best = min(latencies_s, key=latencies_s.__getitem__, default=next(iter(built)))
    deployed = built[best]
    if places[best] != folder:
        # the inputs, which the loader reads, are equal; a build that failed has none
        shutil.copyfile(places[best] / WORK / INPUTS, folder / WORK / INPUTS)
        _exchange(folder)
        deployed = put(folder, deployed, platform)
    remove_built(folder / OTHER)
    (folder / OTHER / LOADER).unlink(missing_ok=True)
    report = replace(VariantReport.read(folder), built=best, latencies_s=latencies_s)
    report.save(folder)
    return replace(deployed, notes=[*deployed.notes, *measured_lines(report)])


def _timed(folder: Path, built: Mapping[str, Deployed], log: Log) -> dict[str, float]:
    """Return the median seconds of the libraries that run."""
    libraries = {name: Library(label=name, path=one.library) for name, one in built.items()}
    baselines = network_baselines(
        NetworkRequest.read(folder / REQUEST).source,
        [],
        libraries,
        inputs=folder / WORK / INPUTS,
        resources=next(iter(built.values())).resources,
    )
    rows = run_interleaved(baselines, folder / OTHER / _TURNS, SHORT_BENCHMARK, log=log)
    return {row.name: row.median_s for row in rows if row.median_s is not None}


def _exchange(folder: Path) -> None:
    """Exchange the requests, tasks and lowered networks of both forms."""
    for name in (REQUEST, TASKS, LOWERED, WEIGHTS):
        ours, theirs, between = folder / name, folder / OTHER / name, folder / OTHER / f".{name}"
        for source, target in ((ours, between), (theirs, ours), (between, theirs)):
            if source.is_file():  # large networks are not kept in files
                source.replace(target)
