"""A single operator as torch computes it, on the arguments that a tuned kernel gets."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pruner.data.workload import pad_amounts
from pruner.program.dag.operators.epilogue import channel_of

Spec = Mapping[str, Any]  # as pruner.program.dag.operators.options.checked returns it


def torch_operator(spec: Spec) -> Any:
    """A module without weights whose inputs are those of the operator, in their order.

    A bias goes into the convolution or product itself, where torch takes one.
    """
    torch = importlib.import_module("torch")
    compute, epilogue = _OPERATORS[spec["operator"]](torch, spec), list(spec["epilogue"])

    class Operator(torch.nn.Module):  # type: ignore[name-defined]
        def forward(self, *inputs: Any) -> Any:
            rest = list(inputs[compute.inputs :])
            biased = compute.takes_bias and "bias" in epilogue
            out = compute.call(*inputs[: compute.inputs], rest.pop(0) if biased else None)
            for name in epilogue[biased:]:
                out = _EPILOGUES[name](torch, out, rest)
            return out

    return Operator().eval()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compute:
    """``call(*inputs, bias)`` for so many inputs; the bias is None unless it ``takes_bias``."""

    call: Callable[..., Any]
    inputs: int
    takes_bias: bool = False


def _matmul(torch: Any, _: Spec) -> _Compute:
    def call(a: Any, b: Any, bias: Any) -> Any:
        return a @ b if bias is None else torch.addmm(bias, a, b)

    return _Compute(call=call, inputs=2, takes_bias=True)


def _batch_matmul(torch: Any, _: Spec) -> _Compute:
    return _Compute(call=lambda a, b, _: torch.bmm(a, b), inputs=2)


def _conv2d(torch: Any, spec: Spec) -> _Compute:
    functional, stride = torch.nn.functional, spec["stride"]
    pad, padding = _padding(torch, spec, 0.0)
    groups = spec.get("groups", spec.get("c", 1))  # depthwise: one a channel

    def call(data: Any, kernel: Any, bias: Any) -> Any:
        return functional.conv2d(pad(data), kernel, bias, stride, padding, groups=groups)

    return _Compute(call=call, inputs=2, takes_bias=True)


def _pool(torch: Any, spec: Spec) -> _Compute:
    functional, window, stride = torch.nn.functional, (spec["kh"], spec["kw"]), spec["stride"]
    is_max = spec["kind"] == "max"
    pool = functional.max_pool2d if is_max else functional.avg_pool2d  # padded elements count
    pad, padding = _padding(torch, spec, float("-inf") if is_max else 0.0)
    return _Compute(call=lambda x, _: pool(pad(x), window, stride, padding), inputs=1)


def _softmax(torch: Any, _: Spec) -> _Compute:
    return _Compute(call=lambda x, _: torch.softmax(x, -1), inputs=1)


def _layer_norm(torch: Any, spec: Spec) -> _Compute:
    norm, shape = torch.nn.functional.layer_norm, (spec["columns"],)
    return _Compute(call=lambda x, gamma, beta, _: norm(x, shape, gamma, beta), inputs=3)


def _padding(torch: Any, spec: Spec, value: float) -> tuple[Callable[[Any], Any], tuple[int, int]]:
    """What is done before the operator, and the padding that it does itself.

    Sides of different widths, or wider than a window's half, are padded before.
    """
    top, left, bottom, right = pad_amounts(spec["padding"], spec["kh"], spec["kw"])
    fits = top <= spec["kh"] // 2 and left <= spec["kw"] // 2
    if (top, left) == (bottom, right) and fits:
        return lambda x: x, (top, left)
    pad = torch.nn.functional.pad
    return lambda x: pad(x, (left, right, top, bottom), value=value), (0, 0)


_OPERATORS: Mapping[str, Callable[[Any, Spec], _Compute]] = {
    "matmul": _matmul,
    "batch_matmul": _batch_matmul,
    "conv2d": _conv2d,
    "depthwise_conv2d": _conv2d,
    "grouped_conv2d": _conv2d,
    "pool": _pool,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
}


def _bias(_: Any, out: Any, rest: list[Any]) -> Any:
    sizes = [1] * out.dim()
    sizes[channel_of(out.dim())] = -1
    return out + rest.pop(0).view(sizes)


_EPILOGUES: Mapping[str, Callable[[Any, Any, list[Any]], Any]] = {
    "bias": _bias,
    "add": lambda _, out, rest: out + rest.pop(0),
    "relu": lambda torch, out, _: torch.relu(out),
}
