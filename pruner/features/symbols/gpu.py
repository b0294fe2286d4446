"""GPU symbols of the analyzer, of any program's loop nests."""

from collections.abc import Iterable

import numpy as np

from pruner.features.statement.array_helpers import column
from pruner.features.symbols.statement import (
    Moving,
    NestAccess,
    NestStatement,
    StatementLoop,
    count_operations,
    extent_of,
    moving_of,
    nest_statements,
    product_of,
)
from pruner.features.symbols.symbol_table import GPU_COLUMNS, PerProgram, SymbolRow, Symbols, fill
from pruner.program.index.affine import LoopVar
from pruner.program.nests import (
    ACCUMULATORS,
    BLOCKS,
    GLOBAL,
    OPERAND_FRAGMENTS,
    SHARED,
    THREADS,
    WARP_LANES,
    LoopNests,
    Mark,
    Scope,
    is_bound,
)

_BANKS, _BANK_BYTES = 32, 4
# Lanes that hold an element of an operand: wmma.load and mma.m16n8k8 of the PTX ISA.
_HOLDERS = {Scope.FRAGMENT_A: 2, Scope.FRAGMENT_B: 2, Scope.MMA_A: 1, Scope.MMA_B: 1}


def gpu_symbols(nests: LoopNests) -> Symbols:
    """Compute symbols of N programs, one row a statement in order."""
    statements = nest_statements(nests)
    around = {key: {loop.var for loop in a.loops} for key, a in nests.allocations.items()}
    on_cores = any(statement.buffer.scope in ACCUMULATORS for statement in statements)
    rows = [_GpuRow(statement, around, on_cores).columns() for statement in statements]
    return Symbols(
        values=fill(GPU_COLUMNS, rows, nests.num_programs),
        scopes=tuple(s.buffer.scope for s in statements),
        reductions=tuple(s.is_reduction for s in statements),
        columns=GPU_COLUMNS,
        shared_bytes=None
        if nests.shared_bytes is None
        else column(nests.shared_bytes, nests.num_programs),
        copies_ahead=nests.copies_ahead,
    )


def _threads_of(
    loops: list[StatementLoop],
) -> tuple[list[StatementLoop], list[StatementLoop]]:
    """Return the threads and virtual threads that a statement runs in, outermost first.

    A cooperative fetch has threads of its own inside the block's, and a block fetches once for all
    virtual threads; so have results that go out through shared memory.
    """
    threads = [x for x in loops if x.mark in THREADS]
    # Own threads inside the block's threads: only a fetch has both.
    if {x.is_own for x in threads} == {True, False}:
        return [x for x in threads if x.is_own], []
    last = {x.mark: x for x in threads}
    return [x for x in threads if last[x.mark] is x], [x for x in loops if x.mark is Mark.VTHREAD]


