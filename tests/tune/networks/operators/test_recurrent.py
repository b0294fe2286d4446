"""Recurrent layers, unrolled."""

import pytest
import torch
from torch import nn

from tests.tune.networks.operators.against_torch import assert_equal

pytestmark = pytest.mark.tvm


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
def test_layers_directions_and_last_states(tvm, kind):
    layer = kind(6, 8, num_layers=2, bidirectional=True, batch_first=True)
    assert_equal(layer, torch.randn(2, 4, 6))


def test_given_states(tvm):
    layer = nn.LSTM(6, 8)

    def last(x, h, c):
        steps, (h, c) = layer(x, (h, c))
        return steps[-1], h[-1], c

    assert_equal(last, torch.randn(3, 2, 6), torch.randn(1, 2, 8), torch.randn(1, 2, 8))


@pytest.mark.filterwarnings("ignore:The tensor attributes")
def test_a_very_long_recurrence_is_named(tvm):
    from pruner.tune.networks.torch_import import from_exported

    program = torch.export.export(nn.GRU(4, 4), (torch.randn(5000, 1, 4),))
    with pytest.raises(AssertionError, match=r"gru.input \(5000 steps for at most"):
        from_exported(program)
