"""Operators by name and shape, as TVM tensor expressions; the same in both TVM versions.

Imported inside the Ansor environment too, so nothing here but the standard library and ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pruner.errors import PrunerError

Spec = Mapping[str, Any]  # {"operator": "matmul", "m": 512, ..., "dtype": ..., "epilogue": [...]}

SHAPES: dict[str, tuple[str, ...]] = {
    "matmul": ("m", "n", "k"),
    "batch_matmul": ("batch", "m", "n", "k"),
    "conv2d": ("n", "ci", "h", "w", "co", "kh", "kw", "stride", "padding"),
    "depthwise_conv2d": ("n", "c", "h", "w", "kh", "kw", "stride", "padding"),
    "pool": ("kind", "n", "c", "h", "w", "kh", "kw", "stride", "padding"),
    "softmax": ("rows", "columns"),
    "layer_norm": ("rows", "columns"),
}
DTYPES = ("float32", "float16")
EPILOGUES = ("bias", "add", "relu")
_OPTIONAL = {"dtype": "float32", "epilogue": ()}


def checked(spec: Spec) -> dict[str, Any]:
    """Return the operator's own options with the optional ones filled in.

    Raises:
        PrunerError: unknown operator, option or value, or a size that is missing.
    """
    op = spec.get("operator")
    if op not in SHAPES:
        raise PrunerError(f"workload {op!r} is unknown; known: {', '.join(SHAPES)}, file, list")
    wanted = SHAPES[op]
    out = {"operator": op, **_OPTIONAL, **spec}
    if unknown := sorted(out.keys() - {"operator", *wanted, *_OPTIONAL}):
        raise PrunerError(f"workload {op}: unknown option {', '.join(unknown)}; it takes {wanted}")
    for name in wanted:
        value = out.get(name)
        if name == "padding":
            good = value in ("SAME", "VALID") or (type(value) is int and value >= 0)
        elif name == "kind":
            good = value in ("max", "avg")
        else:
            good = type(value) is int and value >= 1
        if not good:
            raise PrunerError(f"workload.{name}={value}: {op} needs {_WANTED.get(name, _SIZE)}")
    if out["dtype"] not in DTYPES:
        raise PrunerError(f"workload.dtype={out['dtype']} is unknown; known: {', '.join(DTYPES)}")
    out["epilogue"] = _epilogue(out["epilogue"])
    if "padding" in wanted:
        _check_window(out)
    return out


def _epilogue(given: Any) -> list[str]:
    """A list of names, one name, or nothing."""
    names = [given] if isinstance(given, str) else list(given or ())
    if names != [name for name in EPILOGUES if name in names]:
        raise PrunerError(
            f"workload.epilogue={given}: it must be some of {', '.join(EPILOGUES)}, each at most "
            "once and in this order"
        )
    return names


def _check_window(spec: Spec) -> None:
    """Refuse a kernel that fits nowhere: the output would be empty."""
    for side, kernel in (("h", "kh"), ("w", "kw")):
        size, least, padding = spec[side], spec[kernel], spec["padding"]
        if padding != "SAME" and size + 2 * (0 if padding == "VALID" else padding) < least:
            raise PrunerError(
                f"workload.{side}={size} with padding={padding} is smaller than the kernel, "
                f"workload.{kernel}={least}"
            )


_SIZE = "a whole number, 1 or more"
_WANTED = {"padding": "SAME, VALID or a whole number", "kind": "max or avg"}


def name_of(spec: Spec) -> str:
    """File stem of a task: ``matmul_512_512_512``, with epilogue and half precision told."""
    spec = checked(spec)
    parts = [
        spec["operator"],
        *spec["epilogue"],
        *(spec[name] for name in SHAPES[spec["operator"]]),
    ]
    return "_".join(map(str, parts)) + ("_fp16" if spec["dtype"] == "float16" else "")


def tensors(spec: Spec) -> list[Any]:
    """Inputs and output of an operator with its epilogue, as TVM tensors."""
    from pruner.tune import te_operators as te

    spec = checked(spec)
    op, dtype = spec["operator"], spec["dtype"]
    sizes = [spec[name] for name in SHAPES[op]]
    builders: dict[str, Callable[..., list[Any]]] = {
        "matmul": lambda m, n, k: te.matmul(m, k, n, dtype),
        "batch_matmul": lambda batch, m, n, k: te.batch_matmul(batch, 1, m, k, n, dtype),
        "conv2d": partial(te.conv2d, dtype=dtype),
        "depthwise_conv2d": partial(te.depthwise_conv2d, dtype=dtype),
        "pool": partial(te.pool, dtype=dtype),
        "softmax": partial(te.softmax, dtype=dtype),
        "layer_norm": partial(te.layer_norm, dtype=dtype),
    }
    out = builders[op](*sizes)
    for name in spec["epilogue"]:
        out = te.fuse(out, name)
    return out