class _GpuRow:
    def __init__(
        self, statement: NestStatement, around: dict[int, set[LoopVar]], on_cores: bool
    ) -> None:
        self._s, self._around, self._on_cores = statement, around, on_cores
        self._num = statement.num
        self._threads, self._vthreads = _threads_of(statement.loops)
        self._blocks = [x for x in statement.loops if x.mark in BLOCKS]
        # Loops that a thread runs one after another: of other stages around, and the stage's own.
        self._serial = [x for x in statement.loops if not is_bound(x.mark)]
        self._path = [x for x in self._serial if not x.is_own]
        self._own = [x for x in self._serial if x.is_own]
        last = max((i for i, x in enumerate(self._own) if x.is_reduce), default=-1)
        self._inner_tile = self._own[last + 1 :]  # inside the last reduction loop
        # a tensor core's instruction is run by a warp: each of its lanes has a share
        self._lanes = WARP_LANES if any(x.mark is Mark.TENSORIZE for x in self._own) else 1
        in_thread = [*self._vthreads, *self._serial]
        self._iterations = self._extent(in_thread) / self._lanes
        # Virtual threads are the thread's own (Fig. 3): their loops count in S1 and S2.
        self._spatial = moving_of(x for x in in_thread if not x.is_reduce)
        self._block_loops = moving_of(in_thread, self._threads)
        self._everything = self._block_loops | moving_of(self._blocks)
        self._stages = statement.buffer.scope == SHARED
        self._global = [a for a in statement.reads if a.buffer.scope == GLOBAL]
        if statement.buffer.scope == GLOBAL:
            self._global.append(statement.write)

    def columns(self) -> SymbolRow:
        operations = count_operations(self._s.value)
        threads = self._extent(self._threads) * self._lanes
        blocks = self._extent(self._blocks)
        flops = self._iterations * operations.flops
        computes = operations.flops > 0
        # S5: each block moves its tiles, so re-reads of an operand by other blocks count.
        traffic = self._traffic() * blocks
        step, lanes = (
            (1.0, 1.0) if self._stages or not self._global else self._lane_of(self._global[-1])
        )
        loads, cycles = self._loads(SHARED)
        at_once = self._lanes_at_once()
        # S1 counts only where something is computed; a staging statement goes through S3.
        registers = self._registers() if computes and not self._stages else 0.0
        if self._s.buffer.scope in OPERAND_FRAGMENTS:
            registers = self._fragment()
        return {
            "l0_mem_alloc": registers,
            "l0_comp_count": flops,
            "l1_mem_alloc": self._tile() if self._stages else 0.0,
            "l1_para_info": threads,
            "l2_mem_footprint": traffic,
            "l2_para_info": blocks,
            "l2_trans_dim": self._run_length(),
            "l2_comp_count": flops * threads * blocks,
            "passes": self._extent(self._path),
            "thread_iterations": self._iterations,
            "vthreads": self._extent(self._vthreads),
            "unroll": self._s.unroll,
            "vector": at_once,
            "shared_loads": loads,
            "shared_loads_least": self._least_loads(),
            "shared_cycles": cycles,
            "global_loads": 0.0 if self._stages else self._loads(GLOBAL)[0],
            "unique": self._total(self._unique(a) for a in self._global),
            "issued": self._issued(threads) * blocks if self._stages else traffic,
            "lane_step": step,
            "lane_extent": lanes,
            "lines": self._lines(at_once) if self._on_cores else 0.0,
            "inner_tile": self._extent(self._inner_tile) * self._extent(self._vthreads),
            "accumulators": self._s.write.count(self._spatial) / self._lanes if computes else 0.0,
            "spatial_body": self._spatial_body(),
            "special": self._iterations * operations.special,
            "own_bytes": float(self._s.buffer.bytes_per_element),
            "global_bytes": self._bytes_of_traffic(),
            "half_share": operations.half / max(operations.flops, 1.0),
        }

    def _extent(self, loops: Iterable[StatementLoop]) -> PerProgram:
        return extent_of(loops, self._num)

    def _total(self, values: Iterable[PerProgram]) -> PerProgram:
        return sum(values, start=np.zeros(self._num))

    def _tile(self) -> PerProgram:
        return product_of(self._s.write.sizes, self._num)

    def _issued(self, threads: PerProgram) -> PerProgram:
        """Return elements a block fetches; none for a stage of results."""
        if self._lanes > 1 and not self._global:
            return np.zeros(self._num)
        return threads * self._extent([*self._own, *self._path])

    def _fragment(self) -> PerProgram:
        spatial = moving_of(x for x in self._own if not x.is_reduce)
        return _HOLDERS[self._s.buffer.scope] * self._s.write.count(spatial) / self._lanes

    def _registers(self) -> PerProgram:
        if self._lanes > 1:  # operands are in fragments, with rows of their own
            return self._s.write.count(self._spatial) / self._lanes
        accesses = [self._s.write, *self._s.reads]
        return self._total(a.count(self._spatial) for a in accesses)

    def _traffic(self) -> PerProgram:
        """Return elements a block moves: staged tiles, or touches of threads."""
        if self._stages:
            # A tile of a sum of two inputs is fetched from both.
            sources = sum(1 for a in self._s.reads if a.buffer.scope == GLOBAL)
            return self._tile() * self._extent(self._path) * sources
        return self._total(self._touched(a, self._block_loops) for a in self._global)

    def _bytes_of_traffic(self) -> PerProgram:
        """Return the mean bytes per element of the global traffic."""
        moved = [
            np.ones(self._num) if self._stages else self._touched(a, self._block_loops)
            for a in self._global
        ]
        # A statement without global traffic counts its own element, so the column is never 0.
        if not moved:
            return np.full(self._num, float(self._s.buffer.bytes_per_element))
        sizes = [a.buffer.bytes_per_element for a in self._global]
        return self._total(n * size for n, size in zip(moved, sizes, strict=True)) / sum(moved)

    def _unique(self, access: NestAccess) -> PerProgram:
        """Return elements the kernel touches, staged loops within the tile without padding."""
        widths = access.widths(self._everything)
        if self._stages:
            others = self._everything - moving_of(x for x in self._s.loops if x.is_own)
            for d, own in enumerate(self._s.write.indices):
                for place, terms in enumerate(access.indices):
                    if [t.term for t in terms] == [t.term for t in own]:
                        start = self._s.write.widths(others)[d] - 1
                        widths[place] = np.minimum(widths[place], start + self._s.write.sizes[d])
        return product_of(widths, self._num)

    def _touched(self, access: NestAccess, moving: Moving) -> PerProgram:
        """Return elements of the box, at most the iterations moving the access."""
        used = [x for x in self._s.loops if x.var in moving]
        iterations = np.ones(self._num)
        for loop in used:
            iterations = iterations * np.where(access.uses(loop.var), loop.extent, 1)
        return np.minimum(product_of(access.widths(moving), self._num), iterations)

    def _run_length(self) -> PerProgram:
        """Return S7: the contiguous elements that a row of the tile covers."""
        if self._stages:
            widths, shape = self._s.write.sizes, self._s.buffer.shape
        elif self._global:
            widths = self._global[0].widths(self._block_loops)
            shape = self._global[0].buffer.shape
        else:
            return np.zeros(self._num)
        run, whole = np.ones(self._num), np.ones(self._num, bool)
        runs = []
        for width, size in zip(reversed(widths), reversed(shape), strict=True):
            run = run * np.where(whole, width, 1)
            whole = whole & np.equal(width, size)
            runs.append(run)
        rows = runs[min(2, len(runs)) - 1] if runs else run
        if self._stages:
            return rows
        box, touched = (
            product_of(widths, self._num),
            self._touched(self._global[0], self._block_loops),
        )
        return np.where(touched < box, np.minimum(run, touched), rows)

    def _lane(self) -> LoopVar | None:
        return next((x.var for x in self._threads if x.mark is Mark.THREAD_X), None)

    def _lanes_at_once(self) -> PerProgram:
        """Return elements of a vector; on tensor cores 1 where a fetch gathers them."""
        vectors = [x for x in self._own if x.mark is Mark.VECTORIZE]
        lanes = self._extent(vectors)
        if not (self._on_cores and self._stages and len(vectors) == 1):
            return lanes
        rows = [a.is_row(self._lane(), vectors[0].var, lanes) for a in self._global]
        return np.where(np.logical_and.reduce(rows), lanes, 1) if rows else lanes

    def _lines(self, at_once: PerProgram) -> PerProgram:
        """Return cache lines of the slowest global access, summed over split lanes."""
        lane = self._lane()
        vector = next((x for x in self._own if x.mark is Mark.VECTORIZE), None)
        found = np.zeros(self._num)
        for access in self._global:
            first = access.lines_of_warp(lane, None)
            if vector is None:
                found = np.maximum(found, first[0])
                continue
            both = access.lines_of_warp(lane, vector.var)
            apart = 1 + (at_once - 1) * both[1]
            found = np.maximum(found, first[0] * apart)
        return found

    def _spatial_body(self) -> PerProgram:
        inside = self._extent(self._vthreads)
        body = inside
        for loop in reversed(self._own):
            inside = inside * loop.extent
            if not loop.is_reduce:
                body = np.where(loop.extent == 1, body, inside)
        return body

    def _loads(self, scope: Scope) -> tuple[PerProgram, PerProgram]:
        """Return loads of a thread from ``scope``, plain and weighted by bank conflicts."""
        plain, weighted = np.zeros(self._num), np.zeros(self._num)
        for access in self._s.reads:
            if access.buffer.scope != scope:
                continue
            loads = self._iterations
            # Operands stay in registers over the innermost tile's loops that do not move them.
            for loop in self._inner_tile:
                loads = loads / np.where(access.uses(loop.var), 1, loop.extent)
            for loop in self._vthreads:
                loads = loads * access.parts(loop.var) / loop.extent
            plain = plain + loads
            weighted = weighted + loads * self._conflict(access)
        return plain, weighted

    def _least_loads(self) -> PerProgram:
        out = np.zeros(self._num)
        for access in self._s.reads:
            if access.buffer.scope == SHARED:
                outside = self._around[access.buffer.key]
                step = [x for x in self._serial if x.var in outside]
                inside = moving_of(self._serial[len(step) :], self._vthreads)
                out = out + access.count(inside) * self._extent(step)
        return out

    def _conflict(self, access: NestAccess) -> PerProgram:
        stride, lanes = self._lane_of(access)
        # A power-of-two stride hits few banks: the gcd with their number is how many lanes collide.
        words = np.maximum(stride * access.buffer.bytes_per_element // _BANK_BYTES, 1)
        banks = np.gcd(words.astype(np.int64), _BANKS)
        return np.maximum(1, np.minimum(lanes, _BANKS) * banks / _BANKS)

    def _lane_of(self, access: NestAccess) -> tuple[PerProgram, PerProgram]:
        """Return the step between threads that touch different elements, and their number."""
        threads = moving_of(self._threads)
        step, lanes, row = np.ones(self._num), np.ones(self._num), np.ones(self._num)
        open_ = np.ones(self._num, bool)
        for terms, size in reversed(list(zip(access.indices, access.sizes, strict=True))):
            found = [t for t in terms if t.variables & threads]
            # The smallest scale is the step of the fastest thread index.
            for term in sorted(found, key=lambda t: float(np.mean(t.scale))):
                extent = term.reach(term.variables) + 1
                here = open_ & (term.scale > 0) & (extent > 1)
                step = np.where(here, term.scale * row, step)
                lanes = np.where(here, extent, lanes)
                open_ &= ~here
            row = row * size
        return step, lanes
