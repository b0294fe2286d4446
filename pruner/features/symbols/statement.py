"""Statements of loop nests for the symbols: operations, roles, accesses.

*Moving* loops run over their range while all others stand at 0. Other than in
:mod:`pruner.features.statement`, a load counts by itself, in the allocated tile, within the guards.
"""

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

import numpy as np
from jaxtyping import Bool

from pruner.arrays import IntLike, Ints, dtype_bytes
from pruner.features.statement.array_helpers import column
from pruner.features.statement.touches import load_indices
from pruner.features.symbols.symbol_table import PerProgram
from pruner.program.dag.expr import Axis, Binary, Call, Expr, Load, Select, children, loads, walk
from pruner.program.index import affine as af
from pruner.program.index.affine import Affine, LoopVar, Term
from pruner.program.nests import WARP_LANES, Buffer, BufferStore, Loop, LoopNests, Mark

Moving = frozenset[LoopVar]
_LINE_BYTES = 128
ProgramMask = Bool[np.ndarray, " program"]


@dataclass(frozen=True, slots=True)
class Operations:
    """Operations of an iteration: ``flops`` (``half`` of them 16-bit) and ``special`` calls."""

    flops: float
    special: float
    half: float = 0.0


def count_operations(value: Expr) -> Operations:
    """Count a value's arithmetic of its own kind, without indices and conditions."""
    counted = ("float", "bfloat") if _is_float(value.dtype) else ("float", "bfloat", "int", "uint")
    flops = special = half = 0.0
    pending = [value]
    while pending:
        node = pending.pop()
        # Neither index arithmetic nor conditions count as work of the statement.
        if isinstance(node, Load) or node.dtype == "bool":
            continue
        if isinstance(node, Binary) and node.dtype.startswith(counted):
            flops += 1
            half += _is_float(node.dtype) and dtype_bytes(node.dtype) == 2
        if isinstance(node, Call) and node.name != "if_then_else":
            special += 1
        pending.extend(children(node))
    return Operations(flops, special, half)


def _chooses(node: Expr) -> bool:
    return isinstance(node, Select) or (isinstance(node, Call) and node.name == "if_then_else")


def _variables(choice: Expr, store: BufferStore) -> Moving:
    """Return the variables of the condition of a select or conditional value."""
    axes = [node for node in walk(children(choice)[0]) if isinstance(node, Axis)]
    return frozenset().union(*(af.variables_of(store.slots[axis.slot]) for axis in axes))


def _is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


@dataclass(frozen=True, slots=True, eq=False)
class StatementLoop:
    """A loop of ``extent`` [N]; ``is_own``: it belongs to the statement's own stage."""

    var: LoopVar
    extent: PerProgram
    mark: Mark | None
    is_reduce: bool
    is_own: bool


def extent_of(loops: Iterable[StatementLoop], num: int) -> PerProgram:
    """Return the iterations of nested loops [N]."""
    return product_of((loop.extent for loop in loops), num)


def moving_of(*groups: Iterable[StatementLoop]) -> Moving:
    """Return the variables of loops."""
    return frozenset(loop.var for group in groups for loop in group)


class IndexTerm:
    """A term ``coef * ((index mod upper) div lower)``; ``scale`` [N] is ``|coef|``."""

    def __init__(self, term: Term, num: int) -> None:
        self.term, self.variables = term, af.variables_of(term.index)
        self.scale = column(np.abs(term.coef), num)
        self._reach: dict[Moving, PerProgram] = {}

    def reach(self, moving: Moving) -> PerProgram:
        """Return largest less smallest quotient [N], without the coefficient."""
        # Cached by the variables that matter: most sets of moving loops share them.
        inside = self.variables & moving
        if inside not in self._reach:
            lo, hi = _term_bounds(self.term, inside)
            self._reach[inside] = column(hi - lo, len(self.scale))
        return self._reach[inside]


def _term_bounds(term: Term, moving: Moving) -> tuple[IntLike, IntLike]:
    if isinstance(term.index, LoopVar):
        lo, hi = af.wrap_bounds(term, 0, term.index.extent - 1 if term.index in moving else 0)
    else:
        lo, hi = term.index.base, term.index.base
        for inner in term.index.terms:
            a, b = _term_bounds(inner, moving)
            x, y = inner.coef * a, inner.coef * b
            lo, hi = lo + np.minimum(x, y), hi + np.maximum(x, y)
        lo, hi = af.wrap_bounds(term, lo, hi)
    return lo, hi if af.is_endless(term.limit) else np.minimum(hi, term.limit - 1)


