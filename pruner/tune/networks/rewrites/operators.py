"""Which operators a Relax module calls."""

from __future__ import annotations

from typing import Any

from pruner.tune.tvm_import import load_tvm


def operator_name(value: Any) -> str:
    """Return the name of a called operator; empty for other values."""
    return str(getattr(getattr(value, "op", None), "name", ""))


def operators_of(module: Any) -> set[str]:
    """Return the names of the operators that ``main`` calls."""
    found: set[str] = set()
    walk = load_tvm().ffi.structural_walk
    walk(module["main"].body, (load_tvm().relax.Call, lambda call: found.add(operator_name(call))))
    return found


def is_constant(value: Any) -> bool:
    """True for a constant tensor."""
    return isinstance(value, load_tvm().tvm.ir.GenericConst)
