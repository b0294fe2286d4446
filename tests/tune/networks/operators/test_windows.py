"""Pools with every way to count, convolutions that TVM lacks, images of another size."""

import importlib
import importlib.util

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.tune.networks.operators.against_torch import WAYS, All, assert_equal, assert_rewritten
from tests.tune.some_slow import some_slow

pytestmark = pytest.mark.tvm

IMAGES = {1: (17,), 2: (17, 19), 3: (7, 8, 6)}
AVERAGES = {1: nn.AvgPool1d, 2: nn.AvgPool2d, 3: nn.AvgPool3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
SMALLER = {1: (9,), 2: (7, 6), 3: (4, 5, 3)}


@some_slow(
    ("dims", "few", "assert_same"),
    [(1, 2, assert_equal), (2, 6, assert_rewritten), (3, 1, assert_equal)],
    [(n, 6, assert_equal) for n in (1, 2, 3)],
)
def test_average_pools(dims, few, assert_same):
    pool = AVERAGES[dims]
    pools = [
        *(pool(3, 2, 1), pool(3, 2, 1, count_include_pad=False), pool(2, 2, 1, ceil_mode=True)),
        *(pool(3, 2, 1, ceil_mode=True, count_include_pad=False), pool(2, 3, ceil_mode=True)),
    ]
    if dims > 1:
        pools.append(pool(2, divisor_override=3))
    assert_same(All(*pools[:few]), torch.randn(2, 3, *IMAGES[dims]))


@WAYS
def test_maximum_pools_with_gaps_and_places(assert_same):
    pools = [
        *(nn.MaxPool2d(3, 2, 1, dilation=2), nn.MaxPool2d(2, 3, 1, ceil_mode=True)),
        *(nn.MaxPool2d(3, 2, 1, return_indices=True), nn.MaxPool2d((3, 2), 2, ceil_mode=True)),
    ]
    assert_same(All(*pools), torch.randn(2, 3, 17, 16))


@WAYS
def test_adaptive_maximum_pools(assert_same):
    pools = nn.AdaptiveMaxPool2d((7, 5), return_indices=True), nn.AdaptiveMaxPool2d(1)
    assert_same(All(*pools), torch.randn(2, 3, 17, 19))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pool", "sizes"),
    [
        (nn.MaxPool1d(3, 2, 1, dilation=2), (17,)),
        (nn.MaxPool3d(2, 2, return_indices=True), (7, 8, 6)),
        (nn.AdaptiveMaxPool3d((2, 3, 4)), (5, 7, 9)),
    ],
)
def test_maximum_pools_of_signals_and_volumes(pool, sizes):
    assert_equal(pool, torch.randn(2, 3, *sizes))


def test_a_stride_that_is_left_out_is_that_of_the_kernel():
    assert_equal(
        lambda x: (
            *(functional.max_pool2d(x, 3, padding=1), functional.max_pool2d(x, 2, ceil_mode=True)),
            functional.max_pool3d(x[:, None], 2, padding=1),
        ),
        torch.randn(1, 2, 7, 6),
    )


def test_a_window_behind_the_tensor_is_dropped():
    pools = [nn.MaxPool2d(2, 2, 1, ceil_mode=True), nn.MaxPool2d((2, 3), (2, 1), 1, ceil_mode=True)]
    assert_equal(All(*pools, nn.MaxPool2d(2, 2, 1)), torch.randn(1, 2, 3, 4))
    assert_equal(nn.MaxPool1d(2, 2, 1, ceil_mode=True), torch.randn(1, 2, 3))


@some_slow(
    ("dims", "few", "assert_same"),
    [(1, 2, assert_equal), (2, 5, assert_rewritten), (3, 1, assert_equal)],
    [(n, 5, assert_equal) for n in (1, 2, 3)],
)
def test_transposed_convolutions(dims, few, assert_same):
    make = TRANSPOSED[dims]
    layers = [
        make(4, 6, 3, 2, 1, output_padding=1),
        make(4, 6, 3, 2, groups=2),
        make(4, 4, 4, 2, 1, groups=4, bias=False),
        make(4, 6, 3, 2, 1, dilation=2),
    ]
    if dims < 3:  # which torch cannot export
        layers.append(make(4, 6, 2, 1, 2))  # the padding cuts more than the kernel adds
    assert_same(All(*layers[:few]), torch.randn(2, 4, *SMALLER[dims]))


