"""Convolutional networks in plain torch, laid out as in their papers.

Weights are random: a tuner times arithmetic, which does not depend on them. Convolutions are drawn
so that activations keep their size from layer to layer (He et al., 2015); otherwise the outputs of
deep networks vanish, and no result could be checked. All take and return NCHW images.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


def conv_norm(
    inputs: int,
    outputs: int,
    kernel: int | tuple[int, int] = 1,
    stride: int = 1,
    *,
    padding: int | tuple[int, int] | None = None,
    groups: int = 1,
    dilation: int = 1,
    activation: nn.Module | None = None,
    epsilon: float = 1e-5,
) -> nn.Sequential:
    """Make a convolution without bias, batch normalisation, and perhaps activation.

    By default the padding keeps the size of an image at stride 1.
    """
    height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
    if padding is None:
        padding = (dilation * (height // 2), dilation * (width // 2))
    more: dict[str, Any] = {"groups": groups, "dilation": dilation, "bias": False}
    convolution = nn.Conv2d(inputs, outputs, (height, width), stride, padding, **more)
    norm = nn.BatchNorm2d(outputs, eps=epsilon)
    return nn.Sequential(convolution, norm, *([] if activation is None else [activation]))


def initialised(network: nn.Module) -> nn.Module:
    """Draw convolutions that keep activations' size; set evaluation mode."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return network.eval()


