"""Check the options of ``tune.py workload=<operator>``; name the task, make its key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pruner.data.workload import ARGUMENTS, pad_amounts, workload_key
from pruner.errors import PrunerError
from pruner.program.dag.operators import find_operator, te_tensors
from pruner.program.dag.operators.builder import Operator, Tensors
from pruner.program.dag.operators.epilogue import EPILOGUES

Spec = Mapping[str, Any]  # {"operator": "matmul", "m": 512, ..., "dtype": ..., "epilogue": [...]}

DTYPES = ("float32", "float16")
_OPTIONAL = {"dtype": "float32", "epilogue": ()}


def tuned_operators() -> tuple[str, ...]:
    """Return the names of the operators that have options."""
    return tuple(name for name in ARGUMENTS if find_operator(name).options)


def checked(spec: Spec) -> dict[str, Any]:
    """Return options with defaults; raise `PrunerError` for what is unknown or missing."""
    op = spec.get("operator")
    if op not in tuned_operators():
        known = ", ".join(tuned_operators())
        raise PrunerError(f"workload {op!r} is unknown; known: {known}, file, list")
    operator = find_operator(op)
    out = {"operator": op, **_OPTIONAL, **spec}
    if unknown := sorted(out.keys() - {"operator", *operator.options, *_OPTIONAL}):
        raise PrunerError(
            f"workload {op}: unknown option {', '.join(unknown)}; it takes {operator.options}"
        )
    for name in operator.options:
        if wanted := _wanted(operator, name, out.get(name)):
            raise PrunerError(f"workload.{name}={out.get(name)}: {op} needs {wanted}")
    if out["dtype"] not in DTYPES:
        raise PrunerError(f"workload.dtype={out['dtype']} is unknown; known: {', '.join(DTYPES)}")
    out["epilogue"] = _epilogue(out["epilogue"])
    if "padding" in operator.options:
        _check_window(out)
    return out


def _wanted(operator: Operator, name: str, value: Any) -> str:
    """Return what the option should be; empty where the value is right."""
    if name in operator.choices:
        return "" if value in operator.choices[name] else " or ".join(operator.choices[name])
    if name == "padding":
        good = value in ("SAME", "VALID") or (type(value) is int and value >= 0)
        return "" if good else "SAME, VALID or a whole number"
    return "" if type(value) is int and value >= 1 else "a whole number, 1 or more"


def _epilogue(given: Any) -> list[str]:
    """Return the epilogue as a list; None is an empty list."""
    names = [given] if isinstance(given, str) else list(given or ())
    # One fixed order, so that equal work has one name and one key.
    if names != [name for name in EPILOGUES if name in names]:
        raise PrunerError(
            f"workload.epilogue={given}: it must be some of {', '.join(EPILOGUES)}, each at most "
            "once and in this order"
        )
    return names


def _check_window(spec: Spec) -> None:
    window = spec.get("kh", 1), spec.get("kw", 1)
    top, left, bottom, right = pad_amounts(spec["padding"], *window)
    for side, kernel, padded in (("h", "kh", top + bottom), ("w", "kw", left + right)):
        if kernel in spec and spec[side] + padded < spec[kernel]:
            raise PrunerError(
                f"workload.{side}={spec[side]} with padding={spec['padding']} is smaller than the "
                f"kernel, workload.{kernel}={spec[kernel]}"
            )


def key_of(spec: Spec) -> str:
    """Return the workload key of the same work, as records carry it."""
    spec = checked(spec)
    values = {**find_operator(spec["operator"]).fixed, **spec}
    return workload_key(spec["operator"], *(values[name] for name in ARGUMENTS[spec["operator"]]))


def name_of(spec: Spec) -> str:
    """Return the file stem of a task: ``matmul_512_512_512``, half precision ``_fp16``."""
    spec = checked(spec)
    sizes = [spec[name] for name in find_operator(spec["operator"]).options]
    parts = [spec["operator"], *spec["epilogue"], *sizes]
    return "_".join(map(str, parts)) + ("_fp16" if spec["dtype"] == "float16" else "")


def tensors(te: Any, topi: Any, spec: Spec) -> Tensors:
    """Return inputs and output of operator and epilogue as TE tensors; raise as :func:`checked`."""
    spec = checked(spec)
    return te_tensors(te, topi, key_of(spec), spec["epilogue"], spec["dtype"])
