"""Infer bounds for N programs: the extent of every loop and buffer.

Follows TE's ``InferBound`` (src/te/schedule/bound.cc and message_passing.cc): a stage's axes cover
what its consumers touch inside the attach point; loops inside it, and threads that share the
buffer, are relaxed to their whole range.
"""

from __future__ import annotations

from dataclasses import dataclass

from pruner.arrays import IntLike
from pruner.errors import UnsupportedProgram
from pruner.program.dag.expr import Const, Expr, Load, loads, rewrite, substitute_axes
from pruner.program.index import affine as af
from pruner.program.index.affine import Affine, LoopVar, Truth
from pruner.program.index.divide import floordiv, floormod
from pruner.program.index.regions import (
    UNKNOWN_WIDTH,
    Region,
    clip_to_shape,
    evaluate_region,
    relax,
    span,
    union,
)
from pruner.program.nests import Scope, is_bound, thread_rank
from pruner.program.te.schedule import Attach, IterVar, Schedule, SplitRelation, StageState


@dataclass(slots=True, eq=False)
class Bounds:
    """Result of inference: bodies after inlining, starts and scopes by key.

    ``resolved``: where every buffer has a size that is a number (TVM fails on other programs).
    """

    bodies: dict[int, Expr]
    mins: dict[IterVar, Affine]
    scopes: dict[int, Scope]
    resolved: Truth = True


def infer_bounds(schedule: Schedule) -> Bounds:
    """Fill in extents and variables; raise `UnsupportedProgram` without a batched region."""
    _legalize_attach(schedule)
    bodies = inline_bodies(schedule)
    out = Bounds(bodies, {}, {})
    # From the outputs to the inputs: a producer's size depends on its consumers' loops.
    for key in reversed(schedule.nest_order):
        stage = schedule.pool[key]
        if stage.attach == "inline":
            continue
        out.scopes[key] = scope_of(schedule, stage)
        # Outputs and inputs have the size of their tensors, whatever their consumers touch.
        if stage.is_output or stage.body is None:
            for axis, extent in zip(stage.axes, stage.shape, strict=True):
                axis.extent = extent
                out.mins[axis] = Affine()
        else:
            _root_region(schedule, stage, out)
        # A reduction always runs over all its iterations.
        for axis in stage.reduce:
            out.mins[axis] = Affine()
        _extents_down(stage)
        for leaf in stage.leaves:
            leaf.var = LoopVar(leaf.name, leaf.extent)
    return out


def _legalize_attach(schedule: Schedule) -> None:
    """Move attach points to inner or fused loops (TE's ``Schedule::normalize``)."""
    for stage in schedule.pool:
        if not isinstance(stage.attach, Attach):
            continue
        target = schedule.pool[stage.attach.stage]
        loop = stage.attach.loop
        moved = True
        while moved and loop not in target.leaves:
            moved = False
            for rel in target.relations:
                if isinstance(rel, SplitRelation) and rel.parent is loop:
                    loop, moved = rel.inner, True
                elif not isinstance(rel, SplitRelation) and rel.inner is loop:
                    loop, moved = rel.fused, True
        # A loop that fusing consumed as the outer part cannot hold a stage.
        if loop not in target.leaves:
            raise UnsupportedProgram("bad-compute-at", f"{stage.name} has no attach point")
        stage.attach = Attach(target.key, loop)


def attach_path(schedule: Schedule, stage: StageState) -> list[tuple[StageState, IterVar]]:
    """Return the loops around ``stage``, innermost first, with owners (``CreateAttachPath``)."""
    path: list[tuple[StageState, IterVar]] = []
    spec = stage.attach
    while isinstance(spec, Attach):
        owner = schedule.pool[spec.stage]
        cut = owner.leaves.index(spec.loop)
        path.extend((owner, loop) for loop in reversed(owner.leaves[: cut + 1]))
        spec = owner.attach
    return path


