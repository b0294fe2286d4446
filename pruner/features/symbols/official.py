"""The official analyzer's symbols (PSA, feature_psa.cc): 11 numbers per written buffer.

Their quirks are in section 2.5 of docs/paper.md; the paper's own symbols S1 to S8 are another set.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray

from pruner.features.statement.analysis import AnalysedStore, StoreAnalysis
from pruner.features.statement.array_helpers import product_where
from pruner.features.statement.memory import LoopFrame
from pruner.features.statement.ops import FLOAT
from pruner.features.symbols.symbol_table import OFFICIAL_COLUMNS, PerProgram, SymbolRow, fill
from pruner.program.nests import BLOCKS, SHARED, THREADS, LoopNests, Mark

_SKIPPED = (Mark.BLOCK_X, Mark.THREAD_X)  # feature_psa.cc skips these two names only, not y and z
_NUM_COUNTED_OPS = 4  # multiply-add, add and subtract, multiply, divide; no comparisons


def official_symbols(
    nests: LoopNests, stores: Sequence[AnalysedStore]
) -> Float32[np.ndarray, "program statement column"]:
    """Compute float32 [N, S, 11] of a nest analysed alone, as :func:`statement_features`."""
    num = nests.num_programs
    rows: dict[int, SymbolRow] = {}
    workload: dict[int, PerProgram] = {}
    for analysis, _ in stores:
        # Keyed by buffer: the update of a reduction overwrites its initialisation.
        rows[analysis.store.buffer.key] = _row(analysis, workload)
    return np.moveaxis(fill(OFFICIAL_COLUMNS, list(rows.values()), num), -1, 0).astype(
        np.float32, order="C"
    )


def _product(frame: LoopFrame, marks: tuple[Mark, ...]) -> PerProgram:
    """Return the product over GPU indices; nested equal indices count once."""
    out = np.ones(frame.num)
    for mark in marks:
        rows = frame.marked(mark)
        if rows:
            same = frame.extents[rows]
            # Of nested indices of one name the innermost extent counts, as in the release.
            out = out * (same.prod(0) if mark is Mark.VTHREAD else same[-1])
    return out


def _row(analysis: StoreAnalysis, workload: dict[int, PerProgram]) -> SymbolRow:
    frame = analysis.frame
    num = frame.num
    threads = _product(frame, THREADS)
    blocks = _product(frame, BLOCKS)
    marks = [loop.mark for loop in frame.loops]
    counted = np.array([mark not in _SKIPPED for mark in marks], bool)
    # inner_prod of feature_psa.cc: all loops and virtual threads, without blocks and threads.
    serial = frame.extents[[mark not in (*BLOCKS, *THREADS) for mark in marks]].prod(0)
    ops = sum(analysis.counts[FLOAT : FLOAT + _NUM_COUNTED_OPS]) * serial
    moves = [a.foot.moves for a in analysis.accesses]
    spatial = moves[0] & counted[:, None]

    def volume(access: int, over: NDArray[np.bool_]) -> PerProgram:
        inside = moves[access] & over
        return product_where(frame.extents, inside)

    key = analysis.store.buffer.key
    everything = counted[:, None]
    computes = ops != 0
    registers = np.zeros(num)
    touched = np.zeros(num)
    for i in range(len(moves)):
        registers = registers + volume(i, spatial)
        touched = touched + volume(i, everything)
    # MemWorkload alone accumulates over the stores of a buffer; the other columns are overwritten.
    workload[key] = workload.get(key, np.zeros(num)) + np.where(computes, touched, 0.0)
    shared = np.zeros(num)
    if analysis.store.buffer.scope is SHARED:
        # The release counts the first buffer of its map, which libstdc++ lists last-inserted first.
        shared = volume(len(moves) - 1, spatial) * threads
        dram = shared * blocks
    else:
        dram = serial * blocks * threads
    reuse = np.where(computes & (workload[key] != 0), 1 + ops / np.maximum(workload[key], 1.0), 1.0)
    return {
        "thread_flops": ops,
        "total_flops": ops * blocks * threads,
        "registers": np.where(computes, registers, 0.0),
        "memory_workload": workload[key],
        "shared_elements": np.where(computes, 0.0, shared),
        "dram_elements": np.where(computes, 0.0, dram),
        "reuse": reuse,
        "is_gpu": float(analysis.is_gpu),
        "num_blocks": blocks,
        "num_threads": threads,
        "num_vthreads": _product(frame, (Mark.VTHREAD,)),
    }
