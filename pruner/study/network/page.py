"""The report of a network's run as a self-contained HTML file."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pruner.files import write_text
from pruner.study.book.key_numbers import TextRows
from pruner.study.book.page import PageBlock, heading, html_page, paragraph
from pruner.study.network.run import NetworkRun, TaskLine, read_network_run
from pruner.study.plots import BLUE, GREY, bar_panels, colours, label, number, picture, short
from pruner.study.tuning_plots import curve_figure, time_figure
from pruner.tune.deploy.built_files import REPORT
from pruner.tune.networks.variants.choosing import VARIANTS, VariantReport, lines

_EQUAL = 0.02  # latencies that differ by less are called equal
_NOISY = 2.0  # ninth over first decile of timings that others disturbed
_LIBRARIES = ("torch", "onnxruntime", "openvino", "tvm")
_MANY = 24  # tasks that a picture shows


def write_report(folder: Path, compare: Sequence[Path] = ()) -> Path:
    """Write ``report.html`` of a network's run; raises DataError for other folders."""
    run, others = read_network_run(folder), [read_network_run(other) for other in compare]
    path = folder / REPORT
    write_text(path, html_page(f"{run.name}, tuned", list(blocks(run, others))))
    return path


def blocks(run: NetworkRun, others: Sequence[NetworkRun] = ()) -> Iterator[PageBlock]:
    """The page from top to bottom."""
    yield PageBlock(kind="title", text=f"{run.name}, tuned")
    for line in _headline(run):
        yield paragraph(line)
    yield from _latencies(run)
    yield from _tasks(run)
    yield from _variants(run)
    yield from _curves(run, others)
    yield from _facts(run)


def _headline(run: NetworkRun) -> Iterator[str]:
    machine = run.deployed.get("machine", {})
    where = f" on {machine['processor']}" if "processor" in machine else ""
    where += f", {machine['date']}" if "date" in machine else ""
    if run.ours:
        threads = run.deployed.get("threads") or (
            run.comparison and run.comparison.resources.threads
        )
        yield (
            f"The network takes {_ms(run.ours['median_s'])}, measured: the median of "
            f"{run.ours.get('runs', 'its')} runs with {threads} threads{where}."
        )
        low_s, high_s = run.ours.get("low_s", 0.0), run.ours.get("high_s", 0.0)
        if high_s > _NOISY * low_s:
            yield (
                f"These runs vary from {_ms(low_s)} to {_ms(high_s)}: other programs worked on the "
                "machine. Measure again on an idle machine before you trust the numbers."
            )
    yield from _sum(run)
    if run.comparison is not None and run.ours:
        ran = sorted(run.comparison.ran, key=lambda row: float(row["median_s"]))
        others = [
            f"{_than(row, run.ours)} {label(row['label'])}" for row in ran if row is not run.ours
        ]
        if others:
            yield f"It is {'; '.join(others)}."
    elif run.ours:
        yield (
            f"Nothing was timed with it yet: pruner deploy run={run.folder} adds torch eager and"
            " compiled, onnxruntime, and TVM untuned."
        )


def _sum(run: NetworkRun) -> Iterator[str]:
    tuned = [task for task in run.tasks if task.best_s is not None]
    if not tuned:
        yield f"None of its {len(run.tasks)} tasks was measured: all schedules are drafts."
        return
    share, factor = sum(task.share for task in tuned), run.first_s / run.estimate_s
    # below 1: the first timing was a lucky one, and the best latency is a median of turns
    longer = f": {factor:.3g} times as long" if factor >= 1 else ""
    yield (
        f"{len(tuned)} of {len(run.tasks)} tasks, {share:.1%} of the arithmetic, were measured: "
        f"the sum of all their calls is {_ms(run.estimate_s)}. With the first program of each it "
        f"was {_ms(run.first_s)}{longer}."
    )
    timed = sum(task.in_turns for task in run.tasks)
    if timed:
        of = "1 task" if timed == 1 else f"{timed} tasks"
        yield (
            f"The best programs of {of} were timed again, in turns. The network has the fastest "
            "program of each such task; the task's latency is the median of this program's turns."
        )
    rest_s = run.ours["median_s"] - run.estimate_s if run.ours else 0.0
    if rest_s > 0:
        whole = rest_s / run.ours["median_s"]
        yield (
            f"The difference to the network is {_ms(rest_s)} ({whole:.0%}): "
            f"{len(run.tasks) - len(tuned)} tasks without a measurement, calls between tasks, and "
            "data that is in the caches when a task is timed alone but not in the network."
        )
    elif rest_s < 0:
        yield (
            f"The network takes {_ms(-rest_s)} less than this sum: tasks were timed at another "
            "time, when the machine was slower."
        )
    replayed = run.metrics.get("replayed_share")
    if replayed:
        yield f"{replayed:.1%} of the arithmetic is in tasks with spaces that TVM replays."


