"""Find programs that TVM accepts: ``VerifyGPUCode``, and the region cover of padded results.

Limits on threads a block, shared memory, and thread extents of schedule rules, and on the bytes of
vectors of loads, stores, casts and stepping indices (verify_gpu_code.cc of
src/s_tir/meta_schedule/postproc and of src/s_tir/analysis). ``VectorizeLoop`` leaves conditions on
the lane as loops.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pruner.arrays import IntLike, Ints, Mask, Verdicts, dtype_bytes
from pruner.errors import UnsupportedProgram
from pruner.program.dag.expr import Binary, Call, Cast, Expr, Load, Not, loads, slots_of, walk
from pruner.program.index import affine as af
from pruner.program.index.affine import Affine, LoopVar, Term
from pruner.program.index.regions import Region, evaluate_index, relax
from pruner.program.nests import BLOCKS, THREADS, WARP_LANES, Mark
from pruner.program.tir.shared import pipeline_fits, shared_bytes
from pruner.program.tir.tree import Block, Tree, TreeNode

THREADS_LOW = "meta_schedule.thread_extent_low_inclusive"
THREADS_HIGH = "meta_schedule.thread_extent_high_inclusive"
STATIC_BYTES = 49152  # on every CUDA device: CUDA C++ Programming Guide, compute capabilities
WARP_EXECUTION = "warp_execution"


@dataclass(frozen=True, slots=True, kw_only=True)
class TirLimits:
    """Limits of a thread block: bytes of shared memory, number of threads.

    ``shared_bytes`` may be all that a kernel can request; static buffers have less.
    """

    shared_bytes: int
    threads: int
    static_bytes: int = STATIC_BYTES

    @staticmethod
    def of_target(target: Any) -> TirLimits:
        """Read the limits from the attributes of a TVM target."""
        shared_bytes = int(target.attrs["max_shared_memory_per_block"])
        return TirLimits(
            shared_bytes=shared_bytes,
            threads=int(target.attrs["max_threads_per_block"]),
            # OpenCL has static memory alone
            static_bytes=STATIC_BYTES if str(target.kind.name) == "cuda" else shared_bytes,
        )


def verify_gpu_code(tree: Tree, limits: TirLimits) -> Verdicts:
    """Return the accepted programs of a tree, bool [N]."""
    num = tree.num_programs
    out = np.ones(num, bool)
    shared = shared_bytes(tree)
    for kernel in tree.root.body:
        out &= _threads_fit(tree, kernel, num, limits.threads)
        if kernel in shared:
            static, dynamic = shared[kernel]
            out &= (static + dynamic <= limits.shared_bytes) & (static <= limits.static_bytes)
        out &= all(pipeline_fits(tree, loop) for loop in tree.loops(kernel))
        for block in tree.blocks(kernel):
            out &= vectors_fit(tree, block)
    return out


def _threads_fit(tree: Tree, kernel: TreeNode, num: int, most: int) -> Mask:
    """Return where every index has one extent and threads are in range."""
    extents: dict[Mark | None, IntLike] = {}
    out = np.ones(num, bool)
    for loop in tree.loops(kernel):
        if loop.mark in THREADS:
            # Two loops of one axis are the same threads: different extents are an error.
            out &= np.equal(extents.setdefault(loop.mark, loop.extent), loop.extent)
    out &= math.prod(extents.values()) <= most
    for block in tree.blocks(kernel):
        if THREADS_LOW in block.annotations and THREADS_HIGH in block.annotations:
            inner = {x.mark: x.extent for x in tree.path(block) if x.mark in extents}
            if WARP_EXECUTION in block.annotations:
                inner[Mark.THREAD_X] = WARP_LANES
            threads = math.prod(inner.values())
            out &= (int(str(block.annotations[THREADS_LOW])) <= threads) & (
                threads <= int(str(block.annotations[THREADS_HIGH]))
            )
    return out


_FRAGMENT = 16  # columns that lanes hold of a row


def stages_cover(tree: Tree) -> Mask:
    """Return where padded results' epilogues let TVM move their operands, [N].

    A moved block's inputs have to be written before (region cover, src/s_tir/schedule/state.cc). A
    guard such as ``f // 256 * 16 + f % 256 // 16 < 196`` of the fused store loop is one quotient,
    ``f // 16``, where f runs over one fragment's columns and no other loop moves the rows, and TVM
    finds no region for indices that divide it once more: ``ComputeAt`` raises.
    """
    out = np.ones(tree.num_programs, bool)
    for block in tree.blocks():
        if isinstance(block.value, Load):  # a copy: nothing reads what it writes
            continue
        divided = [slots_of(index) for index in block.indices if _divides(index)]
        for guard, _ in block.guards:
            rows = slots_of(guard)
            if any(rows & slots for slots in divided):
                out &= ~_is_one_quotient(tree, block, rows)
    return out


def _is_one_quotient(tree: Tree, block: Block, rows: set[int]) -> Mask:
    """Return where only the block's own loop moves ``rows``, over a fragment's columns."""
    moving = {loop.var for loop in tree.path(block) if loop.mark not in BLOCKS}
    whole, columns = np.ones(tree.num_programs, bool), np.ones(tree.num_programs)
    for slot, value in enumerate(tree.values(block)):
        region, extent = relax(Region(value, 0, 0), moving), block.iters[slot].extent
        # loops that are dealt out to threads overrun
        width = np.minimum(region.hi - region.lo + 1, extent)
        if slot in rows:
            whole &= np.equal(width, extent)
        else:
            columns = columns * width
    inner = sorted(rows)[1:-1]  # fragments of a warp, which loops outside of the fused one run over
    for slot in inner:
        whole &= np.equal(block.iters[slot].extent, 1)
    return whole & (columns == _FRAGMENT)


def _divides(index: Expr) -> bool:
    ops = ("div", "mod", "floordiv", "floormod")
    return any(isinstance(node, Binary) and node.op in ops for node in walk(index))


VECTOR_BYTES = 16
_INDEX_BYTES = 4
_MOST_TERMS = 3


def vectors_fit(tree: Tree, block: Block) -> Mask | np.bool_:
    """Return where the vectors of a block are narrow enough, [N]."""
    lane = next((x for x in tree.path(block) if x.mark is Mark.VECTORIZE), None)
    if lane is None:
        return np.bool_(True)
    lanes, widest = lane.extent, widest_bytes(tree, block)
    # Even a vector of indices fits: no access can be too wide.
    if np.all(np.less_equal(lanes * max(widest, _INDEX_BYTES), VECTOR_BYTES)):
        return np.bool_(True)
    values = dict(enumerate(tree.values(block)))
    # A vector of one lane is a scalar.
    fits = np.equal(lanes, 1) | np.less_equal(lanes * widest, VECTOR_BYTES)
    steps: Mask | np.bool_ = np.bool_(False)
    found = [(node.stage, node.indices) for node in loads(block.value)]
    for buffer, indices in [(block.buffer, block.indices), *found]:
        shape = tree.buffers[buffer].shape
        steps = steps | _steps([evaluate_index(i, values) for i in indices], shape, lane.var)
    fits = fits & ~(steps & np.greater(lanes * _INDEX_BYTES, VECTOR_BYTES))
    # A lane-dependent condition leaves a loop of scalars, which the check accepts.
    return fits | _depends_on_lane(block, values, lane.var)


def widest_bytes(tree: Tree, block: Block) -> int:
    """Return the bytes of the widest type loaded, cast to or stored."""
    kinds = {node.dtype for node in walk(block.value) if isinstance(node, (Load, Cast))}
    return max(dtype_bytes(kind) for kind in {*kinds, tree.buffers[block.buffer].dtype})


def _steps(indices: Sequence[Affine], shape: Sequence[IntLike], lane: LoopVar) -> Mask | np.bool_:
    """Return where lanes touch evenly spaced elements that are no neighbours."""
    flat, row = Affine(), np.int64(1)
    for index, size in zip(reversed(indices), reversed(shape), strict=True):
        # The check sees flattened buffers: one index of all dimensions.
        flat = af.add(flat, index, row)  # type: ignore[arg-type]
        row = row * size  # type: ignore[assignment]
    form = _lane_form(flat, lane)
    return form.even & np.not_equal(form.stride, 0) & np.not_equal(form.stride, 1)


@dataclass(slots=True, eq=False)
class _LaneForm:
    """Coefficients of ``step * x + base + stride * lane`` where ``even``."""

    stride: IntLike = 0
    step: IntLike = 0
    even: Mask | np.bool_ = field(default_factory=lambda: np.bool_(True))

    def take(self, t: Term, lane: LoopVar) -> None:
        if t.index is lane:
            # A divided or wrapped lane steps unevenly.
            plain = np.equal(t.lower, 1) & np.greater_equal(t.upper, lane.extent)
            self.stride = self.stride + np.where(plain, t.coef, 0)
            self.even = self.even & (plain | np.equal(t.coef, 0))
        elif isinstance(t.index, LoopVar):
            # Other loops move the start of the vector by multiples of this.
            self.step = np.gcd(self.step, t.coef)
        else:
            self._take_quotient(t, t.index, lane)

    def _take_quotient(self, t: Term, index: Affine, lane: LoopVar) -> None:
        """Add ``(sum mod upper) div lower`` as TVM simplifies it.

        Terms that a divisor divides come out. ``x * c + rest`` with ``rest < c`` is understood
        where ``c`` divides the divisor (src/arith/rewrite_simplify.cc): ``mod`` keeps the rest
        (sums of two terms), ``div`` drops it (of three).
        """
        inner = _lane_form(index, lane)
        present = inner.even & np.not_equal(inner.stride, 0)
        others = [x for x in index.terms if x.index is not lane]
        coefs = [np.asarray(x.coef) for x in others]
        reaches = [np.asarray(af.bounds(Affine([x]))[1]) for x in others]  # with lanes inside
        own = [x for x in index.terms if x.index is lane]
        coefs.append(np.asarray(inner.stride))
        reaches.append(np.asarray(af.bounds(Affine(own))[1]))
        endless = np.greater_equal(t.upper, af.INF)
        taken = [np.True_ for _ in coefs]
        most = np.where(np.equal(t.lower, 1), _MOST_TERMS - 1, _MOST_TERMS)
        kept = endless | _understood(coefs, reaches, t.upper, taken, most)
        outside = np.equal(np.mod(inner.stride, t.lower), 0)
        left = [np.not_equal(np.mod(c, t.lower), 0) for c in coefs]
        alike = _understood(coefs, reaches, t.lower, left) & np.less(coefs[-1], t.lower)
        # divisible terms are left only in quotients that were joined; TVM divides a few of them
        used = np.broadcast_arrays(*[np.not_equal(c, 0) for c in coefs])
        whole_parts = np.any([u & ~x for u, x in zip(used, left, strict=True)], axis=0)
        joined = endless & np.not_equal(t.lower, 1) & whole_parts & (sum(used) > _MOST_TERMS)
        good = inner.even & kept & np.equal(index.base, 0) & (outside | alike) & ~joined
        self.stride = self.stride + np.where(present & outside, t.coef * inner.stride // t.lower, 0)
        whole = np.equal(np.mod(inner.step, t.lower), 0) & outside
        step = np.where(whole, t.coef * (inner.step // t.lower), t.coef)
        self.step = np.gcd(self.step, step)
        absent = inner.even & np.equal(inner.stride, 0)
        self.even = self.even & (good | absent | np.equal(t.coef, 0))


def _understood(
    coefs: Sequence[Ints],
    reaches: Sequence[Ints],
    divisor: IntLike,
    where: Sequence[Any],
    most: IntLike = _MOST_TERMS,
) -> Mask:
    """Return where terms stay below the divisor, or below the first that divides it."""
    parts = [np.where(w, v, 0) for w, v in zip((*where, *where), (*coefs, *reaches), strict=True)]
    used, spans = np.split(np.stack(np.broadcast_arrays(*parts)), 2)
    first = used.argmax(axis=0)
    largest = np.take_along_axis(used, first[None], 0)[0]
    rest = spans.sum(axis=0) - np.take_along_axis(spans, first[None], 0)[0]
    # np.maximum: absent terms have coefficient 0, and a modulo by 0 would warn.
    divides = np.equal(np.mod(divisor, np.maximum(largest, 1)), 0) & (rest < largest)
    divides = divides & ((used != 0).sum(axis=0) <= most)
    return np.less(spans.sum(axis=0), divisor) | divides


def _lane_form(value: Affine, lane: LoopVar) -> _LaneForm:
    out = _LaneForm()
    for t in value.terms:
        out.take(t, lane)
    return out


def _depends_on_lane(block: Block, values: dict[int, Affine], lane: LoopVar) -> Mask | np.bool_:
    """Return where a condition differs between the lanes of a vector."""
    out: Mask | np.bool_ = np.bool_(False)
    for index, bound in block.guards:
        difference = af.add(evaluate_index(index, values), af.const(bound), -1)
        out = out | _sign_differs(difference, lane)
    for node in walk(block.value):
        if isinstance(node, Call) and node.name == "if_then_else":
            out = out | _differs(node.args[0], values, lane)
    return out


def _differs(condition: Expr, values: dict[int, Affine], lane: LoopVar) -> Mask | np.bool_:
    match condition:
        case Binary(op=("and" | "or"), a=a, b=b):
            return _differs(a, values, lane) | _differs(b, values, lane)
        case Not(a=a):
            return _differs(a, values, lane)
        case Binary(op=("lt" | "le" | "gt" | "ge") as op, a=a, b=b):
            difference = af.add(evaluate_index(a, values), evaluate_index(b, values), -1)
            # a <= b is a - b - 1 < 0, a > b its negation: one test of the sign serves all four.
            shift = -1 if op in ("le", "gt") else 0
            return _sign_differs(af.add(difference, af.const(shift)), lane)
        case Binary(op=("eq" | "ne"), a=a, b=b):
            difference = af.add(evaluate_index(a, values), evaluate_index(b, values), -1)
            form = _lane_form(difference, lane)
            return ~form.even | np.not_equal(form.stride, 0)
        case _:
            raise UnsupportedProgram("condition", type(condition).__name__)


def _sign_differs(difference: Affine, lane: LoopVar) -> Mask | np.bool_:
    """Return where a vector's lanes may lie on both sides of zero."""
    form = _lane_form(difference, lane)
    first = np.asarray(difference.base)
    last = first + np.asarray(form.stride) * (np.asarray(lane.extent) - 1)
    step = np.where(np.equal(form.step, 0), 1, form.step)
    one_step = np.equal(first // step, last // step)
    together = np.where(np.equal(form.step, 0), (first < 0) == (last < 0), one_step)
    return ~form.even | (np.not_equal(form.stride, 0) & ~together)
