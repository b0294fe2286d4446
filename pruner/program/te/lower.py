"""Loop nests: the scheduled program as stores under loops, for N candidates at once.

The structure (which store stands under which loops, in which order) is common to all candidates.
A loop whose extent is 1 in some of them is *absent* there, because lowering removes it; loops bound
to GPU indices stay as attributes whatever their extent. Follows TE's ``ScheduleOps`` and
``MakeLoopNest`` (src/te/schedule/schedule_ops.cc, src/te/operation/op_utils.cc).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import IntLike, Ints
from pruner.errors import UnsupportedProgram
from pruner.program.dag.dag import ComputeDAG
from pruner.program.dag.expr import Binary, Const, Expr, Load
from pruner.program.dag.fold import fold
from pruner.program.index import affine as af
from pruner.program.index.affine import Affine, LoopVar
from pruner.program.te.apply import replay
from pruner.program.te.bounds import Bounds, infer_bounds, thread_rank
from pruner.program.te.root_values import root_values
from pruner.program.te.schedule import Attach, Loop, Schedule, StageState, touched_by
from pruner.program.te.steps import Primitive

StoreKind = Literal["init", "update", "plain", "allreduce"]


@dataclass(eq=False, slots=True)
class NestLoop:
    """One loop around stores; ``mark`` is its annotation.

    ``number`` identifies the loop in tables of what was touched. A loop bound to a GPU index takes
    the number of the last such loop that was closed: the original keys its tables by the address
    of a temporary node, which the allocator hands out again (a defect of feature.cc that the
    released models have learned with). ``forgets``: where the allocator did not, so that the table
    starts empty.
    """

    number: int
    var: LoopVar
    extent: IntLike
    mark: str | None
    forgets: NDArray[np.bool_] | np.bool_ = field(default_factory=lambda: np.bool_(False))

    @property
    def is_thread(self) -> bool:
        """Bound to a GPU index (block, thread or virtual thread)."""
        return thread_rank(self.mark) is not None

    @property
    def present(self) -> NDArray[np.bool_] | np.bool_:
        """Where the loop survives lowering."""
        return np.bool_(True) if self.is_thread else np.not_equal(self.extent, 1)


@dataclass(eq=False, slots=True)
class Store:
    """One buffer store: ``buffer[axes] = value`` under ``loops`` (outermost first).

    ``roots`` are the simplified values of the stage's axis slots; ``unroll`` the depth in force.
    """

    stage: StageState
    kind: StoreKind
    value: Expr
    loops: tuple[NestLoop, ...]
    roots: tuple[Affine, ...]
    unroll: IntLike


@dataclass(eq=False, slots=True)
class Allocation:
    """A buffer that lives inside the kernel: where and how large (elements per axis)."""

    stage: StageState
    loops: tuple[NestLoop, ...]
    extents: tuple[IntLike, ...]


@dataclass(eq=False, slots=True)
class LoopNests:
    """All stores in program order, and the allocations by stage key."""

    num_programs: int
    schedule: Schedule
    bounds: Bounds
    stores: list[Store] = field(default_factory=list)
    allocations: dict[int, Allocation] = field(default_factory=dict)
    num_loops: int = 0
    free_numbers: list[int] = field(default_factory=list)
    refills: NDArray[np.bool_] | np.bool_ = field(default_factory=lambda: np.bool_(False))


def build_nests(dag: ComputeDAG, skeleton: tuple[Primitive, ...], decisions: Ints) -> LoopNests:
    """Replay, infer bounds and lay out the loop nests of N programs.

    Args:
        dag: the operator.
        skeleton: primitives common to all programs.
        decisions: int64 [N, d] decision vectors.

    Raises:
        UnsupportedProgram: see :func:`replay` and :func:`infer_bounds`.
    """
    schedule = replay(dag, skeleton, decisions)
    bounds = infer_bounds(schedule)
    nests = LoopNests(len(decisions), schedule, bounds)
    kernels = [
        schedule.pool[key]
        for key in schedule.nest_order
        if schedule.pool[key].attach == "root" and key in bounds.bodies
    ]
    nests.refills = _refills(kernels)
    for stage in kernels:
        _emit_stage(nests, stage, (), 0)
    return nests


def _open(
    nests: LoopNests, stage: StageState, leaf: Loop, var: LoopVar, around: tuple[NestLoop, ...]
) -> NestLoop:
    mark = stage.marks.get(leaf)
    if thread_rank(mark) is None or not nests.free_numbers:
        nests.num_loops += 1
        return NestLoop(nests.num_loops - 1, var, leaf.extent, mark)
    inner = any(loop.is_thread for loop in around)
    return NestLoop(nests.free_numbers.pop(), var, leaf.extent, mark, inner & nests.refills)


def _refills(kernels: list[StageState]) -> NDArray[np.bool_] | np.bool_:
    """Where the allocator's short list runs out at a nested thread loop.

    After simplification glibc's per-thread list holds one node for every ordinary loop of the
    kernel's outermost stage, and one more; block, virtual thread and thread take three. With two
    such loops the next request refills the list, and the node freed afterwards is not the next one
    handed out. Found on the golden features, where 153 of 157 programs that can tell agree; with
    several kernels the list's length is not known.
    """
    if len(kernels) != 1:
        return np.bool_(False)
    stage = kernels[0]
    ordinary = [leaf for leaf in stage.leaves if thread_rank(stage.marks.get(leaf)) is None]
    return np.equal(sum(np.not_equal(leaf.extent, 1) * 1 for leaf in ordinary), 2)


def _close(nests: LoopNests, loops: tuple[NestLoop, ...]) -> None:
    nests.free_numbers.extend(loop.number for loop in reversed(loops) if loop.is_thread)


def _emit_stage(
    nests: LoopNests, stage: StageState, loops: tuple[NestLoop, ...], unroll: IntLike
) -> None:
    """``MakePipeline``: allocate the buffer, then compute it."""
    extents = tuple(axis.extent for axis in stage.axes)
    nests.allocations[stage.key] = Allocation(stage, loops, extents)
    if _is_cross_thread(stage):
        _emit_cross_thread(nests, stage, loops, unroll)
    else:
        _emit_nest(nests, stage, loops, unroll)


def _is_cross_thread(stage: StageState) -> bool:
    return any(
        leaf.kind == "reduce" and thread_rank(stage.marks.get(leaf)) is not None
        for leaf in stage.leaves
    )


def _attached(nests: LoopNests, stage: StageState, loop: Loop) -> list[StageState]:
    here = []
    for key in nests.schedule.nest_order:
        spec = nests.schedule.pool[key].attach
        if isinstance(spec, Attach) and spec.stage == stage.key and spec.loop is loop:
            here.append(nests.schedule.pool[key])
    return here


def _emit_nest(
    nests: LoopNests, stage: StageState, loops: tuple[NestLoop, ...], unroll: IntLike
) -> None:
    flags = touched_by(stage, dict.fromkeys(stage.axes, 1) | dict.fromkeys(stage.reduce, 2))
    first_reduce = next(
        (i for i, leaf in enumerate(stage.leaves) if flags.get(leaf, 0) & 2), len(stage.leaves)
    )
    values: dict[Loop, Affine] = {}
    outside = len(loops)
    for i, leaf in enumerate(stage.leaves):
        if i == first_reduce:
            _emit_init(nests, stage, loops, unroll, values, flags, first_reduce)
        assert leaf.var is not None
        unroll = _unroll_under(stage, leaf, unroll)
        loops = (*loops, _open(nests, stage, leaf, leaf.var, loops))
        values[leaf] = af.variable(leaf.var)
        for producer in _attached(nests, stage, leaf):
            _emit_stage(nests, producer, loops, unroll)
    body = fold(nests.bounds.bodies[stage.key])
    roots = root_values(stage, values, nests.bounds)
    if stage.reduce:
        value: Expr = Binary(_combine(stage), _self_load(stage), body, stage.dtype)
        nests.stores.append(Store(stage, "update", value, loops, roots, unroll))
    else:
        nests.stores.append(Store(stage, "plain", body, loops, roots, unroll))
    _close(nests, loops[outside:])


def _unroll_under(stage: StageState, leaf: Loop, unroll: IntLike) -> IntLike:
    """Depth in force under ``leaf``; lowering drops pragmas of loops bound to GPU indices."""
    if thread_rank(stage.marks.get(leaf)) is not None:
        return unroll
    return stage.unroll.get(leaf, unroll)


def _combine(stage: StageState) -> Literal["add", "mul", "max", "min"]:
    if stage.combiner not in ("add", "mul", "max", "min"):
        raise UnsupportedProgram("unknown-reduction", f"{stage.name}: {stage.combiner}")
    return stage.combiner  # type: ignore[return-value]


def _self_load(stage: StageState) -> Load:
    """The store's own element; features recognise it by the stage key."""
    return Load(stage.key, (), stage.dtype)