def _than(row: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """A phrase with the ratio of both latencies, always above 1."""
    ratio = row["median_s"] / ours["median_s"]
    if abs(ratio - 1) < _EQUAL:
        return "as fast as"
    return f"{ratio:.3g} times faster than" if ratio > 1 else f"{1 / ratio:.3g} times slower than"


def _latencies(run: NetworkRun) -> Iterator[PageBlock]:
    if run.comparison is None:
        return
    yield heading("Compared with other libraries")
    yield paragraph(
        f"Each library ran in a process of its own with {run.comparison.resources}, in turns. "
        f"Relative errors are those of the outputs against {run.comparison.reference}'s. Ready: "
        "seconds from the start to the first run, with drafting and compiling."
    )
    if run.comparison.ran:
        rows = sorted(run.comparison.ran, key=lambda row: float(row["median_s"]))
        yield _plot("latency", lambda: _latency_bars(run.name, rows))
        head = ["library", "median (ms)", "least (ms)", "first to ninth decile (ms)", "runs",
                "ours is", "relative error", "ready (s)", "version"]  # fmt: skip
        cells = [head, *(_baseline_row(row, run.ours) for row in rows)]
        yield PageBlock(kind="table", cells=cells, names=[0])
    for row in run.comparison.rows:
        if row["error"] is not None:
            yield paragraph(f"{label(row['label'])} did not run: {row['error']}")


def _baseline_row(row: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    error, facts = row["relative_error"], row["facts"]
    ready = [facts[name] for name in ("draft_s", "build_s", "ready_s") if name in facts]
    return [
        label(row["label"]),
        _number(row["median_s"]),
        _number(row["min_s"]),
        f"{_number(row['low_s'])} to {_number(row['high_s'])}",
        str(row["runs"]),
        "" if row is ours or not ours else re.sub(" (than|as)$", "", _than(row, ours)),
        "" if error is None else f"{error:.1e}",
        f"{sum(ready):.3g}" if ready else "",
        ", ".join(f"{name} {facts[name]}" for name in _LIBRARIES if name in facts),
    ]


def _curves(run: NetworkRun, others: Sequence[NetworkRun]) -> Iterator[PageBlock]:
    curves = [one.curve for one in (run, *others) if one.curve is not None]
    if curves:
        yield heading("The search")
        yield paragraph(
            "Calls x best latency of all tuned tasks, summed; a curve begins when each task "
            "has a program that ran."
        )
        yield _plot("curves", lambda: curve_figure(curves))
    timed = [(one.folder.name, one.seconds) for one in (run, *others) if one.seconds]
    if timed:
        yield heading("Where the seconds of the search went")
        built_s = sum(run.deployed.get("seconds", {}).values())
        after = f" Then it took {built_s:.0f} s to build, check and time it." if built_s else ""
        yield paragraph(
            f"The search took {sum(run.seconds.values()):.0f} s. The import of the network "
            f"came before and is not in it.{after}"
        )
        yield _plot("phases", lambda: time_figure(timed))


def _tasks(run: NetworkRun) -> Iterator[PageBlock]:
    yield heading("Tasks")
    measured = sorted((task for task in run.tasks if task.total_s), key=lambda task: -task.total_s)
    network_s = run.ours.get("median_s")
    whole_s = network_s or run.estimate_s
    if measured:
        yield paragraph(
            "A task is a part of the network that is compiled as one function. Roofline: the "
            f"least time by the platform's description{_described(run)}, arithmetic or memory, "
            "over the measured time; more than 100 % means that the data came from caches. "
            "Forecast: the time that is expected of the best program without a measurement. The "
            "range contained nine of ten recorded programs (experiments/forecast)."
        )
        yield _plot("tasks", lambda: _task_bars(measured, network_s))
        columns = [_columns(task, whole_s) for task in measured]
        names = [name for name in columns[0] if any(row[name] for row in columns)]
        cells = [names, *([row[name] for name in names] for row in columns)]
        yield PageBlock(kind="table", cells=cells, names=[0, len(names) - 1])
    rest = sorted((t for t in run.tasks if not t.total_s), key=lambda t: -t.weight * t.flops)
    if rest:
        rows: TextRows = [["task", "calls", "MFLOP a call", "of the arithmetic (%)", "buffers"]]
        for task in rest:
            call = [task.name, f"{task.weight:g}", f"{task.flops / 1e6:.2f}"]
            rows.append([*call, f"{100 * task.share:.2f}", task.buffers])
        text = f"{len(rest)} tasks without a measured program"
        yield PageBlock(kind="table", text=text, cells=rows, names=[0, 4])


def _described(run: NetworkRun) -> str:
    platform = run.config.get("platform") or {}
    title, processor = platform.get("title"), run.deployed.get("machine", {}).get("processor")
    if not title:
        return ""
    if platform.get("kind") != "cpu" or not processor:
        return f" ({title})"
    return (
        f" ({title}; the network ran on {processor}, and if this is another processor, the share "
        "is not of its own peak)"
    )


def _columns(task: TaskLine, whole_s: float) -> dict[str, str]:
    """Cells of a measured task by heading; `whole_s`: the network's seconds."""
    return {
        "task": task.name,
        "calls": f"{task.weight:g}",
        "one call (ms)": _number(task.best_s),
        "all calls (ms)": _number(task.total_s),
        "of the network's time (%)": f"{100 * task.total_s / whole_s:.1f}",
        "of the roofline (%)": "" if task.roofline is None else f"{100 * task.roofline:.0f}",
        "GFLOP/s": f"{task.gflops_per_s:.3g}" if task.flops and task.gflops_per_s else "",
        "first program (ms)": _number(task.first_s),
        "forecast (ms)": _range(task.forecast_s),
        "untuned (ms)": _number(task.untuned_s),
        "of the arithmetic (%)": f"{100 * task.share:.2f}",
        "programs tried": str(task.trials or ""),
        "of these failed": str(task.failures or ""),
        "buffers": task.buffers,
    }


def _variants(run: NetworkRun) -> Iterator[PageBlock]:
    if not (run.folder / VARIANTS).is_file():
        return
    report = VariantReport.read(run.folder)
    yield heading("Algebraic variants")
    for line in (*lines(report), *(f"left out: {one}" for one in report.left_out)):
        yield paragraph(line)
    head = ["part of the network", "times", "steps", "draft's estimate", "error", "chosen"]
    rows = [
        [
            one.region,
            str(one.count),
            ", ".join(way.steps) or "original",
            _ms(way.estimate_s),
            f"{way.error:.1e}" if way.steps or way.error else "",
            "yes" if way.chosen else "",
        ]
        for one in report.classes
        for way in one.ways
    ]
    if rows:
        yield PageBlock(kind="table", cells=[head, *rows])


def _facts(run: NetworkRun) -> Iterator[PageBlock]:
    yield heading("How it was made")
    if run.command:
        yield PageBlock(kind="code", text=run.command)
    names = ("network", "sizes", "layout", "precision", "platform", "target", "seed", "budget",
             "task_order")  # fmt: skip
    given = {name: run.config[name] for name in names if run.config.get(name) is not None}
    given["platform"] = (given.get("platform") or {}).get("name")
    came = {k: run.metrics.get(k) for k in ("trials", "failed", "total_seconds")}
    deployed = {k: v for k, v in run.deployed.items() if k != "latencies_s"}
    machine = deployed.pop("machine", {})
    facts = {**machine, **given, **came, **deployed}
    texts = {name: _fact(value) for name, value in facts.items() if value is not None}
    rows = [[name, text] for name, text in texts.items() if len(text) < 400]
    cells = [["fact", "value"], *rows]
    yield PageBlock(kind="table", text="Machine, options, results", cells=cells)


def _fact(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_fact(v)}" for k, v in value.items() if v is not None)
    return str(value)


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{_number(seconds)} ms"


def _number(seconds: float | None) -> str:
    """Milliseconds with four digits."""
    return "" if seconds is None else f"{1e3 * seconds:.4g}"


def _range(seconds: Sequence[float]) -> str:
    if not seconds:
        return ""
    low, median, high = (f"{1e3 * s:.3g}" for s in seconds)
    return f"{median} ({low} to {high})"


def _plot(mark: str, draw: Callable[[], Figure]) -> PageBlock:
    return PageBlock(kind="plot", drawing=picture(mark, draw))


def _latency_bars(network: str, rows: Sequence[Mapping[str, Any]]) -> Figure:
    median, low, high = (
        1e3 * np.array([row[name] for row in rows]) for name in ("median_s", "low_s", "high_s")
    )
    colour = colours([row["label"] for row in rows])
    return bar_panels(
        f"{network}: latency of one run, by library",
        {short(label(row["label"])): colour[row["label"]] for row in rows},
        {"": median.tolist()},
        spread={"": np.maximum([median - low, high - median], 0.0)},
        xlabel="median latency (ms, less is better); whiskers: first to ninth decile",
    )


def _task_bars(measured: Sequence[TaskLine], network_s: float | None) -> Figure:
    shown, rest = measured[:_MANY], measured[_MANY:]
    rows = {f"{short(task.name)}  x{task.weight:g}": (BLUE, task.total_s) for task in shown}
    if rest:
        rows[f"{len(rest)} more tasks"] = (BLUE, sum(task.total_s for task in rest))
    sum_s = sum(task.total_s for task in measured)
    if network_s is not None and network_s > sum_s:
        rows["in no measured task"] = (GREY, network_s - sum_s)
    whole_s = network_s or sum_s
    return bar_panels(
        "Where the time of the network goes: all calls of each task",
        {name: colour for name, (colour, _) in rows.items()},
        {"": [1e3 * s for _, s in rows.values()]},
        text=[f"{number(1e3 * s)} ms, {s / whole_s:.1%}" for _, s in rows.values()],
        xlabel="calls x best latency (ms); share of "
        + ("the network's latency" if network_s else "their sum"),
    )
