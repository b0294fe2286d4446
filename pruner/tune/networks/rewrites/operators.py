"""Operators, shapes and constants of a Relax module, and how its ``main`` is rewritten."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pruner.tune.tvm_import import inside, load_tvm


def operator_name(value: Any) -> str:
    """Return the name of a called operator; empty for other values."""
    return str(getattr(getattr(value, "op", None), "name", ""))


def operators_of(module: Any) -> set[str]:
    """Return the names of the operators that ``main`` calls."""
    return set(map(operator_name, inside(module["main"].body, load_tvm().relax.Call)))


def is_constant(value: Any) -> bool:
    """True for a constant tensor."""
    return isinstance(value, load_tvm().tvm.ir.GenericConst)


def shape_of(value: Any) -> list[int]:
    """Return the extents of a tensor; none for a tuple or an unknown shape."""
    return [int(extent) for extent in getattr(value.ty, "shape", None) or ()]


def dtype_of(tensor: Any) -> str:
    """Return the type of a tensor's elements."""
    return str(tensor.ty.dtype.dtype)


def is_float(tensor: Any) -> bool:
    """True for elements of any float type."""
    return "float" in dtype_of(tensor)


def array(tensor: Any, what: str) -> NDArray[Any]:
    """Return the values of a constant; raise `ValueError` with `what` for others."""
    if isinstance(tensor, load_tvm().relax.ShapeExpr):
        return np.array([int(size) for size in tensor.values], np.int64)
    if not hasattr(tensor, "value"):
        raise ValueError(f"{what} must be constant")
    return np.asarray(tensor.value.numpy())


def constant(values: Any, dtype: str) -> Any:
    """Make a constant."""
    return load_tvm().relax.const(np.asarray(values), dtype)


def functions_of(module: Any) -> dict[Any, Any]:
    """Return the TIR functions of a module by their global variables."""
    kind = load_tvm().tirx.PrimFunc
    return {name: f for name, f in module.functions_items() if isinstance(f, kind)}


def rewritten(module: Any, pattern: Any, rewrite: Callable[[Any, Any], Any]) -> Any:
    """Rewrite the calls of ``main`` that match a pattern."""
    relax = load_tvm().relax
    module = module.clone()
    module["main"] = relax.dpl.rewrite_call(pattern, rewrite, module["main"])
    return relax.transform.Normalize()(module)


def with_bindings(main: Any, change: Callable[[Any, Any], Iterable[Any]]) -> Any:
    """Return a function with other bindings in each block.

    `change`: of (the bindings of a block, the constructor of variables there).
    """
    relax, blocks = load_tvm().relax, []
    for block in main.body.blocks:
        is_dataflow = isinstance(block, relax.DataflowBlock)
        variable = relax.DataflowVar if is_dataflow else relax.Var
        made = relax.DataflowBlock if is_dataflow else relax.BindingBlock
        blocks.append(made(list(change(block.bindings, variable))))
    body = relax.SeqExpr(blocks, main.body.body)
    return relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
