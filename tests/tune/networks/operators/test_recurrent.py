"""Recurrent layers, unrolled."""

import pytest
import torch
from torch import nn

from pruner.tune.networks.operators import program as programs
from pruner.tune.networks.operators.program import from_exported
from tests.tune.networks.operators.against_torch import assert_equal, assert_rewritten_equal

pytestmark = pytest.mark.tvm
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("kind", "layers", "both_ways", "steps", "assert_same"),
    [
        (nn.LSTM, 2, True, 2, assert_rewritten_equal),
        (nn.GRU, 1, True, 2, assert_rewritten_equal),
        (nn.RNN, 2, False, 2, assert_equal),
        *(
            pytest.param(kind, 2, True, 4, assert_equal, marks=SLOW)
            for kind in (nn.GRU, nn.LSTM, nn.RNN)
        ),
    ],
)
def test_layers_directions_and_last_states(tvm, kind, layers, both_ways, steps, assert_same):
    layer = kind(6, 8, num_layers=layers, bidirectional=both_ways, batch_first=True)
    assert_same(layer, torch.randn(2, steps, 6))


def test_given_states(tvm):
    layer = nn.LSTM(6, 8)

    def last(x, h, c):
        steps, (h, c) = layer(x, (h, c))
        return steps[-1], h[-1], c

    assert_equal(last, torch.randn(3, 2, 6), torch.randn(1, 2, 8), torch.randn(1, 2, 8))


@pytest.mark.filterwarnings("ignore:The tensor attributes")
def test_a_very_long_recurrence_is_named(tvm, monkeypatch):
    """Steps of all layers and directions count; torch alone exports 5000 steps in a minute."""
    assert programs._MOST < 5000
    layer = nn.GRU(4, 4, num_layers=2, bidirectional=True)
    program = torch.export.export(layer, (torch.randn(4, 1, 4),))
    monkeypatch.setattr(programs, "_MOST", 16)
    programs.check_lengths(program)
    monkeypatch.setattr(programs, "_MOST", 15)
    with pytest.raises(AssertionError, match=r"gru.input \(16 steps for at most 15"):
        from_exported(program)
