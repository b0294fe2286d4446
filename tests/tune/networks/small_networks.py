"""Networks of a few layers, with what real ones have: norms to fold, a shortcut, attention."""

import torch
from torch import nn

from pruner.tune.networks.convolutional import conv_norm
from pruner.tune.networks.transformer import Bert, StackSizes


class Residual(nn.Module):
    """Two convolutions with normalisation, a shortcut, a transposed one, a norm by itself."""

    def __init__(self):
        super().__init__()
        self.first = conv_norm(3, 8, 3, activation=nn.ReLU())
        self.second = conv_norm(8, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.up = nn.ConvTranspose2d(8, 4, 2, 2, bias=False)
        self.up_norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        x = self.first(x)
        x = self.norm(torch.relu(x + self.second(x)))
        return self.head(self.up_norm(self.up(x)).mean((2, 3)))


def shaken(network):
    """Batch normalisations with statistics that do something."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 2.0)
            nn.init.normal_(module.bias)
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    return network.eval()


def residual():
    torch.manual_seed(0)
    return shaken(Residual()), (torch.randn(2, 3, 8, 8),)


class Biased(nn.Module):
    """Convolutions with a bias before norms; shortcuts read two. The last bias is of columns."""

    def __init__(self):
        super().__init__()
        self.first, self.first_norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.up, self.up_norm = nn.ConvTranspose2d(8, 4, 2, 2), nn.BatchNorm2d(4)
        self.shared, self.shared_norm = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.bare, self.bare_norm = nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4)
        self.last, self.last_norm = nn.Conv2d(4, 16, 1, bias=False), nn.BatchNorm2d(16)
        self.columns = nn.Parameter(torch.randn(1, 1, 1, 16))

    def forward(self, x):
        x = torch.relu(self.first_norm(self.first(x)))
        x = self.shared(torch.relu(self.up_norm(self.up(x))))
        x = self.bare(x + torch.relu(self.shared_norm(x)))
        x = x + torch.relu(self.bare_norm(x))
        return self.last_norm(self.last(x) + self.columns)


def biased():
    torch.manual_seed(0)
    return shaken(Biased()), (torch.randn(2, 3, 8, 8),)


def one_image():
    network, (images,) = residual()
    return network, (images[:1],)


def encoder():
    torch.manual_seed(0)
    sizes = StackSizes(layers=2, heads=2, width=16, inner=32)
    return Bert(sizes, 6, vocabulary=50).eval(), (torch.randint(0, 50, (1, 6)),)


class OwnAttention(nn.Module):
    """Attention as most people write it: torch's own function, with a mask or a causal one."""

    def __init__(self, *, causal):
        super().__init__()
        self.parts, self.out, self.causal = nn.Linear(16, 48), nn.Linear(16, 16), causal
        self.register_buffer("mask", torch.randn(6, 6))

    def forward(self, x):
        heads = [part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.parts(x).chunk(3, -1)]
        how = {"is_causal": True} if self.causal else {"attn_mask": self.mask}
        mixed = nn.functional.scaled_dot_product_attention(*heads, **how)
        return self.out(mixed.transpose(1, 2).flatten(2))


def attention():
    torch.manual_seed(0)
    return OwnAttention(causal=False).eval(), (torch.randn(2, 6, 16),)


def causal_attention():
    torch.manual_seed(0)
    return OwnAttention(causal=True).eval(), (torch.randn(2, 6, 16),)


class Decomposed(nn.Module):
    """Two operators that no front end knows."""

    def forward(self, x):
        u, s, v = torch.linalg.svd(x)
        return u * s @ v, torch.linalg.eigvals(x).real


def decomposed():
    return Decomposed().eval(), (torch.randn(4, 4),)


class Branches(nn.Module):
    """A branch on values, which torch.export does not take."""

    def forward(self, x):
        return x if x.sum() > 0 else -x


def branching():
    return Branches().eval(), (torch.randn(4, 4),)


class NoArithmetic(nn.Module):
    """Gather, softmax, reshape; two outputs, one inside a list."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 6)

    def forward(self, x):
        rows = self.table(x)
        return torch.softmax(rows, -1), [rows.reshape(3, 8)]


def two_outputs():
    torch.manual_seed(0)
    return NoArithmetic().eval(), (torch.randint(0, 20, (1, 4)),)


def faint():
    """Outputs of a billionth."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 8, bias=False))
    network[2].weight.data *= 1e-9
    return network.eval(), (torch.randn(4, 16),)


def sized(options):
    return nn.Linear(16, 8), (torch.randn(options.batch, 16),)


def broken():
    return "no network"


class Channels(nn.Module):
    """What a layout must pass: pools, a clip, depthwise, a concatenation, shortcuts, a shuffle."""

    def __init__(self):
        super().__init__()
        self.stem = conv_norm(3, 32, 3, 2, activation=nn.ReLU())
        self.one, self.two = conv_norm(32, 32, 3, activation=nn.ReLU6()), conv_norm(32, 32, 3)
        self.depthwise = nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.joined = nn.Conv2d(64, 48, 1)
        self.up = nn.ConvTranspose2d(48, 16, 4, 2, 1, output_padding=1)
        self.head = nn.Linear(16, 32)

    def forward(self, x):
        x = torch.max_pool2d(self.stem(x), 3, 2, 1)
        x = torch.relu(x + self.two(self.one(x)))
        x = torch.relu(self.joined(torch.cat([x, self.depthwise(x)], 1)))
        x = nn.functional.adaptive_avg_pool2d(torch.tanh(self.up(x)), 1)
        return self.head(x.flatten(1))


def channels():
    torch.manual_seed(0)
    return shaken(Channels()), (torch.randn(1, 3, 33, 33),)


class AdaptivePools(nn.Module):
    """Maxima of the parts of signals, images and volumes, without their places."""

    def forward(self, x):
        signal = nn.functional.adaptive_max_pool1d(x.flatten(2), 4)
        image = nn.functional.adaptive_max_pool2d(x, 2)
        volume = nn.functional.adaptive_max_pool3d(x, (1, 2, 2))
        return signal, image, volume


def adaptive_pools():
    return AdaptivePools().eval(), (torch.randn(1, 3, 8, 8),)


class LinearAttention(nn.Module):
    """(Q K^T) V of four dimensions, with a view and a cast that change nothing."""

    def forward(self, q, k, v):
        scores = q.reshape(2, 2, 16, 4).float() @ k.transpose(-1, -2)
        return scores @ v


def linear_attention():
    torch.manual_seed(0)
    return LinearAttention().eval(), tuple(torch.randn(2, 2, 16, 4) for _ in range(3))
