"""``python -m pruner.cli.draft_report``: quality of the draft on record folders, as a table.

Options as ``name=value``: ``data.root=DIR`` (a folder with ``measure_records``), ``platforms=a,b``,
``calibrate=200`` (measured programs a fold; 0: the rates of conf/draft), ``official=true`` (also
the released form: needs the general engine, minutes), ``min_programs=200``, ``origin=random`` (only
programs found in that way, where the records tell), ``repeats=fastest`` (a program's latency is the
least of its timings instead of their mean: for busy machines), ``out=FILE.csv``, ``plot=NAME.png``.
"""

import csv
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from pruner.cli.door import fail
from pruner.cli.output import say
from pruner.data.origin import found_by
from pruner.data.quarantine import Quarantine
from pruner.data.root import RecordRoot
from pruner.data.tasks import TaskRecords
from pruner.errors import PrunerError
from pruner.files import jsonable
from pruner.models.analyzer.analyzer import Form, load_analyzer
from pruner.models.analyzer.choice import SymbolicDraft
from pruner.models.analyzer.quality import (
    DraftTask,
    cross_calibrated,
    draft_task,
    of_another_gpu,
    quality,
    score_records,
    score_task,
)
from pruner.models.judging.metrics import ScoredTask
from pruner.places import conf_folder
from pruner.program.device import GpuDevice

Scored = dict[str, list[ScoredTask]]

DEFAULTS = {
    "data.root": "../shared/data/gpu-records",
    "platforms": "k80,v100,mi50,a100",
    "calibrate": "200",
    "official": "false",
    "min_programs": "200",
    "origin": "",
    "repeats": "mean",
    "seed": "0",
    "out": "experiments/draft/results.csv",
    "plot": "plot.png",
}


def report_platform(
    root: RecordRoot, platform: str, options: dict[str, str]
) -> list[dict[str, Any]]:
    """Rows of one platform: one a form and pool selection. The rates of all rows are the defaults.

    Raises:
        PrunerError: unknown platform, no records of it, or an operator that is not known.
    """
    rows = []
    for form, all_tasks in _forms(root, platform, options).items():
        for least in (1, int(options["min_programs"])):
            kept = [t for t in all_tasks if t.num_programs >= least]
            if kept:
                fastest = "fastest" if options["repeats"] == "fastest" else ""
                name = " ".join(filter(None, (platform, options["origin"], fastest)))
                rows.append(
                    {"platform": name, "form": form, "min_programs": least, **quality(kept)}
                )
    return rows


def _measured(root: RecordRoot, platform: str, options: dict[str, str]) -> Iterator[TaskRecords]:
    origin = options["origin"]
    for task in root.read(Quarantine(), platform):
        chosen = task.select(found_by(root.path, task, origin)) if origin else task
        chosen = chosen.select(chosen.valid)
        if options["repeats"] == "fastest":
            chosen = replace(chosen, latency_s=np.array([min(costs) for costs in chosen.costs_s]))
        if len(chosen):
            yield chosen


def _forms(root: RecordRoot, platform: str, options: dict[str, str]) -> Scored:
    hardware = load_analyzer(conf_folder(), platform).uncalibrated()
    on_gpu = isinstance(hardware.device, GpuDevice)
    forms: tuple[Form, ...] = get_args(Form) if on_gpu else ("hardware",)
    with_official = on_gpu and options["official"] == "true"
    tasks: list[DraftTask] = []
    official: list[ScoredTask] = []
    for records in _measured(root, platform, options):
        if of_another_gpu(records, hardware.device):
            say(f"{records.file}: {len(records)} programs of another GPU left out")
            continue
        tasks.append(draft_task(records, hardware))
        if with_official:
            released = SymbolicDraft(form="official").scorer(conf_folder(), hardware.device)
            official.append(score_records(records, released))
    scored: Scored = {"official": official} if official else {}
    scored |= {form: [score_task(t, replace(hardware, form=form)) for t in tasks] for form in forms}
    scored["oracle"] = [_oracle(t.name, t.latency_s) for t in tasks]
    for group, name in (("c", "compute"), ("m", "memory")):
        for form in forms:
            ablated = replace(hardware, form=form, without=group)
            scored[f"{form}_without_{name}"] = [score_task(t, ablated) for t in tasks]
    if int(options["calibrate"]):
        rng = np.random.default_rng(int(options["seed"]))
        folds, fits = cross_calibrated(tasks, hardware, int(options["calibrate"]), rng)
        scored["hardware_calibrated"] = [score_task(t, folds[t.fold]) for t in tasks]
        for fit in fits.values():
            say(
                f"{platform}: {fit.num_programs} programs, error {fit.error_before:.3f} -> "
                f"{fit.error_after:.3f}"
            )
    return scored


