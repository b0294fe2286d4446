"""Transposed convolutions as plain ones, against torch."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from pruner.tune.networks.rewrites.transposed import phase_weights


def test_phases_of_a_kernel_by_hand():
    """Stride 2, taps 1 2 3 (and a zero): even outputs see 3 then 1, odd ones 0 then 2."""
    weights = np.arange(1.0, 4.0).reshape(1, 1, 1, 3)
    found = phase_weights(weights, (1, 2), channels_last=False)
    assert found.reshape(2, 2).tolist() == [[3, 1], [0, 2]]
    last = phase_weights(weights, (1, 2), channels_last=True)
    assert last.reshape(2, 2).tolist() == [[3, 0], [1, 2]]


@pytest.mark.parametrize(("size", "stride"), [(4, 2), (3, 2), (2, 3), (3, 1)])
def test_a_plain_convolution_and_a_shuffle_are_the_transposed_one(size, stride):
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(3, 2, size, size))
    images = torch.tensor(rng.normal(size=(1, 3, 5, 6)))
    wanted = functional.conv_transpose2d(images, torch.tensor(weights), stride=stride)
    phases = phase_weights(weights, (stride, stride), channels_last=False)
    pad = phases.shape[2] - 1
    plain = functional.conv2d(images, torch.tensor(phases), padding=pad)
    shuffled = functional.pixel_shuffle(plain, stride)
    assert torch.allclose(shuffled[:, :, : wanted.shape[2], : wanted.shape[3]], wanted)
