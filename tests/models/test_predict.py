"""Scores from a checkpoint and record files, against scores of the programs in memory."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from pruner.data.root import RecordRoot
from pruner.data.splits import make_split
from pruner.errors import UnsupportedProgram
from pruner.models.networks.mlp import TenSetMLP
from pruner.models.predict import predict
from pruner.models.programs.dataset import load_programs
from pruner.models.registry import ModelSpec
from pruner.models.training.fit import fit
from pruner.models.training.recipe import Recipe
from tests.cli import toy_records


@pytest.fixture
def fitted(tmp_path, monkeypatch):
    monkeypatch.setattr("pruner.features.featurize_records", toy_records.featurize_records)
    root = RecordRoot(toy_records.write(tmp_path / "records", platforms=("v100",)))
    programs = load_programs(root, ["v100"]).store
    recipe = Recipe(model=TenSetMLP, epochs=1, trainer={"accelerator": "cpu"})
    split = make_split("by_task", programs.keys)
    return root, programs, fit(recipe, programs, split, folder=tmp_path / "run")


def test_scores_are_those_of_the_ranker_and_rank_one_is_the_best(fitted, tmp_path):
    root, programs, found = fitted
    assert (found.info.dataflow, found.info.model) == ("paper", ModelSpec(name="TenSetMLP"))
    for platform in root.platforms:  # without the failed records the candidates are the same
        for path in (root.path / "measure_records" / platform).glob("*.json"):
            lines = path.read_text().splitlines()
            path.write_text("\n".join(x for x in lines if json.loads(x)["r"][1] == 0) + "\n")
    table = predict(tmp_path / "run", root)
    assert len(table) == programs.num_programs
    expected = found.ranker.score_tasks(programs, torch.arange(programs.num_programs))
    for task in expected:
        rows = table[(table.platform + "/" + table.task) == task.name]
        np.testing.assert_allclose(rows.score, task.score, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(rows.latency_s, task.latency_s)
        assert sorted(rows["rank"]) == list(range(1, len(rows) + 1))
        assert rows.score[rows["rank"] == 1].item() == rows.score.max()


def test_failed_programs_are_scored_and_featureless_ones_are_not(fitted, tmp_path, monkeypatch):
    root, programs, _ = fitted

    def with_a_gap(*arguments, **options):
        found = toy_records.featurize_records(*arguments, **options)
        return replace(found, valid=np.arange(len(found.valid)) != 2)

    monkeypatch.setattr("pruner.features.featurize_records", with_a_gap)
    table = predict(tmp_path / "run" / "best.safetensors", root, ["v100"])
    tasks = len(programs.keys)
    assert len(table) == programs.num_programs + tasks  # and one failed record a task
    failed = table[table.line == 3]
    assert failed.latency_s.isna().all()
    assert failed.score.notna().all()
    without = table[table.line == 2]
    assert without.score.isna().all()
    assert without["rank"].isna().all()
    assert table.score.isna().sum() == tasks


def test_a_program_without_the_analyzers_columns_keeps_its_score(fitted, tmp_path, monkeypatch):
    root, _, _ = fitted
    checkpoint = tmp_path / "run" / "best.safetensors"
    wanted = predict(checkpoint, root, ["v100"])

    def without_columns(key, fused, steps, spec, **options):
        if spec.extra is not None:
            raise UnsupportedProgram("no symbols")
        return toy_records.featurize_records(key, fused, steps, spec, **options)

    monkeypatch.setattr("pruner.features.featurize_records", without_columns)
    found = predict(checkpoint, root, ["v100"], seconds=True)
    np.testing.assert_array_equal(found.score, wanted.score)
    assert found.predicted_s.isna().all()