def _oracle(name: str, latency_s: np.ndarray) -> ScoredTask:
    return ScoredTask(name=name, latency_s=latency_s, score=-latency_s)


def main() -> None:
    """Run the command."""
    options = dict(DEFAULTS)
    for argument in sys.argv[1:]:
        name, _, value = argument.partition("=")
        if name not in options:
            fail(f"{name} is unknown; known: {', '.join(DEFAULTS)}")
        options[name] = value
    if options["repeats"] not in ("mean", "fastest"):
        fail(f"repeats={options['repeats']} is unknown; known: mean, fastest")
    start = time.perf_counter()
    try:
        root = RecordRoot(options["data.root"])
        rows = [
            row
            for platform in options["platforms"].split(",")
            for row in report_platform(root, platform, options)
        ]
    except PrunerError as error:
        fail(str(error))
    _write(Path(options["out"]), rows)
    for row in rows:
        say(
            f"{row['platform']:6s}{row['form']:26s}>={row['min_programs']:<4d}"
            f"2%: {row['best1_at_2pct']:.4f} random {row['random_at_2pct']:.4f} "
            f"ratio {row['regret_ratio_at_2pct']:6.3f}  1/8: {row['best1_at_eighth']:.4f} random "
            f"{row['random_at_eighth']:.4f}  rank {row['rank_correlation']:.3f}"
        )
    _plot(Path(options["out"]).with_name(options["plot"]), rows, int(options["min_programs"]))
    line = {"rows": len(rows), "out": options["out"], "seconds": time.perf_counter() - start}
    print(json.dumps(jsonable(line)))


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Replace the rows of these platforms and forms in the table, keep the others."""
    fresh = {(row["platform"], row["form"]) for row in rows}
    kept: list[dict[str, Any]] = []
    if path.is_file():
        with path.open(newline="", encoding="utf-8") as file:
            kept = [
                row for row in csv.DictReader(file) if (row["platform"], row["form"]) not in fresh
            ]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        for row in [*kept, *rows]:
            writer.writerow({k: f"{v:.5f}" if isinstance(v, float) else v for k, v in row.items()})


def _plot(path: Path, rows: list[dict[str, Any]], least: int) -> None:
    """Regret of the 1/50 draft by form and platform, all pools and large pools."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    forms = [
        f for f in ("paper", "hardware", "hardware_calibrated") if any(r["form"] == f for r in rows)
    ]
    platforms = list(dict.fromkeys(row["platform"] for row in rows))
    sizes = [size for size in (1, least) if any(row["min_programs"] == size for row in rows)]
    figure, table = pyplot.subplots(
        1, len(sizes), figsize=(4.5 * len(sizes), 3.2), sharey=True, squeeze=False
    )
    axes = table[0]
    for axis, smallest in zip(axes, sizes, strict=True):
        chosen = {(r["platform"], r["form"]): r for r in rows if r["min_programs"] == smallest}
        series = {"random": [1 - chosen[p, forms[0]]["random_at_2pct"] for p in platforms]}
        series |= {f: [1 - chosen[p, f]["best1_at_2pct"] for p in platforms] for f in forms}
        for shift, (name, values) in enumerate(series.items()):
            places = np.arange(len(platforms)) + 0.2 * (shift - 1.5)
            axis.bar(places, values, width=0.2, label=name.replace("_", " "))
        axis.set_xticks(range(len(platforms)), platforms)
        axis.set_title("all pools" if smallest == 1 else f"pools of {least} or more")
        axis.set_yscale("log")
    axes[0].set_ylabel("1 - Best-1, 1/50 of the pool")
    axes[-1].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
