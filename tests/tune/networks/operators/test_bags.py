"""Bags of embeddings."""

import pytest
import torch
from torch import nn

from tests.tune.networks.operators.against_torch import REWRITTEN_OR_BUILT, assert_equal

pytestmark = pytest.mark.tvm


@REWRITTEN_OR_BUILT
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_equal_sizes_without_a_padding(tvm, mode, assert_same):
    rows = torch.tensor([[1, 2, 3], [1, 1, 4], [5, 6, 7]])
    assert_same(nn.EmbeddingBag(20, 6, mode=mode, padding_idx=1), rows)


def test_bags_that_begin_where_an_input_says(tvm):
    bag = nn.EmbeddingBag(20, 6, mode="mean")
    assert_equal(bag, torch.randint(0, 20, (9,)), torch.tensor([0, 2, 5]))


@REWRITTEN_OR_BUILT
def test_weights_of_samples(tvm, assert_same):
    table = torch.randn(20, 6)
    assert_same(
        lambda rows, weights: nn.functional.embedding_bag(
            rows, table, mode="sum", per_sample_weights=weights
        ),
        torch.randint(0, 20, (4, 3)),
        torch.randn(4, 3),
    )
