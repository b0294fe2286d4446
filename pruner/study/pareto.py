"""Draw the front of a run with two objectives, and write its page."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from pruner.files import as_written, read_table, write_text
from pruner.study.book.page import PageBlock, heading, html_page, paragraph
from pruner.study.plots import BLUE, GREY, headline, number, picture, plain_log, short, style
from pruner.tune.run.final_choice import FRONT_FILE, FRONT_PAGE, FRONT_PLOT, JOULES, MODELLED


@dataclass(frozen=True, slots=True)
class _Quantity:
    """A second objective: its column, its unit, the values in it."""

    column: str
    label: str
    per_unit: float


_SECOND = (
    _Quantity("size_bytes", "code and scratch memory (KiB)", 1 / 1024),
    _Quantity(JOULES, "energy of a run (mJ)", 1e3),
    _Quantity(MODELLED, "energy of a run by a model (mJ)", 1e3),
)


def read_fronts(folder: Path) -> tuple[dict[str, list[Mapping[str, str]]], _Quantity]:
    """Read every task's programs, and the second objective; raises DataError where damaged."""
    path = folder / FRONT_FILE
    with as_written(path):
        rows = read_table(path)
        quantity = next(one for one in _SECOND if one.column in rows[0])
        tasks: dict[str, list[Mapping[str, str]]] = {}
        for row in rows:
            if row[quantity.column]:
                tasks.setdefault(row["task"], []).append(row)
    return tasks, quantity


def draw_fronts(folder: Path) -> Path:
    """Write ``pareto.png``: a panel for every task."""
    tasks, quantity = read_fronts(folder)
    with style():
        front_figure(tasks, quantity).savefig(folder / FRONT_PLOT, dpi=130, bbox_inches="tight")
    return folder / FRONT_PLOT


def front_figure(tasks: Mapping[str, Sequence[Mapping[str, Any]]], quantity: _Quantity) -> Figure:
    """Plot the measured programs, and the front as a staircase."""
    figure = Figure(figsize=(5.6, 0.5 + 3.4 * len(tasks)), layout="constrained")
    headline(figure, "Measured programs, and the front of those that no other beats in both")
    axes = figure.subplots(len(tasks), 1, squeeze=False)[:, 0]
    for axis, (task, rows) in zip(axes, tasks.items(), strict=True):
        for front, colour in ((False, GREY), (True, BLUE)):
            points = sorted(
                (1e3 * float(row["latency_s"]), quantity.per_unit * float(row[quantity.column]))
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
        axis.set_ylabel(f"{quantity.label}\n(less is better)")
        axis.grid(visible=True)
    return figure


def write_front_report(folder: Path) -> Path:
    """Write ``report.html``: the plot, and the programs of every front."""
    path = folder / FRONT_PAGE
    write_text(path, html_page("Two objectives", list(_blocks(folder))))
    return path


def _blocks(folder: Path) -> Iterator[PageBlock]:
    tasks, quantity = read_fronts(folder)
    yield PageBlock(kind="title", text="Two objectives")
    yield paragraph(
        "No other measured program is as good in both quantities as a program of the front. "
        f"`{FRONT_FILE}` has all programs; `pareto/` has the libraries of the front."
    )
    if quantity.column == MODELLED:
        yield paragraph("Nothing counted joules: the energies are a model's.")
    yield PageBlock(kind="plot", drawing=picture("front", lambda: front_figure(tasks, quantity)))
    for task, rows in tasks.items():
        front = [row for row in rows if row["on_front"] == "1"]
        yield heading(short(task))
        yield paragraph(f"{len(front)} of {len(rows)} programs are on the front.")
        head = ["trial", "latency (ms)", quantity.label, "result checked"]
        cells = [
            [
                row["trial"],
                number(1e3 * float(row["latency_s"])),
                number(quantity.per_unit * float(row[quantity.column])),
                "yes" if row["checked"] == "1" else "no",
            ]
            for row in front
        ]
        yield PageBlock(kind="table", cells=[head, *cells])
