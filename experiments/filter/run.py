"""How well forecasts rank networks of a search space, and what a limit throws away.

    python -m experiments.filter.run                        50 networks, forecast and built
    python -m experiments.filter.run networks=20 more=200   and 200 more forecasts

The networks are of the example space (`experiments.filter.space`). All are forecast one after the
other, as `pruner predict networks=` does, with no draft on disk at the start. Then each of the
first is built from the drafts of its tasks and compared with torch. At the end the libraries are
timed in turns, so that a slow minute of the machine falls on all of them. A network that was built
is not built again, so the script can be stopped and started at will; the forecasts are made in one
go. The tables go to out=.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from omegaconf import DictConfig

import pruner
from pruner.cli.shared.door import command_config
from pruner.cli.shared.output import as_table, say
from pruner.cli.shared.progress import track
from pruner.cli.shared.script import keep_tables, run_script
from pruner.cli.tuning.predict_networks import forecaster_of
from pruner.files import write_json, write_table
from pruner.processes import Worker
from pruner.study.grid import Job, results
from pruner.tune.compare.benchmark import FIRST_LOOK
from pruner.tune.deploy.build import network_worker
from pruner.tune.deploy.network import deploy_network
from pruner.tune.networks.draft_network import FOLDER, SUMMARY, read_drafts
from pruner.tune.networks.draft_task import Drafted
from pruner.tune.networks.extraction import extract_tasks
from pruner.tune.networks.filtering.candidates import Candidates
from pruner.tune.networks.filtering.forecaster import NetworkForecaster
from pruner.tune.networks.network_tasks import NetworkTask
from pruner.tune.networks.source import NetworkSource
from pruner.tune.run.database import Database, block_names

HERE = Path(__file__).resolve().parent
TURNS, CALLS = 10, 20  # of each library
FIRST = 20  # networks that find most tasks without a draft; the calibration is from these networks
FORECAST, CALIBRATED, FLOPS = "forecast", "calibrated forecast", "FLOPs"


def hand_over(drafts: Mapping[str, Drafted], tasks: Sequence[NetworkTask], folder: Path) -> None:
    """Write the kept drafts of a network's tasks into the drafts of its run.

    :func:`~pruner.tune.networks.draft_network.draft_tasks` keeps these and drafts the others. Equal
    tasks may have other names of blocks, by which a trace finds them: the trace gets these names. A
    task is left out if TVM refuses the trace all the same.
    """
    folder.mkdir(parents=True, exist_ok=True)
    database, known = Database(folder), read_drafts(folder)
    for task in tasks:
        found = drafts.get(task.key)
        if found is None or task.name in known:
            continue
        if found.record is not None:
            names = dict(zip(found.blocks, block_names(task.module), strict=False))
            try:
                database.commit_json(task.module, _with_blocks(found.record, names))
            except Exception:  # TVM's kinds: names that steps of the trace make may differ, too
                continue
        known[task.name] = replace(found.draft, task=task.name)
    write_json(folder / SUMMARY, [asdict(draft) for draft in known.values()], indent=1)


def _with_blocks(record: Any, names: Mapping[str, str]) -> Any:
    """Rename the blocks of a record's JSON, for an equal program with other names."""
    ((instructions, decisions), *rest) = record
    renamed = [
        [kind, inputs, [names.get(attributes[0], attributes[0]), *attributes[1:]], outputs]
        if kind == "GetSBlock"
        else [kind, inputs, attributes, outputs]
        for kind, inputs, attributes, outputs in instructions
    ]
    return [[renamed, decisions], *rest]


@dataclass(kw_only=True)
class Options:
    """Options of the script, explained above.

    ``platform``: a name of conf/platform; cpu: this machine's. ``build=false``: only forecasts.
    ``space``: a module with a generator `candidates` and its networks as factories ``number_N``.
    """

    networks: int = 50
    more: int = 0
    build: bool = True
    space: str = "experiments.filter.space"
    platform: str = "cpu"
    work: str = "outputs/experiments-filter"
    out: str = str(HERE)


def forecasts(space: str, total: int, forecaster: NetworkForecaster) -> dict[str, Any]:
    """Forecast networks of the space, from a folder without drafts."""
    candidates = Candidates(generator=f"{space}:candidates", most=total)
    found = track(forecaster.candidates(candidates), "forecasts", total)
    return {"rows": [one.row() for one in found]}


def built(
    source: NetworkSource, folder: Path, forecaster: NetworkForecaster, worker: Worker
) -> Any:
    """Build a network from the drafts of its tasks, and keep the library."""
    start = time.perf_counter()
    shutil.rmtree(folder, ignore_errors=True)  # of an interrupted build
    platform = forecaster.platform
    how: Any = {"keep": True, "worker": worker}
    tasks = extract_tasks(source, platform.target_json, folder, forecaster.form, **how)
    hand_over(forecaster.drafts, tasks, folder / FOLDER)
    given: Any = {"worker": worker, "settings": FIRST_LOOK}
    deployed = deploy_network(folder, platform, forecaster.analyzer, **given)
    deployed.library.replace(folder.with_suffix(".so"))
    shutil.rmtree(folder)
    return {
        "relative_error": deployed.relative_error,
        "drafted_schedules": deployed.drafted,
        "build_s": time.perf_counter() - start,
    }