def scope_of(schedule: Schedule, stage: StageState) -> Scope:
    """Return the stage's scope, by default that of the threads around it."""
    if stage.scope:
        return Scope.of(stage.scope)
    ranks = [
        rank
        for owner, loop in attach_path(schedule, stage)
        if (rank := thread_rank(owner.marks.get(loop))) is not None
    ]
    # InferStorageScope: inside blocks shared, inside threads local, otherwise global.
    return {-1: Scope.GLOBAL, 0: Scope.SHARED, 1: Scope.LOCAL}[max(ranks, default=-1)]


def _needs_relax(owner: StageState, loop: IterVar, found: bool, rank: int) -> bool:
    # NeedRelax of bound.cc: loops inside the attach point, and threads that share the buffer.
    thread = thread_rank(owner.marks.get(loop))
    return not found if thread is None else rank <= thread


def _root_region(schedule: Schedule, stage: StageState, out: Bounds) -> None:
    path = attach_path(schedule, stage)
    attach_loop = path[0][1] if path else None
    regions: list[list[Region]] = [[] for _ in stage.axes]
    for consumer in schedule.pool:
        body = out.bodies.get(consumer.key)
        if body is None or consumer.key == stage.key:
            continue
        reads = [load for load in loads(body) if load.stage == stage.key]
        if not reads:
            continue
        domains = _consumer_domains(schedule, consumer, attach_loop, out, stage)
        for read in reads:
            # Every read counts by itself: two reads of one stage (a stencil) cover a union.
            for d, index in enumerate(read.indices):
                region = evaluate_region(index, domains)
                regions[d].append(clip_to_shape(region, stage.shape[d]))
    for axis, found in zip(stage.axes, regions, strict=True):
        if not found:
            raise UnsupportedProgram("unread-stage", stage.name)
        region = union(found)
        extent = region.hi - region.lo + 1
        fixed = extent < UNKNOWN_WIDTH
        out.resolved = out.resolved & fixed
        # An unresolved size becomes 1, so that the other programs of the batch go on.
        axis.extent = af.where(fixed, extent, 1)
        out.mins[axis] = af.add(region.start, af.const(region.lo))


def _consumer_domains(
    schedule: Schedule,
    consumer: StageState,
    attach_loop: IterVar | None,
    out: Bounds,
    stage: StageState,
) -> list[Region]:
    """Return the region of each root loop served by a ``stage`` run."""
    rank = out.scopes[stage.key]
    found = False
    state: dict[IterVar, Region | None] = {}  # None: the whole range
    # From the innermost loop outwards: `found` turns true at the attach point.
    for loop in reversed(consumer.leaves):
        found = found or loop is attach_loop
        if _needs_relax(consumer, loop, found, rank):
            state[loop] = None
        else:
            assert loop.var is not None
            state[loop] = Region(af.variable(loop.var), 0, 0)
    relaxed: set[LoopVar] = set()
    # Loops around the consumer may share the buffer, too (threads of an outer stage).
    for owner, loop in attach_path(schedule, consumer):
        found = found or loop is attach_loop
        if _needs_relax(owner, loop, found, rank):
            assert loop.var is not None
            relaxed.add(loop.var)
    if attach_loop is not None and not found:
        raise UnsupportedProgram("bad-compute-at", f"{stage.name} is outside {consumer.name}")
    _domains_up(consumer, state)
    domains = []
    for root in consumer.roots:
        region = state.get(root)
        whole = Region(Affine(), 0, root.extent - 1) if region is None else region
        start = af.add(whole.start, out.mins[root])
        domains.append(relax(Region(start, whole.lo, whole.hi), relaxed))
    return domains


