"""Tables of the analyzer's symbol columns, and their values.

Per statement (the last store of a stage), in elements and operations unless a unit says otherwise.
S1 to S8 are the paper's (Pruner, ASPLOS'25, Table 2).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from pruner.arrays import rows_of
from pruner.features.columns import Column
from pruner.program.nests import ACCUMULATORS, SHARED

Columns = tuple[Column, ...]
PerProgram = Float[np.ndarray, " program"]
PerStatement = Float[np.ndarray, "statement program"]
SymbolRow = Mapping[str, PerProgram | float]  # one statement, by column


def _columns(source: str, *rows: tuple[str, str, str]) -> Columns:
    return tuple(Column(name=n, unit=u, formula=f, source=source) for n, u, f in rows)


PAPER_COLUMNS: Columns = _columns(
    "Pruner (ASPLOS'25), Table 2 and Fig. 3; it prints no S6, S7, S8: from its text",
    (
        "l0_mem_alloc",
        "elements",
        "S1: registers of one thread: the tile it accumulates and, per operand, what the thread's "
        "spatial loops touch of it (virtual threads are the thread's own); 0 where data only moves",
    ),
    ("l0_comp_count", "operations", "S2: of one thread; a multiply-add is two"),
    (
        "l1_mem_alloc",
        "elements",
        "S3: shared memory of one block: the staged tile of one step of the outer reduction",
    ),
    ("l1_para_info", "threads", "S4: of one block"),
    (
        "l2_mem_footprint",
        "elements",
        "S5: global traffic of the kernel: every block's tile, each time it is staged",
    ),
    ("l2_para_info", "blocks", "S6: of the grid"),
    (
        "l2_trans_dim",
        "elements",
        "S7: contiguous elements of global memory that a row of the tile covers",
    ),
    ("l2_comp_count", "operations", "S8: of the kernel"),
)
EXTRA_COLUMNS: Columns = _columns(
    "this project: what a model of the hardware needs beyond the paper",
    ("passes", "iterations", "loops around the statement's own: steps of outer reductions"),
    ("thread_iterations", "iterations", "of one thread, virtual threads included"),
    ("vthreads", "virtual threads", "product of their extents"),
    ("unroll", "iterations", "auto_unroll_max_step in force"),
    ("vector", "lanes", "of a vectorised loop; 1 where a fetch for tensor cores gathers them"),
    ("shared_loads", "loads", "of one thread, operands kept in registers over its innermost tile"),
    ("shared_loads_least", "loads", "of one thread, operands kept in registers over a whole step"),
    ("shared_cycles", "loads", "shared_loads weighted by bank conflicts"),
    ("global_loads", "loads", "of one thread, where no shared stage serves the operand"),
    ("unique", "elements", "distinct global elements of the statement's traffic"),
    ("issued", "elements", "moved with the ragged ends of cooperative fetching"),
    ("lane_step", "elements", "between adjacent threads of a direct global access"),
    ("lane_extent", "threads", "adjacent threads at that step"),
    (
        "lines",
        "cache lines",
        "of 128 bytes that a warp touches in global memory with one access of its lanes; 0 where "
        "the kernel uses no tensor cores",
    ),
    ("inner_tile", "iterations", "of the innermost spatial tile and the virtual threads"),
    ("accumulators", "elements", "of S1 that hold results"),
    (
        "spatial_body",
        "iterations",
        "inside and of the outermost own spatial loop: statements that unrolling must write out "
        "before every index of the tile is constant",
    ),
    ("special", "calls", "function calls of one thread"),
    ("own_bytes", "bytes", "of an element that the statement writes"),
    (
        "global_bytes",
        "bytes",
        "of an element of its global traffic, the mean over S5; own_bytes where it has none",
    ),
    ("half_share", "ratio", "share of its operations that work on 16-bit floats"),
)
GPU_COLUMNS: Columns = PAPER_COLUMNS + EXTRA_COLUMNS

CACHES = ("l1", "l2", "l3")
CPU_COLUMNS: Columns = _columns(
    "this project, module docstring of pruner.features.symbols.cpu",
    ("comp_count", "operations", "floating-point operations"),
    ("special", "calls", "function calls"),
    ("iterations", "iterations", "of all loops"),
    ("parallel", "iterations", "of parallel loops"),
    ("balance", "ratio", "share of the cores' time that is used, 1 / cores without parallel loop"),
    ("regions", "regions", "how often a parallel region is opened"),
    ("lanes", "elements", "a vector operation works on, at most the device's"),
    ("automatic", "0 or 1", "no loop is marked: the compiler vectorises if it can"),
    ("choices", "decisions", "about padding, shared by loops of the tile that a condition lacks"),
    ("tile", "vector operations", "in the register tile"),
    ("accumulators", "vector registers", "that hold the tile's results"),
    ("steps", "iterations", "of reduction loops in the tile and directly around it"),
    ("written", "iterations", "of reduction loops that the pragma writes out"),
    ("unroll", "iterations", "auto_unroll_max_step in force"),
    ("body", "statements", "between two loop overheads when the pragma is followed"),
    ("vector_loads", "instructions", "of whole vectors, operands kept over the register tile"),
    ("scalar_loads", "instructions", "of single elements: broadcasts and strided lanes"),
    ("vector_stores", "instructions", "if every operation stored its result"),
    ("scalar_stores", "instructions", "if every operation stored its result"),
    *(
        (f"{cache}_footprint", "bytes", "the loops touch that stay in the cache")
        for cache in CACHES
    ),
    *((f"{cache}_traffic", "bytes", "that miss the cache") for cache in CACHES),
    ("unique", "bytes", "touched at all"),
)

OFFICIAL_COLUMNS: Columns = _columns(
    "Pruner feature_psa.cc, GetPerStoreFeaturePSA",
    ("thread_flops", "operations", "counted operations x serial and virtual-thread loops"),
    ("total_flops", "operations", "thread_flops x blocks x threads"),
    ("registers", "elements", "per buffer: spatial loops that move it, summed"),
    ("memory_workload", "elements", "per buffer: all loops that move it, summed"),
    ("shared_elements", "elements", "fetch loops that move the first operand x threads"),
    ("dram_elements", "elements", "global traffic of the kernel"),
    ("reuse", "ratio", "1 + thread_flops / memory_workload"),
    ("is_gpu", "0 or 1", "a GPU index was met"),
    ("num_blocks", "blocks", "product of block extents"),
    ("num_threads", "threads", "product of thread extents"),
    ("num_vthreads", "virtual threads", "product of virtual-thread extents"),
)


def position(columns: Columns, name: str) -> int:
    """Return the place of a column in its table; raise `KeyError` without it."""
    # A search, not a dictionary made anew: scores look up dozens of columns for few programs.
    for place, column in enumerate(columns):
        if column.name == name:
            return place
    raise KeyError(name)


def fill(
    columns: Columns, rows: Sequence[SymbolRow], num: int
) -> Float[np.ndarray, "statement column program"]:
    """Return rows of named values, float64 [S, C, N]; raise `KeyError` unless all match."""
    for row in rows:
        if strange := row.keys() ^ {column.name for column in columns}:
            raise KeyError(f"not both computed and in the table: {', '.join(sorted(strange))}")
    if not rows:
        return np.empty((0, len(columns), num))
    return np.stack([rows_of([row[column.name] for column in columns], num) for row in rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbols:
    """Symbols of N programs of one skeleton, a row per statement in program order.

    ``scopes``: storage rank of the written buffer; ``reductions``: the statements that accumulate;
    ``shared_bytes``: of a block where it is planned as a whole, else None (:meth:`block_bytes`);
    ``copies_ahead``: see :class:`~pruner.program.nests.LoopNests`.
    """

    values: Float[np.ndarray, "statement column program"]
    scopes: tuple[int, ...]
    reductions: tuple[bool, ...]
    columns: Columns
    shared_bytes: PerProgram | None = None
    copies_ahead: int = 0

    def block_bytes(self) -> PerProgram:
        """Return bytes of a block's shared memory: S3 of all statements, or the plan."""
        if self.shared_bytes is not None:
            return self.shared_bytes
        # S3 counts elements; buffers of a block live at the same time, so their bytes add up.
        shared: PerProgram = (self["l1_mem_alloc"] * self["own_bytes"]).sum(axis=0)
        return shared

    @property
    def on_tensor_cores(self) -> bool:
        """True where a statement accumulates in a tensor core's fragments."""
        return any(scope in ACCUMULATORS for scope in self.scopes)

    @property
    def num_programs(self) -> int:
        """Number of programs N."""
        return self.values.shape[2]

    @property
    def stages(self) -> bool:
        """True where a statement stages operands in shared memory."""
        return SHARED in self.scopes

    def __getitem__(self, name: str) -> Float[np.ndarray, "statement program"]:
        """One column. Raises `KeyError` for a name that the table lacks."""
        return self.values[:, position(self.columns, name)]
