"""The draft's symbols of CPU programs: register tile, cache footprints and traffic, lanes, cores.

Per statement (the last store of a stage) and for the whole program unless said otherwise; the idea
is the paper's (Table 2: what a level holds, what it does, what it moves), the levels are those of a
CPU. Sources of the formulas:

* *Register tile*: the spatial loops inside the innermost reduction loop, as in the GPU symbol S1
  [Pruner, Table 2]; their operands are loaded once per step and their results stay in registers
  when the tile is unrolled [BLIS: Van Zee and van de Geijn, 2015, section 3: micro-kernel].
* *Footprint* of the loops from depth ``l`` inwards: sum over buffers of the box they touch, in
  whole cache lines [Wolf and Lam, 1991, reuse in tiled loops].
* *Traffic* into a cache of ``C`` bytes: the outermost depth ``l`` whose footprint fits is run
  without misses between its iterations, so a buffer crosses once for the loop around it, as far as
  that loop moves it, and once more for every iteration further out: ``bytes[l - 1] * prod of
  extents outside l - 1`` [the capacity rule of the ECM model: Stengel et al., 2015, section 2].
* *Balance*: ``P / (ceil(P / cores) cores)`` of ``P`` parallel iterations (the paper's P_l2,c).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from pruner.features.draft import Symbols
from pruner.features.nest_symbols_statement import (
    Moving,
    NestAccess,
    NestStatement,
    StatementLoop,
    count_operations,
    extent_of,
    nest_statements,
    product_of,
)
from pruner.features.tensors import Floats
from pruner.program.affine import LoopVar
from pruner.program.device import CpuDevice
from pruner.program.expr import Call, Expr, Select, walk
from pruner.program.legality import mentions
from pruner.program.nest import LoopNests
from pruner.program.regions import evaluate_index

_FLOAT_BYTES = 4
CACHES = ("l1", "l2", "l3")

CPU_COLUMNS = (
    "comp_count",  # floating-point operations
    "special",  # function calls
    "iterations",
    "parallel",  # iterations of parallel loops
    "balance",  # share of the cores' time that is used, 1 / cores without a parallel loop
    "regions",  # how often a parallel region is opened
    "lanes",  # elements a vector operation of the statement works on, at most the device's
    "vector",  # iterations of the vectorised loop
    "choices",  # selections (padding) decided in every iteration
    "tile",  # vector operations in the register tile
    "accumulators",  # vector registers that hold its results
    "operands",  # vector registers that hold its operands
    "steps",  # iterations of reduction loops directly around the tile
    "unroll",  # auto_unroll_max_step in force
    "body",  # statements between two loop overheads when the pragma is followed
    "vector_loads",  # load instructions of whole vectors, operands kept over the register tile
    "scalar_loads",  # load instructions of single elements: broadcasts and strided lanes
    "vector_stores",  # stores if no result stays in registers
    "scalar_stores",
    "l1_footprint",  # bytes the loops touch that stay in the cache
    "l2_footprint",
    "l3_footprint",
    "l1_traffic",  # bytes that miss the cache
    "l2_traffic",
    "l3_traffic",
    "unique",  # bytes touched at all
)


def cpu_symbols(nests: LoopNests, device: CpuDevice) -> Symbols:
    """Symbols of N programs on ``device``: float64 [S, len(CPU_COLUMNS), N], in program order."""
    statements = nest_statements(nests)
    values = np.zeros((len(statements), len(CPU_COLUMNS), nests.num_programs))
    for row, statement in enumerate(statements):
        for name, value in _CpuRow(nests, statement, device).columns().items():
            values[row, CPU_COLUMNS.index(name)] = value
    return Symbols(
        values=values,
        scopes=tuple(s.scope for s in statements),
        reductions=tuple(s.is_reduction for s in statements),
        columns=CPU_COLUMNS,
    )


class _CpuRow:
    """Columns of one statement."""

    def __init__(self, nests: LoopNests, statement: NestStatement, device: CpuDevice) -> None:
        self._nests, self._s, self._device = nests, statement, device
        self._num = statement.num
        self._loops = statement.loops
        self._width = device.simd_bytes // _FLOAT_BYTES
        self._iterations = extent_of(self._loops, self._num)
        self._vectors = [x for x in self._loops if x.is_own and x.mark == "vectorize"]
        self._vector = extent_of(self._vectors, self._num)
        self._choices = _conditions(statement.value)
        self._lanes = self._used_lanes()
        self._tile_loops = self._register_tile()

    def columns(self) -> dict[str, Floats | float]:
        """Values of :data:`CPU_COLUMNS`."""
        operations = count_operations(self._s.value)
        parallel = self._extent(lambda x: x.mark == "parallel")
        cores = self._device.num_cores
        tile = extent_of(self._tile_loops, self._num)
        groups = self._vector_groups()
        loads, scalar_loads = self._loads()
        stores, scalar_stores = self._split(self._s.write, self._iterations)
        tiles = frozenset(x.var for x in self._tile_loops)
        operands = sum((a.count(tiles) for a in self._s.reads), start=np.zeros(self._num))
        return {
            "comp_count": self._iterations * operations.flops,
            "special": self._iterations * operations.special,
            "iterations": self._iterations,
            "parallel": parallel,
            "balance": parallel / (np.ceil(parallel / cores) * cores),
            "regions": self._regions(),
            "lanes": self._lanes,
            "vector": self._vector,
            "choices": self._iterations * len(self._choices),
            "tile": tile / groups,
            "accumulators": self._s.write.count(tiles) / groups,
            "operands": operands / groups,
            "steps": self._steps(),
            "unroll": self._s.unroll,
            "body": self._body(),
            "vector_loads": loads,
            "scalar_loads": scalar_loads,
            "vector_stores": stores,
            "scalar_stores": scalar_stores,
            **self._memory(),
        }

    def _extent(self, chosen: Callable[[StatementLoop], bool]) -> Floats:
        return extent_of((x for x in self._loops if chosen(x)), self._num)

    def _regions(self) -> Floats:
        """1 for a statement whose own loops are parallel: a region is opened for it."""
        own = self._extent(lambda x: x.is_own and x.mark == "parallel")
        return np.where(own > 1, 1.0, 0.0)

    def _used_lanes(self) -> Floats:
        """``v / ceil(v / w)`` of v iterations and w lanes; 1 where a choice differs by lane.

        Lowering gives up a vector whose lanes take different sides of a lazy condition
        (VectorizeLoop in src/tir/transforms/vectorize_loop.cc).
        """
        lanes = self._vector / np.ceil(self._vector / self._width)
        for choice in self._choices:
            for loop in self._vectors:
                lanes = np.where(self._in_condition(choice, loop.var), 1.0, lanes)
        return lanes

    def _in_condition(self, condition: Expr, var: LoopVar) -> NDArray[np.bool_]:
        values = dict(enumerate(self._s.index_values))
        out = np.zeros(self._num, bool)
        for node in walk(condition):
            for side in (getattr(node, "a", None), getattr(node, "b", None)):
                if side is not None and side.dtype.startswith("int"):
                    out |= mentions(evaluate_index(side, values), var, self._num)
        return out

    def _vector_groups(self) -> Floats:
        """Elements of the tile that one vector register holds."""
        inside = any(x in self._tile_loops for x in self._vectors)
        return self._lanes if inside else np.ones(self._num)

    def _register_tile(self) -> list[StatementLoop]:
        """Own spatial loops inside the innermost reduction loop; a vector loop at most."""
        own = [x for x in self._loops if x.is_own]
        last = max((i for i, x in enumerate(own) if x.is_reduce), default=-1)
        inside = own[last + 1 :]
        return inside if self._s.is_reduction else [x for x in inside if x.mark == "vectorize"]

    def _steps(self) -> Floats:
        """Iterations of the reduction loops directly around the tile."""
        out = np.ones(self._num)
        if self._s.is_reduction:
            own = [x for x in self._loops if x.is_own and x not in self._tile_loops]
            for loop in reversed(own):
                if not loop.is_reduce:
                    break
                out = out * loop.extent
        return out

    def _body(self) -> Floats:
        """Statements of the innermost loops that the pragma unrolls, vectors counted once."""
        body = np.ones(self._num)
        open_ = np.ones(self._num, bool)
        for loop in reversed(self._loops):
            if loop.mark == "vectorize":
                continue
            larger = body * loop.extent
            open_ &= (larger <= self._s.unroll) & (loop.mark != "parallel")
            body = np.where(open_, larger, body)
        return body

    def _loads(self) -> tuple[Floats, Floats]:
        """Loads of whole vectors and of elements; an operand is kept while the tile reuses it."""
        vectors, scalars = np.zeros(self._num), np.zeros(self._num)
        for access in self._s.reads:
            loads = self._iterations
            for loop in self._tile_loops:
                if loop.mark != "vectorize":
                    loads = loads / np.where(access.uses(loop.var), 1, loop.extent)
            more = self._split(access, loads)
            vectors, scalars = vectors + more[0], scalars + more[1]
        return vectors, scalars

    def _split(self, access: NestAccess, count: Floats) -> tuple[Floats, Floats]:
        """``count`` element accesses as vector and scalar instructions, by stride of the lanes."""
        if not self._vectors:
            return np.zeros(self._num), count
        stride = access.stride(self._vectors[-1].var)
        wide = self._lanes > 1
        vectors = np.where((stride == 1) & wide, count / self._lanes, 0)
        broadcast = np.where((stride == 0) & wide, count / self._vector, 0)
        return vectors, np.where(wide & (stride <= 1), broadcast, count)

    def _memory(self) -> dict[str, Floats]:
        """Footprints and traffic of the three caches, in bytes of whole lines."""
        by_depth = self._bytes_by_depth()
        footprint = by_depth.sum(axis=0)  # [L + 1, N]
        outside = np.ones((len(self._loops) + 1, self._num))
        for depth, loop in enumerate(self._loops):
            outside[depth + 1] = outside[depth] * loop.extent
        device = self._device
        sizes = (device.l1_bytes_per_core, device.l2_bytes_per_core, device.l3_bytes)
        out = {"unique": footprint[0]}
        for name, size in zip(CACHES, sizes, strict=True):
            inside = footprint <= size
            inside[-1] = True
            fits = inside.argmax(axis=0)
            crossing = np.maximum(fits - 1, 0)[None]
            moved = np.take_along_axis(footprint, crossing, 0)[0]
            out[f"{name}_footprint"] = np.take_along_axis(footprint, fits[None], 0)[0]
            out[f"{name}_traffic"] = moved * np.take_along_axis(outside, crossing, 0)[0]
        return out

    def _bytes_by_depth(self) -> Floats:
        """Bytes of lines that the loops from each depth inwards touch, [A, L + 1, N]."""
        accesses: Sequence[NestAccess] = [self._s.write, *self._s.reads]
        out = np.empty((len(accesses), len(self._loops) + 1, self._num))
        for place, access in enumerate(accesses):
            for depth in range(len(self._loops) + 1):
                moving = frozenset(x.var for x in self._loops[depth:]) - access.around
                out[place, depth] = self._line_bytes(access, moving)
        return out

    def _line_bytes(self, access: NestAccess, moving: Moving) -> Floats:
        widths = access.widths(moving)
        if not widths:
            return np.full(self._num, float(self._device.transaction_bytes))
        run, rows = widths[-1], product_of(widths[:-1], self._num)
        for place in range(len(widths) - 2, -1, -1):  # whole rows are one run
            whole = run >= product_of(access.sizes[place + 1 :], self._num)
            run = np.where(whole, run * widths[place], run)
            rows = np.where(whole, rows / widths[place], rows)
        line = self._device.transaction_bytes
        return rows * np.ceil(run * access.bytes_per_element / line) * line


def _conditions(value: Expr) -> list[Expr]:
    """Conditions of the selections inside a value."""
    out = []
    for node in walk(value):
        if isinstance(node, Select):
            out.append(node.cond)
        elif isinstance(node, Call) and node.name == "if_then_else":
            out.append(node.args[0])
    return out
