"""Attention of torch's own modules with their masks; recurrent layers, unrolled."""

import sys
import types

import pytest
import torch
from torch import nn

from pruner.tune.networks.operators import program as programs
from pruner.tune.networks.operators.program import from_exported
from pruner.tune.networks.signature import exported
from pruner.tune.networks.source import NetworkSource, example_of
from tests.tune.networks.operators.against_torch import WAYS, assert_equal, assert_rewritten
from tests.tune.some_slow import some_slow

pytestmark = pytest.mark.tvm

PADDED = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])


@WAYS
def test_attention_with_padding_and_weights(tvm, assert_same):
    attention = nn.MultiheadAttention(16, 2, batch_first=True)
    assert_same(lambda x, p: attention(x, x, x, key_padding_mask=p), torch.randn(2, 6, 16), PADDED)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_encoder_with_padding(tvm):
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

        def forward(self, x, padding):
            return self.layers(x, src_key_padding_mask=padding)

    assert_equal(Encoder(), torch.randn(2, 6, 16), PADDED)


def test_a_transformer_with_a_causal_mask():
    """Torch looks whether the mask is the causal one, by its values."""
    both, x = nn.Transformer(16, 2, 1, 1, 32, batch_first=True).eval(), torch.randn(1, 4, 16)
    mask = both.generate_square_subsequent_mask(4)
    program = exported(both, ((x, x), {"tgt_mask": mask}))
    torch.testing.assert_close(program.module()(x, x, tgt_mask=mask), both(x, x, tgt_mask=mask))


def test_an_encoder_keeps_the_values_of_padding(monkeypatch):
    """Packed as a nested tensor it would return zeros for padding, which no export does."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    made = nn.TransformerEncoder(layer, 1), ((torch.randn(2, 6, 16),), {})
    factory = types.SimpleNamespace(make=lambda: (*made[:1], made[1][0]))
    monkeypatch.setitem(sys.modules, "padded", factory)
    module, ((x,), _) = example_of(NetworkSource(name="padded:make"))
    with torch.no_grad():
        assert (module(x, src_key_padding_mask=PADDED)[PADDED] != 0).all()


def test_masks_of_products(tvm):
    attend, triangle = nn.functional.scaled_dot_product_attention, torch.ones(6, 6).tril().bool()
    q, k, v = torch.randn(3, 2, 2, 6, 8)
    assert_equal(
        lambda q, k, v: (attend(q, k, v, is_causal=True), attend(q, k, v, attn_mask=triangle)),
        *(q, k, v),
    )


@pytest.mark.slow
def test_scales_and_fewer_dimensions_of_products(tvm):
    attend = nn.functional.scaled_dot_product_attention
    q, k, v = torch.randn(3, 2, 2, 6, 8)
    assert_equal(lambda q, k, v: (attend(q, k, v, scale=0.3), attend(q[0], k[0], v[0])), *(q, k, v))


@some_slow(
    ("kind", "layers", "both_ways", "steps", "assert_same"),
    [
        (nn.LSTM, 2, True, 2, assert_rewritten),
        (nn.GRU, 1, True, 2, assert_rewritten),
        (nn.RNN, 2, False, 2, assert_equal),
    ],
    [(kind, 2, True, 4, assert_equal) for kind in (nn.GRU, nn.LSTM, nn.RNN)],
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
