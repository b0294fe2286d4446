"""Definitions of feature columns, and column values by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A named column: the ``unit``, ``formula`` and ``source`` of its values."""

    name: str
    unit: str
    formula: str
    source: str


def column_index(columns: Sequence[Column]) -> dict[str, int]:
    """Map the name of every column of a table to its place."""
    return {column.name: place for place, column in enumerate(columns)}


class ColumnValues:
    """Values of columns for N programs, [column, N]; zero until set by name."""

    def __init__(
        self, where: Mapping[str, int], num: int, dtype: type[np.floating[Any]] = np.float64
    ) -> None:
        self.array = np.zeros((len(where), num), dtype)
        self._where = where

    def __setitem__(self, name: str, value: ArrayLike) -> None:
        self.array[self._where[name]] = value

    def set_block(self, first: str, values: np.ndarray) -> None:
        """Set neighbouring columns [k, N] from the column `first` on."""
        start = self._where[first]
        self.array[start : start + len(values)] = values
