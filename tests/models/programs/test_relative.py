"""Features relative to the task's candidates: by hand, and the properties ranking relies on."""

import numpy as np
import pytest
import torch

from pruner.models.networks.mlp import TenSetMLP
from pruner.models.networks.pacm import PaCM
from pruner.models.programs.scaler import STANDARD_LIMIT, Center, rank_in_task
from pruner.models.ranker import NeuralRanker
from pruner.models.trees.xgboost import XGBoostRanker
from tests.models import synthetic


def rows_of(store, program):
    start, end = store.row_start[program : program + 2].tolist()
    return store.rows[start:end]


def test_the_mean_row_of_the_same_place_is_taken_away():
    store = synthetic.store(sizes=(2, 1), max_statements=1)
    first, second = (rows_of(store, i)[0] for i in (0, 1))
    relative = store.relative()
    torch.testing.assert_close(rows_of(relative, 0)[0], first - (first + second) / 2)
    torch.testing.assert_close(rows_of(relative, 1)[0], second - (first + second) / 2)
    # A task with one candidate has nothing to compare it with.
    assert not rows_of(relative, 2).any()
    assert not relative.dataflow[2].any()
    assert rank_in_task(torch.tensor([0, 0, 1, 1, 1, 3])).tolist() == [0, 1, 0, 1, 2, 0]


def test_the_mean_of_the_analyzer_is_taken_away_and_a_center_is_a_mean():
    store = synthetic.store(sizes=(3, 2))
    relative = store.relative()
    expected = store.draft[:3] - store.draft[:3].mean(dim=0)
    torch.testing.assert_close(relative.draft[:3], expected)
    batch = store.programs(torch.arange(3))
    torch.testing.assert_close(Center.of(batch).relative(batch).draft, expected)
    known = store.relative({store.keys[1]: Center.of(batch)})
    torch.testing.assert_close(known.draft[3:], store.draft[3:] - store.draft[:3].mean(dim=0))
    batch = synthetic.store(sizes=(3,), max_statements=1).programs(torch.arange(3))
    center = Center.of(batch)
    torch.testing.assert_close(center.statement[0], batch.statement[:, :164].mean(dim=0))
    torch.testing.assert_close(center.dataflow, batch.dataflow.mean(dim=0))


def test_every_place_of_every_task_has_mean_zero_and_flags_stay():
    store = synthetic.store(sizes=(12, 9), max_statements=3)
    relative = store.relative()
    for task in range(2):
        batch = relative.programs(relative.programs_of([task]))
        place = rank_in_task(batch.program)
        for p in range(3):
            mean = batch.statement[place == p, :164].mean(dim=0)
            torch.testing.assert_close(mean, torch.zeros(164), atol=1e-4, rtol=0)
    assert relative.flags is store.flags


def test_scoring_raw_features_equals_scoring_the_relative_store():
    store = synthetic.store(sizes=(12, 9))
    relative = store.relative()
    everything = torch.arange(store.num_programs)
    scaler = relative.fit_scaler(everything, "standard")
    ranker = NeuralRanker(PaCM(), scaler, relative=True).eval()
    for index in store.by_task(everything):
        expected = ranker(relative.programs(index)).detach().numpy()
        np.testing.assert_allclose(ranker.score_store(store, index), expected, atol=1e-4)


def test_an_offset_common_to_all_candidates_changes_no_score():
    store = synthetic.store(sizes=(12,))
    index = torch.arange(12)
    scaler = store.relative().fit_scaler(index, "standard")
    ranker = NeuralRanker(TenSetMLP(), scaler, relative=True)
    before = ranker.score_store(store, index)
    store.rows[:] += 3.0
    store.dataflow[:] += 5.0
    np.testing.assert_allclose(ranker.score_store(store, index), before, atol=1e-4)


def test_a_single_candidate_can_be_scored():
    store = synthetic.store(sizes=(12, 1))
    ranker = NeuralRanker(PaCM(), store.fit_scaler(torch.arange(13), "standard"), relative=True)
    score = ranker.score_store(store, torch.tensor([12]))
    assert score.shape == (1,)
    assert np.isfinite(score).all()


@pytest.mark.parametrize("relative", [True, False])
def test_trees_may_be_blind_to_common_offsets(relative):
    store = synthetic.store(sizes=(32, 32), max_statements=1)
    store.rows[:] = store.rows.round()  # sums and means of 32 whole numbers are exact
    index = torch.arange(64)
    trees = XGBoostRanker(num_rounds=5, relative=relative)
    trees.fit(store, index, index[:0], seed=0, num_threads=1)
    before = trees.score_store(store, store.programs_of([0]))
    store.rows[:] += 100.0
    same = np.allclose(trees.score_store(store, store.programs_of([0])), before)
    assert same == relative


def test_scaler_is_the_column_maximum_of_the_chosen_programs():
    store = synthetic.store()
    index = store.programs_of([0, 2])
    scaler = store.fit_scaler(index)
    batch = store.programs(index)
    assert torch.equal(
        scaler.statement_scale,
        torch.where(batch.statement.amax(0) > 0, batch.statement.amax(0), torch.tensor(1.0)),
    )
    assert torch.equal(scaler.dataflow_scale, batch.dataflow.amax(dim=(0, 1)))
    scaled = scaler(batch)
    assert torch.equal(scaled.statement, batch.statement / scaler.statement_scale)
    assert scaled.statement.max() == scaled.dataflow.max() == 1.0


def test_standard_scores_by_hand_and_their_limit():
    store = synthetic.store(sizes=(400,), max_statements=1)
    index = torch.arange(400)
    batch = store.programs(index)
    scaled = store.fit_scaler(index, "standard")(batch)
    column = batch.statement[:, 5]
    expected = (column - column.mean()) / column.std(correction=0)
    torch.testing.assert_close(scaled.statement[:, 5], expected, atol=1e-3, rtol=1e-3)
    store.rows[0, 5] = 1e9
    far = store.fit_scaler(torch.arange(1, 400), "standard")(store.programs(index))
    assert far.statement[0, 5] == STANDARD_LIMIT
