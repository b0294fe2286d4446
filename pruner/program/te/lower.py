"""Lower a schedule with its bounds to loop nests.

Follows TE's ``ScheduleOps`` (src/te/schedule/schedule_ops.cc: ``MakePipeline``, ``InjectAttach``),
``MakeLoopNest`` (src/te/operation/op_utils.cc), ``MakeReduction`` and ``MakeCrossThreadReduction``
(src/te/operation/compute_op.cc, cross_thread_reduction.cc).
"""

from __future__ import annotations

from dataclasses import dataclass

from pruner.arrays import IntLike
from pruner.errors import ReplayFailed, UnsupportedProgram
from pruner.program.dag.expr import Binary, Const, Expr, Load, fold
from pruner.program.index import affine as af
from pruner.program.index.affine import Affine, LoopVar, Truth
from pruner.program.index.divide import floordiv, floormod
from pruner.program.nests import (
    Allocation,
    Buffer,
    BufferStore,
    Loop,
    LoopNests,
    Mark,
    Scope,
    StoreKind,
    is_bound,
)
from pruner.program.te.bounds import Bounds, infer_bounds
from pruner.program.te.schedule import (
    Attach,
    FuseRelation,
    IterVar,
    Schedule,
    SplitRelation,
    StageState,
    touched_by,
)

_REDUCES, _SPATIAL = 2, 1  # which kinds of axes a loop was made of (flags of MakeReduction)
Around = tuple[Loop, ...]


def lower(schedule: Schedule) -> LoopNests:
    """Lower the N programs of a schedule; infer their bounds first.

    Raises `UnsupportedProgram` as :func:`infer_bounds`, `ReplayFailed` for damaged steps.
    """
    try:
        return _lowered(schedule)
    except (UnsupportedProgram, MemoryError):
        raise
    except Exception as error:
        raise ReplayFailed.of(error) from error


def _lowered(schedule: Schedule) -> LoopNests:
    bounds = infer_bounds(schedule)
    buffers = [
        Buffer(
            key=stage.key,
            name=stage.name,
            dtype=stage.dtype,
            shape=stage.shape,
            scope=bounds.scopes.get(stage.key, Scope.GLOBAL),
            is_param=stage.body is None or stage.is_output,
        )
        for stage in schedule.pool
    ]
    nests = LoopNests(schedule.num_programs, buffers, resolved=bounds.resolved)
    lowering = _Lowering(schedule, bounds, nests)
    for key in schedule.nest_order:
        stage = schedule.pool[key]
        # Inputs have no body, and attached stages are emitted inside their consumer's loops.
        if stage.attach == "root" and key in bounds.bodies:
            lowering.emit_stage(stage, (), 0)
    return nests


