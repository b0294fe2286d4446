"""Two forms of a network, with algebraic variants and without: the faster is built.

A run tunes the tasks of both within its budget. The run folder has the form with variants and the
library of the faster form, the folder :data:`OTHER` in it has the form without variants.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pruner.errors import DataError, PrunerError
from pruner.models.analyzer.analyzer import Analyzer
from pruner.progress import Log, silent
from pruner.tune.compare.baselines import Library, network_baselines
from pruner.tune.compare.benchmark import SHORT_BENCHMARK, run_interleaved
from pruner.tune.deploy.build import INPUTS
from pruner.tune.deploy.built_files import LOADER, LOG, WORK, deploying, remove_built
from pruner.tune.deploy.network import Deployed, cannot_run, deploy_network, put
from pruner.tune.measure.measurer import Platform
from pruner.tune.networks.extraction import TASKS, extract_tasks
from pruner.tune.networks.request import REQUEST, NetworkRequest
from pruner.tune.networks.variants.choosing import WITH, WITHOUT, VariantReport, measured_lines

OTHER = "other_form"
_TURNS = "turns"  # in OTHER: logs and outputs of the timing


def forms(folder: Path) -> dict[str, Path]:
    """Return the folders of a network's forms by name, with variants first.

    Raises `DataError`: :data:`OTHER` has another network, whose code must not run.
    """
    found = {}
    for place in (folder, folder / OTHER):
        if (place / TASKS).is_file():
            ours, request = (NetworkRequest.read(one / REQUEST) for one in (folder, place))
            if (request.source, request.target) != (ours.source, ours.target):
                raise DataError(
                    f"{place / REQUEST}: not the network of {folder / REQUEST}; start a new run"
                )
            found[WITH if request.form.variants else WITHOUT] = place
    return found


def built_form(folder: Path) -> Path:
    """Return the folder of the form that a run's library has; raises as :func:`forms`."""
    if not (folder / OTHER / TASKS).is_file():
        return folder
    return forms(folder).get(VariantReport.read(folder).built, folder)


def extract_original(folder: Path, *, cache: Path | None = None, log: Log = silent) -> None:
    """Extract the tasks without variants, if there are some; raises as `extract_tasks`."""
    request = NetworkRequest.read(folder / REQUEST)
    if request.form.variants and list(forms(folder)) == [WITH]:
        plain, target_json = replace(request.form, variants={}), json.dumps(dict(request.target))
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
    :func:`~pruner.tune.deploy.network.deploy_network`. Raises `PrunerError`: see there; of two
    forms, both fail, or they are of two networks.
    """
    places = forms(folder)
    if len(places) < 2 or cannot_run(platform) is not None:
        return deploy_network(folder, platform, analyzer, database=database, log=log, **how)
    built: dict[str, Deployed] = {}
    how |= {"database": database or folder, "run": folder, "log": log}  # of both forms
    failures = []
    for name, place in places.items():
        log(f"the form {name}:")
        try:
            with deploying(place):
                built[name] = deploy_network(place, platform, analyzer, **how)
        except PrunerError as error:
            log(f"{name}: {error}")
            failures.append(error)
    if not built:
        raise failures[0]
    latencies_s = _timed(folder, built, log) if len(built) == len(places) else {}
    best = min(latencies_s, key=latencies_s.__getitem__, default=next(iter(built)))
    report = replace(VariantReport.read(folder), built=best, latencies_s=latencies_s)
    report.save(folder)
    if places[best] != folder:
        # the files of the build, and the inputs that the loader reads
        shutil.copytree(places[best] / WORK, folder / WORK, dirs_exist_ok=True)
        if (places[best] / LOG).is_file():  # none of a worker that is given
            shutil.copyfile(places[best] / LOG, folder / LOG)
    notes = [*built[best].notes, *measured_lines(report)]
    deployed = put(folder, replace(built[best], notes=notes), platform)
    remove_built(folder / OTHER)
    (folder / OTHER / LOADER).unlink(missing_ok=True)
    return deployed


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
