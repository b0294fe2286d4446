"""Complex numbers and Fourier transforms, as torch computes them."""

import pytest
import torch

from pruner.errors import PrunerError
from pruner.tune.networks.operators.complex_numbers import without_complex
from tests.tune.networks.operators.against_torch import WAYS, Function, assert_equal

pytestmark = pytest.mark.tvm

fft = torch.fft


class Weighted(torch.nn.Module):
    """A layer of a Fourier neural operator: complex weights, and frequencies that it cuts off."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3, 5, 4, dtype=torch.cfloat))
        self.beside = torch.nn.Conv1d(3, 5, 1)

    def forward(self, x):
        low = torch.einsum("bix,iox->box", fft.rfft(x)[..., :4], self.weight)
        out = torch.zeros(x.shape[0], 5, x.shape[-1] // 2 + 1, dtype=torch.cfloat)
        out[..., :4] = low
        return fft.irfft(out, n=x.shape[-1]) + self.beside(x)


@WAYS
def test_rotations_and_arithmetic(tvm, assert_same):
    angles = torch.outer(torch.arange(6.0), torch.rand(4))

    def function(x, y):
        z, w = (torch.view_as_complex(one.unflatten(-1, (-1, 2))) for one in (x, y))
        turned = torch.view_as_real(z * torch.polar(torch.ones_like(angles), angles)).flatten(-2)
        made = torch.complex(x, y)
        several = [z + w, z - 2 * w, z * w.conj(), z / w, z * 1j, (z @ w.mT)[0], z**2, z.exp()]
        several += [torch.cat([z, w]), torch.where(x[..., :4] > 0, z, w), z.sum(1), made]
        several.append(z.to(made.dtype))
        return turned, z.abs(), z.angle(), made.real, *(torch.view_as_real(one) for one in several)

    assert_same(function, torch.randn(2, 6, 8), torch.randn(2, 6, 8))


@WAYS
def test_fourier_transforms(tvm, assert_same):
    def function(x):
        return (
            *(fft.rfft(x).abs(), fft.fft2(x, norm="ortho").real, fft.ifft(fft.fft(x, n=5)).imag),
            fft.irfft(fft.rfft(x), n=7),
            fft.irfft2(fft.rfft2(x) * 1.5, s=(6, 7), norm="forward"),
            *(fft.fftshift(fft.fftn(x)).angle().cos(), fft.hfft(torch.complex(x, x))),
        )

    assert_same(function, torch.randn(2, 6, 7), tolerance=1e-4)


@WAYS
def test_a_spectrogram(tvm, assert_same):
    how = {"window": torch.hann_window(16), "return_complex": True}
    assert_same(lambda x: torch.stft(x, 16, 4, **how).abs(), torch.randn(2, 50), tolerance=1e-4)


def test_a_fourier_operator(tvm):
    assert_equal(Weighted(), torch.randn(2, 3, 11))


def test_complex_inputs_and_outputs_are_refused_with_the_way_out():
    for function, given, told in (
        (lambda x: x.abs(), torch.randn(3, dtype=torch.cfloat), "an input is complex: pass"),
        (fft.fft, torch.randn(3), "an output is complex: return torch.view_as_real of it"),
    ):
        program = torch.export.export(Function(function), (given,)).run_decompositions()
        with pytest.raises(PrunerError, match=told):
            without_complex(program)
    long = torch.export.export(Function(lambda x: fft.rfft(x).abs()), (torch.randn(5000),))
    with pytest.raises(AssertionError, match=r"_fft_r2c \(5000 points for at most 4096\)"):
        without_complex(long.run_decompositions())
