"""Functions of single elements: factors, bounds, types, whole numbers, steps, and new tensors."""

import importlib

import pytest
import torch
from torch.nn import functional

from pruner.tune.networks.operators.program import from_exported
from pruner.tune.networks.rewrites.operators import operators_of
from tests.tune.networks.operators.against_torch import WAYS, Function, assert_equal

pytestmark = pytest.mark.tvm
INF = float("inf")
MASK = torch.tensor([True, False, True, False])
TWO = torch.tensor(2.0, dtype=torch.float64)  # of no dimensions: it makes no doubles
CASES = {
    "factors of the second operand of a sum": (
        lambda x, y: (torch.add(x, y, alpha=2), torch.sub(x, y, alpha=3), torch.add(x, 1, alpha=2)),
        *(torch.randn(5, 6), torch.randn(5, 6)),
    ),
    "integers clamped on one side": (
        lambda x: (
            *(x.clamp(min=0), x.clamp(max=2), x.clamp(-3, 3), x.clamp(min=0.5), x.int().clamp(1)),
            *(x[0, 0].int().clamp(max=2), x[0, 0].clamp(min=0.5)),
        ),
        torch.randint(-9, 9, (5, 6)),
    ),
    "bounds that cross or broadcast": (
        lambda x, low, high: (
            *(x.clamp(2, -1), x.half().clamp(0.5, -0.5), x.int().clamp(2, -1)),
            *(x.clamp(low, high), x[0].clamp(low), x.int().clamp(low, high)),
        ),
        *(torch.randn(5, 6), torch.tensor([[-0.5], [0.5], [0.0], [1.0], [-3.0]]), torch.zeros(6)),
    ),
    "scaled activations": (
        lambda x: (torch.selu(x), torch.celu(x, 1.7), torch.nn.functional.elu(x, 1.5)),
        torch.tensor([-100.0, -3.0, -1e-3, 0.0, 1e-3, 3.0, 100.0]),
    ),
    "numbers become truth values without rounding": (
        lambda x: (x.bool(), (x * 3).int()),
        torch.tensor([0.0, 0.3, -0.4, 2.0]),
    ),
    "integers raised, shifted and divided": (
        lambda x: (
            *(x.abs() ** 2, 2 ** x.abs(), x.abs() ** x.abs(), x << 2, x >> 1),
            *(torch.div(x, 4, rounding_mode=how) for how in ("floor", "trunc")),
            *(x // 4, x % 4, torch.fmod(x, 4)),
        ),
        torch.randint(-6, 7, (5, 6)),
    ),
    "ranges": (
        lambda x: (
            *(x * torch.linspace(0, 1, 11), x * torch.linspace(3, -1, 11)),
            *(x * torch.arange(22, 0, -2), x + torch.arange(0, 1.1, 0.1), torch.eye(11) * x),
        ),
        torch.randn(11),
    ),
    "functions that TVM lacks": (
        lambda x, y: (
            *(torch.exp2(x), torch.erfc(x), torch.frac(x), torch.hypot(x, y)),
            *(torch.copysign(x, y), torch.fmax(x, y), torch.fmin(x, y), torch.logaddexp(x, y)),
        ),
        *(torch.randn(5, 6), torch.randn(5, 6)),
    ),
    "numbers are true unless they are zero": (
        lambda x, y: (
            *(x.logical_not(), x.logical_and(y), x.logical_or(y), x.logical_xor(y)),
            *((y > 0).logical_not(), (y > 0).logical_and(x)),
        ),
        *(torch.tensor([0.0, 0.3, -0.4, 2.0]), torch.tensor([0.2, 0.0, 0.1, 0.0])),
    ),
    "infinities and signs of zero": (
        lambda x, y: (
            *(torch.logaddexp(x, y), torch.logaddexp2(x, y), torch.copysign(x, 2.0)),
            *(1 / torch.copysign(x, y), 1 / torch.copysign(x, -0.0)),
        ),
        torch.tensor([-INF, INF, -INF, 1.0, -0.0, 0.0, 3.0]),
        torch.tensor([-INF, INF, INF, 1.0, -0.0, -0.0, -INF]),
    ),
    "shifts to the last bit": (
        lambda a, b, c, d: (
            *(a >> 31, a >> 33, a >> 1, a << 2, b >> 7, b << 7, b << 8, b >> 3),
            *(c >> 63, c << 40, d >> 7, d >> 8),
        ),
        torch.tensor([-(2**31), -5, -1, 0, 7, 2**31 - 1], dtype=torch.int32),
        torch.tensor([-128, -1, 5, 127], dtype=torch.int8),
        torch.tensor([-(2**63), 2**62]),
        torch.tensor([255, 3], dtype=torch.uint8),
    ),
    "sums, products and comparisons of truth values": (
        lambda x, y: (
            *(x + y, x * y, x + True, x * False, x + x.int(), x * 2),
            *(x == y, x != y, x == True, x != False, x == 1),  # noqa: E712
        ),
        *(torch.tensor([True, True, False]), torch.tensor([True, False, False])),
    ),
    "integers with floats": (
        lambda x, n: (
            *(n / 2, 1 / n, x / n, n + 0.5, 2.5 - n, x * n, n**0.5, x > n, n <= 1.5),
            *(torch.cat([x, n], -1), torch.where(n > 2, n, 0.5), n // 2.5, x // n),
        ),
        *(torch.rand(5, 6) + 0.1, torch.randint(1, 9, (5, 6))),
    ),
    "floats divided without their exact remainder": (
        lambda x, y: (
            *(x // 0.1, x % 0.1, torch.div(x, -0.1, rounding_mode="floor"), x % 6.2831855),
            *(x // y, x % y, 2 % x, 2 // x, x % -INF, x.half() // 0.1, x.half() % 0.1),
            *(x.half() % y, x.long() % 0.3, 7 % (x.long() * 2 + 3)),
        ),
        torch.tensor([1.0, 0.3, -1.0, 1e4, -7.5]),
        torch.tensor([-0.1, 0.1, 0.0, INF, 2.5]),
    ),
    "numbers that half precision lacks": (
        lambda x: (*((1 - x) * -1e9, x / 1e5, x / 1e-6, x * 1e-8, 1e-8 * x, x * 2),),
        torch.tensor([0.0, 1.0, 0.5, -200.0, 6e4]).half(),
    ),
    "small numbers of log1p and expm1": (
        lambda x: (
            *(functional.softplus(x).log(), x.exp().log1p().log(), x.log1p(), x.expm1()),
            *((x * 1e-6).expm1() * 1e6, (x * 1e-9).log1p() * 1e9, x.int().log1p()),
            *((x * 1e-6).atanh() * 1e6, (x / 200).atanh(), x.int().atanh()),
        ),
        torch.tensor([-200.0, -20.0, -30.0, -1.0, -0.3, 0.0, 3.0, 200.0, INF, -INF]),
    ),
    "functions of integers are floats": (
        lambda n: (n.sqrt(), n.rsqrt(), n.exp(), n.log(), n.sigmoid(), n.tanh()),
        torch.randint(1, 9, (5, 6)),
    ),
    "a double of no dimensions": (
        lambda x: (x * TWO, x / torch.sqrt(torch.tensor(x.shape[-1]))),
        torch.randn(5, 6),
    ),
    "sums of small integers are large": (
        lambda n: (n.cumsum(0), (n > 3).cumsum(1), n.prod(1), n.sum()),
        torch.randint(1, 5, (5, 6), dtype=torch.int32),
    ),
    "types of new tensors": (
        lambda n: (
            torch.zeros_like(n, dtype=torch.float32),
            torch.full_like(n, 0.5, dtype=torch.float32),
            *(n.new_zeros(3, dtype=torch.float32) + n[0, :3], n.new_ones(2)),
            torch.full_like(n, -INF, dtype=torch.float32),
        ),
        torch.randint(0, 9, (5, 6)),
    ),
    "masks of infinities": (
        lambda x: (
            (x + torch.full((3, 3), -INF).triu(1)).softmax(-1),
            torch.full((2,), INF) * x[0, :2].abs().add(1),
            *(torch.where(x > 0, x, torch.full_like(x, -INF)), x.clone().fill_(INF)),
        ),
        torch.randn(3, 3),
    ),
    "numbers of every type": (
        lambda x: (x + torch.full((3,), 0.5), torch.full((2, 1), 7), torch.full((2,), True), x),
        torch.randn(3),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_function_of_elements_is_that_of_torch(case):
    assert_equal(*CASES[case])


@pytest.mark.parametrize(
    "draw",
    [
        torch.randn_like,
        lambda x: torch.randn(3) + x,
        lambda x: torch.empty_like(x).exponential_(),
        functional.dropout,  # of a network that trains
        lambda x: functional.rrelu(x, training=True),
    ],
)
def test_operators_that_draw_are_named(draw):
    program = torch.export.export(Function(lambda x: x * draw(x)), (torch.randn(3),))
    with pytest.raises(AssertionError, match=r"random numbers|rrelu_with_noise"):
        from_exported(program)


def test_truth_values_are_inverted_as_such():
    """In C, all bits of a byte that is 1 make 254, which is true."""
    program = torch.export.export(Function(lambda m, n: (~m, ~n)), (MASK, torch.arange(4)))
    names = operators_of(from_exported(program))
    assert {"relax.logical_not", "relax.bitwise_not"} <= names
    assert_equal(lambda m, n: (~m, ~n), MASK, torch.arange(4))


def test_products_keep_doubles_and_integers():
    doubles, whole = torch.randn(5, 6, dtype=torch.float64), torch.randint(-9, 9, (5, 6)) * 99991
    assert_equal(lambda x, n: (x @ x.T, n @ n.T), doubles, whole, tolerance=1e-14)


def test_half_precision_layers_have_a_bias():
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(16, 5)
    )
    assert_equal(layers.half(), torch.randn(2, 3, 4, 4).half(), tolerance=1e-2)


@WAYS
def test_fake_quantisation(assert_same):
    scales, zeros = torch.tensor([0.02, 0.05]), torch.tensor([0, 3], dtype=torch.int32)

    def function(x):
        return (
            torch.fake_quantize_per_tensor_affine(x, 0.05, 3, 0, 31),
            torch.fake_quantize_per_tensor_affine(x, scales[1], zeros[1], -8, 7),
            torch.fake_quantize_per_channel_affine(x, scales, zeros, 0, -128, 127),
        )

    assert_same(function, torch.randn(2, 37))


def test_operators_of_exports_for_quantisation():
    importlib.import_module("torch.ao.quantization.fx._decomposed")
    ops, kind = torch.ops.quantized_decomposed, torch.int8
    weight = torch.randint(-127, 128, (4, 8), dtype=kind)
    scales, zeros = torch.rand(4) * 0.02, torch.zeros(4, dtype=torch.int64)

    def function(x):
        steps = ops.quantize_per_tensor(x, 0.03, 5, -128, 127, kind)
        x = ops.dequantize_per_tensor(steps, 0.03, 5, -128, 127, kind)
        real = ops.dequantize_per_channel(weight, scales, zeros, 0, -127, 127, kind)
        again = ops.quantize_per_channel(real * 0.7, scales, zeros, 0, -127, 127, kind)
        return steps, torch.nn.functional.linear(x, real), again

    assert_equal(function, torch.randn(3, 8))