@dataclass(slots=True, eq=False)
class _Lowering:
    schedule: Schedule
    bounds: Bounds
    nests: LoopNests

    def emit_stage(self, stage: StageState, loops: Around, unroll: IntLike) -> None:
        """Allocate the buffer, then emit its computation (``MakePipeline``)."""
        extents = tuple(axis.extent for axis in stage.axes)
        buffer = self.nests.buffers[stage.key]
        self.nests.allocations[stage.key] = Allocation(buffer, loops, extents)
        if any(leaf.kind == "reduce" and is_bound(stage.marks.get(leaf)) for leaf in stage.leaves):
            self._emit_cross_thread(stage, loops, unroll)
        else:
            self._emit_nest(stage, loops, unroll)

    def _emit_attached(
        self, stage: StageState, leaf: IterVar, loops: Around, unroll: IntLike
    ) -> None:
        """Emit the stages computed at loop ``leaf``, depth first (``InjectAttach``)."""
        for key in self.schedule.nest_order:
            producer = self.schedule.pool[key]
            spec = producer.attach
            if isinstance(spec, Attach) and spec.stage == stage.key and spec.loop is leaf:
                self.emit_stage(producer, loops, unroll)

    def _emit_nest(self, stage: StageState, loops: Around, unroll: IntLike) -> None:
        """Emit a stage's loops around its store; initialise a reduction before."""
        axes = dict.fromkeys(stage.axes, _SPATIAL) | dict.fromkeys(stage.reduce, _REDUCES)
        flags = touched_by(stage, axes)
        # The initial value is stored right outside the first loop made of a reduction axis.
        first_reduce = next(
            (i for i, leaf in enumerate(stage.leaves) if flags.get(leaf, 0) & _REDUCES),
            len(stage.leaves),
        )
        values: dict[IterVar, Affine] = {}
        for i, leaf in enumerate(stage.leaves):
            if i == first_reduce:
                self._emit_init(stage, loops, unroll, values, flags, first_reduce)
            unroll = _unroll_under(stage, leaf, unroll)
            loops = (*loops, _open(stage, leaf))
            values[leaf] = af.variable(loops[-1].var)
            self._emit_attached(stage, leaf, loops, unroll)
        # Inlining leaves constants to fold; TVM simplifies before features count operations.
        body = fold(self.bounds.bodies[stage.key])
        kind: StoreKind = "update" if stage.reduce else "plain"
        value = _update(stage, body) if stage.reduce else body
        self.nests.stores.append(self._store(stage, kind, value, loops, values, unroll))

    def _store(
        self,
        stage: StageState,
        kind: StoreKind,
        value: Expr,
        loops: Around,
        values: dict[IterVar, Affine],
        unroll: IntLike,
    ) -> BufferStore:
        slots = root_values(stage, values, self.bounds)
        return BufferStore(self.nests.buffers[stage.key], kind, value, loops, slots, unroll)

    def _emit_init(
        self,
        stage: StageState,
        loops: Around,
        unroll: IntLike,
        values: dict[IterVar, Affine],
        flags: dict[IterVar, int],
        first: int,
    ) -> None:
        """Emit ``C[...] = identity`` under its own loops, before the first reduction."""
        own = dict(values)
        for leaf in stage.leaves[first:]:
            # A loop of reduction axes only has no part in the output's index: no loop of the init.
            if flags.get(leaf, 0) == _REDUCES:
                own[leaf] = Affine()
                continue
            unroll = _unroll_under(stage, leaf, unroll)
            # A GPU index is the same in both nests; an ordinary loop is made anew.
            bound = is_bound(stage.marks.get(leaf))
            var = None if bound else LoopVar(leaf.name + ".init", leaf.extent)
            loops = (*loops, _open(stage, leaf, var))
            own[leaf] = af.variable(loops[-1].var)
        value = Const(stage.identity, stage.dtype)
        self.nests.stores.append(self._store(stage, "init", value, loops, own, unroll))

    def _emit_cross_thread(self, stage: StageState, loops: Around, unroll: IntLike) -> None:
        """Emit a cross-thread reduction: only its final write is a store."""
        values: dict[IterVar, Affine] = {}
        whole: dict[IterVar, Affine] = {}
        every = loops
        for leaf in stage.leaves:
            opened = _open(stage, leaf)
            every = (*every, opened)
            whole[leaf] = af.variable(opened.var)
            if leaf.kind == "reduce" and not opened.is_bound:
                values[leaf] = Affine()
                continue
            values[leaf] = whole[leaf]
            unroll = _unroll_under(stage, leaf, unroll)
            loops = (*loops, opened)
            self._emit_attached(stage, leaf, loops, unroll)
        update = _update(stage, fold(self.bounds.bodies[stage.key]))
        # The stored value is a call (tvm_thread_allreduce), which has no operations to count.
        value = Const(0.0, stage.dtype)
        store = self._store(stage, "allreduce", value, loops, values, unroll)
        # The update inside the call is kept beside the visible store: symbols count its work.
        store.reduction = self._store(stage, "update", update, every, whole, unroll)
        self.nests.stores.append(store)


def _open(stage: StageState, leaf: IterVar, var: LoopVar | None = None) -> Loop:
    assert leaf.var is not None, "bounds were inferred"
    mark: Mark | None = stage.marks.get(leaf)
    return Loop(var or leaf.var, leaf.extent, mark, leaf.kind)


def _unroll_under(stage: StageState, leaf: IterVar, unroll: IntLike) -> IntLike:
    """Return the unroll depth under ``leaf``; GPU indices drop their pragmas."""
    if is_bound(stage.marks.get(leaf)):
        return unroll
    return stage.unroll.get(leaf, unroll)


def _update(stage: StageState, body: Expr) -> Binary:
    """Return ``self op body``; the empty load is the store's own element."""
    if stage.combiner is None:
        raise UnsupportedProgram("unknown-reduction", stage.name)
    return Binary(stage.combiner, Load(stage.key, (), stage.dtype), body, stage.dtype)


