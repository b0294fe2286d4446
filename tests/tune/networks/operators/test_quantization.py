"""Rounding to steps: fake quantisation, and the operators of exports for quantisation."""

import importlib

import pytest
import torch

from tests.tune.networks.operators.against_torch import REWRITTEN_OR_BUILT, assert_equal

pytestmark = pytest.mark.tvm


@REWRITTEN_OR_BUILT
def test_fake_quantisation(tvm, assert_same):
    scales, zeros = torch.tensor([0.02, 0.05]), torch.tensor([0, 3], dtype=torch.int32)

    def function(x):
        return (
            torch.fake_quantize_per_tensor_affine(x, 0.05, 3, 0, 31),
            torch.fake_quantize_per_tensor_affine(x, scales[1], zeros[1], -8, 7),
            torch.fake_quantize_per_channel_affine(x, scales, zeros, 0, -128, 127),
        )

    assert_same(function, torch.randn(2, 37))


def test_operators_of_exports_for_quantisation(tvm):
    importlib.import_module("torch.ao.quantization.fx._decomposed")
    ops, kind = torch.ops.quantized_decomposed, torch.int8
    weight = torch.randint(-127, 128, (4, 8), dtype=kind)
    scales, zeros = torch.rand(4) * 0.02, torch.zeros(4, dtype=torch.int64)

    def function(x):
        steps = ops.quantize_per_tensor(x, 0.03, 5, -128, 127, kind)
        x = ops.dequantize_per_tensor(steps, 0.03, 5, -128, 127, kind)
        real = ops.dequantize_per_channel(weight, scales, zeros, 0, -127, 127, kind)
        again = ops.quantize_per_channel(real * 0.7, scales, zeros, 0, -127, 127, kind)
        return steps, torch.nn.functional.linear(x, real), again

    assert_equal(function, torch.randn(3, 8))
