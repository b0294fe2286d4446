"""Cells fitted on made-up tasks: resumed, judged once, beside chance and a second timing."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from experiments.model.ablation.candidates import Change
from experiments.model.ablation.cells import AblationCell, Guess, settings_of
from experiments.model.ablation.diagnosis import report
from experiments.model.ablation.fits import (
    ANALYZER,
    CEILING,
    CHANCE,
    SCORES,
    chance_of,
    load_scores,
    numbers_of,
    references,
)
from experiments.model.ablation.run import Ablation
from pruner.errors import PrunerError
from pruner.models.analyzer.columns import NUM_DRAFT_COLUMNS, SCORE
from pruner.models.checkpoint.tensors import load_tensors
from pruner.models.judging.judge import expected_ratio
from pruner.models.judging.metrics import ScoredTask
from pruner.models.networks.pacm import PaCM
from pruner.models.programs.program_table import ProgramTable
from pruner.models.training.recipe import Recipe
from pruner.models.training.sampler import TaskBatches
from tests.models import synthetic

SMALL = {"width": 8, "dataflow_hidden": 4, "dataflow_width": 8}


def store_of(platforms, *, timed=False):
    rng = np.random.default_rng(0)
    parts = []
    for platform in platforms:
        for number in range(12):
            part = synthetic.task(rng, f"matmul_{number}_8", 10, platform=platform)
            work = json.dumps(["matmul_layer", 8 * (number + 1), 8, 8])
            part = replace(part, key=replace(part.key, workload_key=work))
            if timed:
                part.timed_s[:] = part.latency_s[:, None] * rng.uniform(1, 1.01, (10, 2))
            parts.append(part)
    return ProgramTable.build(parts)


@pytest.fixture
def ablation(tmp_path):
    read = []

    def programs(source):
        read.append(source)
        return store_of(source[0])

    def basis(_):
        return Recipe(epochs=1, batches=TaskBatches(tasks=4), trainer={"accelerator": "cpu"})

    changes = {
        "pacm": Change(arguments=SMALL),
        "residual": Change(arguments=SMALL | {"residual": True}),
    }
    made = Ablation(
        folder=tmp_path,
        changes=changes,
        basis=basis,
        read=programs,
        guess=Guess(platform_s={}, model={}),
    )
    return made, read


def test_cells_are_fitted_once_and_leave_their_scores(ablation, tmp_path):
    made, read = ablation
    cells = AblationCell.product(settings_of(["k80"]), ["pacm", "residual"], [0, 1])
    made.fit(cells)
    assert [spec.draft for _, spec in read] == [False, True]  # each source is read once
    times = {cell: (tmp_path / cell.name / SCORES).stat().st_mtime_ns for cell in cells}
    made.fit(cells)
    assert len(read) == 2
    assert times == {cell: (tmp_path / cell.name / SCORES).stat().st_mtime_ns for cell in cells}
    rows = made.valid_rows(cells)
    assert [(row["model"], row["seed"]) for row in rows] == [
        (model, seed) for model in ("pacm", "residual") for seed in (0, 1)
    ]
    for row, cell in zip(rows, cells, strict=True):
        scored = [task for task, _ in load_scores(tmp_path / cell.name / SCORES)]
        assert {name: row[name] for name in numbers_of(scored)} == pytest.approx(numbers_of(scored))
        assert not (tmp_path / cell.name / "test.json").exists()  # nobody has looked
    best = load_tensors(tmp_path / cells[0].name / "best.safetensors")["model"]
    assert best["name"] == PaCM.__name__
    assert partial(PaCM, **best["arguments"])().reads_draft is False


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"basis": lambda _: Recipe(epochs=2)}, "epochs=1, not 2"),
        ({"known": {"records": "/other"}}, "records=/here, not /other"),
        (
            {"changes": {"pacm": Change(arguments=SMALL, of=("a", "b"))}},
            r"of=\[\], not \['a', 'b'\]",
        ),
    ],
)
def test_a_cell_of_other_options_is_refused_not_taken(ablation, tmp_path, changed, says):
    made = replace(ablation[0], known={"records": "/here"})
    cells = AblationCell.product(settings_of(["k80"]), ["pacm"], [0])
    made.fit(cells)
    made.fit(cells)  # the same: taken
    with pytest.raises(PrunerError, match=says):
        replace(made, **changed).fit(cells)
    (tmp_path / cells[0].name / "metrics.json").unlink()  # a fit that was interrupted
    with pytest.raises(PrunerError, match=says):
        replace(made, **changed).fit(cells)


def test_all_platforms_are_others_where_there_are_more(ablation):
    made, _ = ablation
    made.fit(AblationCell.product(settings_of(["k80", "v100"])[2:3], ["pacm"], [0]))
    with pytest.raises(PrunerError, match=r"learned=\['k80', 'v100'\]"):
        made.fit(AblationCell.product(settings_of(["k80", "v100", "mi50"])[3:4], ["pacm"], [0]))


def test_test_tasks_are_others_and_judged_once(ablation, tmp_path):
    made, _ = ablation
    cells = AblationCell.product(settings_of(["k80", "v100"])[2:4], ["pacm"], [0])
    made.fit(cells)
    rows = made.test_rows(cells)
    assert [(row["setting"], row["platform"]) for row in rows] == [
        ("all", "k80"), ("all", "v100"), ("without-k80", "k80"),
    ]  # fmt: skip
    path = tmp_path / cells[0].name / "test.json"
    path.write_text(path.read_text().replace('"num_tasks"', '"num_tasks_as_it_was"'))
    assert "num_tasks_as_it_was" in made.test_rows(cells)[0]
    keys = store_of(("k80", "v100")).keys
    for cell in cells:
        split = cell.setting.divided(keys, 0)
        sides = [{key.identity for key in split.side(s)} for s in ("train", "valid", "test")]
        assert not (sides[0] | sides[1]) & sides[2]
    left_out = cells[1].setting.divided(keys, 0)
    assert {key.platform for key in (*left_out.train, *left_out.valid)} == {"v100"}


def test_chance_a_second_timing_and_the_analyzer_stand_beside():
    cell = AblationCell(setting=settings_of(["k80"])[0], model="pacm", seed=0)
    once = replace(store_of(["k80"]), draft=None)
    assert [row["model"] for row in references(cell, once, "valid")] == [CHANCE]
    rows = references(cell, replace(store_of(["k80"], timed=True), draft=None), "test")
    assert [row["model"] for row in rows] == [CHANCE, CEILING]
    assert rows[0]["pairwise_accuracy"] == 0.5
    assert rows[1]["pairwise_accuracy"] > 0.9
    store = store_of(["k80"])
    columns = torch.zeros(len(store.latency_s), NUM_DRAFT_COLUMNS)
    columns[:, SCORE] = -torch.log(store.latency_s)  # it knows everything
    for sign, right in ((1, 1.0), (-1, 0.0)):
        rows = references(cell, replace(store, draft=sign * columns), "test")
        assert [row["model"] for row in rows] == [CHANCE, ANALYZER]
        assert rows[1]["pairwise_accuracy"] == right
    assert rows[0]["num_tasks"] == rows[1]["num_tasks"]


def test_chance_is_the_exact_mean():
    rng = np.random.default_rng(1)
    task = ScoredTask(name="a/b", latency_s=rng.lognormal(size=30), score=np.zeros(30))
    found = chance_of([task])
    assert found["top8_task_mean"] == pytest.approx(expected_ratio(task, 8))
    assert found["top1_task_mean"] == pytest.approx(np.mean(task.best_s / task.latency_s))


def test_a_diagnosis_is_a_page_and_rows_of_all_tables(ablation):
    made, _ = ablation
    cells = AblationCell.product(settings_of(["k80"]), ["pacm"], [0, 1])
    made.fit(cells)
    text, rows = report(made, cells, cells)
    tables = {row["table"] for row in rows}
    assert {"By operator", "Dataflow rows", "learned by heart", "twins"} <= tables
    assert "## pacm" in text
    assert "Learned by heart" in text
    (operator,) = [row for row in rows if row["table"] == "By operator"]
    assert operator["group"] == "matmul"
    twins = next(row for row in rows if row["table"] == "twins")
    assert twins["pairwise bound"] == 1.0  # made-up features are all different
