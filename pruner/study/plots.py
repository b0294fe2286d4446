"""The style of every plot: names and colours of systems, axes, SVG.

Colours are near Okabe and Ito's, distinct on light and on dark paper and for the colour-blind
(`tests/study/test_plots.py`). Tuners, libraries, models and ways to adapt share the palette.
"""

import io
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from matplotlib.transforms import blended_transform_factory

BLUE, SKY, ORANGE, VERMILION, GREEN = "#016CAA", "#1E97F2", "#CA8400", "#C45000", "#05A777"
PINK, VIOLET, BROWN, OLIVE, GREY = "#D671AA", "#7E4FE0", "#995333", "#A3933E", "#7A7A7A"
PALETTE = (BLUE, VERMILION, GREEN, ORANGE, VIOLET, SKY, BROWN, PINK, OLIVE, GREY)
# Of text, paper and grid lines: on light paper, on dark paper.
INK, PAPER, GRID = ("#24292f", "#d6dde5"), ("#ffffff", "#14181d"), ("#d8dee4", "#3a424c")
MANY = 8  # series that one panel can show as lines
MARKERS = "osD^vPX*"  # of a panel's lines
_ACROSS = 3  # panels of bars side by side
_ALIKE = 3.0  # panels whose longest bars differ by less have one scale
LONG = 32  # characters of a name that a table or an axis shows

TUNERS = {
    "ours": ("ours", BLUE),
    "pruner_live": ("ours", BLUE),
    "pretrained": ("ours, pre-trained", GREEN),
    "pruner_live_without_draft": ("ours without the draft", GREEN),
    "pruner_live_without_pacm": ("ours without the model", PINK),
    "pruner_paper": ("Pruner as published", SKY),
    "pruner_paper_without_draft": ("as published, no draft", VIOLET),
    "pruner_paper_without_pacm": ("as published, no model", BROWN),
    "metaschedule": ("MetaSchedule", VERMILION),
    "ansor": ("Ansor", ORANGE),
    "gradient": ("gradient search", GREEN),
    "construct": ("construction", BROWN),
    "propose_lm": ("language model", VIOLET),
    "adatune": ("AdaTune", OLIVE),
    "model_only": ("model only", VIOLET),
    "draft_then_verify": ("draft, then verify", BLUE),
    "random": ("random", GREY),
}
LIBRARIES = {
    "ours": ("ours", BLUE),
    "MetaSchedule": ("MetaSchedule", VERMILION),
    "onnxruntime": ("onnxruntime", GREEN),
    "OpenVINO": ("OpenVINO", ORANGE),
    "torch eager": ("torch eager", PINK),
    "torch.compile": ("torch.compile", BROWN),
    "torch.compile, max-autotune and frozen": ("torch.compile, autotuned", VIOLET),
    "TVM, drafted only": ("ours, drafted only", SKY),
    "TVM untuned": ("TVM untuned", GREY),
}
MODELS = {
    "pacm": ("PaCM", BLUE),
    "draft": ("PaCM with draft scores", SKY),
    "residual": ("PaCM with a correction", SKY),
    "pacm_joint": ("PaCM, all platforms", VIOLET),
    "without_dataflow": ("PaCM without data flow", ORANGE),
    "without_statement": ("PaCM without statements", VERMILION),
    "official_k80_weights": ("PaCM, released weights", SKY),
    "tensetmlp": ("TenSetMLP", ORANGE),
    "tlp": ("TLP", PINK),
    "mtl_tlp": ("MTL-TLP", OLIVE),
    "attention": ("attention", BROWN),
    "attention_random": ("attention, random 55 %", GREY),
    "attention_spread": ("attention, spread 55 %", BLUE),
    "xgboost": ("XGBoost", GREEN),
    "lightgbm": ("LightGBM", VERMILION),
    "analyzer": ("draft alone", PINK),
    "ceiling": ("best possible", OLIVE),
    "official": ("as released", GREY),
    "paper": ("as published", SKY),
    "hardware": ("ours", BLUE),
    "hardware_calibrated": ("ours, calibrated", GREEN),
    "random": ("random", GREY),
}
METHODS = {
    "moa": ("MoA", BLUE),
    "moa_official": ("MoA as released", SKY),
    "moa_gentle": ("MoA, gentle", OLIVE),
    "scratch": ("from scratch", VIOLET),
    "scratch_no_draft": ("from scratch, no draft", BROWN),
    "none": ("source model as it is", VERMILION),
    "finetune": ("fine-tuning", GREEN),
    "distill": ("distillation", PINK),
    "multi_task": ("multi-task", ORANGE),
}
SYSTEMS = METHODS | MODELS | LIBRARIES | TUNERS
# Words of other identifiers; what is not here, such as a network's name, is written as it is.
WORDS = {
    "k80": "K80", "v100": "V100", "mi50": "MI50", "a100": "A100", "t4": "T4",
    "cpu-avx2": "AVX2", "cpu-avx512": "AVX-512", "cpu-sse4": "SSE4", "cpu-epyc": "EPYC",
    "cpu-zen5": "Zen 5", "pam_k80_1500": "released weights", "2pct": "1/50", "eighth": "1/8",
    "apart_50": "kept apart", "noise_10": "10 % noise", "noise_25": "25 % noise",
    "score": "by score", "trials": "measured programs",
    "pairwise_random": "pairs in the right order",
    "continue": "training goes on", "finetune_gentle": "fine-tuning, gentle",
    "finetune_official": "fine-tuning as released", "ewc": "EWC", "moses": "Moses",
    "moa_m50": "MoA, momentum 0.5", "moa_m90": "MoA, momentum 0.9", "moa_online": "MoA, online",
    "moa_buffers": "MoA with buffers", "moa_period4": "MoA every 4 rounds",
    "pairwise_searched": "pairs in the right order", "random_pick": "random programs",
}  # fmt: skip


