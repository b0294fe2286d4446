"""Names, units and formulas of all feature columns, their version, and values by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

FEATURE_SET_VERSION = "official-3"
"""Changes whenever any column's value changes for any program (`versions` lists the changes)."""

_STATEMENT_SOURCE = "TenSet feature.cc, GetPerStoreFeature"
_DATAFLOW_SOURCE = "Pruner feature_pam.cc, GetPerStoreFeaturePAM"
MAX_BUFFERS = 5  # that one statement has columns for
CURVE_SAMPLES = 10
_KINDS = ("mad", "addsub", "mul", "divmod", "cmp", "mathfunc", "otherfunc")
_POSITIONS = (
    "none", "inner_spatial", "middle_spatial", "outer_spatial",
    "inner_reduce", "middle_reduce", "outer_reduce", "mixed",
)  # fmt: skip


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


def flag(name: str, formula: str, source: str) -> Column:
    """Make a column of 0 and 1."""
    return Column(name=name, unit="0 or 1", formula=formula, source=source)


def _logged(name: str, unit: str, formula: str, source: str) -> Column:
    return Column(name=name, unit=f"log2(1 + {unit})", formula=formula, source=source)


def _counts() -> tuple[Column, ...]:
    out = [
        _logged(f"{group}_{kind}", "operations", f"{group} {kind} x P", _STATEMENT_SOURCE)
        for group in ("float", "int")
        for kind in _KINDS
    ]
    out += [
        _logged(f"{kind}_op", "operations", f"{kind} operations x P", _STATEMENT_SOURCE)
        for kind in ("bool", "select")
    ]
    return tuple(out)


def _computation() -> list[Column]:
    out = list(COUNT_COLUMNS)
    for mark in ("vec", "unroll", "parallel"):
        what = {"num": "number of", "prod": "product of", "len": "innermost of"}
        out += [
            _logged(f"{mark}_{key}", "iterations", f"{text} the {mark} loops", _STATEMENT_SOURCE)
            for key, text in what.items()
        ]
        out += [
            flag(f"{mark}_type.{place}", "only none and mixed are ever set", _STATEMENT_SOURCE)
            for place in _POSITIONS
        ]
    out.append(flag("is_gpu", "a GPU index was met", _STATEMENT_SOURCE))
    indices = [f"{kind}Idx_{axis}_len" for kind in ("block", "thread") for axis in "xyz"]
    out += [
        _logged(name, "iterations", "extent of the GPU index", _STATEMENT_SOURCE)
        for name in (*indices, "vthread_len")
    ]
    return out


def _access(prefix: str, source: str) -> list[Column]:
    measured = (
        ("bytes", "bytes", "P x element size"),
        ("unique_bytes", "bytes", "touched region under the outermost loop"),
        ("lines", "cache lines", "64-byte lines touched, with repeats"),
        ("unique_lines", "cache lines", "unique bytes / contiguous run"),
    )
    kinds = ("read", "write", "read_write")
    out = [flag(f"{prefix}acc_type.{k}", f"access is {k}", source) for k in kinds]
    out += [_logged(prefix + n, u, f, source) for n, u, f in measured]
    kinds = ("loop", "serial", "none")
    out += [flag(f"{prefix}reuse_type.{k}", f"reuse is {k}", source) for k in kinds]
    out += [
        _logged(f"{prefix}reuse_dis_iter", "iterations", "between two uses", source),
        _logged(f"{prefix}reuse_dis_bytes", "bytes", "touched between two uses", source),
        _logged(f"{prefix}reuse_ct", "uses", "number of uses", source),
    ]
    out += [
        _logged(f"{prefix}{n}_d_reuse_ct", u, f"{n} / reuse_ct, x 2 without reuse", source)
        for n, u, _ in measured
    ]
    out.append(_logged(f"{prefix}stride", "elements", "step of the innermost loop", source))
    return out


def _statement_columns() -> tuple[Column, ...]:
    out = _computation()
    for buffer in range(MAX_BUFFERS):
        out += _access(f"B{buffer}.", _STATEMENT_SOURCE)
    out += [
        Column(
            name=f"arith_intensity_curve_{i}",
            unit="log2(operations) / log2(bytes)",
            formula=f"interpolated at {i + 1}/{CURVE_SAMPLES} of log2(operations)",
            source=_STATEMENT_SOURCE,
        )
        for i in range(CURVE_SAMPLES)
    ]
    out += [
        _logged("alloc_size", "bytes", "elements of the buffer x element size", _STATEMENT_SOURCE),
        _logged("alloc_prod", "elements", "elements x alloc_outer_prod", _STATEMENT_SOURCE),
        _logged("alloc_outer_prod", "iterations", "loops around the allocation", _STATEMENT_SOURCE),
        _logged("alloc_inner_prod", "iterations", "P / alloc_outer_prod", _STATEMENT_SOURCE),
        _logged("outer_prod", "iterations", "P: product of all loops around", _STATEMENT_SOURCE),
        _logged("num_loops", "loops", "loops around, extent 1 not counted", _STATEMENT_SOURCE),
        _logged("auto_unroll_max_step", "iterations", "unroll depth in force", _STATEMENT_SOURCE),
    ]
    return tuple(out)


def _dataflow_columns() -> tuple[Column, ...]:
    out = [_logged("float_ops", "operations", "operations x P (official: x P^2)", _DATAFLOW_SOURCE)]
    places = ("global", "shared", "local")
    out += [flag(f"location.{k}", f"buffer in {k}", _DATAFLOW_SOURCE) for k in places]
    out += _access("", _DATAFLOW_SOURCE)
    out.append(_logged("alloc_size", "bytes", "allocation of the buffer", _DATAFLOW_SOURCE))
    return tuple(out)


COUNT_COLUMNS: tuple[Column, ...] = _counts()
"""The first statement columns: the counts of `OpCounter`."""
ACCESS_COLUMNS: tuple[Column, ...] = tuple(_access("", _STATEMENT_SOURCE))
"""Columns of one buffer access, in statement rows (names with a prefix) and dataflow rows."""
STATEMENT_COLUMNS: tuple[Column, ...] = _statement_columns()
DATAFLOW_COLUMNS: tuple[Column, ...] = _dataflow_columns()

COUNT_INDEX = column_index(COUNT_COLUMNS)
ACCESS_INDEX = column_index(ACCESS_COLUMNS)
STATEMENT_INDEX = column_index(STATEMENT_COLUMNS)
DATAFLOW_INDEX = column_index(DATAFLOW_COLUMNS)


WORDS = (
    "max",
    "min",
    "add",
    "Conv2dOutput",
    "conv2d_winograd",
    "DepthwiseConv2d",
    "dense",
    "softmax",
    "compute(b, i, j)",
)
"""Substrings to find; any place counts, so ``PaddedInput`` contains ``add``."""

WORKLOAD_COLUMNS = (
    *(
        flag(
            f"text_has_{word}",
            f"1 if the text of the compute DAG contains {word!r}",
            "TenSet: workload embedding",
        )
        for word in WORDS
    ),
    flag("unused", "0", "Pruner: the embedding has ten places, TenSet fills nine"),
)


def text_flags(text: str) -> NDArray[np.float32]:
    """Return the values of :data:`WORKLOAD_COLUMNS` for a computation's text."""
    return np.array([word in text for word in WORDS] + [False], dtype=np.float32)
