"""The clean protocol: its order, its tables by hand, a stage that continues."""

import csv
from types import SimpleNamespace

import pytest

from experiments.model.ablation.cells import NESTED, SHIPPED, AblationCell, settings_of
from experiments.model.ablation.clean import NO_RATES, Clean, report
from experiments.model.ablation.fits import ANALYZER, CHANCE
from experiments.model.ablation.rates import gpu_analyzer
from pruner.cli.shared.script import Data
from pruner.data.quarantine import Quarantine
from pruner.data.root import RecordRoot
from pruner.errors import PrunerError
from pruner.models.analyzer.quality import score_records
from pruner.models.judging.metrics import pairwise_accuracy, top_k_task_mean

SETTINGS = settings_of(["k80", "v100"])[:2]


def row(model, rates, platform, seed, top1, pairwise=0.5):
    return {
        "platform": platform, "seed": seed, "model": model, "rates": rates,
        "top1_task_mean": top1, "pairwise_accuracy": pairwise, "num_tasks": 9,
    }  # fmt: skip


def clean_of(**options):
    lines = []
    ablation = SimpleNamespace(log=lines.append)
    known = {"settings": SETTINGS, "seeds": [0, 1], "readers": ["draft", "residual"]}
    return Clean(ablation=ablation, **known | {"rivals": ["pacm"]} | options), lines


def test_the_most_important_model_comes_first_seed_by_seed():
    clean, _ = clean_of()
    names = [[cell.name for cell in step] for step in clean.steps([("k80", 0, "pacm")])]
    assert names == [
        ["k80/draft_nested/seed-0", "k80/draft/seed-0"],
        ["v100/draft_nested/seed-0", "v100/draft/seed-0"],
        ["k80/draft_nested/seed-1", "k80/draft/seed-1"],
        ["v100/draft_nested/seed-1", "v100/draft/seed-1"],
        ["k80/residual_nested/seed-0", "k80/residual/seed-0"],
        ["v100/residual_nested/seed-0", "v100/residual/seed-0"],
        ["k80/residual_nested/seed-1", "k80/residual/seed-1"],
        ["v100/residual_nested/seed-1", "v100/residual/seed-1"],
        ["k80/pacm/seed-1"],
        ["v100/pacm/seed-0", "v100/pacm/seed-1"],
    ]
    alone, _ = clean_of(readers=["draft"], rivals=[])
    assert len(alone.steps([])) == 4


def test_earlier_rows_are_taken_only_where_chance_and_the_analyzer_are_the_same():
    def earlier(model, platform, seed, top1):
        found = row(model, NO_RATES, platform, seed, top1) | {"setting": platform}
        return {name: str(value) for name, value in found.items()}

    rows = [
        earlier(model, platform, seed, top1)
        for platform in ("k80", "v100")
        for seed in (0, 1, 7)
        for model, top1 in ((CHANCE, 0.6), (ANALYZER, 0.8), ("pacm", 0.9), ("xgboost", 0.7))
    ]
    rows.append({**earlier("pacm", "k80", 0, 0.1), "setting": "all"})
    clean, lines = clean_of(earlier=rows)
    now = [
        row(model, rates, platform, seed, top1)
        for platform in ("k80", "v100")
        for seed in (0, 1)
        for model, rates, top1 in (
            (CHANCE, NO_RATES, 0.6), (ANALYZER, SHIPPED, 0.8), (ANALYZER, NESTED, 0.7),
        )
    ]  # fmt: skip
    now[1]["top1_task_mean"] += 0.001  # the analyzer of k80, seed 0
    taken = clean._taken(now)
    assert [(one["platform"], one["seed"], one["model"]) for one in taken] == [
        ("k80", 1, "pacm"), ("v100", 0, "pacm"), ("v100", 1, "pacm"),
    ]  # fmt: skip
    assert {one["top1_task_mean"] for one in taken} == {0.9}
    (line,) = lines
    assert line.startswith("k80, seed 0")
    assert clean_of()[0]._taken(now) == []


