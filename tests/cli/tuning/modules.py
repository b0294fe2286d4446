"""Modules as people write them, with example inputs: each makes the library do something else."""

import torch
from torch import nn
from torch.nn import functional


class Cnn(nn.Sequential):
    """Convolutions with norms in training mode, as a module is that was just made."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
        )  # fmt: skip


class Attention(nn.Module):
    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads = heads
        self.norm, self.all = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, tokens):
        batch, length, width = tokens.shape
        shape = (batch, length, 3, self.heads, width // self.heads)
        query, key, value = self.all(self.norm(tokens)).view(shape).permute(2, 0, 3, 1, 4)
        found = functional.scaled_dot_product_attention(query, key, value)
        return tokens + self.out(found.transpose(1, 2).reshape(batch, length, width))


class Depthwise(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(8, 32, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6(),
            nn.Conv2d(32, 32, 3, padding=1, groups=32, bias=False), nn.BatchNorm2d(32), nn.ReLU6(),
            nn.Conv2d(32, 8, 1, bias=False), nn.BatchNorm2d(8),
        )  # fmt: skip


class Two(nn.Module):
    """Two inputs of different types; a dict with a tuple and a list, one tensor twice."""

    def __init__(self):
        super().__init__()
        self.words, self.image = nn.Embedding(20, 8), nn.Linear(6, 8)

    def forward(self, word, image):
        both = self.words(word) + self.image(image)
        return {"both": both, "parts": (both.mean(-1), [image, both])}


def mlp():
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)), (torch.randn(3, 16),)


def cnn():
    return Cnn(), (torch.randn(1, 3, 16, 16),)


def attention():
    return Attention(), (torch.randn(1, 12, 32),)


def depthwise():
    return Depthwise(), (torch.randn(1, 8, 14, 14),)


def two():
    return Two(), (torch.randint(0, 20, (4,)), torch.randn(4, 6))


def made(name):
    """The module, with norms that do something, and its inputs."""
    torch.manual_seed(0)
    module, inputs = globals()[name]()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.normal_(part.running_mean)
            nn.init.uniform_(part.running_var, 0.5, 2.0)
    return module, inputs


def assert_alike(found, wanted):
    assert type(found) is type(wanted)
    if isinstance(wanted, dict):
        assert list(found) == list(wanted)
        found, wanted = list(found.values()), list(wanted.values())
    if isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_alike(one, other)
        return
    assert not found.requires_grad
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