@dataclass(frozen=True, slots=True)
class _Quotient:
    """``total div divisor``; ``lead``: factor of ``total``'s outer part, 0 if none."""

    total: Affine
    divisor: IntLike
    lead: IntLike

    @property
    def value(self) -> Affine:
        return floordiv(self.total, self.divisor)

    def divided(self, by: IntLike) -> _Quotient:
        # The floordiv rules match a bare sum only: after a division nothing is pulled out.
        pulls = (self.divisor == 1) & (self.lead > 0) & (self.lead % by == 0)
        pulls = pulls | (by == 1)
        lead = af.where(pulls, self.lead // by, 0)
        lead = af.where(lead == 1, 0, lead)
        total = af.select(pulls, floordiv(self.total, by), self.total)
        return _Quotient(total, af.where(pulls, self.divisor, self.divisor * by), lead)


class _PassUp:
    """Values of a stage's axes from its loops (``PassUpIndex`` of message_passing.cc).

    Fused loops are taken apart by repeated division. The rewriting simplifier pulls ``outer *
    factor`` out of a division that divides the factor, and else collapses nested divisions (the
    ``floordiv`` rules of src/arith/rewrite_simplify.cc): features count the divisions, so the
    pieces of every fused value are kept. Where tiles do not divide a loop, the store is guarded
    with ``value < extent`` for the loop and what it was fused from (``MakeBoundCheck``).
    """

    def __init__(self, leaves: dict[IterVar, Affine]) -> None:
        self.values = {loop: _Quotient(value, 1, 0) for loop, value in leaves.items()}
        self.guarded: dict[IterVar, IntLike] = {}

    def split(self, rel: SplitRelation) -> None:
        """Compute ``parent = inner + outer * factor``."""
        inner, outer = self.values[rel.inner], self.values[rel.outer]
        factor = rel.inner.extent
        total = af.add(inner.value, outer.value, factor)
        # A ragged split needs a guard, and so does every value made of a guarded part.
        ragged = af.where(factor * rel.outer.extent != rel.parent.extent, 1, 0)
        inside = af.most(self.guarded.get(rel.outer, 0), self.guarded.get(rel.inner, 0))
        self.guarded[rel.parent] = af.most(ragged, inside)
        alone = rel.outer.extent == 1
        lead = af.where(alone, inner.lead, af.where(factor == 1, outer.lead, factor))
        total = self._guard(total, rel.parent)
        self.values[rel.parent] = _Quotient(total, 1, lead)

    def fuse(self, rel: FuseRelation) -> None:
        """Compute ``outer = fused div extent`` and ``inner = fused mod extent``."""
        fused, extent = self.values[rel.fused], rel.inner.extent
        self.guarded[rel.outer] = self.guarded[rel.inner] = self.guarded.get(rel.fused, 0)
        outer = fused.divided(extent)
        # A divided total is no longer the loop's value: the guard's bound holds undivided only.
        whole = outer.divisor == 1
        total = self._guard(outer.total, rel.outer, whole)
        self.values[rel.outer] = _Quotient(total, outer.divisor, outer.lead)
        remainder = self._guard(floormod(fused.value, extent), rel.inner)
        self.values[rel.inner] = _Quotient(remainder, 1, 0)

    def of(self, root: IterVar) -> Affine:
        return self._guard(self.values[root].value, root)

    def _guard(self, value: Affine, loop: IterVar, where: Truth = True) -> Affine:
        guard = (self.guarded.get(loop, 0) != 0) & where
        if not af.any_nonzero(guard):
            return value
        return af.with_limit(value, af.where(guard, loop.extent, af.INF))


def root_values(
    stage: StageState, leaves: dict[IterVar, Affine], bounds: Bounds
) -> tuple[Affine, ...]:
    """Return the values of the axis slots: spatial axes, then reduce axes."""
    up = _PassUp(leaves)
    # From the leaves to the roots, so against the order in which the relations were made.
    for rel in reversed(stage.relations):
        if isinstance(rel, SplitRelation):
            up.split(rel)
        else:
            up.fuse(rel)
    return tuple(af.add(up.of(root), bounds.mins[root]) for root in stage.roots)
