"""Elements by numbers, lists, masks and tensors of places, read and written; bags of rows."""

import pytest
import torch
from torch import nn

from pruner.tune.networks.operators.indexing import index_put
from pruner.tune.networks.operators.program import from_exported
from tests.tune.networks.operators.against_torch import WAYS, Function, assert_equal

pytestmark = pytest.mark.tvm
ROWS, COLUMNS = torch.tensor([0, 2, 1]), torch.tensor([1, -1, 4])
MASK = torch.tensor([True, False, True, False])
PLACE, PLACES = torch.tensor(0), torch.tensor([[0, 2], [1, 1]])
FEW = torch.tensor([[[0, 1]], [[3, 1]]])  # 2 x 1 x 2


def by_mask(x):
    y, z = x.clone(), x.clone()
    y[y > 0] = 0.5
    z[z[:, 0] > 0] = x[0]
    return y, z


def in_turn(x, v):
    rows, columns = x.clone(), x.clone()
    rows[MASK], columns[:, MASK] = v, 2.0
    return rows, columns, torch.index_put(x, (MASK,), v, accumulate=True)


CASES = {
    "negative numbers count from the end": (
        lambda x: (x[-1], x[:, -2], x[[0, -1]], x.select(-1, -3)),
        torch.randn(3, 5, 8),
    ),
    "an index without dimensions": (
        lambda x, i: x.index_select(1, i),
        *(torch.randn(3, 5), torch.tensor(4)),
    ),
    "negative indices that come as inputs": (
        lambda x, i, j: (x[i], x[i, j]),
        torch.randn(6, 4, 3),
        *(torch.tensor([-6, 5, -1]), torch.tensor([0, -4, 3])),
    ),
    "slices that begin before the tensor or end behind it": (
        lambda x, v: (
            *(torch.slice_scatter(x, v, 0, -9, 2), torch.slice_scatter(x, v, end=2)),
            *(torch.slice_scatter(x, v, 0, None, -3), torch.slice_scatter(x, v, 0, 3, 99)),
            *(torch.slice_scatter(x, v, 0, -4, None, 2), torch.slice_scatter(x, v[:0], 0, 4, 2)),
        ),
        *(torch.randn(5, 3), torch.randn(2, 3)),
    ),
    "a mask selects between old and new values": (by_mask, torch.randn(6, 4)),
    "rows written in turn": (in_turn, torch.randn(4, 4), torch.randn(2, 4)),
    "indices smaller than tensor and values": (
        lambda x, v: (x.scatter(1, FEW, v), x.scatter_add(-2, FEW, v)),
        *(torch.randn(3, 4, 5), torch.randn(2, 3, 4)),
    ),
    "one value": (
        lambda x: (x.scatter(1, PLACES, 5.0), x.scatter(1, PLACES, 5.0, reduce="add")),
        torch.randn(2, 4),
    ),
    "bags that begin where an input says": (
        nn.EmbeddingBag(20, 6, mode="mean"),
        *(torch.randint(0, 20, (9,)), torch.tensor([0, 2, 5])),
    ),
    "a number without dimensions": (
        lambda x: (x.scatter(0, PLACE, 5.0), x.scatter_add(-1, PLACE, x)),
        torch.tensor(2.5),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_reads_and_writes_are_those_of_torch(case):
    assert_equal(*CASES[case])


@WAYS
def test_lists_pair_their_elements(assert_same):
    assert_same(
        lambda x: (
            *(x[ROWS, :, COLUMNS], x[ROWS[:, None], COLUMNS], x[:, ROWS, COLUMNS]),
            *(x[..., COLUMNS], x[:, :, ROWS.view(1, 3)]),
        ),
        torch.randn(3, 5, 8),
    )


@WAYS
def test_windows_are_gathered(assert_same):
    assert_same(
        lambda x: (
            x.unfold(2, 2, 2).unfold(3, 2, 2).reshape(2, -1, 12),
            x.unfold(-1, 4, 3),
            x.permute(0, 2, 3, 1).unfold(1, 3, 1).sum(-1),
            torch.as_strided(x, (3, 2, 4), (1, 0, 5), 7),
        ),
        torch.randn(2, 3, 8, 8),
    )


@WAYS
def test_writes_need_no_index_for_every_dimension(assert_same):
    def written(x, v):
        y, z, sums = x.clone(), x.clone(), x.clone()
        y[[0, 2, -1]] = v
        z[:, [1, -1]] = v[:1, :2]
        sums.index_put_((torch.tensor([1, 1, 0]),), v, accumulate=True)
        return y, z, sums, x.index_add(0, torch.tensor([3, 3, 0]), v, alpha=2)

    assert_same(written, torch.randn(6, 4), torch.randn(3, 4))


@pytest.mark.parametrize("include_self", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_reductions_of_repeated_places(include_self):
    places = torch.randint(0, 5, (9, 4))  # the last row gets nothing

    def reduced(x, v):
        return [
            x.scatter_reduce(0, places, v, how, include_self=include_self)
            for how in ("sum", "prod", "mean", "amax", "amin")
        ]

    assert_equal(reduced, torch.randn(6, 4), torch.randn(9, 4))


def test_a_size_that_depends_on_the_data_is_named_once(tvm):
    class Positive(nn.Module):
        def forward(self, x):
            return x[x[:, 0] > 0].relu().sum(1)

    program = torch.export.export(Positive(), (torch.randn(4, 5),))
    with pytest.raises(AssertionError) as told:
        from_exported(program)
    named = "['index.Tensor (a size that depends on the data)']"
    assert str(told.value) == f"Unsupported function types {named}"


def test_a_number_that_depends_on_the_data_is_named(tvm):
    program = torch.export.export(Function(lambda x: x * x.sum().item()), (torch.randn(3),))
    with pytest.raises(AssertionError, match=r"\['item \(a number that depends on the data\)'\]"):
        from_exported(program)


def test_a_mask_behind_other_indices_is_named():
    with pytest.raises(AssertionError, match=r"index_put.default .a mask behind or among other"):
        index_put(torch.randn(2, 3), (None, MASK[:3]), torch.randn(2, 2))


@WAYS
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_equal_sizes_without_a_padding(mode, assert_same):
    rows = torch.tensor([[1, 2, 3], [1, 1, 4], [5, 6, 7]])
    assert_same(nn.EmbeddingBag(20, 6, mode=mode, padding_idx=1), rows)


@WAYS
def test_weights_of_samples(assert_same):
    table = torch.randn(20, 6)
    assert_same(
        lambda rows, weights: nn.functional.embedding_bag(
            rows, table, mode="sum", per_sample_weights=weights
        ),
        torch.randint(0, 20, (4, 3)),
        torch.randn(4, 3),
    )


@WAYS
def test_empty_lists_among_joined_tensors(assert_same):
    """A cache of keys begins as one; the result has the common type."""

    def joined(x):
        empty, wide = torch.tensor([]), torch.tensor([], dtype=torch.float64)
        return torch.cat([empty, x], -2), torch.cat([x, wide, x]), torch.cat([x, x], 1)

    assert_same(joined, torch.randn(2, 3))
