"""Plots can be read: colours differ for every eye, texts do not overlap, bars end in time."""

import itertools
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from pruner.files import write_table
from pruner.paths import sources_folder
from pruner.study import plots
from pruner.study.book.items import Plot, load_items
from pruner.study.book.key_numbers import Series, plot_series, read_results
from pruner.study.book.plots import _bars, _lines, panels, svg
from pruner.study.pareto import draw_fronts, write_front_report
from pruner.study.tuning_plots import CURVES, TIME, RunCurve, draw, load_run
from tests.study.network.fabricated import fabricate

# Linear RGB as protanopes and deuteranopes see it (Machado and others 2009, severity 1).
EYES = {
    "usual": np.eye(3),
    "protanope": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deuteranope": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(colour):
    value = np.array([int(colour[n : n + 2], 16) for n in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    ratio = TO_XYZ @ np.clip(rgb, 0, 1) / np.array([0.9505, 1.0, 1.089])
    x, y, z = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("eye", EYES)
def test_every_two_colours_differ_for_every_eye(eye):
    seen = {one: lab(np.array(EYES[eye]) @ linear(one)) for one in plots.PALETTE}
    for a, b in itertools.combinations(plots.PALETTE, 2):
        assert np.linalg.norm(seen[a] - seen[b]) > 10, (a, b)  # 2.3 is just noticeable


@pytest.mark.parametrize("paper", plots.PAPER)
def test_colours_stand_out_on_light_and_on_dark_paper(paper):
    ink = plots.INK[plots.PAPER.index(paper)]
    for colour, least in (*((one, 3.0) for one in plots.PALETTE), (ink, 7.0)):
        dark, light = sorted(float(TO_XYZ[1] @ linear(one)) for one in (colour, paper))
        assert (light + 0.05) / (dark + 0.05) >= least, colour


def test_a_system_has_one_colour_and_one_name():
    for one, other in itertools.combinations(
        (plots.TUNERS, plots.LIBRARIES, plots.MODELS, plots.METHODS), 2
    ):
        for name in one.keys() & other.keys():
            assert one[name] == other[name]
    assert plots.SYSTEMS["MetaSchedule"] == plots.SYSTEMS["metaschedule"]


def texts(figure):
    """What is drawn, without the labels of ticks outside their axes."""
    figure.draw_without_rendering()
    hidden = set()
    for axis in (one for axes in figure.axes for one in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
        hidden |= {tick.label1 for tick in ticks if not low <= tick.get_loc() <= high}
    found = figure.findobj(Text)
    return [t for t in found if t.get_visible() and t.get_text().strip() and t not in hidden]


def overlapping(figure):
    """Pairs of texts whose boxes share more than a pixel."""
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts(figure)]
    return [
        (a, b)
        for (a, one), (b, other) in itertools.combinations(boxes, 2)
        if min(one.x1, other.x1) - max(one.x0, other.x0) > 1
        and min(one.y1, other.y1) - max(one.y0, other.y0) > 1
    ]


COMMITTED = [
    pytest.param(item, plot, id=f"{item.name}-{number}")
    for item in load_items(sources_folder() / "experiments")
    for number, plot in enumerate(item.plots)
]


@pytest.mark.slow
@pytest.mark.parametrize(("item", "plot"), COMMITTED)
def test_no_text_of_the_book_overlaps_and_lines_of_a_panel_differ(item, plot):
    rows = read_results(item)
    if rows is None:
        pytest.skip("no results yet")
    series = plot_series(plot, rows)
    with plots.style():
        figure = (_lines if plot.kind == "line" else _bars)(plot, series)
        assert overlapping(figure) == []
        places = {t.get_text(): t.get_window_extent().extents for t in texts(figure)}
    assert [name for name, place in places.items() if not np.isfinite(place).all()] == []
    for mine in panels(series).values():
        assert len(mine) <= plots.MANY or plot.kind == "bar"
        if plot.kind == "line":
            colours = plots.colours([name for name, _ in mine])
            assert len(set(colours.values())) == len(mine), colours
    networks = r"mobilenet_v2|bert_\w+|squeezenet1_1"
    assert [t for t in texts(figure) if "_" in re.sub(networks, "", t.get_text())] == []


def test_names_of_lines_that_end_together_are_pushed_apart():
    with plots.style():
        figure = Figure(figsize=(5, 3), layout="constrained")
        axis = figure.subplots()
        for n in range(8):
            axis.plot([1, 2], [n, 1 + n / 1000], label=f"line {n}")
        plots.name_lines(axis, {f"line {n}": f"line {n}" for n in range(8)})
        assert overlapping(figure) == []
        found = [t for t in figure.findobj(Text) if t.get_text().startswith("line")]
        heights = {t.get_text(): t.get_window_extent().y0 for t in found}
    assert sorted(heights, key=heights.__getitem__) == [f"line {n}" for n in range(8)]


def plot(**more):
    given = {"title": "T", "kind": "bar", "x": "p", "y": "top1", "series": "model"} | more
    return Plot(**given)


def test_a_panel_has_the_lines_of_one_group_whatever_its_name():
    rows = [("a", "ours", 1), ("a, random", "ours", 2), ("a, random", "random", 3)]
    table = pd.DataFrame(rows, columns=["group", "policy", "y"]).assign(x=0)
    series = plot_series(plot(kind="line", x="x", y="y", series=["group", "policy"]), table)
    found = {title: [name for name, _ in mine] for title, mine in panels(series).items()}
    assert found == {"a": ["ours"], "a, random": ["ours", "random"]}


def test_the_whisker_of_a_share_ends_at_one():
    one = Series(name="pacm", x=["k80"], y=[0.9], spread=[0.3])
    with plots.style():
        axis = _bars(plot(), [one]).axes[0]
    (whisker,) = next(c for c in axis.collections if isinstance(c, LineCollection)).get_segments()
    assert whisker[:, 0].tolist() == pytest.approx([0.6, 1.0])


def test_one_long_bar_is_cut_and_the_rest_keep_their_lengths():
    assert plots.cut([1.0, 1.5, 2.0, 170.0]) == pytest.approx(2.2)
    assert plots.cut([1.0, 2.0, 3.0, 4.0]) == 4.0
    assert plots.cut([float("nan")]) == 1.0
    series = [
        Series(name=name, x=["net"], y=[y], spread=[0.0])
        for name, y in (("ours", 1.0), ("onnxruntime", 0.8), ("TVM untuned", 170.0))
    ]
    with plots.style():
        axis = _bars(plot(y="over_ours"), series).axes[0]
    marks = [line for line in axis.lines if line.get_color() == plots.PAPER[0]]
    assert [round(float(np.mean(line.get_ydata()))) for line in marks] == [2, 2]  # the third bar
    assert "170" in [t.get_text() for t in axis.texts]
    text = svg(plot(y="over_ours"), series)
    assert "prefers-color-scheme:dark" in text
    assert text == svg(plot(y="over_ours"), series)


def run(name, task, best_s):
    return RunCurve(
        name=name,
        tasks=(task,),
        trial=np.arange(1, 4),
        elapsed_s=np.arange(3.0),
        best_s=np.array(best_s),
        seconds={"build": 2.0, "run": 1.0},
    )


def test_programs_that_differ_have_a_row_of_panels_each(tmp_path):
    small, large = run("a", "matmul", [2e-3, 1e-3, 1e-3]), run("b", "softmax", [5e-2, 4e-2, 1e-2])
    heights = []
    for runs in ([small, small], [small, large]):
        assert {path.name for path in draw(runs, tmp_path)} == {CURVES, TIME}
        with Image.open(tmp_path / CURVES) as picture:
            heights.append(picture.height)
    assert heights[1] == pytest.approx(2 * heights[0], rel=0.1)


def test_a_run_that_has_not_ended_is_drawn_beside_others(tmp_path):
    trials = [("conv_a", 4e-3, 1.0), ("dense_b", 2e-3, 2.0)]
    ended = load_run(fabricate(tmp_path / "ended", trials))
    folder = fabricate(tmp_path / "begun", trials[::-1])
    (folder / "metrics.json").unlink()
    begun = load_run(folder)
    wanted = pytest.approx([2 * 4e-3 + 2e-3])
    assert begun.best_s.tolist() == ended.best_s.tolist() == wanted
    assert begun.tasks == ended.tasks  # one panel
    points = {name: getattr(begun, name)[:0] for name in ("trial", "elapsed_s", "best_s")}
    draw([ended, begun, replace(begun, name="no program yet", **points)], tmp_path)


POINTS = [(1, 1e-3, 8192, 1), (2, 2e-3, 4096, 1), (3, 3e-3, 6144, 0)]


JOULES = pytest.param("joules", marks=pytest.mark.slow)  # a model draws the same


@pytest.mark.parametrize("column", ["size_bytes", "energy_model_j", JOULES])
def test_a_front_is_drawn_and_listed(tmp_path, column):
    rows = [
        {"task": task, "trial": n, "latency_s": s, column: value, "checked": 1, "on_front": front}
        for task in ("conv2d", "matmul")
        for n, s, value, front in POINTS
    ]
    write_table(tmp_path / "pareto.csv", rows)
    with Image.open(draw_fronts(tmp_path)) as picture:
        assert picture.height > picture.width
    page = write_front_report(tmp_path).read_text(encoding="utf-8")
    assert page.count("2 of 3 programs are on the front") == 2
    assert ("energies are a model" in page) == (column == "energy_model_j")
    if column == "size_bytes":
        assert ">8.00<" in page
        assert ">6.00<" not in page
