"""Draw the front of a run with two objectives, and write its page."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from pruner.files import as_written, read_table, write_text
from pruner.study.book.page import PageBlock, heading, html_page, paragraph
from pruner.study.plots import BLUE, GREY, headline, number, picture, plain_log, short, style
from pruner.tune.deploy.built_files import REPORT
from pruner.tune.run.final_choice import FRONT_FILE, FRONT_PLOT, JOULES, MODELLED

# second objectives: column, label, factor of its unit
_SECOND = {
    "size_bytes": ("code and scratch memory (KiB)", 1 / 1024),
    JOULES: ("energy of a run (mJ)", 1e3),
    MODELLED: ("energy of a run by a model (mJ)", 1e3),
}


def read_fronts(folder: Path) -> tuple[dict[str, list[Mapping[str, str]]], str]:
    """Read every task's programs and the second objective's column; DataError where damaged."""
    path = folder / FRONT_FILE
    with as_written(path):
        rows = read_table(path)
        column = next(one for one in _SECOND if one in rows[0])
        tasks: dict[str, list[Mapping[str, str]]] = {}
        for row in rows:
            if row[column]:
                tasks.setdefault(row["task"], []).append(row)
    return tasks, column


def draw_fronts(folder: Path) -> Path:
    """Write ``pareto.png``: a panel for every task."""
    with style():
        figure = front_figure(*read_fronts(folder))
        figure.savefig(folder / FRONT_PLOT, dpi=130, bbox_inches="tight")
    return folder / FRONT_PLOT


def front_figure(tasks: Mapping[str, Sequence[Mapping[str, Any]]], column: str) -> Figure:
    """Plot the measured programs, and the front as a staircase."""
    label, per_unit = _SECOND[column]
    figure = Figure(figsize=(5.6, 0.5 + 3.4 * len(tasks)), layout="constrained")
    headline(figure, "Measured programs, and the front of those that no other beats in both")
    axes = figure.subplots(len(tasks), 1, squeeze=False)[:, 0]
    for axis, (task, rows) in zip(axes, tasks.items(), strict=True):
        for front, colour in ((False, GREY), (True, BLUE)):
            points = sorted(
                (1e3 * float(row["latency_s"]), per_unit * float(row[column]))
                for row in rows
                if (row["on_front"] == "1") == front
            )
            x, y = [list(values) for values in zip(*points, strict=True)] if points else ([], [])
            axis.plot(x, y, "o", color=colour)
            if front:
                axis.step(x, y, where="post", color=colour)
        plain_log(axis, "x")
        plain_log(axis, "y")
        axis.set_title(short(task))
        axis.set_xlabel("latency (ms, less is better)")
        axis.set_ylabel(f"{label}\n(less is better)")
        axis.grid(visible=True)
    return figure


def write_front_report(folder: Path) -> Path:
    """Write ``report.html``: the plot, and the programs of every front."""
    path = folder / REPORT
    write_text(path, html_page("Two objectives", list(_blocks(folder))))
    return path


def _blocks(folder: Path) -> Iterator[PageBlock]:
    tasks, column = read_fronts(folder)
    label, per_unit = _SECOND[column]
    yield PageBlock(kind="title", text="Two objectives")
    yield paragraph(
        "No other measured program is as good in both quantities as a program of the front. "
        f"`{FRONT_FILE}` has all programs; `pareto/` has the libraries of the front."
    )
    if column == MODELLED:
        yield paragraph("Nothing counted joules: the energies are a model's.")
    yield PageBlock(kind="plot", drawing=picture("front", lambda: front_figure(tasks, column)))
    for task, rows in tasks.items():
        front = [row for row in rows if row["on_front"] == "1"]
        yield heading(short(task))
        yield paragraph(f"{len(front)} of {len(rows)} programs are on the front.")
        head = ["trial", "latency (ms)", label, "result checked"]
        cells = [
            [
                row["trial"],
                number(1e3 * float(row["latency_s"])),
                number(per_unit * float(row[column])),
                "yes" if row["checked"] == "1" else "no",
            ]
            for row in front
        ]
        yield PageBlock(kind="table", cells=[head, *cells])
