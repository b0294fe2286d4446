"""Columns divided by their maximum, or as standard scores."""

import torch

from pruner.models.programs.scaler import STANDARD_LIMIT
from tests.models import synthetic


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
