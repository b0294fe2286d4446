"""Attention of torch's own modules, with their masks."""

import pytest
import torch
from torch import nn

from tests.tune.networks.operators.against_torch import assert_equal

pytestmark = pytest.mark.tvm

PADDED = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])


def test_attention_with_padding_and_weights(tvm):
    attention = nn.MultiheadAttention(16, 2, batch_first=True)
    assert_equal(lambda x, p: attention(x, x, x, key_padding_mask=p), torch.randn(2, 6, 16), PADDED)


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
