"""Pads and images of another size."""

import pytest
import torch
from torch.nn import functional

from tests.tune.networks.operators.against_torch import REWRITTEN_OR_BUILT, assert_equal

pytestmark = pytest.mark.tvm


SLOW = pytest.param("nearest-exact", marks=pytest.mark.slow)


@pytest.mark.parametrize("mode", ["nearest", SLOW, "bilinear", "bicubic", "area"])
def test_sizes_and_scales(tvm, mode):
    def resized(x):
        return [
            functional.interpolate(x, mode=mode, **size)
            for size in ({"scale_factor": 2}, {"size": (9, 7)}, {"scale_factor": (1.7, 0.6)})
        ]

    assert_equal(resized, torch.randn(2, 3, 6, 8))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_smoothing_before_shrinking(tvm, mode):
    assert_equal(
        lambda x: functional.interpolate(x, size=(9, 3), mode=mode, antialias=True),
        torch.randn(2, 3, 6, 8),
    )


@REWRITTEN_OR_BUILT
def test_signals_and_volumes(tvm, assert_same):
    assert_same(
        lambda x, y: (
            functional.interpolate(x, size=9, mode="linear", align_corners=True),
            functional.interpolate(x, size=9),
            *(functional.interpolate(y, scale_factor=2), functional.pad(y, (-1, 2, 0, -1))),
        ),
        torch.randn(2, 3, 6),
        torch.randn(1, 2, 3, 4, 5),
    )


@pytest.mark.slow  # 20 s of TVM's arithmetic, on which the sizes have no influence
def test_volumes_between_their_points(tvm):
    assert_equal(
        lambda x, y: (
            functional.interpolate(x, size=9, mode="linear"),
            functional.interpolate(y, size=(5, 6, 7), mode="trilinear", align_corners=True),
        ),
        torch.randn(2, 3, 6),
        torch.randn(1, 2, 3, 4, 5),
    )


@REWRITTEN_OR_BUILT
def test_pixels_next_to_points(tvm, assert_same):
    def sampled(x, turn):
        grid = functional.affine_grid(turn, (2, 3, 5, 4), align_corners=False)
        return functional.grid_sample(x, grid, "nearest", "border", align_corners=True)

    assert_same(sampled, torch.randn(2, 3, 6, 8), torch.randn(2, 2, 3), tolerance=1e-4)


@pytest.mark.slow  # 7 s each
def test_pixels_at_points(tvm):
    def sampled(x, points, turn):
        grid = functional.affine_grid(turn, (2, 3, 5, 4), align_corners=False)
        return (
            functional.grid_sample(x, points, align_corners=False),
            functional.grid_sample(x, grid, padding_mode="border", align_corners=True),
        )

    points = torch.rand(2, 5, 4, 2) * 2.4 - 1.2
    assert_equal(sampled, torch.randn(2, 3, 6, 8), points, torch.randn(2, 2, 3), tolerance=1e-4)


@pytest.mark.parametrize(("kind", "tolerance"), [(torch.float16, 2e-3), (torch.float64, 1e-12)])
def test_images_of_other_types(tvm, kind, tolerance):
    assert_equal(
        lambda x: (
            functional.interpolate(x, size=(9, 3), mode="bicubic"),
            functional.interpolate(x, scale_factor=1.7, mode="bilinear"),
        ),
        torch.randn(1, 2, 6, 5).to(kind),
        tolerance=tolerance,
    )


@REWRITTEN_OR_BUILT
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_voxels_at_points(tvm, mode, assert_same):
    def sampled(x, points):
        return [
            functional.grid_sample(x, points, mode, padding, align_corners=corners)
            for padding in ("zeros", "border", "reflection")
            for corners in (True, False)
        ]

    points = torch.rand(2, 3, 4, 5, 3) * 5 - 2.5  # also far outside
    assert_same(sampled, torch.randn(2, 3, 4, 5, 1), points, tolerance=1e-4)


@REWRITTEN_OR_BUILT
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_voxels_at_infinite_points(tvm, mode, assert_same):
    """They are 0 without padding, or on the border."""

    def sampled(x, points):
        return [
            functional.grid_sample(x, points, mode, padding, align_corners=False)
            for padding in ("zeros", "border")
        ]

    points = torch.rand(1, 3, 4, 5, 3) * 2 - 1
    points[0, 0, 0, 0, 0], points[0, 1, 2, 3, 1], points[0, 2] = torch.inf, -torch.inf, torch.inf
    assert_same(sampled, torch.randn(1, 3, 4, 5, 2), points, tolerance=1e-4)
