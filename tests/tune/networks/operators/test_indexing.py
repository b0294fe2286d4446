"""Elements by numbers, lists and masks, read and written."""

import pytest
import torch
from torch import nn

from pruner.tune.networks.operators.indexing import index_put
from pruner.tune.networks.operators.program import from_exported
from tests.tune.networks.operators.against_torch import REWRITTEN_OR_BUILT, assert_equal

pytestmark = pytest.mark.tvm


def test_negative_numbers_count_from_the_end(tvm):
    assert_equal(lambda x: (x[-1], x[:, -2], x[[0, -1]], x.select(-1, -3)), torch.randn(3, 5, 8))


ROWS, COLUMNS = torch.tensor([0, 2, 1]), torch.tensor([1, -1, 4])


@REWRITTEN_OR_BUILT
def test_lists_pair_their_elements(tvm, assert_same):
    assert_same(lambda x: (x[ROWS, :, COLUMNS], x[ROWS[:, None], COLUMNS]), torch.randn(3, 5, 8))


@pytest.mark.slow
def test_more_lists_pair_their_elements(tvm):
    assert_equal(
        lambda x: (x[:, ROWS, COLUMNS], x[..., COLUMNS], x[:, :, ROWS.view(1, 3)]),
        torch.randn(3, 5, 8),
    )


@REWRITTEN_OR_BUILT
def test_windows_are_gathered(tvm, assert_same):
    assert_same(
        lambda x: (
            x.unfold(2, 2, 2).unfold(3, 2, 2).reshape(2, -1, 12),
            x.unfold(-1, 4, 3),
            x.permute(0, 2, 3, 1).unfold(1, 3, 1).sum(-1),
            torch.as_strided(x, (3, 2, 4), (1, 0, 5), 7),
        ),
        torch.randn(2, 3, 8, 8),
    )


def test_indices_that_come_as_inputs_may_be_negative(tvm):
    assert_equal(
        lambda x, i, j: (x[i], x[i, j]),
        torch.randn(6, 4, 3),
        torch.tensor([-6, 5, -1]),
        torch.tensor([0, -4, 3]),
    )


@REWRITTEN_OR_BUILT
def test_writes_need_no_index_for_every_dimension(tvm, assert_same):
    def written(x, v):
        y, z, sums = x.clone(), x.clone(), x.clone()
        y[[0, 2, -1]] = v
        z[:, [1, -1]] = v[:1, :2]
        sums.index_put_((torch.tensor([1, 1, 0]),), v, accumulate=True)
        return y, z, sums, x.index_add(0, torch.tensor([3, 3, 0]), v, alpha=2)

    assert_same(written, torch.randn(6, 4), torch.randn(3, 4))


def test_a_mask_selects_between_old_and_new_values(tvm):
    def written(x):
        y, z = x.clone(), x.clone()
        y[y > 0] = 0.5
        z[z[:, 0] > 0] = x[0]
        return y, z

    assert_equal(written, torch.randn(6, 4))


def test_a_size_that_depends_on_the_data_is_named_once(tvm):
    class Positive(nn.Module):
        def forward(self, x):
            return x[x[:, 0] > 0].relu().sum(1)

    program = torch.export.export(Positive(), (torch.randn(4, 5),))
    with pytest.raises(AssertionError) as told:
        from_exported(program)
    named = "['index.Tensor (a size that depends on the data)']"
    assert str(told.value) == f"Unsupported function types {named}"


def test_rows_are_written_in_turn_where_a_mask_is_true(tvm):
    mask = torch.tensor([True, False, True, False])

    def function(x, v):
        rows, columns = x.clone(), x.clone()
        rows[mask], columns[:, mask] = v, 2.0
        return rows, columns, torch.index_put(x, (mask,), v, accumulate=True)

    assert_equal(function, torch.randn(4, 4), torch.randn(2, 4))


def test_a_mask_behind_other_indices_is_named():
    mask = torch.tensor([True, False, True])
    with pytest.raises(AssertionError, match=r"index_put.default .a mask behind or among other"):
        index_put(torch.randn(2, 3), (None, mask), torch.randn(2, 2))