def label(name: str) -> str:
    """The displayed text of an identifier, or of several with commas."""
    if name in SYSTEMS:
        return SYSTEMS[name][0]
    if ", " in name:
        return ", ".join(map(label, name.split(", ")))
    return re.sub(r"[\w-]+", lambda m: WORDS.get(m[0], m[0]), name)


def short(name: str) -> str:
    """A name in at most `LONG` characters: its beginning and its end."""
    return name if len(name) <= LONG else f"{name[: LONG - 9]}…{name[-8:]}"


def colours(names: Sequence[str]) -> dict[str, str]:
    """The colour of each name: its system's, else a free colour."""
    systems = {
        name: next((part for part in (name, *name.split(", ")) if part in SYSTEMS), name)
        for name in names
    }
    taken = {name: SYSTEMS[name][1] for name in systems.values() if name in SYSTEMS}
    free = [colour for colour in PALETTE if colour not in taken.values()] or list(PALETTE)
    unknown = [name for name in dict.fromkeys(systems.values()) if name not in taken]
    taken |= {name: free[n % len(free)] for n, name in enumerate(unknown)}
    return {name: taken[systems[name]] for name in names}


@contextmanager
def style(mark: str = "") -> Iterator[None]:
    """The look of every figure; equal `mark` and data give equal SVG."""
    ink, paper, grid = INK[0], PAPER[0], GRID[0]
    settings: dict[Any, Any] = {
        "svg.hashsalt": mark, "svg.fonttype": "none", "font.size": 9, "axes.titlesize": 9,
        "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
        "text.color": ink, "axes.labelcolor": ink, "xtick.color": ink, "ytick.color": ink,
        "axes.edgecolor": ink, "axes.titlelocation": "left", "axes.titleweight": "bold",
        "figure.facecolor": paper, "axes.facecolor": "none", "savefig.facecolor": paper,
        "grid.color": grid, "grid.linewidth": 0.7, "figure.titlesize": 10,
        "lines.markersize": 4, "legend.frameon": False,
    }  # fmt: skip
    with rc_context(settings):
        yield


def headline(figure: Figure, text: str) -> None:
    """Set the title above all panels, at the left, wrapped."""
    lines = textwrap.wrap(text, int(figure.get_figwidth() * 13))
    figure.suptitle("\n".join(lines), x=0.01, ha="left", weight="bold")


def picture(mark: str, draw: Callable[[], Figure]) -> str:
    """Draw a figure in the common style as ``<svg>`` with mark and dark scheme."""
    stream = io.StringIO()
    with style(mark):
        draw().savefig(stream, format="svg", bbox_inches="tight", metadata={"Date": None})
    text = stream.getvalue()
    element = text[text.index("<svg") :].replace("<svg", f"<svg role='img' data-of='{mark}'", 1)
    dark = "".join(
        f'[style*="{name}: {light}"]{{{name}:{dark}!important}}'  # also in what <use> repeats
        for light, dark in (INK, PAPER, GRID)
        for name in ("fill", "stroke")
    )
    element = element.replace("</style>", f"@media(prefers-color-scheme:dark){{{dark}}}</style>", 1)
    return re.sub(r"[ \t]+\n", "\n", re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.S))


def number(value: float) -> str:
    """Three digits, or a whole number with commas."""
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}".rstrip(".")


def plain_log(axis: Axes, name: str) -> None:
    """Make an axis ("x" or "y") logarithmic, with plain numbers as its range allows."""
    axis.set(**{f"{name}scale": "log"})
    one = axis.xaxis if name == "x" else axis.yaxis
    low, high = one.get_view_interval()
    subs = (1, 1.5, 2, 3, 5, 7) if high < 10 * low else (1, 2, 5) if high < 100 * low else (1,)
    if high < 2 * low:
        subs = (1, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8, *range(2, 10))
    one.set_major_locator(LogLocator(subs=subs, numticks=12))
    one.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    one.set_minor_formatter(NullFormatter())