def _emit_init(
    nests: LoopNests,
    stage: StageState,
    loops: tuple[NestLoop, ...],
    unroll: IntLike,
    values: dict[Loop, Affine],
    flags: dict[Loop, int],
    first: int,
) -> None:
    """``C[...] = identity`` under loops of its own, before the first reduction loop."""
    own = dict(values)
    outside = len(loops)
    for leaf in stage.leaves[first:]:
        if flags.get(leaf, 0) == 2:
            own[leaf] = Affine()
            continue
        assert leaf.var is not None
        bound = thread_rank(stage.marks.get(leaf)) is not None
        var = leaf.var if bound else LoopVar(leaf.name + ".init", leaf.extent)
        unroll = _unroll_under(stage, leaf, unroll)
        loops = (*loops, _open(nests, stage, leaf, var, loops))
        own[leaf] = af.variable(var)
    roots = root_values(stage, own, nests.bounds)
    value = Const(stage.identity, stage.dtype)
    nests.stores.append(Store(stage, "init", value, loops, roots, unroll))
    _close(nests, loops[outside:])


def _emit_cross_thread(
    nests: LoopNests, stage: StageState, loops: tuple[NestLoop, ...], unroll: IntLike
) -> None:
    """Threads reduce together: only the final write is a buffer store (cross_thread_reduction.cc).

    The partial sums live in registers that are not buffers and the reduction itself is a call.
    """
    values: dict[Loop, Affine] = {}
    outside = len(loops)
    for leaf in stage.leaves:
        assert leaf.var is not None
        thread = thread_rank(stage.marks.get(leaf)) is not None
        values[leaf] = af.variable(leaf.var)
        if leaf.kind == "reduce" and not thread:
            values[leaf] = Affine()
            continue
        unroll = _unroll_under(stage, leaf, unroll)
        loops = (*loops, _open(nests, stage, leaf, leaf.var, loops))
        for producer in _attached(nests, stage, leaf):
            _emit_stage(nests, producer, loops, unroll)
    roots = root_values(stage, values, nests.bounds)
    value = Const(0.0, stage.dtype)
    nests.stores.append(Store(stage, "allreduce", value, loops, roots, unroll))
    _close(nests, loops[outside:])
