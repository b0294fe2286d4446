"""Tiles of a skeleton as formulas: loops, regions and accesses without touching a candidate.

A lean twin of bound inference (:mod:`pruner.program.te.bounds`) for the draft: the same relaxation
rules, but an index is a plain sum of scaled loop *parts* and every extent is a formula over the
decision columns. It is exact for perfect tilings, which is what schedule spaces contain;
`tiling_check` compares it with the general engine on real candidates.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from pruner.errors import UnsupportedProgram
from pruner.features.symbols.closed import formula as fm
from pruner.features.symbols.closed.formula import ONE, Formula
from pruner.features.symbols.closed.tiling_index import (
    Access,
    Index,
    Part,
    Statement,
    TiledLoop,
    evaluate,
    fixed,
    shift,
)
from pruner.program.dag.dag import ComputeDAG
from pruner.program.dag.expr import Expr, Load, loads
from pruner.program.te.apply import replay
from pruner.program.te.bounds import (
    attach_path,
    feeds_thread,
    scope_rank_of,
    thread_rank,
)
from pruner.program.te.inline import inline_bodies
from pruner.program.te.schedule import Attach, Loop, Schedule, SplitRelation, StageState
from pruner.program.te.steps import Primitive, RFactor, Split, UnrollPragma


@dataclass(slots=True, eq=False)
class Tiling:
    """All statements of a skeleton in program order of their stages."""

    dag: ComputeDAG
    skeleton: tuple[Primitive, ...]
    schedule: Schedule
    statements: list[Statement] = field(default_factory=list)
    extents: dict[Loop, Formula] = field(default_factory=dict)


def tile_skeleton(dag: ComputeDAG, skeleton: tuple[Primitive, ...]) -> Tiling:
    """Statements of ``skeleton`` with formulas over its decision slots.

    Raises:
        UnsupportedProgram: rfactor, an index that divides, or reads that start at different loops.
    """
    if any(isinstance(step, RFactor) for step in skeleton):
        raise UnsupportedProgram("draft-rfactor", "no formulas for rfactor")
    primes = _primes(_num_slots(skeleton))
    schedule = replay(dag, skeleton, np.asarray([primes], np.int64))
    return _Tiler(dag, skeleton, schedule, primes).run()


def _num_slots(skeleton: tuple[Primitive, ...]) -> int:
    used = [-1]
    for step in skeleton:
        if isinstance(step, Split):
            used.extend(step.slots)
        elif isinstance(step, UnrollPragma):
            used.append(step.slot)
    return max(used) + 1


def _primes(count: int) -> list[int]:
    """Primes beyond any extent: a product of decisions tells which slots it holds."""
    found: list[int] = []
    candidate = 1_000_003
    while len(found) < count:
        if all(candidate % d for d in range(3, 1002, 2)):
            found.append(candidate)
        candidate += 2
    return found


class _Tiler:
    """Bound inference on formulas, from the outputs to the inputs."""

    def __init__(
        self,
        dag: ComputeDAG,
        skeleton: tuple[Primitive, ...],
        schedule: Schedule,
        primes: list[int],
    ) -> None:
        self._primes = primes
        self._schedule = schedule
        self._bodies: dict[int, Expr] = {}
        self._scopes: dict[int, int] = {}
        self._mins: dict[Loop, Index] = {}
        self._values: dict[int, list[Index]] = {}
        self.out = Tiling(dag, skeleton, schedule)

    def run(self) -> Tiling:
        _move_attach_points(self._schedule)
        self._bodies = inline_bodies(self._schedule)
        order = [k for k in self._schedule.nest_order if self._schedule.pool[k].attach != "inline"]
        for key in reversed(order):
            self._infer(self._schedule.pool[key])
        for key in order:
            if key in self._bodies:
                self.out.statements.append(self._statement(self._schedule.pool[key]))
        return self.out

    def _decode(self, value: object) -> Formula:
        number = int(np.ravel(np.asarray(value, object))[0])
        out = ONE
        for slot, prime in enumerate(self._primes):
            while number % prime == 0:
                out, number = out * fm.slot(slot), number // prime
        return out * float(number)

    def _infer(self, stage: StageState) -> None:
        self._scopes[stage.key] = scope_rank_of(self._schedule, stage)
        whole = stage.is_output or stage.is_placeholder
        for d, axis in enumerate(stage.axes):
            if whole:
                self._set_root(axis, Formula(float(np.ravel(stage.shape[d])[0])), Index())
            else:
                self._region(stage, d, axis)
        for axis in stage.reduce:
            self._set_root(axis, Formula(float(axis.extent)), Index())
        self._extents_down(stage)
        self._values[stage.key] = [shift(self._up(stage, r), self._mins[r]) for r in stage.roots]

    def _set_root(self, axis: Loop, extent: Formula, start: Index) -> None:
        self.out.extents[axis] = extent
        self._mins[axis] = start

    def _region(self, stage: StageState, d: int, axis: Loop) -> None:
        path = attach_path(self._schedule, stage)
        attach_loop = path[0][1] if path else None
        found: list[tuple[Index, Formula]] = []
        for consumer in self._schedule.pool:
            body = self._bodies.get(consumer.key)
            if body is None or consumer.key == stage.key:
                continue
            reads = [load for load in loads(body) if load.stage == stage.key]
            if not reads:
                continue
            moving = self._moving(consumer, attach_loop, stage)
            for read in reads:
                index = evaluate(read.indices[d], self._values[consumer.key])
                width = index.width(moving)
                start = fixed(index, moving)
                if not start.parts:
                    width = fm.minimum(width, Formula(float(np.ravel(stage.shape[d])[0])))
                found.append((start, width))
        if not found:
            raise UnsupportedProgram("unread-stage", stage.name)
        start, width = found[0]
        for other, wider in found[1:]:
            if {p for p, _ in other.parts} != {p for p, _ in start.parts}:
                raise UnsupportedProgram("draft-union", f"{stage.name}: unlike reads")
            width = fm.maximum(width, wider)
        self._set_root(axis, width, start)

    def _moving(
        self, consumer: StageState, attach_loop: Loop | None, stage: StageState
    ) -> set[Loop]:
        """Loops that one run of ``stage`` serves as a whole (the relaxation rule of TE)."""
        rank = self._scopes[stage.key]
        found = False
        moving: set[Loop] = set()
        around = [(consumer, loop) for loop in reversed(consumer.leaves)]
        for owner, loop in [*around, *attach_path(self._schedule, consumer)]:
            found = found or loop is attach_loop
            thread = thread_rank(owner.marks.get(loop))
            if (not found) if thread is None else rank <= thread:
                moving.add(loop)
        return moving

    def _extents_down(self, stage: StageState) -> None:
        extents = self.out.extents
        perfect = self._perfect_loops(stage)
        bound = feeds_thread(stage)
        for rel in stage.relations:
            if not isinstance(rel, SplitRelation):
                extents[rel.fused] = extents[rel.outer] * extents[rel.inner]
                continue
            extent = extents[rel.parent]
            by_factor = rel.factor is not None
            given = self._decode(rel.factor if by_factor else rel.nparts)
            kept, other = (rel.inner, rel.outer) if by_factor else (rel.outer, rel.inner)
            # the thread split of a cross-thread reduction is no tiling: any length may come
            ragged = rel.parent.kind == "reduce" and kept in bound
            exact = (rel.parent in perfect and not ragged) or _divides(given, extent)
            extents[other] = extent / given if exact else fm.ceil(extent / given)
            if exact or kept in bound:
                extents[kept] = given
            else:
                extents[kept] = fm.minimum(extent, given)
            if not exact and extent == ONE:
                extents[other] = ONE
                extents[kept] = given if kept in bound else ONE

    def _perfect_loops(self, stage: StageState) -> set[Loop]:
        """Loops over a whole axis: schedule spaces hold only tilings that divide these."""
        perfect = {r for r in stage.roots if self._is_whole(stage, r)}
        for rel in stage.relations:
            if isinstance(rel, SplitRelation):
                if rel.parent in perfect:
                    perfect |= {rel.outer, rel.inner}
            elif rel.outer in perfect and rel.inner in perfect:
                perfect.add(rel.fused)
        return perfect

    def _is_whole(self, stage: StageState, root: Loop) -> bool:
        extent = self.out.extents[root]
        if root in stage.reduce:
            return True
        size = float(np.ravel(stage.shape[stage.axes.index(root)])[0])
        return extent.is_constant and extent.constant == size and extent != ONE

    def _up(self, stage: StageState, root: Loop) -> Index:
        """A root loop as a sum of parts of the leaves."""
        extents = self.out.extents

        def down(loop: Loop) -> tuple[Loop, ...]:
            if loop in stage.leaves:
                return (loop,)
            for rel in stage.relations:
                if isinstance(rel, SplitRelation):
                    if rel.parent is loop:
                        return (*down(rel.outer), *down(rel.inner))
                elif loop in (rel.outer, rel.inner):
                    return down(rel.fused)
            return ()

        def value(loop: Loop) -> tuple[tuple[Part, Formula], ...]:
            if extents[loop] == ONE:
                return ()
            if loop in stage.leaves:
                return ((Part(extents[loop], (loop,)), ONE),)
            for rel in stage.relations:
                if isinstance(rel, SplitRelation):
                    if rel.parent is loop:
                        outer = tuple((p, c * extents[rel.inner]) for p, c in value(rel.outer))
                        return outer + value(rel.inner)
                elif loop in (rel.outer, rel.inner):
                    return ((Part(extents[loop], down(rel.fused)), ONE),)
            return ()

        return Index(value(root))

    def _statement(self, stage: StageState) -> Statement:
        body = self._bodies[stage.key]
        path = list(reversed(attach_path(self._schedule, stage)))
        own = [(stage, leaf) for leaf in stage.leaves]
        loops = tuple(
            TiledLoop(
                loop=loop,
                extent=self.out.extents[loop],
                mark=owner.marks.get(loop),
                is_reduce=loop.kind == "reduce",
                is_own=owner is stage,
            )
            for owner, loop in (*path, *own)
        )
        roots = self._values[stage.key]
        unroll: Formula = fm.ZERO
        for owner, loop in (*path, *own):
            if thread_rank(owner.marks.get(loop)) is None and loop in owner.unroll:
                unroll = self._decode(owner.unroll[loop])
        return Statement(
            stage=stage,
            scope=self._scopes[stage.key],
            body=body,
            loops=loops,
            write=Access(stage, self._scopes[stage.key], tuple(roots[: len(stage.axes)])),
            reads=tuple(self._reads(body, roots)),
            tile=tuple(self.out.extents[axis] for axis in stage.axes),
            unroll=unroll,
        )

    def _reads(self, body: Expr, roots: list[Index]) -> Iterable[Access]:
        seen: set[Load] = set()
        for load in loads(body):
            if load in seen:
                continue
            seen.add(load)
            indices = tuple(evaluate(index, roots) for index in load.indices)
            yield Access(self._schedule.pool[load.stage], self._scopes[load.stage], indices)


def _divides(given: Formula, extent: Formula) -> bool:
    quotient = extent / given
    return all(power > 0 for _, power in quotient.powers) and quotient.constant == int(
        quotient.constant
    )


def _move_attach_points(schedule: Schedule) -> None:
    """Attach points split or fused later move to the inner or the fused loop."""
    for stage in schedule.pool:
        if not isinstance(stage.attach, Attach):
            continue
        target, loop = schedule.pool[stage.attach.stage], stage.attach.loop
        while loop not in target.leaves:
            for rel in target.relations:
                if isinstance(rel, SplitRelation) and rel.parent is loop:
                    loop = rel.inner
                    break
                if not isinstance(rel, SplitRelation) and rel.inner is loop:
                    loop = rel.fused
                    break
            else:
                raise UnsupportedProgram("bad-compute-at", f"{stage.name} has no attach point")
        stage.attach = Attach(target.key, loop)
