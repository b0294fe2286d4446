"""CPU symbols of the analyzer: register tile, caches, lanes, cores.

Per statement (the last store of a stage) and for the whole program unless said otherwise; after the
paper's Table 2 with the levels of a CPU:

* *Register tile*: the spatial loops inside the innermost reduction loop of more than one step (S1),
  without a reduction the unrolled body; their operands are loaded once per step, and their results
  stay in registers [BLIS: Van Zee and van de Geijn, 2015].
* *Choices*: decisions about padding, each shared by a vector and by loops of the tile that the
  condition lacks.
* *Footprint* of the loops from depth ``l`` inwards: sum over buffers of the box they touch, in
  whole cache lines [Wolf and Lam, 1991, reuse in tiled loops].
* *Traffic* into a cache of ``C`` bytes: a buffer crosses once for the loop around the outermost
  depth ``l`` whose footprint fits, as far as that loop moves it, and once for every iteration
  further out: ``bytes[l - 1] * prod of extents outside l - 1`` [ECM model: Stengel et al., 2015,
  section 2]. What fits whole is warm, because measurements repeat the program.
* *Balance*: ``P / (ceil(P / cores) cores)`` of ``P`` parallel iterations (the paper's P_l2,c).
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from pruner.arrays import Floats
from pruner.features.batched import Table, tables_of
from pruner.features.statement.array_helpers import fitting_depth, pick, runs_of
from pruner.features.symbols.statement import (
    Moving,
    NestAccess,
    NestStatement,
    ProgramMask,
    StatementLoop,
    count_operations,
    extent_of,
    nest_statements,
)
from pruner.features.symbols.symbol_table import (
    CACHES,
    CPU_COLUMNS,
    PerProgram,
    SymbolRow,
    Symbols,
    fill,
)
from pruner.program.device import CpuDevice
from pruner.program.nests import LoopNests

Depths = Int[np.ndarray, " program"]  # places in the list of own loops
_SHORT_REDUCTION = 16  # iterations that a compiler unrolls before it vectorises
_COMPILER_UNROLLS = 64  # statements that it turns into one block by itself


def cpu_symbols(nests: LoopNests, device: CpuDevice) -> Symbols:
    """Compute symbols of N programs on ``device``, one row a statement in order."""
    return cpu_symbols_of([nests], device)[0]


def cpu_symbols_of(nests: Sequence[LoopNests], device: CpuDevice) -> list[Symbols]:
    """Compute symbols of several nests, sharing equal statements."""

    def table_of(statement: NestStatement) -> Table:
        return fill(CPU_COLUMNS, [_CpuRow(statement, device).columns()], statement.num)[0]

    statements = [nest_statements(one) for one in nests]
    tables = iter(tables_of([one for some in statements for one in some], table_of))
    return [
        Symbols(
            values=np.stack([next(tables) for _ in some]),
            scopes=tuple(one.buffer.scope for one in some),
            reductions=tuple(one.is_reduction for one in some),
            columns=CPU_COLUMNS,
        )
        for some in statements
    ]


class _CpuRow:
    def __init__(self, statement: NestStatement, device: CpuDevice) -> None:
        self._s, self._device = statement, device
        self._num = statement.num
        self._loops = statement.loops
        self._own = [x for x in self._loops if x.is_own]
        lane = max(a.buffer.bytes_per_element for a in (statement.write, *statement.reads))
        # Compilers widen arithmetic on 16-bit floats to float32 for CPUs without it.
        self._operations = count_operations(statement.value)
        self._width = device.simd_bytes // (max(lane, 4) if self._operations.half else lane)
        self._iterations = extent_of(self._loops, self._num)
        self._marked = extent_of((x for x in self._own if x.mark == "vectorize"), self._num)
        self._body = self._unrolled_depth()
        self._chosen = self._vector_loop()
        self._tile_depth = self._outermost_tile_loop()
        self._vector = np.where(self._marked > 1, self._marked, self._run())
        self._lanes = self._used_lanes()

    def columns(self) -> SymbolRow:
        operations = self._operations
        parallel = extent_of((x for x in self._loops if x.mark == "parallel"), self._num)
        cores = self._device.num_cores
        vector_loads, scalar_loads = self._loads()
        vector_stores, scalar_stores = self._split(self._s.write, self._iterations)
        body, written = self._written_out()
        return {
            "comp_count": self._iterations * operations.flops,
            "special": self._iterations * operations.special,
            "iterations": self._iterations,
            "parallel": parallel,
            "balance": parallel / (np.ceil(parallel / cores) * cores),
            "regions": self._regions(),
            "lanes": self._lanes,
            "automatic": np.where(self._marked > 1, 0.0, 1.0),
            "choices": self._choices(),
            "tile": self._tile_of(None) / self._lanes,
            "accumulators": self._tile_of(self._s.write) / self._lanes,
            "steps": self._steps(),
            "written": written,
            "unroll": self._s.unroll,
            "body": body,
            "vector_loads": vector_loads,
            "scalar_loads": scalar_loads,
            "vector_stores": vector_stores,
            "scalar_stores": scalar_stores,
            **self._memory(),
        }

    def _regions(self) -> PerProgram:
        """Return 1 for a statement that starts threads for its own loops."""
        own = extent_of((x for x in self._own if x.mark == "parallel"), self._num)
        return np.where((own > 1) & (self._device.num_cores > 1), 1.0, 0.0)

    def _unrolled_depth(self) -> Depths:
        """Return the first own loop that the pragma or the compiler unrolls."""
        depth = np.full(self._num, len(self._own))
        open_, inside, reduced = (np.ones(self._num, t) for t in (bool, float, float))
        limit = np.maximum(self._s.unroll, _COMPILER_UNROLLS)
        for place in range(len(self._own) - 1, -1, -1):
            loop = self._own[place]
            inside = inside * loop.extent
            if loop.is_reduce:
                reduced = reduced * loop.extent
                open_ &= (reduced <= _SHORT_REDUCTION) & (inside <= limit)
            open_ &= (loop.mark != "parallel") | (loop.extent == 1)
            # A spatial loop beyond the limit still runs in vectors; it ends the body.
            depth = np.where(open_, place, depth)
            open_ &= inside <= limit
        return depth

    def _vector_loop(self) -> dict[StatementLoop, ProgramMask]:
        """Return per program the marked loop, or the body's innermost spatial loop."""
        chosen: dict[StatementLoop, ProgramMask] = {}
        open_ = np.ones(self._num, bool)
        for place in range(len(self._own) - 1, -1, -1):
            loop = self._own[place]
            if loop.is_reduce:
                continue
            here = (self._marked > 1) & (loop.mark == "vectorize")
            here |= (self._marked <= 1) & (place >= self._body) & (loop.extent > 1)
            chosen[loop] = here & open_
            open_ &= ~here
        return chosen

    def _run(self) -> PerProgram:
        """Return the tile's neighbours in its result and its neighbouring operands [N]."""
        out = self._run_of(self._s.write)
        for access in self._s.reads:
            # an operand without the vector's loop is broadcast, strided elements are put together
            beside = self._lane_stride(access) == 1
            if beside.any():
                out = np.where(beside, np.minimum(out, self._run_of(access)), out)
        return out

    def _run_of(self, access: NestAccess) -> PerProgram:
        runs = []
        for depth in range(len(self._own)):
            moving = frozenset(x.var for x in self._own[depth:]) - access.around
            runs.append(runs_of(access.widths(moving), access.sizes, (self._num,))[0])
        return pick(np.stack([*runs, np.ones(self._num)]), self._tile_depth)

    def _used_lanes(self) -> PerProgram:
        """Return elements per vector operation: the last vector is widened, or done in halves."""
        whole, rest = np.divmod(self._vector.astype(np.int64), self._width)
        # The number of ones in the rest: a vector of each power of two.
        pieces = sum(((rest >> bit) & 1 for bit in range(self._width.bit_length())), start=0 * rest)
        return self._vector / (whole + np.where(self._marked > 1, rest > 0, pieces))

    def _outermost_tile_loop(self) -> Depths:
        """Return the first own loop of the tile; without reduction steps, of the body."""
        depth = self._body
        if self._s.is_reduction:
            for place, loop in enumerate(self._own):
                if loop.is_reduce:
                    depth = np.where(loop.extent > 1, place + 1, depth)
        for place, loop in enumerate(self._own):
            if loop in self._chosen:
                depth = np.where(self._chosen[loop], np.minimum(depth, place), depth)
        return depth

    def _tile_of(self, access: NestAccess | None) -> PerProgram:
        """Return the register tile's elements, or elements that move ``access``."""
        out = np.ones(self._num)
        for place, loop in enumerate(self._own):
            if not loop.is_reduce:
                here = place >= self._tile_depth
                if access is not None:
                    here = here & access.uses(loop.var)
                out = out * np.where(here, loop.extent, 1)
        return out

    def _steps(self) -> PerProgram:
        """Return iterations of reduction loops in the tile, or directly around it."""
        out, open_ = np.ones(self._num), np.ones(self._num, bool)
        for place in range(len(self._own) - 1, -1, -1):
            loop, inside = self._own[place], place >= self._tile_depth
            if loop.is_reduce:
                out = out * np.where(inside | open_, loop.extent, 1)
            else:
                open_ &= inside | (loop.extent == 1)
        return out

    def _written_out(self) -> tuple[PerProgram, PerProgram]:
        """Return statements and reduction steps that the pragma writes out.

        A marked vector is one statement.
        """
        body, steps, open_ = np.ones(self._num), np.ones(self._num), np.ones(self._num, bool)
        for loop in reversed(self._loops):
            if loop.mark != "vectorize":
                larger = body * loop.extent
                open_ &= larger <= self._s.unroll
                open_ &= (loop.mark != "parallel") | (loop.extent == 1)
                body = np.where(open_, larger, body)
                if loop.is_reduce:
                    steps = np.where(open_, steps * loop.extent, steps)
        return body, steps

    def _loads(self) -> tuple[PerProgram, PerProgram]:
        """Return loads of vectors and of elements; the tile keeps operands in registers."""
        vectors, scalars = np.zeros(self._num), np.zeros(self._num)
        for access in self._s.reads:
            loads = self._iterations
            for place, loop in enumerate(self._own):
                if not loop.is_reduce:
                    # A tile loop that does not move it reuses registers, a vector loop broadcasts.
                    kept = (place >= self._tile_depth) & ~access.uses(loop.var)
                    kept &= ~self._chosen[loop]
                    loads = loads / np.where(kept, loop.extent, 1)
            more = self._split(access, loads)
            vectors, scalars = vectors + more[0], scalars + more[1]
        return vectors, scalars

    def _choices(self) -> PerProgram:
        """Return decisions of padding; loops of the tile that a condition lacks share them."""
        out = np.zeros(self._num)
        for guard in self._s.guards:
            count = self._iterations
            for place, loop in enumerate(self._own):
                if loop.var not in guard:
                    count = count / np.where(place >= self._tile_depth, loop.extent, 1)
                elif loop in self._chosen:
                    count = count / np.where(self._chosen[loop], self._lanes, 1)
            out = out + count
        return out

    def _split(self, access: NestAccess, count: PerProgram) -> tuple[PerProgram, PerProgram]:
        """Split ``count`` accesses into vector and scalar instructions, by the lanes' stride."""
        stride = self._lane_stride(access)
        # a vector of strided elements is put together from the vectors that hold them
        near = (stride >= 1) & (stride < self._lanes)
        vectors = np.where(near, count * stride / self._lanes, 0)
        # Stride 0 is a broadcast: one scalar load serves all lanes.
        return vectors, np.where(near, 0, count / np.where(stride == 0, self._vector, 1))

    def _lane_stride(self, access: NestAccess) -> PerProgram:
        """Return elements between neighbouring lanes; 0 is a broadcast."""
        stride = np.zeros(self._num)
        for loop, here in self._chosen.items():
            stride = stride + np.where(here, access.stride(loop.var), 0)
        return stride

    def _memory(self) -> dict[str, PerProgram]:
        """Return footprints and traffic of the caches in bytes of whole cache lines."""
        footprint = self._bytes_by_depth()
        iterations = [np.ones(self._num)]
        for loop in self._loops:
            iterations.append(iterations[-1] * loop.extent)
        outside = np.stack(iterations)
        device, cores = self._device, self._cores_by_depth()
        # Cores that share the loops bring their private caches: the capacity grows with them.
        sizes: list[Floats | int] = [
            device.l1_bytes_per_core * cores,
            device.l2_bytes_per_core * cores,
            device.l3_bytes,
        ]
        out = {"unique": footprint[0]}
        for name, size in zip(CACHES, sizes, strict=True):
            fits, crossing = fitting_depth(footprint, size)
            moved = pick(footprint, crossing) * pick(outside, crossing)
            out[f"{name}_footprint"] = pick(footprint, fits)
            # What fits whole is warm from the repetition before (see the module).
            out[f"{name}_traffic"] = np.where(fits == 0, 0.0, moved)
        return out

    def _cores_by_depth(self) -> Float[np.ndarray, "depth program"]:
        """Return private caches that share the footprint, by depth."""
        inside = np.ones(self._num)
        out = [inside]
        for loop in reversed(self._loops):
            if loop.mark == "parallel":
                inside = inside * loop.extent
            out.append(np.minimum(inside, self._device.num_cores))
        return np.stack(out[::-1])

    def _bytes_by_depth(self) -> Float[np.ndarray, "depth program"]:
        """Return bytes of lines that the statement touches from each depth inwards."""
        out = [np.zeros(self._num)] * (len(self._loops) + 1)
        for access in (self._s.write, *self._s.reads):
            used = access.variables - access.around
            known: dict[Moving, PerProgram] = {}  # most depths move the same variables of it
            for depth in range(len(self._loops) + 1):
                moving = used & {x.var for x in self._loops[depth:]}
                if moving not in known:
                    known[moving] = self._line_bytes(access, moving)
                out[depth] = out[depth] + known[moving]
        return np.stack(out)

    def _line_bytes(self, access: NestAccess, moving: Moving) -> PerProgram:
        run, rows = runs_of(access.widths(moving), access.sizes, (self._num,))
        line = self._device.transaction_bytes
        return rows * np.ceil(run * access.buffer.bytes_per_element / line) * line
