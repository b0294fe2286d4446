"""Write exp, erf, tanh, sigmoid of float32 as vector instructions of CPUs.

LLVM calls the C library for them, number by number. Errors (tests hold them): below 4e-7 relative
for exp, 5e-7 absolute or relative for the others. NaN stays NaN; of exp, denormals are 0.

Sources: exp by Cody and Waite's reduction with the polynomial of Cephes' ``expf``; erf and tanh are
the rational functions of Eigen (``generic_fast_erf_float``, ``generic_fast_tanh_float``).
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from pruner.tune.tvm_import import load_tvm, map_functions

_LARGEST, _SMALLEST = 88.722839, -87.336544  # exp beyond them is infinite, or denormal
_LOG2_E = 1.44269504088896341
_LN_2 = (0.693359375, -2.12194440e-4)  # the first part has few bits: n times it is exact
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)

_ERF_BOUND = 4.0  # erf is 1 to the last bit from here on
_ERF_ABOVE = (
    *(-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05),
    *(-7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02),
)
_ERF_BELOW = (
    *(-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03),
    -1.42647390514189e-02,
)
_TANH_BOUND = 7.90531110763549805
_TANH_ABOVE = (
    *(-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08),
    *(1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03),
)
_TANH_BELOW = (
    1.19825839466702e-06,
    1.18534705686654e-04,
    2.26843463243900e-03,
    4.89352518554385e-03,
)


def with_vector_math(module: Any, target: Any, *, exact: bool = False) -> Any:
    """Write out the vectorisable functions of a module, if for a CPU.

    ``exact``: only functions that TVM cannot compile.
    """
    if target.kind.name != "llvm":
        return module
    tvm, ffi = load_tvm().tvm, load_tvm().ffi

    def written_out(call: Any) -> Any:
        name = getattr(call.op, "name", "").removeprefix("tirx.")
        kind, value = str(call.ty), call.args[0] if len(call.args) == 1 else None
        if kind == "float16" and name in _NOT_HALF:
            found = getattr(tvm.tirx, name)(tvm.tirx.Cast("float32", value))
            return tvm.tirx.Cast(kind, written_out(found))
        if kind in ("float32", "float64") and name in _HYPERBOLIC:
            return _HYPERBOLIC[name](value, written_out)
        is_vector = kind == "float32" and name in _WRITTEN_OUT and not exact
        return _WRITTEN_OUT[name](value) if is_vector else call

    return map_functions(
        module, lambda function: ffi.structural_map(function, (tvm.ir.Call, written_out))
    )


def _named(value: Any, use: Callable[[Any], Any]) -> Any:
    """Build an expression that computes `value` once for any `use`."""
    kinds = load_tvm().tvm.tirx
    name = kinds.Var("value", str(value.ty))
    return kinds.Let(name, value, use(name))


def _exp(value: Any) -> Any:
    return _named(value, _exp_of)


def _exp_of(x: Any) -> Any:
    """Build ``exp(r) 2^n``, with the power in two halves against overflow."""
    kinds = load_tvm().tvm.tirx
    # a maximum is NaN only if its second operand is NaN: in this order NaN stays
    inside = kinds.max(_f32(_SMALLEST), kinds.min(_f32(_LARGEST), x))

    def scaled(n: Any) -> Any:
        whole = kinds.Cast("int32", n)
        r = inside - n * _f32(_LN_2[0]) - n * _f32(_LN_2[1])
        near_one = _named(r, lambda r: _polynomial(r, _EXP) * r * r + r + _f32(1.0))
        # From the left: both powers together may be more than a float32 can hold.
        return near_one * _power_of_two(whole >> 1) * _power_of_two(whole - (whole >> 1))

    computed = _named(kinds.floor(inside * _f32(_LOG2_E) + _f32(0.5)), scaled)
    bounded = kinds.Select(x > _f32(_LARGEST), _f32(float("inf")), computed)
    bounded = kinds.Select(x < _f32(_SMALLEST), _f32(0.0), bounded)
    return kinds.Select(x != x, x, bounded)  # only NaN differs from itself


def _power_of_two(n: Any) -> Any:
    """Build ``2^n`` by its bits, for -127 < n < 128."""
    return load_tvm().tvm.tirx.reinterpret("float32", (n + 127) << 23)


def _odd(value: Any, bound: float, above: Sequence[float], below: Sequence[float]) -> Any:
    """Build ``x P(x^2) / Q(x^2)`` of a bounded `value`.

    P are the coefficients `above` the fraction line, Q `below`.
    """
    kinds = load_tvm().tvm.tirx

    def of(x: Any) -> Any:
        def divided(square: Any) -> Any:
            return x * _polynomial(square, above) / _polynomial(square, below)

        return _named(x * x, divided)

    return _named(kinds.max(_f32(-bound), kinds.min(_f32(bound), value)), of)


def _polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    first, *rest = map(_f32, coefficients)
    return reduce(lambda sum_, next_: sum_ * x + next_, rest, first)


def _f32(value: float) -> Any:
    return load_tvm().tvm.tirx.const(value, "float32")


def _cosh(value: Any, written_out: Callable[[Any], Any]) -> Any:
    """Build cosh from a root of exp, which overflows last."""
    kinds = load_tvm().tvm.tirx
    half = kinds.const(0.5, str(value.ty))

    def of(root: Any) -> Any:
        return root * half * root + half / (root * root)

    return _named(written_out(kinds.exp(kinds.abs(value) * half)), of)


def _sinh(value: Any, written_out: Callable[[Any], Any]) -> Any:
    kinds = load_tvm().tvm.tirx
    return _named(value, lambda x: written_out(kinds.tanh(x)) * _cosh(x, written_out))


# TVM has them for single numbers alone.
_HYPERBOLIC = {"cosh": _cosh, "sinh": _sinh}
# TVM has no such functions of float16.
_NOT_HALF = {"acos", "acosh", "asin", "asinh", "atan", "cosh", "erf", "log1p", "sinh"}
_WRITTEN_OUT: dict[str, Callable[[Any], Any]] = {
    "exp": _exp,
    "erf": lambda value: _odd(value, _ERF_BOUND, _ERF_ABOVE, _ERF_BELOW),
    "tanh": lambda value: _odd(value, _TANH_BOUND, _TANH_ABOVE, _TANH_BELOW),
    "sigmoid": lambda value: _f32(1.0) / (_f32(1.0) + _exp(_f32(0.0) - value)),
}