def name_lines(axis: Axes, names: Mapping[str, str]) -> None:
    """Write each line's name (`names`, by label) at its right end."""
    figure = axis.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # ends are known once panels have their places
    figure.set_layout_engine("none")
    height = 1.25 * 8 / 72 * figure.dpi  # of a line of text, in pixels
    named = [line for line in axis.get_lines() if line.get_label() in names]
    lines = [line for line in named if len(np.asarray(line.get_xydata()))]  # others have no end
    ends = {
        line: line.get_transform().transform(np.asarray(line.get_xydata())[-1]) for line in lines
    }
    lines.sort(key=lambda line: ends[line][1])
    places = np.array([ends[line][1] for line in lines])
    for _ in range(100):  # push neighbours apart until none is too near
        gaps = np.diff(places)
        near = np.flatnonzero(gaps < 0.99 * height)
        for n in near:
            push = (height - gaps[n]) / 2
            places[n], places[n + 1] = places[n] - push, places[n + 1] + push
        if not len(near):
            break
    mixed = blended_transform_factory(axis.transAxes, axis.transData)
    for line, place in zip(lines, places, strict=True):
        y = axis.transData.inverted().transform((0, place))[1]
        end = axis.transAxes.inverted().transform(ends[line])[0]
        last = np.asarray(line.get_ydata())[-1]
        axis.plot([end, 1.03, 1.05], [last, y, y], color=line.get_color(), lw=0.8,
                  marker=line.get_marker(), markevery=[2], transform=mixed, clip_on=False,
                  scalex=False, scaley=False)  # fmt: skip
        axis.text(1.07, y, names[str(line.get_label())], va="center", fontsize=8, transform=mixed)


def bars(
    axis: Axes,
    values: Sequence[float],
    colour: Sequence[str],
    *,
    spread: Any = 0.0,
    limit: float | None = None,
    text: Sequence[str] | None = None,
) -> None:
    """Draw horizontal bars from zero, the first on top; nan: "not run".

    `spread` [2, values]: lengths of the whiskers below and above; bars longer than `limit` run
    through the axis, with a break mark; `text` replaces the numbers at the right.
    """
    known = np.nan_to_num(np.asarray(values, float))
    top = max(known.max(initial=0.0), 1e-12) if limit is None else limit
    places, inside = np.arange(len(known)), known <= top
    spans = np.nan_to_num(np.broadcast_to(spread, (2, len(known)))) * inside
    wide = max(top, float((known + spans[1])[inside].max(initial=0.0)))
    axis.barh(places, np.where(inside, known, 2 * wide), color=list(colour), height=0.72,
              xerr=spans if spans.any() else None, ecolor=INK[0], capsize=2,
              error_kw={"lw": 0.8})  # fmt: skip
    beside = axis.get_yaxis_transform()  # x in shares of the axis
    for place, value in enumerate(values):
        shown = "not run" if np.isnan(value) else number(value) if text is None else text[place]
        axis.text(1.03, place, shown, va="center", fontsize=8, transform=beside)
        for x in (0.88, 0.93) if value > top else ():
            axis.plot([x, x + 0.03], [place + 0.45, place - 0.45], color=PAPER[0], lw=1.8,
                      transform=beside)  # fmt: skip
    axis.set_ylim(len(known) - 0.4, -0.6)
    axis.set_xlim(0, 1.15 * wide if not inside.all() else 1.02 * wide)
    ticks = np.asarray(MaxNLocator(3).tick_values(0, wide))
    axis.set_xticks(ticks[(ticks >= 0) & (ticks <= 1.01 * wide)])
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="x")


def bar_panels(
    title: str,
    rows: Mapping[str, str],
    panels: Mapping[str, Sequence[float]],
    *,
    xlabel: str,
    spread: Mapping[str, Any] | None = None,
    limit: float | None = None,
    text: Sequence[str] | None = None,
) -> Figure:
    """Draw bars in panels side by side, names at the left.

    `rows`: name to colour, a bar each; `panels`: title to their numbers, nan: none. Without `limit`
    each panel has its own, or one where numbers are similar.
    """
    across = min(_ACROSS, len(panels))
    down = -(-len(panels) // across)
    size = (2.2 + (1.9 if across > 1 else 3.0) * across, 1.0 + down * (0.5 + 0.18 * len(rows)))
    figure = Figure(figsize=size, layout="constrained")
    headline(figure, title)
    axes = figure.subplots(down, across, squeeze=False, sharey=True, gridspec_kw={"wspace": 0.12})
    limits = {name: cut(values) if limit is None else limit for name, values in panels.items()}
    most = max(limits.values())
    if most < _ALIKE * min(limits.values()):
        limits = dict.fromkeys(panels, most)
    for axis, (name, values) in zip(axes.flat, panels.items(), strict=False):
        whiskers = 0.0 if spread is None else spread[name]
        bars(axis, values, list(rows.values()), spread=whiskers, limit=limits[name], text=text)
        axis.set_yticks(range(len(rows)), list(rows))
        axis.set_title(name)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    figure.supxlabel(xlabel, fontsize=9)
    return figure


def cut(values: Sequence[float], far: float = 4.0) -> float:
    """Limit of the bars, against a few very long bars.

    In the longest third, bars are cut from the first bar on that is more than `far` times as long
    as the next shorter bar.
    """
    known = np.sort([value for value in values if not np.isnan(value)])
    for n in range(max(1, -(-2 * len(known) // 3)), len(known)):
        if known[n] > far * known[n - 1]:
            return float(1.1 * known[n - 1])
    return float(known[-1]) if len(known) else 1.0
