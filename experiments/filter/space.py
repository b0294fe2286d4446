"""A space of networks like Once-for-all's MobileNetV3, in plain torch.

    pruner predict networks=experiments.filter.space:candidates candidates=100 below_ms=2

The choices are those of Cai et al. (ICLR 2020), but fewer: the resolution of the image, a factor of
all widths, and for each of five stages its depth, kernel and expansion. Two of the stages have
squeeze and excitation. `subnet` makes a network from its choices; `drawn` draws choices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pruner.tune.networks.convolutional import Added, Classifier

RESOLUTIONS, WIDTHS = (96, 128), (0.5, 0.75)
DEPTHS, KERNELS, EXPANSIONS = (2, 3, 4), (3, 5), (3, 6)
CLASSES, SEED = 100, 0
# channels, stride, squeeze and excitation, activation
STAGES: tuple[tuple[int, int, bool, type[nn.Module]], ...] = (
    (24, 2, False, nn.ReLU),
    (40, 2, True, nn.ReLU),
    (80, 2, False, nn.Hardswish),
    (112, 1, False, nn.Hardswish),
    (160, 2, True, nn.Hardswish),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """A network of the space; ``stages``: depth, kernel and expansion of each."""

    resolution: int
    width: float
    stages: tuple[tuple[int, int, int], ...]

    @property
    def name(self) -> str:
        """Return the choices as a word."""
        stages = "-".join(f"{depth}{kernel}{expansion}" for depth, kernel, expansion in self.stages)
        return f"r{self.resolution}-w{self.width:g}-{stages}"


def drawn(rng: np.random.Generator) -> Choices:
    """Draw each choice alike."""

    def pick(values: tuple[int, ...]) -> int:
        return int(rng.choice(values))

    return Choices(
        resolution=pick(RESOLUTIONS),
        width=float(rng.choice(WIDTHS)),
        stages=tuple((pick(DEPTHS), pick(KERNELS), pick(EXPANSIONS)) for _ in STAGES),
    )


def sequence(seed: int = SEED) -> Iterator[Choices]:
    """Draw different networks without end."""
    rng, seen = np.random.default_rng(seed), set[str]()
    while True:
        choices = drawn(rng)
        if choices.name not in seen:
            seen.add(choices.name)
            yield choices


def candidates() -> Iterator[tuple[str, Callable[[], tuple[nn.Module, Tensor]]]]:
    """Yield the networks of a seed, without end."""
    for choices in sequence():
        yield choices.name, partial(subnet, choices)


def subnet(choices: Choices) -> tuple[nn.Module, Tensor]:
    """Make a network with random weights, and an example input."""
    channels = rounded(16 * choices.width)
    layers: list[nn.Module] = [*conv(3, channels, 3, 2), nn.Hardswish()]
    for (outputs, stride, excited, activation), stage in zip(STAGES, choices.stages, strict=True):
        wide, (depth, kernel, expansion) = rounded(outputs * choices.width), stage
        how: dict[str, Any] = {"kernel": kernel, "expansion": expansion, "excited": excited}
        for place in range(depth):
            step = 1 if place else stride
            layers.append(block(channels, wide, stride=step, activation=activation, **how))
            channels = wide
    last = rounded(960 * choices.width)
    features = nn.Sequential(*layers, *conv(channels, last), nn.Hardswish())
    size = choices.resolution
    return Classifier(features, last, CLASSES).eval(), torch.zeros(1, 3, size, size)


def rounded(channels: float) -> int:
    """Round to a multiple of eight, and not down by more than a tenth."""
    near = max(8, int(channels + 4) // 8 * 8)
    return near if near >= 0.9 * channels else near + 8


def conv(
    inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    """Make a convolution and its norm."""
    options = {"stride": stride, "padding": kernel // 2, "groups": groups, "bias": False}
    return [nn.Conv2d(inputs, outputs, kernel, **options), nn.BatchNorm2d(outputs)]  # type: ignore[arg-type]


class Excitation(nn.Module):
    """Squeeze and excitation: a factor for each channel, from the means of all channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = rounded(channels / 4)
        self.factors = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, inner, 1), nn.ReLU(),
            nn.Conv2d(inner, channels, 1), nn.Hardsigmoid(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Scale the channels."""
        scaled: Tensor = x * self.factors(x)
        return scaled


def block(
    inputs: int,
    outputs: int,
    *,
    kernel: int,
    expansion: int,
    stride: int,
    excited: bool,
    activation: type[nn.Module],
) -> nn.Module:
    """Make an inverted residual block."""
    inner = rounded(inputs * expansion)
    path = nn.Sequential(
        *conv(inputs, inner), activation(),
        *conv(inner, inner, kernel, stride, groups=inner), activation(),
        *([Excitation(inner)] if excited else []),
        *conv(inner, outputs),
    )  # fmt: skip
    return Added(path) if stride == 1 and inputs == outputs else path


def __getattr__(name: str) -> Callable[[], tuple[nn.Module, Tensor]]:
    """Return the factory ``number_N`` of a network, for ``network=package:factory``."""
    word, _, number = name.partition("_")
    if word != "number" or not number.isdigit():
        raise AttributeError(name)
    for place, choices in enumerate(sequence()):
        if place == int(number):
            return partial(subnet, choices)
    raise AssertionError("the sequence has no end")
