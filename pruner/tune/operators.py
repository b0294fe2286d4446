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
    out["epilogue"] = list(out["epilogue"] or ())
    if out["dtype"] not in DTYPES or not set(out["epilogue"]) <= set(EPILOGUES):
        raise PrunerError(
            f"workload.dtype={out['dtype']} workload.epilogue={out['epilogue']}: "
            f"known dtypes: {', '.join(DTYPES)}; known epilogues: {', '.join(EPILOGUES)}"
        )
    return out


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
    from pruner.tune.ansor import te_operators as te

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
