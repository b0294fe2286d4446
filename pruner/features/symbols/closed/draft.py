"""The draft's symbols S1 to S8 (Pruner, ASPLOS'25, Table 2), as formulas of a skeleton's decisions.

Per statement (one buffer store), in elements and operations:

==  ================  ===========================================================================
S1  L0MemAlloc        registers of one thread: the tile it accumulates plus, per operand, what the
                      spatial loops of the thread touch of it (vthreads are the thread's own)
S2  L0CompCount       floating-point operations of one thread
S3  L1MemAlloc        shared memory of one block: the staged tile of one step of the outer reduction
S4  L1ParaInfo        threads of one block
S5  L2MemFootprint    global traffic of the kernel: every block's tile, each time it is staged
S6  L2ParaInfo        blocks of the grid
S7  L2TransDim        contiguous elements of global memory that one staged tile row covers
S8  L2CompCount       floating-point operations of the kernel
==  ================  ===========================================================================

Fig. 3 of the paper gives the products for a matrix product with a relu; tests compare with them.
The paper does not print S6, S7 and S8; they follow from its text. Further columns hold what a
hardware model needs beyond the paper (:data:`COLUMNS`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Floats
from pruner.features.symbols.closed import formula as fm
from pruner.features.symbols.closed.formula import ONE, ZERO, Evaluator, Formula
from pruner.features.symbols.closed.tiling import Tiling, tile_skeleton
from pruner.features.symbols.closed.tiling_index import Access, Statement, TiledLoop
from pruner.features.symbols.roles import StatementLoops, count_operations
from pruner.program.dag.dag import ComputeDAG
from pruner.program.te.bounds import GLOBAL, SHARED
from pruner.program.te.schedule import Loop
from pruner.program.te.steps import Primitive

PAPER_COLUMNS = (
    "l0_mem_alloc",
    "l0_comp_count",
    "l1_mem_alloc",
    "l1_para_info",
    "l2_mem_footprint",
    "l2_para_info",
    "l2_trans_dim",
    "l2_comp_count",
)
EXTRA_COLUMNS = (
    "passes",  # how often a block runs the statement's own loops (steps of outer reductions)
    "thread_iterations",  # iterations of one thread, virtual threads included
    "vthreads",
    "unroll",  # auto_unroll_max_step in force
    "vector",  # lanes of a vectorised loop
    "shared_loads",  # of one thread, operands kept in registers across its innermost tile
    "shared_loads_least",  # of one thread, operands kept in registers across a whole step
    "shared_cycles",  # shared_loads weighted by bank conflicts
    "global_loads",  # of one thread, where no shared stage serves the operand
    "unique",  # distinct global elements of the statement's traffic
    "issued",  # elements moved with the ragged ends of cooperative fetching
    "lane_step",  # elements between adjacent threads of a direct global access
    "lane_extent",  # adjacent threads at that step
    "inner_tile",  # iterations of the innermost spatial tile and the virtual threads
    "accumulators",  # registers of S1 that hold results
    "spatial_body",  # iterations inside and of the outermost own spatial loop, see `_spatial_body`
    "special",  # function calls of one thread
)
COLUMNS = PAPER_COLUMNS + EXTRA_COLUMNS


def extent_of(loops: list[TiledLoop]) -> Formula:
    """Iterations of nested loops."""
    return fm.product(loop.extent for loop in loops)


def _set(*groups: list[TiledLoop]) -> set[Loop]:
    return {loop.loop for group in groups for loop in group}


def _block_elements(access: Access, moving: set[Loop], extents: dict[Loop, Formula]) -> Formula:
    """Elements one block touches; a loop fused over several axes counts as one run of indices."""
    out = ONE
    runs: set[tuple[Loop, ...]] = set()
    for index in access.indices:
        width = index.width(moving)
        for part, coefficient in index.parts:
            inside = [leaf in moving for leaf in part.leaves]
            if any(inside) and not all(inside):
                runs.add(part.leaves)
                width = fm.minimum(width, coefficient)  # windows of neighbours overlap
        out = out * width
    for leaves in runs:
        out = out * fm.product(extents[leaf] for leaf in leaves if leaf in moving)
    return out


class _GpuStatement:
    """Formulas of one statement of a GPU program."""

    def __init__(self, tiling: Tiling, statement: Statement) -> None:
        self.statement = statement
        self.loops = StatementLoops(statement)
        self.extents = tiling.extents
        self.operations = count_operations(statement.body, accumulates=statement.is_reduction)
        self.blocks = extent_of(self.loops.blocks)
        self.threads = extent_of(self.loops.threads)
        self.iterations = extent_of(self.loops.in_thread)
        self.block_loops = _set(self.loops.in_thread, self.loops.threads)
        self.everything = self.block_loops | _set(self.loops.blocks)

    def columns(self) -> dict[str, Formula]:
        """Values of :data:`COLUMNS`."""
        flops = self.iterations * self.operations.flops
        staged, direct = self._global_traffic()
        return {
            "l0_mem_alloc": self._registers(),
            "l0_comp_count": flops,
            "l1_mem_alloc": self._tile() if self._stages else ZERO,
            "l1_para_info": self.threads,
            "l2_mem_footprint": (staged + direct) * self.blocks,
            "l2_para_info": self.blocks,
            "l2_trans_dim": self._run_length(),
            "l2_comp_count": flops * self.threads * self.blocks,
            "passes": extent_of(self.loops.path),
            "thread_iterations": self.iterations,
            "vthreads": extent_of(self.loops.vthreads),
            "unroll": self.statement.unroll,
            "vector": self._vector(),
            "shared_loads": self._loads(SHARED),
            "shared_loads_least": self._least_loads(),
            "shared_cycles": self._loads(SHARED, conflicts=True),
            "global_loads": ZERO if self._stages else self._loads(GLOBAL),
            "unique": fm.total(a.footprint(self.everything) for a in self._global),
            "issued": self._issued() if self._stages else direct * self.blocks,
            "lane_step": self._lane()[0],
            "lane_extent": self._lane()[1],
            "inner_tile": extent_of(self._inner_tile()) * extent_of(self.loops.vthreads),
            "accumulators": self._accumulators(),
            "spatial_body": self._spatial_body(),
            "special": self.iterations * self.operations.special,
        }

    @property
    def _stages(self) -> bool:
        return self.statement.scope == SHARED

    @property
    def _global(self) -> list[Access]:
        accesses = [a for a in self.statement.reads if a.scope == GLOBAL]
        if self.statement.scope == GLOBAL:
            accesses.append(self.statement.write)
        return accesses

    def _tile(self) -> Formula:
        return fm.product(self.statement.tile)

    def _registers(self) -> Formula:
        """S1; 0 for statements that only move data."""
        if self._stages or not self.operations.flops:
            return ZERO
        spatial = _set([x for x in self.loops.in_thread if not x.is_reduce])
        accesses = [self.statement.write, *self.statement.reads]
        return fm.total(access.count(spatial) for access in accesses)

    def _accumulators(self) -> Formula:
        spatial = _set([x for x in self.loops.in_thread if not x.is_reduce])
        return self.statement.write.count(spatial) if self.operations.flops else ZERO

    def _global_traffic(self) -> tuple[Formula, Formula]:
        """Elements a block moves: by staging tiles in shared memory, and directly."""
        if self._stages:
            sources = sum(1 for a in self.statement.reads if a.scope == GLOBAL)
            return self._tile() * extent_of(self.loops.path) * float(sources), ZERO
        moved = [_block_elements(a, self.block_loops, self.extents) for a in self._global]
        return ZERO, fm.total(moved)

    def _issued(self) -> Formula:
        own = [*self.loops.threads, *self.loops.own, *self.loops.path]
        return extent_of(own) * self.blocks

    def _run_length(self) -> Formula:
        """S7: the last dimension of the tile, and the one before where rows are whole."""
        if self._stages:
            widths = list(self.statement.tile)
            shape = self.statement.stage.shape
        elif self._global:
            access = self._global[0]
            shape = access.stage.shape
            widths = [
                _block_elements_of(access, d, self.block_loops, self.extents)
                for d in range(len(access.indices))
            ]
        else:
            return ZERO
        if not widths:
            return ONE
        run = widths[-1]
        if len(widths) > 1:
            whole = fm.equal(run, Formula(float(np.ravel(shape[-1])[0])))
            run = run * (ONE + whole * (widths[-2] - 1))
        return run

    def _vector(self) -> Formula:
        return extent_of([x for x in self.loops.own if x.mark == "vectorize"])

    def _inner_tile(self) -> list[TiledLoop]:
        """Own spatial loops inside the last reduction loop."""
        own = self.loops.own
        last = max((i for i, x in enumerate(own) if x.is_reduce), default=-1)
        return own[last + 1 :]

    def _spatial_body(self) -> Formula:
        """Statements that unrolling must write out before every index of the tile is constant.

        A compiler keeps a thread's tile in registers only when all its indices are constants, so
        every spatial loop has to be unrolled, and with it whatever runs inside.
        """
        inside = extent_of(self.loops.vthreads)
        body = inside
        for loop in reversed(self.loops.own):
            inside = inside * loop.extent
            if not loop.is_reduce:
                body = fm.where_one(loop.extent, body, inside)
        return body

    def _loads(self, scope: int, *, conflicts: bool = False) -> Formula:
        """Loads of one thread from ``scope``: an operand stays in registers over the inner tile."""
        out = []
        for access in self.statement.reads:
            if access.scope != scope:
                continue
            used = _loops_of(access)
            kept = [x for x in [*self._inner_tile(), *self.loops.vthreads] if x.loop not in used]
            loads = self.iterations / extent_of(kept)
            for part in _parts_of(access, self.loops.vthreads):
                loads = loads * part[1] / part[0]
            out.append(loads * self._conflict(access) if conflicts else loads)
        return fm.total(out)

    def _least_loads(self) -> Formula:
        """Shared loads when a thread keeps all it touches during one step of the staging loop."""
        out = []
        for access in self.statement.reads:
            if access.scope != SHARED:
                continue
            attach = access.stage.attach
            assert not isinstance(attach, str)
            names = [x.loop for x in self.loops.serial]
            cut = names.index(attach.loop) + 1 if attach.loop in names else 0
            inside = _set(self.loops.serial[cut:], self.loops.vthreads)
            out.append(access.count(inside) * extent_of(self.loops.serial[:cut]))
        return fm.total(out)

    def _conflict(self, access: Access) -> Formula:
        """Bank conflicts of one warp: lanes at stride s meet in ``32 / gcd(s, 32)`` banks."""
        stride, lanes = self._lane_of(access)
        return fm.maximum(ONE, fm.minimum(lanes, Formula(32.0)) * fm.power_of_two(stride) / 32.0)

    def _lane(self) -> tuple[Formula, Formula]:
        """Step and number of adjacent threads of the written or else the read global buffer."""
        if self._stages or not self._global:
            return ONE, ONE
        return self._lane_of(self._global[-1])

    def _lane_of(self, access: Access) -> tuple[Formula, Formula]:
        """Distance in elements between neighbouring threads that touch different elements."""
        threads = {x.loop for x in self.loops.threads}
        row, found = ONE, []
        sizes = self._sizes(access)
        for index, size in reversed(list(zip(access.indices, sizes, strict=True))):
            for part, coefficient in reversed(index.parts):
                if any(leaf in threads for leaf in part.leaves):
                    found.append((part.extent, coefficient * row))
            row = row * size
        step, lanes = ONE, ONE
        for extent, stride in reversed(found):
            step = fm.where_one(extent, step, stride)
            lanes = fm.where_one(extent, lanes, extent)
        return step, lanes

    def _sizes(self, access: Access) -> list[Formula]:
        if access.scope == SHARED:
            return [self.extents[axis] for axis in access.stage.axes]
        return [Formula(float(np.ravel(size)[0])) for size in access.stage.shape]


def _loops_of(access: Access) -> set[Loop]:
    return {leaf for index in access.indices for part, _ in index.parts for leaf in part.leaves}


def _parts_of(access: Access, loops: list[TiledLoop]) -> list[tuple[Formula, Formula]]:
    """(extent of the fused loop, extent of its parts that the access uses)."""
    out = []
    for x in loops:
        used = [p.extent for i in access.indices for p, _ in i.parts if p.leaves == (x.loop,)]
        if used:
            out.append((x.extent, fm.product(used)))
    return out


def _block_elements_of(
    access: Access, dimension: int, moving: set[Loop], extents: dict[Loop, Formula]
) -> Formula:
    """Width of one dimension for a block; of a fused loop the whole run falls in the last."""
    one = Access(access.stage, access.scope, (access.indices[dimension],))
    return _block_elements(one, moving, extents)


class DraftPlan:
    """Symbols of all candidates of one skeleton.

    Built once; :meth:`symbols` then costs a few array operations. ``names`` are the statements'
    stages, ``is_gpu`` tells which columns apply.
    """

    def __init__(self, dag: ComputeDAG, skeleton: tuple[Primitive, ...]) -> None:
        """Raises :class:`~pruner.errors.UnsupportedProgram` as :func:`tile_skeleton` does."""
        self.tiling = tile_skeleton(dag, skeleton)
        statements = self.tiling.statements
        self.names = tuple(s.stage.name for s in statements)
        self.scopes = tuple(s.scope for s in statements)
        self.reductions = tuple(s.is_reduction for s in statements)
        rows = [_GpuStatement(self.tiling, s).columns() for s in statements]
        self._shape = (len(rows), len(COLUMNS))
        self._evaluator = Evaluator([row[name] for row in rows for name in COLUMNS])

    def symbols(self, decisions: NDArray[np.int64]) -> Symbols:
        """Symbols of N decision vectors int64 [N, d]."""
        values = self._evaluator(decisions)
        table = values.reshape(*self._shape, len(decisions))
        return Symbols(table, self.scopes, self.reductions)


@dataclass(frozen=True, slots=True)
class Symbols:
    """``values`` float64 [S, len(columns), N]: one row a statement; storage ranks in ``scopes``.

    ``reductions`` tells which statements accumulate; ``columns`` are those of GPUs, or of CPUs
    (:mod:`pruner.features.symbols.cpu`).
    """

    values: Floats
    scopes: tuple[int, ...]
    reductions: tuple[bool, ...]
    columns: tuple[str, ...] = COLUMNS

    @property
    def stages(self) -> bool:
        """Some statement stages operands in shared memory."""
        return SHARED in self.scopes

    def __getitem__(self, name: str) -> Floats:
        """One column [S, N]."""
        return self.values[:, self.columns.index(name)]