def _domains_up(stage: StageState, state: dict[IterVar, Region | None]) -> None:
    """Propagate regions from leaf to root loops; None: whole range (``PassUpDomain``)."""
    for rel in reversed(stage.relations):
        if isinstance(rel, SplitRelation):
            outer, inner = state[rel.outer], state[rel.inner]
            if outer is None and inner is None:
                state[rel.parent] = None
                continue
            o = outer or Region(Affine(), 0, rel.outer.extent - 1)
            i = inner or Region(Affine(), 0, rel.inner.extent - 1)
            factor = rel.inner.extent
            # The parent runs whole where both loops do, or have extent 1.
            covered: Truth = outer is None or rel.outer.extent == 1
            covered = covered & (inner is None or rel.inner.extent == 1)
            hi = af.where(covered, rel.parent.extent - 1, o.hi * factor + i.hi)
            start = af.add(i.start, o.start, factor)
            state[rel.parent] = Region(start, o.lo * factor + i.lo, hi)
            continue
        fused = state[rel.fused]
        if fused is None:
            state[rel.outer] = state[rel.inner] = None
        else:
            state[rel.outer], state[rel.inner] = _unfuse(fused, rel.inner.extent)


def _unfuse(fused: Region, inner_extent: IntLike) -> tuple[Region, Region]:
    """Return the outer and inner part of a fused loop's region (``PassUpDomain``)."""
    width = fused.hi - fused.lo + 1
    start = af.add(fused.start, af.const(fused.lo))
    point = width == 1
    if af.everywhere(point):
        return (
            Region(floordiv(start, inner_extent), 0, 0),
            Region(floormod(start, inner_extent), 0, 0),
        )
    first, last = floordiv(start, inner_extent), start
    last = floordiv(af.add(last, af.const(width - 1)), inner_extent)
    width_outer = span(last, first)
    # Exact where the interval stays inside one row: its width divides the row and it starts at a
    # multiple of the width. Otherwise TVM assumes the whole inner range.
    tight = point | ((inner_extent % width == 0) & _multiple_of(start, width))
    if af.everywhere(tight):
        inner_start, inner_hi = floormod(start, inner_extent), width - 1
    elif not af.any_nonzero(tight):
        inner_start, inner_hi = Affine(), inner_extent - 1
    else:
        inner_start = af.mul(floormod(start, inner_extent), af.where(tight, 1, 0))
        inner_hi = af.where(tight, width - 1, inner_extent - 1)
    return Region(first, 0, width_outer), Region(inner_start, 0, inner_hi)


def _multiple_of(a: Affine, divisor: IntLike) -> Truth:
    exact = a.base % divisor == 0
    for t in a.terms:
        exact = exact & (t.coef % divisor == 0)
    return exact


def _extents_down(stage: StageState) -> None:
    """Propagate extents from root to leaf loops (``PassDownDomain``)."""
    bound = feeds_thread(stage)
    for rel in stage.relations:
        if not isinstance(rel, SplitRelation):
            rel.fused.extent = rel.outer.extent * rel.inner.extent
            continue
        extent, (kept, other) = rel.parent.extent, rel.parts
        # A tile larger than its loop shrinks to the loop, but a thread index keeps the launch size.
        kept.extent = rel.factor if kept in bound else af.least(extent, rel.factor)
        other.extent = -(-extent // rel.factor)


def feeds_thread(stage: StageState) -> set[IterVar]:
    """Return the loops from which a thread-bound leaf is made (``PassUpThreadBinding``)."""
    bound = {leaf for leaf in stage.leaves if is_bound(stage.marks.get(leaf))}
    for rel in reversed(stage.relations):
        if isinstance(rel, SplitRelation):
            if rel.inner in bound or rel.outer in bound:
                bound.add(rel.parent)
        elif rel.fused in bound:
            bound |= {rel.outer, rel.inner}
    return bound


def inline_bodies(schedule: Schedule) -> dict[int, Expr]:
    """Return stage bodies with inlined stages; Winograd's constants become 1, as Ansor's."""
    inlined = {s.key: s for s in schedule.pool if s.attach == "inline" and s.body is not None}

    def rule(node: Expr) -> Expr:
        if not isinstance(node, Load) or node.stage not in inlined:
            return node
        stage = inlined[node.stage]
        if stage.const_matrix:
            return Const(1.0, stage.dtype)
        assert stage.body is not None
        # Repeated inside: an inlined stage may read another inlined stage.
        return rewrite(substitute_axes(stage.body, node.indices), rule)

    return {
        s.key: rewrite(s.body, rule)
        for s in schedule.pool
        if s.body is not None and s.key not in inlined
    }
