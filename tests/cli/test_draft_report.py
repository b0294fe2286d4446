"""``draft_report`` on two CPU tasks of the Ansor set, whose records have an origin beside them."""

import csv
import shutil

import numpy as np
import pytest

from pruner.data.quarantine import Quarantine
from pruner.data.root import RecordRoot
from pruner.models.analyzer.constants import CPU_TERMS, PAPER_TERMS
from pruner.study import draft_quality
from pruner.study.book.items import load_item
from tests.paths import DATASETS

ANSOR = DATASETS / "ansor"
TASKS = ("matmul_128_128_128", "reduction_512_1024_1_False")


@pytest.fixture
def root(tmp_path):
    for folder, suffix in (("measure_records", ".json.gz"), ("origin", ".json")):
        target = tmp_path / "root" / folder / "cpu-sse4"
        target.mkdir(parents=True)
        for task in TASKS:
            shutil.copy(ANSOR / folder / "cpu-sse4" / f"{task}{suffix}", target)
    return tmp_path / "root"


def test_cpu_pools_get_rows_for_every_form(command, root, tmp_path):
    out = tmp_path / "table" / "results.csv"
    arguments = [f"data.root={root}", "data.platform=cpu-sse4", "calibrate=0", f"out={out}"]
    for origin in ("null", "random"):
        result, _ = command(
            "draft_report", *arguments, f"origin={origin}", "plot=plot_cpu.png"
        ).done
        assert result["rows"] == 4
    assert (out.parent / "plot_cpu.png").is_file()
    with out.open(encoding="utf-8") as file:
        rows = {(row["platform"], row["form"]): row for row in csv.DictReader(file)}
    forms = {"hardware", "hardware_without_compute", "hardware_without_memory", "oracle"}
    assert rows.keys() == {(p, f) for p in ("cpu-sse4", "cpu-sse4 random") for f in forms}
    assert int(rows["cpu-sse4 random", "oracle"]["num_programs"]) == 2 * 32
    latency_s = [t.latency_s for t in RecordRoot(root).read(Quarantine(), "cpu-sse4")]
    # the expected best of one program in fifty of 64, which is one program: the mean latency
    random = sum(x.min() for x in latency_s) / sum(x.mean() for x in latency_s)
    assert float(rows["cpu-sse4", "oracle"]["random_at_2pct"]) == pytest.approx(random, abs=1e-5)
    assert float(rows["cpu-sse4", "oracle"]["best1_at_2pct"]) == 1.0


def test_every_term_is_left_out_alone(command, root, tmp_path):
    out = tmp_path / "table" / "results.csv"
    result, _ = command(
        "draft_report", f"data.root={root}", "data.platform=cpu-sse4", "calibrate=0", f"out={out}",
        "terms=true",
    ).done  # fmt: skip
    with out.open(encoding="utf-8") as file:
        forms = [row["form"] for row in csv.DictReader(file)]
    assert result["rows"] == len(forms) == 4 + len(CPU_TERMS)
    assert {f"hardware_without_{name}" for name in CPU_TERMS} < set(forms)


def test_the_book_has_a_row_for_each_penalty_of_the_paper(repository):
    item = load_item(repository / "experiments" / "draft")
    (table,) = [table for table in item.tables if "penalties alone" in table.title]
    alone = [f"paper_without_{name}" for name in PAPER_TERMS]
    assert table.where["form"] == ["paper", *alone]
    for preset in item.run.values():
        assert "terms=true" in preset[0]


def test_unknown_platforms_and_missing_marks_are_one_line(command, root):
    code, _, err = command("draft_report", f"data.root={root}", "data.platform=cpu-none")
    assert code != 0
    assert "no records in" in err
    assert "there are records for: cpu-sse4" in err
    assert (
        "cpu-sse4: no measured program of origin=evolve that"
        in command("draft_report", f"data.root={root}", "calibrate=0", "origin=evolve").refusal
    )
    (root / "mine.csv").write_text("a,b\n1,2\n")
    message = "mine.csv: another table, without column platform"
    assert message in command("draft_report", f"data.root={root}", f"out={root}/mine.csv").refusal
    for words, message in (
        ([f"out={root}"], "a folder; name a file in it"),
        (["out=."], "out=.: a folder; name a file in it"),
        ([f"out={root}/mine.csv/results.csv"], "mine.csv"),
        (["plot=plots/plot.png"], "plot=plots/plot.png: a name, such as plot.png"),
        ([f"out={root}/results.csv", "plot=origin"], "origin: a folder; name a file in it"),
    ):
        err = command("draft_report", f"data.root={root}", *words).refusal
        assert (message in err, "Best" in err) == (True, False), err
    shutil.rmtree(root / "origin")
    code, _, err = command(
        "draft_report", f"data.root={root}", "data.platform=cpu-sse4", "origin=random"
    )
    assert code != 0
    assert "leave out the choice by origin" in err


def test_platforms_without_the_form_of_the_paper_have_a_panel(tmp_path, monkeypatch):
    both = {"min_programs": 1, "random_at_2pct": 0.5}
    rows = [
        {"platform": "k80", "form": "paper", "best1_at_2pct": 0.75, **both},
        {"platform": "k80", "form": "hardware", "best1_at_2pct": 1.0, **both},
        {"platform": "mine", "form": "hardware", "best1_at_2pct": 0.0, **both},
    ]
    drawn = {}
    draw = draft_quality.bar_panels

    def keep(title, names, panels, **more):
        drawn.update(panels)
        return draw(title, names, panels, **more)

    monkeypatch.setattr(draft_quality, "bar_panels", keep)
    draft_quality.plot_draft(tmp_path / "plot.png", rows, 200)
    assert drawn["K80, all pools"] == [0.5, 0.25, 0]
    assert drawn["mine, all pools"] == pytest.approx([0.5, np.nan, 1], nan_ok=True)