@dataclass(slots=True, eq=False)
class NestAccess:
    """A buffer a statement touches, with index terms per dimension.

    ``sizes``: elements per dimension of the buffer as it is stored (a staged tile, not the tensor);
    ``around``: variables of the loops around its allocation, which start it afresh.
    """

    buffer: Buffer
    sizes: list[PerProgram]
    indices: list[list[IndexTerm]]
    around: Moving
    num: int

    @property
    def variables(self) -> Moving:
        """Variables in any index."""
        return frozenset().union(*(t.variables for terms in self.indices for t in terms))

    def widths(self, moving: Moving) -> list[PerProgram]:
        """Return the values that each dimension's index spans [N], by the box rule."""
        return [_width(terms, moving, self.num) for terms in self.indices]

    def count(self, moving: Moving) -> PerProgram:
        """Return the distinct elements [N]; strided terms skip some."""
        return product_of((_distinct(terms, moving, self.num) for terms in self.indices), self.num)

    def uses(self, var: LoopVar) -> ProgramMask:
        """Return where the loop's variable is in an index [N]."""
        out = np.zeros(self.num, bool)
        for terms in self.indices:
            for term in terms:
                if var in term.variables:
                    out |= term.scale > 0
        return out

    def lines_of_warp(
        self, lane: LoopVar | None, vector: LoopVar | None
    ) -> tuple[PerProgram, PerProgram]:
        """Return first cache lines of a warp [N], share of split lanes [N]."""
        at = {} if lane is None else {lane: np.arange(WARP_LANES)[:, None]}
        start = self._address(at)
        # Distinct lines are counted as steps of the sorted line numbers of the 32 lanes.
        lines = np.sort(start // _LINE_BYTES, axis=0)
        count = 1 + (np.diff(lines, axis=0) != 0).sum(axis=0)
        if vector is None:
            return count.astype(float), np.zeros(self.num)
        moved = self._address({**at, vector: np.ones((1, 1), np.int64)})
        return count.astype(float), (moved // _LINE_BYTES != start // _LINE_BYTES).mean(axis=0)

    def is_row(self, lane: LoopVar | None, vector: LoopVar, lanes: PerProgram) -> ProgramMask:
        """Return where a vector's elements are neighbours for each lane of a warp [N]."""
        at = {} if lane is None else {lane: np.arange(WARP_LANES)[:, None]}
        last = (lanes - 1).astype(np.int64)[None, :]
        moved = self._address({**at, vector: last}) - self._address(at)
        return np.asarray((moved == last * self.buffer.bytes_per_element).all(axis=0))

    def _address(self, values: dict[LoopVar, Ints]) -> Ints:
        """Return bytes from the buffer's start [32, N]; unnamed variables are 0."""
        out = np.zeros((WARP_LANES, self.num), np.int64)
        row = np.ones(self.num, np.int64)
        for terms, size in zip(reversed(self.indices), reversed(self.sizes), strict=True):
            for term in terms:
                out = out + term.term.coef * _quotient(term.term, values) * row
            row = row * size.astype(np.int64)
        return out * self.buffer.bytes_per_element

    def stride(self, var: LoopVar) -> PerProgram:
        """Return elements between iterations of a loop [N], divided indices as undivided."""
        out, row = np.zeros(self.num), np.ones(self.num)
        for terms, size in zip(reversed(self.indices), reversed(self.sizes), strict=True):
            for term in terms:
                if var in term.variables:
                    out = out + term.scale * row
            row = row * size
        return out

    def parts(self, var: LoopVar) -> PerProgram:
        """Return the product of the ranges of terms made of this loop alone [N]."""
        out = np.ones(self.num)
        for terms in self.indices:
            for term in terms:
                if term.variables == {var}:
                    out = out * np.where(term.scale > 0, term.reach(term.variables) + 1, 1)
        return out


def _quotient(term: Term, values: dict[LoopVar, Ints]) -> Ints:
    """Return ``(index mod upper) div lower`` at ``values`` of variables, the others 0."""
    if isinstance(term.index, LoopVar):
        inside = values.get(term.index, np.zeros((1, 1), np.int64))
    else:
        inside = np.zeros((1, 1), np.int64) + term.index.base
        for inner in term.index.terms:
            inside = inside + inner.coef * _quotient(inner, values)
    if not af.is_endless(term.upper):
        inside = np.mod(inside, term.upper)
    return inside // term.lower


def product_of(values: Iterable[PerProgram], num: int) -> PerProgram:
    """Return the product of per-program values [N]."""
    found = list(values)
    return reduce(operator.mul, found) if found else np.ones(num)


def _width(terms: list[IndexTerm], moving: Moving, num: int) -> PerProgram:
    out = np.ones(num)
    for term in terms:
        if term.variables & moving:
            out = out + term.scale * term.reach(moving)
    return out


def _distinct(terms: list[IndexTerm], moving: Moving, num: int) -> PerProgram:
    """Return the least number of distinct values over all cuts by step."""
    inside = [term for term in terms if term.variables & moving]
    if not inside:
        return np.ones(num)
    if len(inside) == 1:
        return np.where(inside[0].scale > 0, inside[0].reach(moving) + 1, 1)
    scales = np.stack([term.scale for term in inside])
    reaches = np.stack([np.where(t.scale > 0, t.reach(moving), 0) for t in inside])
    order = np.argsort(scales, axis=0)
    scales = np.take_along_axis(scales, order, 0)
    # Sorted by scale per program: which term is the wide-stepping one may differ.
    reaches = np.take_along_axis(reaches, order, 0)
    span, count = np.ones(num), np.ones(num)
    for scale, reach in zip(scales, reaches, strict=True):  # from the innermost term outwards
        span = span + scale * reach
        # Every step of this term shows all inner values, or the steps overlap and the span counts.
        count = np.minimum((reach + 1) * count, span)
    return count


@dataclass(slots=True, eq=False)
class NestStatement:
    """A statement of N programs, ``unroll`` by its pragma [N].

    ``reads``: each distinct load once, without the element that the statement writes; ``guards``:
    the variables of each condition.
    """

    value: Expr
    loops: list[StatementLoop]
    write: NestAccess
    reads: list[NestAccess]
    guards: list[Moving]
    unroll: PerProgram
    is_reduction: bool

    @property
    def num(self) -> int:
        """Number of programs."""
        return self.write.num

    @property
    def buffer(self) -> Buffer:
        """The buffer that the statement writes."""
        return self.write.buffer


def nest_statements(nests: LoopNests) -> list[NestStatement]:
    """Return the statements in program order."""
    last: dict[int, BufferStore] = {}
    for store in nests.stores:
        # Popped first, so that the order is that of the last stores.
        last.pop(store.buffer.key, None)
        last[store.buffer.key] = store
    extents: dict[LoopVar, PerProgram] = {}
    # Where threads reduce together, the work is in the hidden update, not in the final store.
    return [_statement(nests, s.reduction or s, extents) for s in last.values()]


def _statement(
    nests: LoopNests, store: BufferStore, extents: dict[LoopVar, PerProgram]
) -> NestStatement:
    num, buffer = nests.num_programs, store.buffer
    for loop in store.loops:
        if loop.var not in extents:
            extents[loop.var] = column(loop.extent, num)
    outside = {loop.var for loop in nests.allocations[buffer.key].loops}
    write = _access(nests, buffer, store.indices)

    def reduces(loop: Loop) -> bool:
        if loop.kind is not None:
            return loop.kind == "reduce"
        # Without a mark of the engine, a loop that does not move the output accumulates.
        return not write.uses(loop.var).any() and bool((extents[loop.var] > 1).any())

    loops = [
        StatementLoop(x.var, extents[x.var], x.mark, reduces(x), x.var not in outside)
        for x in store.loops
    ]
    reads = []
    for load in _distinct_loads(store.value):
        if load.stage != buffer.key:  # the element itself is in a register
            indices = load_indices(load, store)
            reads.append(_access(nests, nests.buffers[load.stage], indices))
    return NestStatement(
        value=store.value,
        loops=loops,
        write=write,
        reads=reads,
        guards=[_variables(node, store) for node in walk(store.value) if _chooses(node)],
        unroll=column(store.unroll, num),
        is_reduction=store.kind == "update",
    )


def _distinct_loads(value: Expr) -> list[Load]:
    found = list(loads(value))
    try:
        return list(dict.fromkeys(found))
    except TypeError:  # a number in an index differs between programs: nothing to compare by
        return found


def _access(nests: LoopNests, buffer: Buffer, indices: Iterable[Affine]) -> NestAccess:
    num = nests.num_programs
    allocation = nests.allocations.get(buffer.key)
    # A staged buffer holds one tile, so strides are those of the tile.
    sizes = buffer.shape if allocation is None else allocation.extents
    around = () if allocation is None else allocation.loops
    return NestAccess(
        buffer=buffer,
        sizes=[column(size, num) for size in sizes],
        indices=[[IndexTerm(t, num) for t in index.terms] for index in indices],
        around=frozenset(loop.var for loop in around),
        num=num,
    )
