"""The networks of the paper's Tables 3 and 4, with random weights.

A factory takes the options of a network and returns it with example inputs. A user's network comes
in the same way, as ``package:factory`` (:mod:`pruner.tune.networks.source`).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from pruner.tune.networks import convolutional as conv
from pruner.tune.networks.sizes import NetworkOptions
from pruner.tune.networks.transformer import (
    Bert,
    Decoder,
    Detr,
    Llama,
    StackSizes,
    VisionTransformer,
)

ModuleAndInputs = tuple[nn.Module, tuple[Tensor, ...]]
Factory = Callable[[NetworkOptions], ModuleAndInputs]

_LENGTH = 128


def _images(
    make: Callable[[], nn.Module], options: NetworkOptions, *, size: int = 224
) -> ModuleAndInputs:
    size = options.image or size
    return conv.initialised(make()), (torch.randn(options.batch, 3, size, size),)


def _vit(
    sizes: StackSizes, options: NetworkOptions, *, size: int = 224, patch: int = 16
) -> ModuleAndInputs:
    sizes = replace(sizes, layers=options.layers or sizes.layers)
    size = options.image or size
    network = VisionTransformer(sizes, size, patch).eval()
    return network, (torch.randn(options.batch, 3, size, size),)


def _detr(options: NetworkOptions) -> ModuleAndInputs:
    size = options.image or 256
    return Detr(size).eval(), (torch.randn(options.batch, 3, size, size),)


def _text(
    make: Callable[[StackSizes, int], nn.Module], sizes: StackSizes, options: NetworkOptions
) -> ModuleAndInputs:
    length = options.length or _LENGTH
    sizes = replace(sizes, layers=options.layers or sizes.layers)
    network = make(sizes, length).eval()
    # ids below the size of every vocabulary here
    return network, (torch.randint(0, 1000, (options.batch, length)),)


_BASE = StackSizes(layers=12, heads=12, width=768, inner=3072)
_GPT2 = partial(Decoder, vocabulary=50257, positions=1024, activation=nn.GELU("tanh"))
# OPT's position table has two rows more than its 2,048 positions
_OPT = partial(Decoder, vocabulary=50272, positions=2050, activation=nn.ReLU())

NETWORKS: dict[str, Factory] = {
    "resnet18": partial(_images, partial(conv.resnet, (2, 2, 2, 2), expansion=1)),
    "resnet50": partial(_images, partial(conv.resnet, (3, 4, 6, 3))),
    "wide_resnet50_2": partial(_images, partial(conv.resnet, (3, 4, 6, 3), factor=2)),
    "mobilenet_v2": partial(_images, conv.mobilenet_v2),
    "densenet121": partial(_images, conv.densenet121),
    "inception_v3": partial(_images, conv.inception_v3, size=299),
    "squeezenet1_1": partial(_images, conv.squeezenet1_1),
    "deeplabv3": partial(_images, conv.DeepLabV3),
    "vit_b_16": partial(_vit, _BASE),
    # The paper's: Table 3, and the release's script for its sizes (docs/paper.md, section 6).
    "vit": partial(
        _vit, StackSizes(layers=6, heads=16, width=1024, inner=2048), size=256, patch=32
    ),
    "dcgan": lambda options: (conv.dcgan(), (torch.randn(options.batch, 100),)),
    "bert_tiny": partial(_text, Bert, StackSizes(layers=6, heads=8, width=512, inner=2048)),
    "bert_base": partial(_text, Bert, _BASE),
    "gpt2": partial(_text, _GPT2, _BASE),
    "opt": partial(_text, _OPT, StackSizes(layers=24, heads=32, width=2048, inner=8192)),
    "llama": partial(_text, Llama, _BASE),
    "mistral": partial(
        _text,
        Llama,
        StackSizes(layers=32, heads=32, width=4096, inner=14336, key_value_heads=8),
    ),
    "detr": _detr,
}