class ResidualBlock(nn.Module):
    """A body around a shortcut (He et al., 2016).

    The shortcut is a convolution where sizes change.
    """

    def __init__(self, body: nn.Module, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = body
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else conv_norm(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Map images [n, inputs, h, w] to [n, outputs, h/stride, w/stride]."""
        return torch.relu(self.body(x) + self.shortcut(x))


def _residual(
    inputs: int, width: int, expansion: int, stride: int, dilation: int, factor: int
) -> ResidualBlock:
    """Make two 3x3 convolutions, or expanded 1x1, 3x3, 1x1.

    Expanded, the stride is on the 3x3 convolution (ResNet v1.5).
    """
    inner, outputs, relu = width * factor, width * expansion, nn.ReLU()
    if expansion == 1:
        body = [conv_norm(inputs, width, 3, stride, activation=relu), conv_norm(width, width, 3)]
    else:
        body = [
            conv_norm(inputs, inner, activation=relu),
            conv_norm(inner, inner, 3, stride, dilation=dilation, activation=relu),
            conv_norm(inner, outputs),
        ]
    return ResidualBlock(nn.Sequential(*body), inputs, outputs, stride)


def resnet_features(
    depths: Sequence[int], *, expansion: int = 4, factor: int = 1, dilated: int = 0
) -> tuple[nn.Module, int]:
    """Make the convolutions of a residual network; return their channels, too.

    ``factor`` widens the 3x3 convolutions. ``dilated`` stages (from the last backwards) keep their
    resolution and widen their kernels instead, as in segmentation.
    """
    layers: list[nn.Module] = [conv_norm(3, 64, 7, 2, activation=nn.ReLU())]
    layers.append(nn.MaxPool2d(3, 2, 1))
    channels, dilation = 64, 1
    for stage, depth in enumerate(depths):
        width, stride, before = 64 << stage, 1 if stage == 0 else 2, dilation
        if stage >= len(depths) - dilated:
            dilation, stride = dilation * stride, 1
        for number in range(depth):
            # the first block of a dilated stage has the former dilation, as in torchvision
            step, spread = (stride, before) if number == 0 else (1, dilation)
            layers.append(_residual(channels, width, expansion, step, spread, factor))
            channels = width * expansion
    return nn.Sequential(*layers), channels


class Classifier(nn.Module):
    """Features, mean over the image, a linear layer."""

    def __init__(self, features: nn.Module, channels: int, classes: int = 1000) -> None:
        super().__init__()
        self.features = features
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images [n, 3, h, w] to logits [n, classes]."""
        return self.head(self.features(x).mean((2, 3)))


def resnet(depths: Sequence[int], *, expansion: int = 4, factor: int = 1) -> nn.Module:
    """Make a residual network for 1,000 classes; see :func:`resnet_features`."""
    return initialised(Classifier(*resnet_features(depths, expansion=expansion, factor=factor)))


class Added(nn.Module):
    """A body whose output is added to its input."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """Map a tensor to the same shape."""
        return x + self.body(x)


def _inverted(inputs: int, outputs: int, stride: int, expansion: int) -> nn.Module:
    """Widen, filter each channel, narrow (Sandler et al., 2018)."""
    inner = inputs * expansion
    layers = [conv_norm(inputs, inner, activation=nn.ReLU6())] if expansion != 1 else []
    layers += [
        conv_norm(inner, inner, 3, stride, groups=inner, activation=nn.ReLU6()),
        conv_norm(inner, outputs),
    ]
    body = nn.Sequential(*layers)
    return Added(body) if stride == 1 and inputs == outputs else body


def mobilenet_v2() -> nn.Module:
    """Make MobileNet-V2 with width 1."""
    layers: list[nn.Module] = [conv_norm(3, 32, 3, 2, activation=nn.ReLU6())]
    channels = 32
    table = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1)]
    for expansion, outputs, depth, stride in [*table, (6, 160, 3, 2), (6, 320, 1, 1)]:
        for step in (stride, *[1] * (depth - 1)):
            layers.append(_inverted(channels, outputs, step, expansion))
            channels = outputs
    layers.append(conv_norm(channels, 1280, activation=nn.ReLU6()))
    return initialised(Classifier(nn.Sequential(*layers), 1280))


class Branches(nn.Module):
    """Parallel branches, with outputs joined along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        """Map [n, c, h, w] to the joined outputs."""
        return torch.cat([branch(x) for branch in self.branches], 1)


def densenet121() -> nn.Module:
    """Make DenseNet-121 (Huang et al., 2017)."""
    growth, channels = 32, 64
    layers: list[nn.Module] = [
        conv_norm(3, channels, 7, 2, activation=nn.ReLU()),
        nn.MaxPool2d(3, 2, 1),
    ]
    for number, depth in enumerate((6, 12, 24, 16)):
        if number:
            layers += [nn.BatchNorm2d(channels), nn.ReLU()]
            layers += [nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]
            channels //= 2
        for _ in range(depth):
            body = nn.Sequential(
                nn.BatchNorm2d(channels),
                nn.ReLU(),
                conv_norm(channels, 4 * growth, activation=nn.ReLU()),
                nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
            )
            layers.append(Branches(nn.Identity(), body))
            channels += growth
    layers += [nn.BatchNorm2d(channels), nn.ReLU()]
    return initialised(Classifier(nn.Sequential(*layers), channels))


def squeezenet1_1() -> nn.Module:
    """Make SqueezeNet 1.1 (Iandola et al., 2016)."""

    def fire(inputs: int, squeezed: int, outputs: int) -> nn.Sequential:
        squeeze = nn.Conv2d(inputs, squeezed, 1)
        ways = Branches(
            nn.Sequential(nn.Conv2d(squeezed, outputs, 1), nn.ReLU()),
            nn.Sequential(nn.Conv2d(squeezed, outputs, 3, padding=1), nn.ReLU()),
        )
        return nn.Sequential(squeeze, nn.ReLU(), ways)

    def pool() -> nn.Module:
        return nn.MaxPool2d(3, 2, ceil_mode=True)

    layers = [nn.Conv2d(3, 64, 3, 2), nn.ReLU(), pool()]
    layers += [fire(64, 16, 64), fire(128, 16, 64), pool()]
    layers += [fire(128, 32, 128), fire(256, 32, 128), pool()]
    layers += [fire(256, 48, 192), fire(384, 48, 192), fire(384, 64, 256), fire(512, 64, 256)]
    layers += [nn.Conv2d(512, 1000, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return initialised(nn.Sequential(*layers))


_Step = tuple[int, int | tuple[int, int]] | tuple[int, int, int, int]


def _chain(inputs: int, *steps: _Step) -> nn.Module:
    """Make convolutions with norm and ReLU.

    Each is (outputs, kernel), or with stride and padding, too.
    """
    layers: list[nn.Module] = []
    for outputs, kernel, *rest in steps:
        stride, padding = rest or (1, None)
        more: dict[str, Any] = {"padding": padding, "activation": nn.ReLU(), "epsilon": 1e-3}
        layers.append(conv_norm(inputs, outputs, kernel, stride, **more))
        inputs = outputs
    return nn.Sequential(*layers) if len(layers) > 1 else layers[0]


def inception_v3() -> nn.Module:
    """Make Inception-V3 (Szegedy et al., 2016) without the auxiliary classifier.

    That classifier is used in training only.
    """
    row, column, halved = (1, 7), (7, 1), nn.MaxPool2d(3, 2)

    def pooled(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(nn.AvgPool2d(3, 1, 1), _chain(inputs, (outputs, 1)))

    def split() -> Branches:
        return Branches(_chain(384, (384, (1, 3))), _chain(384, (384, (3, 1))))

    def a(inputs: int, last: int) -> Branches:
        five = _chain(inputs, (64, 1)), _chain(inputs, (48, 1), (64, 5))
        return Branches(*five, _chain(inputs, (64, 1), (96, 3), (96, 3)), pooled(inputs, last))

    def b(inputs: int) -> Branches:
        narrow = _chain(inputs, (384, 3, 2, 0))
        return Branches(narrow, _chain(inputs, (64, 1), (96, 3), (96, 3, 2, 0)), halved)

    def c(inputs: int, width: int) -> Branches:
        return Branches(
            _chain(inputs, (192, 1)),
            _chain(inputs, (width, 1), (width, row), (192, column)),
            _chain(inputs, (width, 1), (width, column), (width, row), (width, column), (192, row)),
            pooled(inputs, 192),
        )

    def d(inputs: int) -> Branches:
        narrow = _chain(inputs, (192, 1), (320, 3, 2, 0))
        return Branches(
            narrow, _chain(inputs, (192, 1), (192, row), (192, column), (192, 3, 2, 0)), halved
        )

    def e(inputs: int) -> Branches:
        return Branches(
            _chain(inputs, (320, 1)),
            nn.Sequential(_chain(inputs, (384, 1)), split()),
            nn.Sequential(_chain(inputs, (448, 1)), _chain(448, (384, 3)), split()),
            pooled(inputs, 192),
        )

    layers = [_chain(3, (32, 3, 2, 0), (32, 3, 1, 0), (64, 3)), halved]
    layers += [_chain(64, (80, 1), (192, 3, 1, 0)), halved]
    layers += [a(192, 32), a(256, 64), a(288, 64), b(288)]
    layers += [c(768, 128), c(768, 160), c(768, 160), c(768, 192), d(768), e(1280), e(2048)]
    return initialised(Classifier(nn.Sequential(*layers), 2048))


class DeepLabV3(nn.Module):
    """DeepLab-V3 (Chen et al., 2017): dilated ResNet-50, five pooling branches, 21 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.features, channels = resnet_features((3, 4, 6, 3), dilated=2)
        relu = nn.ReLU()
        ways = [conv_norm(channels, 256, activation=relu)]
        ways += [conv_norm(channels, 256, 3, dilation=r, activation=relu) for r in (12, 24, 36)]
        self.ways = nn.ModuleList(ways)
        self.whole = conv_norm(channels, 256, activation=nn.ReLU())
        self.head = nn.Sequential(
            conv_norm(5 * 256, 256, activation=nn.ReLU()),
            conv_norm(256, 256, 3, activation=nn.ReLU()),
            nn.Conv2d(256, 21, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map images [n, 3, h, w] to logits [n, 21, h, w]."""
        features = self.features(x)
        whole = self.whole(features.mean((2, 3), keepdim=True))
        ways = [way(features) for way in self.ways]
        ways.append(whole.expand_as(ways[0]))
        return functional.interpolate(
            self.head(torch.cat(ways, 1)), size=x.shape[-2:], mode="bilinear", align_corners=False
        )


def dcgan() -> nn.Module:
    """Make DCGAN's generator (Radford et al., 2016): noise [n, 100] to images.

    Images are [n, 3, 64, 64].
    """
    layers: list[nn.Module] = [nn.Unflatten(1, (100, 1, 1))]
    for number, (inputs, outputs) in enumerate(pairwise((100, 512, 256, 128, 64))):
        stride, padding = (2, 1) if number else (1, 0)
        layers.append(nn.ConvTranspose2d(inputs, outputs, 4, stride, padding, bias=False))
        layers += [nn.BatchNorm2d(outputs), nn.ReLU()]
    layers += [nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh()]
    return initialised(nn.Sequential(*layers))