def test_convolutions_keep_doubles():
    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.image = nn.Sequential(
                nn.Conv2d(4, 6, 3, 2, 1), nn.ConvTranspose2d(6, 4, 3, 2, 1, output_padding=1)
            )
            self.signal, self.volume = nn.Conv1d(4, 4, 3, bias=False), nn.Conv3d(2, 2, 2)
            self.wider = nn.ConvTranspose1d(4, 4, 3, 2)

        def forward(self, x, y, z):
            return self.image(x), self.signal(y), self.wider(y), self.volume(z)

    shapes = ((1, 4, 8, 8), (1, 4, 9), (1, 2, 4, 4, 4))
    drawn = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    assert_equal(Layers().double(), *drawn, tolerance=1e-12)


def test_products_of_three_tensors_and_sums_over_a_batch():
    assert_equal(nn.Bilinear(5, 6, 4), torch.randn(3, 5), torch.randn(3, 6))
    x, y = torch.randn(3, 2, 4), torch.randn(3, 4, 5)
    assert_equal(lambda b, x, y: b.addbmm(x, y, beta=2, alpha=0.5), torch.randn(2, 5), x, y)


@some_slow("mode", ["nearest", "bilinear", "bicubic", "area"], ["nearest-exact"])
def test_sizes_and_scales(mode):
    def resized(x):
        return [
            functional.interpolate(x, mode=mode, **size)
            for size in ({"scale_factor": 2}, {"size": (9, 7)}, {"scale_factor": (1.7, 0.6)})
        ]

    assert_equal(resized, torch.randn(2, 3, 6, 8))


def test_a_single_row_or_column_from_corner_to_corner():
    def resized(*images):
        sizes = [(size, one) for one in images for size in ((1, 9), (5, 1))]
        corners = {"mode": "bilinear", "align_corners": True}
        return [functional.interpolate(one, size, **corners) for size, one in sizes]

    assert_equal(resized, torch.randn(1, 2, 1, 4), torch.randn(1, 2, 3, 4))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_smoothing_before_shrinking(mode):
    assert_equal(
        lambda x: functional.interpolate(x, size=(9, 3), mode=mode, antialias=True),
        torch.randn(2, 3, 6, 8),
    )


@WAYS
def test_signals_and_volumes(assert_same):
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
def test_volumes_between_their_points():
    assert_equal(
        lambda x, y: (
            functional.interpolate(x, size=9, mode="linear"),
            functional.interpolate(y, size=(5, 6, 7), mode="trilinear", align_corners=True),
        ),
        torch.randn(2, 3, 6),
        torch.randn(1, 2, 3, 4, 5),
    )


@WAYS
def test_pixels_next_to_points(assert_same):
    def sampled(x, turn):
        grid = functional.affine_grid(turn, (2, 3, 5, 4), align_corners=False)
        return functional.grid_sample(x, grid, "nearest", "border", align_corners=True)

    assert_same(sampled, torch.randn(2, 3, 6, 8), torch.randn(2, 2, 3), tolerance=1e-4)


@pytest.mark.slow  # 7 s each
def test_pixels_at_points():
    def sampled(x, points, turn):
        grid = functional.affine_grid(turn, (2, 3, 5, 4), align_corners=False)
        return (
            functional.grid_sample(x, points, align_corners=False),
            functional.grid_sample(x, grid, padding_mode="border", align_corners=True),
        )

    points = torch.rand(2, 5, 4, 2) * 2.4 - 1.2
    assert_equal(sampled, torch.randn(2, 3, 6, 8), points, torch.randn(2, 2, 3), tolerance=1e-4)


