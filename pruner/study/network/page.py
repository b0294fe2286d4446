"""The report of a network's run: one HTML file that needs nothing else."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pruner.files import write_whole
from pruner.study.book.page import PageBlock, html_page
from pruner.study.book.results import TextRows
from pruner.study.network.pictures import curve_lines, latency_bars, phase_bars, task_bars
from pruner.study.network.run import NetworkRun, TaskLine, read_network_run
from pruner.tune.contenders.lineup import OURS
from pruner.tune.deploy.files import REPORT


def write_report(folder: Path, compare: Sequence[Path] = ()) -> Path:
    """Write ``report.html`` of a network's run; `compare`: other runs whose curves it shows.

    What the folder does not hold (yet) is left out of the page.

    Raises:
        DataError: a folder is not the run of a network.
    """
    run, others = read_network_run(folder), [read_network_run(other) for other in compare]
    path = folder / REPORT
    text = html_page(f"{run.name}, tuned", list(blocks(run, others)))
    with write_whole(path) as partial:
        partial.write_text(text, encoding="utf-8")
    return path


def blocks(run: NetworkRun, others: Sequence[NetworkRun] = ()) -> Iterator[PageBlock]:
    """The page from top to bottom."""
    yield PageBlock(kind="title", text=run.name)
    for line in _headline(run):
        yield PageBlock(kind="text", text=line)
    yield from _latencies(run)
    yield from _curves(run, others)
    yield from _tasks(run.tasks)
    yield from _facts(run)


def _headline(run: NetworkRun) -> Iterator[str]:
    tuned = [task for task in run.tasks if task.best_s is not None]
    if tuned:
        share = sum(task.share for task in tuned)
        yield (
            f"{len(tuned)} of {len(run.tasks)} tasks, {share:.1%} of the arithmetic, were measured:"
            f" the first programs of each take {_ms(run.first_s)} together, the best ones "
            f"{_ms(run.estimate_s)}, {run.first_s / run.estimate_s:.3g} times as fast."
        )
    replayed = run.metrics.get("replayed_share")
    if replayed:
        yield f"{replayed:.1%} of the arithmetic is in tasks with spaces that TVM replays."
    rows = {row["name"]: row for row in run.beside.ran} if run.beside is not None else {}
    ours = rows.get(OURS)
    if ours is not None:
        others = [
            f"{row['median_s'] / ours['median_s']:.3g} times as fast as {row['label']}"
            for row in rows.values()
            if row is not ours
        ]
        yield f"The network takes {_ms(ours['median_s'])}: {', '.join(others) or 'alone'}."
    elif run.deployed.get("median_s") is not None:
        yield (
            f"The network takes {_ms(run.deployed['median_s'])}. Nothing was timed with it yet: "
            f"python deploy.py run={run.folder} adds torch eager and compiled, onnxruntime, and "
            "TVM untuned and with drafted schedules only."
        )


def _latencies(run: NetworkRun) -> Iterator[PageBlock]:
    if run.beside is None:
        return
    yield PageBlock(kind="heading", text="Beside what else there is")
    yield PageBlock(
        kind="text",
        text=f"Each in a process of its own with {run.beside.lane}, in turns. Relative "
        f"errors are those of the outputs against {run.beside.reference}'s.",
    )
    if run.beside.ran:
        yield _plot(latency_bars(run.beside.ran, OURS))
    head = ["", "median", "least", "first to ninth decile", "runs", "relative error", "facts"]
    yield PageBlock(kind="table", cells=[head, *map(_contender, run.beside.rows)])


def _contender(row: Mapping[str, Any]) -> list[str]:
    if row["error"] is not None:
        return [row["label"], "", "", "", "", "", row["error"]]
    error = row["relative_error"]
    facts = [f"{name} {_fact(value)}" for name, value in row["facts"].items()]
    return [
        row["label"],
        _ms(row["median_s"]),
        _ms(row["min_s"]),
        f"{_ms(row['low_s'])} to {_ms(row['high_s'])}",
        str(row["runs"]),
        "" if error is None else f"{error:.1e}",
        ", ".join(facts),
    ]


def _curves(run: NetworkRun, others: Sequence[NetworkRun]) -> Iterator[PageBlock]:
    curves = [one.curve for one in (run, *others) if one.curve is not None]
    if curves:
        yield PageBlock(kind="heading", text="Tuning")
        yield PageBlock(kind="text", text="Calls x best latency of all tasks, once each has one.")
        yield _plot(curve_lines(curves, trials=False))
        yield _plot(curve_lines(curves, trials=True))
    seconds = {one.folder.name: one.seconds for one in (run, *others) if one.seconds}
    if seconds:
        yield PageBlock(kind="heading", text="Where the seconds went")
        yield _plot(phase_bars(seconds))


def _tasks(tasks: Sequence[TaskLine]) -> Iterator[PageBlock]:
    yield PageBlock(kind="heading", text="Tasks")
    total_s = sum(task.total_s for task in tasks)
    if total_s:
        yield _plot(task_bars(tasks))
    head = ["task", "calls", "MFLOP a call", "share of the arithmetic", "first", "best",
            "share of the time", "GFLOP/s", "untuned", "trials", "failed", "buffers"]  # fmt: skip
    rows: TextRows = [head]
    for task in sorted(tasks, key=lambda task: -task.total_s):
        speed = task.gflops_per_s
        rows.append(
            [
                task.name,
                f"{task.weight:g}",
                f"{task.flops / 1e6:.2f}",
                f"{task.share:.2%}",
                _ms(task.first_s),
                _ms(task.best_s),
                f"{task.total_s / total_s:.1%}" if task.total_s else "",
                "" if speed is None else f"{speed:.3g}",
                _ms(task.untuned_s),
                str(task.trials or ""),
                str(task.failures or ""),
                task.buffers,
            ]
        )
    yield PageBlock(kind="table", cells=rows)


def _facts(run: NetworkRun) -> Iterator[PageBlock]:
    yield PageBlock(kind="heading", text="Facts")
    if run.command:
        yield PageBlock(kind="code", text=run.command)
    names = ("network", "sizes", "platform", "target", "seed", "budget", "policy", "task_order")
    asked = {name: run.config[name] for name in names if run.config.get(name) is not None}
    asked["platform"] = (asked.get("platform") or {}).get("name")
    came = {k: run.metrics.get(k) for k in ("trials", "failed", "total_seconds")}
    facts = {**asked, **came, **run.deployed}
    cells = [[name, _fact(value)] for name, value in facts.items() if _is_short(value)]
    yield PageBlock(kind="table", cells=[["", ""], *cells])


def _is_short(value: Any) -> bool:
    return value is not None and len(_fact(value)) < 400


def _fact(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_fact(v)}" for k, v in value.items() if v is not None)
    return str(value)


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:.4g} ms"


def _plot(drawing: str) -> PageBlock:
    return PageBlock(kind="plot", drawing=drawing)