def test_differences_are_of_equal_platforms_and_seeds_then_over_seeds():
    rows = [
        row("draft", NESTED, "k80", 0, 0.90, 0.8),
        row("draft", NESTED, "v100", 0, 0.80, 0.7),
        row("draft", NESTED, "k80", 1, 0.94, 0.6),
        row("draft", SHIPPED, "k80", 0, 0.92, 0.8),
        row("draft", SHIPPED, "v100", 0, 0.86, 0.7),
        row("draft", SHIPPED, "k80", 1, 0.92, 0.6),
        row("pacm", NO_RATES, "k80", 0, 0.88, 0.9),
    ]
    text = report(rows)
    # seed 0: the mean of two platforms, .85; seed 1: .94; their deviation is .09 / sqrt(2)
    assert "| draft | nested | 3 | 0.895 ± 0.064 | 0.675 ± 0.106 |" in text
    # -.02 and -.06 in seed 0, +.02 in seed 1: -.04 and .02
    assert "| draft nested | draft shipped | 3 | -0.010 ± 0.042 | 1 | 0.000 ± 0.000 | 0 |" in text
    assert "| draft nested | pacm none | 1 | 0.020 | 1 | -0.100 | 0 |" in text
    assert "| draft shipped | draft nested | 3 | 0.010 ± 0.042 | 2 |" in text


@pytest.fixture
def stage(script, measured, tmp_path):
    names = script("model")

    def run(**options):
        small = {
            "platforms": ["v100"], "seeds": [0], "models": ["draft"], "baselines": [],
            "epochs": 1, "calibrate": 60, "earlier": None, "stage": "clean",
            "cache": str(tmp_path / "cache"), "work": str(tmp_path / "work"),
            "out": str(tmp_path / "out"),
        }  # fmt: skip
        data = Data(root=str(measured()))
        return names["run"](names["Options"](data=data, **small | options))

    return run


def table(tmp_path):
    with (tmp_path / "out" / "clean.csv").open() as file:
        return list(csv.DictReader(file))


def test_the_stage_writes_both_rates_beside_chance_and_continues(stage, measured, tmp_path):
    assert stage(plan=True)["cells"] == 4  # one fit of rates, both of draft, PaCM
    stage()
    rows = table(tmp_path)
    assert [(one["model"], one["rates"]) for one in rows] == [
        (CHANCE, NO_RATES), (ANALYZER, NESTED), (ANALYZER, SHIPPED), ("draft", NESTED),
        ("draft", SHIPPED), ("pacm", NO_RATES),
    ]  # fmt: skip
    read = {one.key: one for one in RecordRoot(measured()).read(Quarantine(), "v100")}
    split = settings_of(["v100"])[0].divided(list(read), 0)
    scored = [score_records(read[key], gpu_analyzer("v100")) for key in split.test]
    shipped = rows[2]
    assert float(shipped["top1_task_mean"]) == pytest.approx(top_k_task_mean(scored, 1), abs=1e-6)
    assert float(shipped["pairwise_accuracy"]) == pytest.approx(pairwise_accuracy(scored), abs=1e-6)
    assert {one["num_tasks"] for one in rows} == {str(len(split.test))}
    assert {one["chance_top1_task_mean"] for one in rows} == {rows[0]["top1_task_mean"]}
    assert "| draft | nested | 1 |" in (tmp_path / "out" / "clean.md").read_text()

    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "work").rglob("*.json")}
    (tmp_path / "out" / "clean.csv").unlink()
    stage()
    assert table(tmp_path) == rows
    assert {path: path.stat().st_mtime_ns for path in made} == made
    assert stage(plan=True)["minutes_left"] == 0
    with pytest.raises(PrunerError, match="rates=fitted to 60 programs"):
        stage(calibrate=70)


def test_wrong_options_are_refused_before_any_work(stage, tmp_path):
    for options, says in (
        ({"models": ["dropout_10"]}, "draft, residual, draft_residual: name one"),
        ({"calibrate": 1}, "calibrate=1: a number of programs, 2 or more"),
        ({"earlier": "nonesuch.csv"}, "nonesuch.csv: no such table; earlier=null"),
        ({"platforms": ["v100", "cpu-avx2"]}, "cpu-avx2 is no GPU"),
    ):
        with pytest.raises(PrunerError, match=says):
            stage(**options)
    assert not (tmp_path / "work").exists()


def test_a_cell_of_other_rates_has_a_folder_of_its_own():
    cells = AblationCell.product(SETTINGS[:1], ["draft"], [0], [NESTED, SHIPPED])
    assert [cell.variant for cell in cells] == ["draft_nested", "draft"]
