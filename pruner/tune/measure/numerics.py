"""Inputs of a measured program, and how far its results may be from the reference.

Imported inside the Ansor environment too, so nothing here but numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arguments = Sequence[tuple[tuple[int, ...], str]]  # shape and dtype of each

# Half precision accumulates in half precision here, so its sums are only this close.
TOLERANCE = {"float32": 1e-4, "float64": 1e-9, "float16": 3e-2}


def tolerance(arguments: Arguments) -> float:
    """The largest relative error that counts as right; exact for integers."""
    return max(TOLERANCE.get(dtype, 0.0) for _, dtype in arguments)


def relative_error(found: NDArray[Any], wanted: NDArray[Any]) -> float:
    """max |found - wanted| / max |wanted|; infinite where either is not finite."""
    found, wanted = found.astype(np.float64), wanted.astype(np.float64)
    if not (np.isfinite(found).all() and np.isfinite(wanted).all()):
        return float("inf")
    scale = float(np.abs(wanted).max(initial=0.0)) or 1.0
    return float(np.abs(found - wanted).max(initial=0.0)) / scale


def inputs(arguments: Arguments, seed: int = 0) -> list[NDArray[Any]]:
    """The same values for every candidate and for the reference: in [-1, 1), integers in [0, 8)."""
    rng = np.random.default_rng(seed)
    out = []
    for shape, dtype in arguments:
        values: NDArray[Any]
        if dtype.startswith("float"):
            values = rng.random(shape, dtype=np.float32) * 2 - 1
        else:
            values = rng.integers(0, 2 if dtype == "bool" else 8, shape)
        out.append(values.astype(dtype))
    return out
