"""Tune networks with and without algebraic variants, in equal time.

    python -m experiments.variants.run                   five graphs, one seed: 15 to 20 minutes
    python -m experiments.variants.run seeds=[1,2,3]     the spread: an hour
    python -m experiments.variants.run networks=[resnet18,bert_tiny,low_rank,projections]

A cell is one network and seed: two calls of ``tune.py``, one of them with ``variants=true``, with
``budget.seconds=seconds`` each. The call with variants divides its seconds between two forms of the
network and builds the faster, which is named in the column ``built``. The search for variants and
the drafts that choose them are not in this budget; the column ``choice_s`` has how much longer the
second command took. Then both libraries are timed in turns, on an idle machine. Finished commands
and cells are skipped, so the script can be stopped and started at will. Cells go to work=, the
table results.csv to out=.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pruner.cli.shared.output import say
from pruner.cli.shared.progress import track
from pruner.cli.shared.script import run_script
from pruner.commands import Commands
from pruner.errors import PrunerError
from pruner.files import merged_table, read_json, write_json, write_table
from pruner.study.grid import Job, results
from pruner.study.markdown import markdown_table
from pruner.tune.compare.baselines import Library, Resources, network_baselines
from pruner.tune.compare.benchmark import SHORT_BENCHMARK, run_interleaved
from pruner.tune.deploy.build import INPUTS
from pruner.tune.deploy.built_files import DEPLOY_FILE, LIBRARY, WORK
from pruner.tune.networks.request import REQUEST, NetworkRequest
from pruner.tune.networks.variants.choosing import VariantReport

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
GRAPHS = "experiments.variants.graphs"
OWN = ("chain", "linear_attention", "convolution", "deep_convolution", "long_sum")
TRIALS = 100_000
CONTROLS = ("low_rank", "projections")  # no variant is chosen
SECONDS_FILE = "command_s.json"


@dataclass(kw_only=True)
class Options:
    """Options; ``networks``: functions of graphs.py, or built-in networks."""

    networks: list[str] = field(default_factory=lambda: list(OWN))
    seeds: list[int] = field(default_factory=lambda: [1])
    seconds: float = 60.0
    work: str = str(ROOT / "outputs" / "experiments-variants")
    out: str = str(HERE)


def tuned(network: str, words: list[str], folder: Path) -> Path:
    """Tune a network, unless it was; return its run folder, with the command's seconds."""
    if not (folder / SECONDS_FILE).is_file():
        name = f"{GRAPHS}:{network}" if network in (*OWN, *CONTROLS) else network
        command = [sys.executable, str(ROOT / "tune.py"), f"network={name}", *words]
        start_s, log = time.monotonic(), folder / "tune.log"
        with Commands(ROOT) as commands:
            commands.run([*command, f"outputs={folder}"], log)
        if not _finished(folder):
            raise PrunerError(f"{network}: no library; see {log}")
        write_json(folder / SECONDS_FILE, time.monotonic() - start_s)
    return _finished(folder)[-1].parent


def _finished(folder: Path) -> list[Path]:
    """List the finished runs, the latest last: an interrupted command may have left a run, too."""
    return sorted(folder.glob(f"tune/*/{DEPLOY_FILE}"), key=lambda path: path.stat().st_mtime)


def timed(runs: dict[str, Path], folder: Path) -> dict[str, float]:
    """Time libraries in turns, as ``pruner deploy`` does; return median milliseconds."""
    first = runs["original"]
    libraries = {way: Library(label=way, path=run / LIBRARY) for way, run in runs.items()}
    lined = network_baselines(
        NetworkRequest.read(first / REQUEST).source,
        [],
        libraries,
        inputs=first / WORK / INPUTS,
        resources=Resources(threads=read_json(first / DEPLOY_FILE, dict)["threads"]),
    )
    rows = run_interleaved(lined, folder / "turns", SHORT_BENCHMARK, log=say)
    if failed := [f"{row.label}: {row.error}" for row in rows if row.median_s is None]:
        raise PrunerError("; ".join(failed))
    return {row.name: 1e3 * float(row.median_s or 0) for row in rows}


def cell(network: str, seed: int, options: Options, folder: Path) -> dict[str, Any]:
    """Tune a network both ways, and time both libraries."""
    # without so many trials, quick's 8 a task would end most runs before their seconds are over
    budget = [f"budget.seconds={options.seconds:g}", f"budget.trials={TRIALS}"]
    words = [f"seed={seed}", "effort=quick", *budget]
    runs, seconds = {}, {}
    for way, variants in (("original", "false"), ("variants", "true")):
        say(f"{network}, seed {seed}, {way} ...")
        runs[way] = tuned(network, [*words, f"variants={variants}"], folder / way)
        seconds[way] = float(read_json(folder / way / SECONDS_FILE))
    found, report = timed(runs, folder), VariantReport.read(runs["variants"])
    return {
        "network": network,
        "seed": seed,
        "seconds": options.seconds,
        "original_ms": found["original"],
        "variants_ms": found["variants"],
        "factor": found["original"] / found["variants"],
        "built": report.built,
        "steps": "; ".join(" ".join(steps) for steps in report.chosen.values()),
        "search_s": report.seconds,
        "choice_s": seconds["variants"] - seconds["original"],
    }


def run(options: Options) -> dict[str, Any]:
    """Run all cells and write the table."""
    jobs = []
    for seed in options.seeds:
        for network in options.networks:
            place = Path(options.work).resolve() / f"{network}-{seed}-{options.seconds:g}"
            name = f"{network}, seed {seed}"
            work = partial(cell, network, seed, options, place)
            jobs.append(Job(name=name, run=work, leaves=place / "row.json"))
    rows = []
    for job in track(jobs, "cells", len(jobs)):
        try:
            rows.extend(results([job]))
        except PrunerError as error:  # the next start tries this cell again
            say(str(error))
    table = Path(options.out) / "results.csv"
    write_table(table, merged_table(table, rows, ("network", "seed", "seconds")))
    shown = ["network", "seed", "original_ms", "variants_ms", "factor", "steps"]
    say(markdown_table(shown, [[row[name] for name in shown] for row in rows]))
    return {"cells": len(rows), "factors": {row["network"]: row["factor"] for row in rows}}


if __name__ == "__main__":
    run_script(Options, run, __doc__)