@WAYS
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_voxels_at_points(mode, assert_same):
    def sampled(x, points):
        return [
            functional.grid_sample(x, points, mode, padding, align_corners=corners)
            for padding in ("zeros", "border", "reflection")
            for corners in (True, False)
        ]

    points = torch.rand(2, 3, 4, 5, 3) * 5 - 2.5  # also far outside
    assert_same(sampled, torch.randn(2, 3, 4, 5, 1), points, tolerance=1e-4)


@WAYS
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_voxels_at_infinite_points(mode, assert_same):
    """They are 0 without padding, or on the border."""

    def sampled(x, points):
        return [
            functional.grid_sample(x, points, mode, padding, align_corners=False)
            for padding in ("zeros", "border")
        ]

    points = torch.rand(1, 3, 4, 5, 3) * 2 - 1
    points[0, 0, 0, 0, 0], points[0, 1, 2, 3, 1], points[0, 2] = torch.inf, -torch.inf, torch.inf
    assert_same(sampled, torch.randn(1, 3, 4, 5, 2), points, tolerance=1e-4)


@pytest.fixture
def roi_align():
    """Torchvision's operator; without this package, one that ONNX's evaluator computes."""
    if importlib.util.find_spec("torchvision"):
        importlib.import_module("torchvision")
        yield torch.ops.torchvision.roi_align
        return
    onnx = pytest.importorskip("onnx")
    evaluator = importlib.import_module("onnx.reference").ReferenceEvaluator

    def align(image, rois, scale, height, width, ratio, aligned):
        node = onnx.helper.make_node(
            *("RoiAlign", ["x", "boxes", "images"], ["y"]),
            spatial_scale=scale,
            output_height=height,
            output_width=width,
            sampling_ratio=ratio,
            coordinate_transformation_mode="half_pixel" if aligned else "output_half_pixel",
        )
        given = {"x": image, "boxes": rois[:, 1:], "images": rois[:, 0].long()}
        (found,) = evaluator(node).run(None, {name: one.numpy() for name, one in given.items()})
        return torch.from_numpy(found)

    def shaped(image, rois, scale, height, width, ratio, aligned):
        return image.new_empty(rois.shape[0], image.shape[1], height, width)

    library = torch.library.Library("torchvision", "FRAGMENT")
    options = "float scale, int height, int width, int ratio, bool aligned"
    library.define(f"roi_align(Tensor image, Tensor rois, {options}) -> Tensor")
    library.impl("roi_align", align, "CPU")
    torch.library.register_fake("torchvision::roi_align", shaped, lib=library)
    yield torch.ops.torchvision.roi_align
    library._destroy()


def test_regions_of_images_in_half_their_size(roi_align):
    boxes = torch.tensor([[0, 2.0, 2, 10, 10], [1, 1, 3, 14, 9]])
    assert_equal(
        lambda x, b: (roi_align(x, b, 0.5, 2, 3, 2, True), roi_align(x, b, 0.5, 2, 3, 2, False)),
        *(torch.randn(2, 3, 8, 8), boxes),
    )


@pytest.mark.parametrize(("kind", "tolerance"), [(torch.float16, 2e-3), (torch.float64, 1e-12)])
def test_images_of_other_types(kind, tolerance):
    assert_equal(
        lambda x: (
            functional.interpolate(x, size=(9, 3), mode="bicubic"),
            functional.interpolate(x, scale_factor=1.7, mode="bilinear"),
            *(
                functional.interpolate(x, scale_factor=2, mode=how)
                for how in ("bilinear", "nearest")
            ),
        ),
        torch.randn(1, 2, 6, 5).to(kind),
        tolerance=tolerance,
    )


def test_whole_numbers_between_pixels_are_rounded():
    assert_equal(
        lambda x: [
            functional.interpolate(x, scale_factor=2, mode=how) for how in ("bilinear", "nearest")
        ],
        torch.tensor([[[[0, 3, 255], [10, 90, 7]]]], dtype=torch.uint8),
    )
