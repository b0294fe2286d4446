"""Dataflow features: the multi-tiling pattern as a sequence of buffer touches.

Paper: `NUM_ROWS` rows of `DATAFLOW_COLUMNS` (Pruner, section "PaCM"); official code: the same
without the epilogue (src/auto_scheduler/feature_pam.cc). Every store appends one row for each
buffer it touches, sources before the destination: *initialise a local tile, stage two operands
through shared memory, accumulate* has the locations 2, 0 1, 0 1, 1 1 2. GPU programs without the
pattern have zero rows; for CPU programs see :mod:`pruner.features.caches`.

On tensor cores fragments and accumulators are local. The kind ``fragments`` is ``paper`` with four
rows more before the product, shared memory and fragment of each operand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Floats
from pruner.features.caches import cpu_rows
from pruner.features.columns import DATAFLOW_COLUMNS
from pruner.features.statement.analysis import AnalysedStore, StoreAnalysis
from pruner.features.statement.array_helpers import column
from pruner.features.statement.memory import AccessFeatures
from pruner.program.nests import ACCUMULATORS, GLOBAL, LOCAL, SHARED, LoopNests, Scope

_Touch = tuple[StoreAnalysis, AccessFeatures]
DataflowKind = Literal["paper", "official", "fragments"]
_PATTERN = (LOCAL, GLOBAL, SHARED, GLOBAL, SHARED, SHARED, SHARED, LOCAL)
_LOCATIONS = {GLOBAL: "global", SHARED: "shared"}  # all others are registers: local
_FRAGMENTS = (
    (Scope.FRAGMENT_A, Scope.FRAGMENT_B, Scope.ACCUMULATOR),
    (Scope.MMA_A, Scope.MMA_B, Scope.MMA_C),
)
_ON_CORES = tuple(
    (acc, GLOBAL, SHARED, GLOBAL, SHARED, SHARED, a, SHARED, b, b, a, acc)
    for a, b, acc in _FRAGMENTS
)
_LOADS_OF_FRAGMENTS = slice(5, 9)  # of the pattern above
_EPILOGUE_ROWS = 2  # see _epilogue
NUM_ROWS: dict[str, int] = {
    "paper": len(_PATTERN) + _EPILOGUE_ROWS,
    "official": len(_PATTERN),
    "fragments": len(_ON_CORES[0]) + _EPILOGUE_ROWS,
}


def kind_of(num_rows: int | None) -> DataflowKind:
    """Return the kind with so many rows, ``paper`` for None; raise `ValueError` else.

    >>> kind_of(8), kind_of(10), kind_of(14), kind_of(None)
    ('official', 'paper', 'fragments', 'paper')
    """
    for kind in get_args(DataflowKind):
        if num_rows in (None, NUM_ROWS[kind]):
            found: DataflowKind = kind
            return found
    raise ValueError(f"{num_rows} dataflow rows; known: {sorted(NUM_ROWS.values())}")


def dataflow_features(
    nests: LoopNests, stores: Sequence[AnalysedStore], kind: DataflowKind = "paper"
) -> NDArray[np.float32]:
    """Compute dataflow rows of N programs, float32 [N, rows, dataflow columns].

    ``kind``: see above; ``official`` has the release's slip in the operation count. All zero where
    the program (``stores`` of :func:`analyse`) does not have the pattern.
    """
    out = np.zeros((nests.num_programs, NUM_ROWS[kind], len(DATAFLOW_COLUMNS)), np.float32)
    own = _LOADS_OF_FRAGMENTS if kind == "fragments" else slice(0)  # rows of this kind alone
    common = np.delete(np.arange(NUM_ROWS[kind]), own)
    analyses = [store.analysis for store in stores]
    if kind != "official" and not any(analysis.is_gpu for analysis in analyses):
        out[:, common] = cpu_rows(stores, nests.num_programs, len(common))
        return out
    chosen, loads = _touches(analyses)
    if chosen and kind != "official":
        chosen = chosen + _epilogue(analyses, chosen[-1])
    rows = [*zip(common.tolist(), chosen, strict=False)]
    if kind == "fragments":
        rows += zip(range(own.start, own.stop), loads, strict=False)
    for row, (analysis, access) in rows:
        out[:, row] = _row(nests, analysis, access, kind).T
    return out


def _touches(analyses: list[StoreAnalysis]) -> tuple[list[_Touch], list[_Touch]]:
    """Return the touches of the pattern, and the loads of fragments; empty without it."""
    # The last buffer touched comes first: libstdc++'s unordered_map lists the newest entry first.
    steps = [(a, access) for a in analyses for access in reversed(a.accesses)]
    places = [access.access.buffer.scope for _, access in steps]
    start, on_cores = _find(places, _PATTERN), max(_find(places, one) for one in _ON_CORES)
    if start >= 0:
        return steps[start : start + len(_PATTERN)], []
    if on_cores < 0:
        return [], []
    chosen = steps[on_cores : on_cores + len(_ON_CORES[0])]
    loads = chosen[_LOADS_OF_FRAGMENTS]
    del chosen[_LOADS_OF_FRAGMENTS]
    return chosen, loads


def _find(places: list[Scope], pattern: tuple[Scope, ...]) -> int:
    width = len(pattern)
    for start in range(len(places) - width + 1):
        if tuple(places[start : start + width]) == pattern:
            return start
    return -1


def _epilogue(analyses: list[StoreAnalysis], accumulate: _Touch) -> list[_Touch]:
    """Return tile row and result row of the store after accumulation."""
    analysis, tile = accumulate
    for later in analyses[analyses.index(analysis) + 1 :]:
        for access in later.accesses[1:]:
            if access.access.buffer is tile.access.buffer:
                # Accumulators leave through shared memory: the result is the last store.
                last = analyses[-1] if tile.access.buffer.scope in ACCUMULATORS else later
                return [(later, access), (last, last.accesses[0])]
    return []


def _row(
    nests: LoopNests, analysis: StoreAnalysis, access: AccessFeatures, kind: DataflowKind
) -> Floats:
    """Return the columns of one touch, [column, N]."""
    buffer = access.access.buffer
    allocation = nests.allocations.get(buffer.key)
    size = column(0 if allocation is None else buffer.bytes_per_element, nests.num_programs)
    for extent in () if allocation is None else allocation.extents:
        size = size * extent
    # The release multiplies by the loop product twice (its norm vectors prove it), a slip that its
    # weights have learned with; the paper's rows count every operation once.
    power = 2 if kind == "official" else 1
    ops = analysis.float_ops * analysis.frame.iterations**power
    # ``kept``: the allocator's state in the release's dataflow extractor, see `Reuse`.
    return access.flow_columns(_LOCATIONS.get(buffer.scope, "local"), ops, size, kept=True)