def build_jobs(
    options: Options, work: Path, forecaster: NetworkForecaster, worker: Worker
) -> Iterator[Job]:
    """Yield a job for each network to build."""
    for number in range(options.networks):
        folder = work / f"number-{number}"
        source = NetworkSource(name=f"{options.space}:number_{number}")
        run = partial(built, source, folder, forecaster, worker)
        leaves = work / f"number-{number}.json"
        about = {"space": options.space, "drafts": forecaster.drafts.digest, "kept": True}
        yield Job(name=f"number {number}", run=run, leaves=leaves, about=about)


def latencies_s(libraries: Sequence[Path]) -> list[float]:
    """Time libraries in turns; return the median of each, in seconds."""
    networks = [pruner.load(path) for path in libraries]
    rng = np.random.default_rng(0)
    given = [[rng.standard_normal(i.shape, np.float32) for i in one.inputs] for one in networks]
    found: list[list[float]] = [[] for _ in networks]
    for _ in track(range(TURNS), "turns", TURNS):
        for number in rng.permutation(len(networks)):
            networks[number](*given[number])  # brings the weights into the caches
            for _ in range(CALLS):
                start = time.perf_counter()
                networks[number](*given[number])
                found[number].append(time.perf_counter() - start)
    return [float(np.median(one)) for one in found]


def judged(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Judge forecasts and FLOPs by built networks; a row for each.

    ``spearman``: of the method and the built latency. At a limit at the median latency,
    ``good_thrown_away`` and ``bad_thrown_away`` are the shares of the networks below and above the
    limit that the filter refuses. ``inside``: share of the latencies in the interval, ``ratio``:
    predicted over built, the median. The calibrated forecast multiplies with the least and the
    largest ratio of latency to forecast of the first networks, and is judged on the others. A
    network without a forecast is kept, and left out of the other numbers.
    """
    built = table.dropna(subset=["latency_s"])
    rows = [{"method": FORECAST, **numbers(built, built.low_s, built.high_s)}]
    first, rest = built[:FIRST], built[FIRST:]
    if len(rest):
        ratio = first.latency_s / first.predicted_s
        ends = (rest.predicted_s * ratio.min(), rest.predicted_s * ratio.max())
        rows.append({"method": CALIBRATED, **numbers(rest, *ends)})
    rows.append(
        {
            "method": FLOPS,
            "networks": len(built),
            "spearman": spearman(built.flops, built.latency_s),
        }
    )
    return rows


def numbers(built: pd.DataFrame, low_s: pd.Series, high_s: pd.Series) -> dict[str, Any]:
    """Judge an interval by built networks; see `judged`."""
    limit_s = built.latency_s.median()
    good, kept = built.latency_s <= limit_s, ~(low_s > limit_s)
    inside = built.latency_s.between(low_s, high_s)
    return {
        "networks": len(built),
        "spearman": spearman(built.predicted_s, built.latency_s),
        "limit_ms": 1e3 * limit_s,
        "good_thrown_away": float((~kept)[good].mean()),
        "bad_thrown_away": float((~kept)[~good].mean()),
        "inside": float(inside[low_s.notna()].mean()),
        "ratio": float((built.predicted_s / built.latency_s).median()),
    }


def spearman(one: pd.Series, other: pd.Series) -> float:
    """Compute the correlation of ranks, without the rows in which a value is missing."""
    ranks = pd.DataFrame({"one": one, "other": other}).dropna().rank()
    return float(ranks.one.corr(ranks.other))


def measured(options: Options, work: Path, config: DictConfig) -> pd.DataFrame:
    """Forecast and build networks of the space; return a row for each."""
    total, leaves = options.networks + options.more, work / "forecasts.json"
    with forecaster_of(config) as forecaster:
        about = {"space": options.space, "networks": total, "drafts": forecaster.drafts.digest}
    if Job(name="", run=dict, leaves=leaves, about=about).result is None:
        shutil.rmtree(work / "drafts", ignore_errors=True)
    with forecaster_of(config) as forecaster:
        make = partial(forecasts, options.space, total, forecaster)
        (found,) = results([Job(name="forecasts", run=make, leaves=leaves, about=about)])
        forecaster.close()  # the builds have the cores alone
        table = pd.DataFrame(found["rows"])
        if not options.build:
            return table
        with network_worker() as worker:
            jobs = list(build_jobs(options, work, forecaster, worker))
            rows = list(track(results(jobs), "builds", len(jobs)))
    built = pd.DataFrame(rows).drop(columns="about")
    built["latency_s"] = latencies_s([job.leaves.with_suffix(".so") for job in jobs])
    return table.join(built)


def run(options: Options) -> dict[str, Any]:
    """Forecast, build, and write the tables."""
    keep_tables(options, HERE, "networks", "more")
    work, out = Path(options.work).resolve(), Path(options.out)
    work.mkdir(parents=True, exist_ok=True)
    words = ["networks=[space]", f"platform={options.platform}", f"drafts={work / 'drafts'}"]
    with command_config("predict", words) as config:
        table = measured(options, work, config)
    name = "results.csv" if options.build else "forecasts.csv"
    write_table(out / name, table.to_dict("records"), floats=".6g")
    if options.build:
        summary = judged(table)
        write_table(out / "summary.csv", summary, floats=".4g")
        say(as_table(summary))
    later = table.seconds[FIRST:]
    seconds_each = float(later.mean()) if len(later) else None
    return {"networks": len(table), "seconds_each": seconds_each, "results": str(out)}


if __name__ == "__main__":
    run_script(Options, run, __doc__)
