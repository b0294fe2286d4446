"""Types of the arrays common to all packages: a row per program."""

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int64
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
IntLike = int | Ints  # a number that is common to all programs, or one a program [N]

Decisions = Int64[np.ndarray, "program slot"]  # decision vectors of one skeleton or space
Verdicts = Bool[np.ndarray, " program"]  # which programs are accepted
Scores = Float[np.ndarray, " program"]  # higher is better
Keys = Int64[np.ndarray, " program"]  # equal vectors have equal keys, in every process


def rows_of(values: Sequence[Any], num: int) -> Any:
    """Stack numbers of N programs, [L, N]; a plain number holds for all programs."""
    return np.stack([v if np.ndim(v) else np.full(num, v) for v in values])


@cache
def dtype_bytes(dtype: str) -> int:
    """Return the bytes of an element of a TVM dtype string, at least 1."""
    bits = re.search(r"\d+", dtype)
    return max(int(bits[0]) // 8, 1) if bits else 1
