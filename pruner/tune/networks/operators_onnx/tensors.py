"""Shapes, types and constants of the expressions that converters get."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pruner.tune.tvm_import import load_tvm


def shape_of(tensor: Any) -> list[int]:
    """Return the extents of an expression."""
    return [int(extent) for extent in tensor.ty.shape]


def dtype_of(tensor: Any) -> str:
    """Return the type of an expression's elements."""
    return str(tensor.ty.dtype.dtype)


def is_float(tensor: Any) -> bool:
    """True for elements of any float type."""
    return "float" in dtype_of(tensor)


def array(tensor: Any, what: str) -> NDArray[Any]:
    """Return the values of a constant; raise `ValueError` with `what` for others."""
    relax = load_tvm().relax
    if isinstance(tensor, relax.ShapeExpr):
        return np.array([int(size) for size in tensor.values], np.int64)
    if not hasattr(tensor, "value"):
        raise ValueError(f"{what} must be constant")
    return np.asarray(tensor.value.numpy())


def constant(values: Any, dtype: str) -> Any:
    """Make a constant."""
    return load_tvm().relax.const(np.asarray(values), dtype)
