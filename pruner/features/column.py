"""What one feature column means, and values of columns by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A named column: its ``unit``, the ``formula`` of its value and the ``source`` of both."""

    name: str
    unit: str
    formula: str
    source: str


def places(columns: Sequence[Column]) -> dict[str, int]:
    """Where every column of a table is, by name."""
    return {column.name: place for place, column in enumerate(columns)}


class ColumnValues:
    """Values of a table's columns for N programs: [column, N], zero until set by name.

    ``dtype``: float64 for what is computed with further, float32 for what is kept as a feature.
    """

    def __init__(
        self, where: Mapping[str, int], num: int, dtype: type[np.floating[Any]] = np.float64
    ) -> None:
        self.array = np.zeros((len(where), num), dtype)
        self._where = where

    def __setitem__(self, name: str, value: ArrayLike) -> None:
        self.array[self._where[name]] = value

    def set_block(self, first: str, values: np.ndarray) -> None:
        """Neighbouring columns [k, N] from the one called `first` on."""
        start = self._where[first]
        self.array[start : start + len(values)] = values
