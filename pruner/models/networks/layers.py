"""Building blocks of the neural rankers, and sums over processes.

In a distributed fit every process has its share of a batch. Sums over all processes, with their
gradients, make loss and norms those of the whole batch.
"""

import math
from itertools import pairwise
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, distributed, nn
from torch.nn import functional

MAX_RESIDUAL = 256
"""Layers of a stack: TenSet has 2. A checkpoint may claim a number that is never made."""
NormStatistics = Literal["running", "batch"]


def processes() -> int:
    """Number of processes of the fit; 1 without distribution."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size()
    return 1


def summed(values: Tensor) -> Tensor:
    """The sum over all processes, identical to the last bit in each.

    Its gradient is the sum of their gradients: where every process computes the same loss from it,
    the mean of the gradients (which torch's DDP takes) is the gradient of a single process with all
    data.
    """
    return _Sum.apply(values)


def joined(values: Float[Tensor, " share"], first: int, total: int) -> Float[Tensor, " program"]:
    """The values [program] of the batch (`total` programs) from shares that begin at `first`."""
    if processes() == 1:
        return values
    # A sum of zero-padded shares instead of a gather: it has a gradient, and shares may differ in
    # size.
    return summed(functional.pad(values, (first, total - first - len(values))))


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, values: Tensor) -> Tensor:
        total = values.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return _Sum.apply(gradient)


def segment_sum(
    rows: Float[Tensor, "row column"], segment: Int[Tensor, " row"], num_segments: int
) -> Float[Tensor, "segment column"]:
    """Sum rows by segment; a segment without rows sums to zero."""
    zeros = rows.new_zeros((num_segments, rows.shape[1]))
    return zeros.index_add(0, segment, rows)


def dense_layers(*widths: int, last_relu: bool = True) -> nn.Sequential:
    """Linear layers between these widths, each with a ReLU (perhaps not the last)."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*(layers if last_relu else layers[:-1]))


def statement_encoder(columns: int, width: int) -> nn.Sequential:
    """Two layers with ReLU per statement row, as in TenSet and Pruner."""
    return dense_layers(columns, width, width)


class ResidualLayer(nn.Module):
    """``x -> x + ReLU(Linear(x))``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
        """Keep the shape."""
        return x + functional.relu(self.linear(x))


def residual_layers(width: int, number: int) -> nn.Sequential:
    """A stack of `number` residual layers; raises ValueError for more than `MAX_RESIDUAL`."""
    if not 0 <= number <= MAX_RESIDUAL:
        raise ValueError(f"num_residual={number}: a network has 0 to {MAX_RESIDUAL} of them")
    return nn.Sequential(*(ResidualLayer(width) for _ in range(number)))


class ProgramNorm(nn.BatchNorm1d):
    """Batch norm over programs that also accepts a single program.

    `statistics` chooses the statistics at inference: the running averages, or those of the
    candidate list itself, as in the official code (its released networks are never switched to
    evaluation mode). A batch of one always uses the running averages: a single program has no
    variance. Where several processes share a batch, the statistics are those of all its programs.
    """

    def __init__(self, width: int, *, statistics: NormStatistics = "running") -> None:
        super().__init__(width)
        if statistics not in ("running", "batch"):
            raise ValueError(f"norm statistics: got {statistics!r}; known: 'running', 'batch'")
        self.statistics = statistics

    def forward(self, x: Float[Tensor, "program width"]) -> Float[Tensor, "program width"]:
        """Normalise each column; the running averages move in training mode only."""
        if self.training and processes() > 1:
            return self._together(x)
        if len(x) > 1 and self.training:
            return super().forward(x)
        if len(x) > 1 and self.statistics == "batch":
            return functional.batch_norm(
                x, None, None, self.weight, self.bias, training=True, eps=self.eps
            )
        return self._by_averages(x)

    def _by_averages(self, x: Tensor) -> Tensor:
        return functional.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
        )

    def _together(self, x: Float[Tensor, "program width"]) -> Float[Tensor, "program width"]:
        """Normalise in training mode by the programs of all processes."""
        count = float(summed(torch.tensor(float(len(x)), device=x.device)))
        if count <= 1:
            return self._by_averages(x)
        exact = x.float()
        mean = summed(exact.sum(dim=0)) / count
        # Two passes: the difference of E[x^2] and the squared mean would cancel in float32.
        variance = summed((exact - mean).square().sum(dim=0)) / count
        assert self.momentum is not None, "the default of torch"
        for running, now in (
            (self.running_mean, mean),
            # As torch: normalise by the biased variance, store the unbiased one.
            (self.running_var, variance * (count / (count - 1))),
        ):
            assert running is not None, "the default of torch"
            running.lerp_(now.detach(), self.momentum)
        assert self.num_batches_tracked is not None, "the default of torch"
        self.num_batches_tracked.add_(1)
        scaled = (exact - mean) * torch.rsqrt(variance + self.eps) * self.weight + self.bias
        return scaled.to(x.dtype)


class PooledSelfAttention(nn.Module):
    """Multi-head self-attention with residual, summed over a program's rows.

    ``sum_r (x_r + W_o a_r + b_o) = sum_r x_r + W_o sum_r a_r + R b_o``: the output projection is
    applied once to the sum instead of to every row, which changes nothing but the time. Parameters
    have the names and layout of `torch.nn.MultiheadAttention`.
    """

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        if width % num_heads:
            raise ValueError(f"attention: width {width} is not a multiple of {num_heads} heads")
        self.num_heads = num_heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)
        # As torch initialises its own MultiheadAttention.
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.out_proj.bias)

    def forward(self, x: Float[Tensor, "program row width"]) -> Float[Tensor, "program width"]:
        """Attend among the rows of each program and add the rows up."""
        programs, rows, width = x.shape
        projected = functional.linear(x, self.in_proj_weight, self.in_proj_bias)
        heads = projected.view(programs, rows, 3, self.num_heads, width // self.num_heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)  # each N, heads, R, width/heads
        attended = functional.scaled_dot_product_attention(query, key, value)
        summed = attended.sum(dim=2).reshape(programs, width)
        projected_sum = functional.linear(summed, self.out_proj.weight)
        return x.sum(dim=1) + projected_sum + rows * self.out_proj.bias


class MaskedSelfAttention(nn.Module):
    """``x + MultiHead(x)`` among the real items of each program."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        if width % num_heads:
            raise ValueError(f"attention: width {width} is not a multiple of {num_heads} heads")
        self.num_heads = num_heads
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(
        self, x: Float[Tensor, "program item width"], real: Bool[Tensor, "program item"]
    ) -> Float[Tensor, "program item width"]:
        """Attend among real items; rows of padding hold no meaningful values."""
        programs, items, width = x.shape
        heads = self.project(x).view(programs, items, 3, self.num_heads, width // self.num_heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        # Written out: for sequences this short torch's fused kernel is several times slower in
        # its backward pass on CPUs.
        weight = query @ key.transpose(2, 3) / math.sqrt(query.shape[-1])
        # A program without any item would have nothing to attend to: let it see its padding.
        visible = (real | ~real.any(dim=1, keepdim=True))[:, None, None, :]
        attended = weight.masked_fill(~visible, -math.inf).softmax(dim=-1).to(value.dtype) @ value
        return x + self.out(attended.transpose(1, 2).reshape(programs, items, width))
