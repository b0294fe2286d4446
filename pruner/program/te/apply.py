"""Apply a skeleton's primitives once, for N decision vectors.

Follows ``ApplyToSchedule`` of src/auto_scheduler/transform_step.cc and TE's
schedule_dataflow_rewrite.cc.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from pruner.arrays import Decisions, IntLike, Ints
from pruner.errors import UnsupportedProgram
from pruner.program.dag.dag import ComputeDAG
from pruner.program.dag.expr import Axis, Binary, Const, Expr, Load, redirect_loads, substitute_axes
from pruner.program.index.affine import plain
from pruner.program.nests import LoopKind, Mark
from pruner.program.te.schedule import (
    Attach,
    FuseRelation,
    IterVar,
    Schedule,
    SplitRelation,
    StageState,
    initial_schedule,
    touched_by,
)
from pruner.program.te.skeleton import Slot, Step

MAX_LOOPS = 128
"""Of one stage; tuners make a fifth of it, and the work grows with the square."""


@dataclass(slots=True, eq=False)
class _State:
    schedule: Schedule
    skeleton: tuple[Step, ...]
    decisions: Decisions
    extents: Iterator[Ints]  # as logged, of each split in turn

    def value(self, slot: Slot) -> IntLike:
        return plain(self.decisions[:, slot.number])

    def lengths(self, source: int) -> list[IntLike]:
        step = self.skeleton[source]
        if step.tag != "SP":
            raise UnsupportedProgram("malformed-step", f"step {source} is not a split")
        return [self.value(slot) for slot in step.fields[2]]

    def compare(self, position: int, loop: int) -> None:
        """Mark the programs whose log gives the split loop another extent."""
        logged = next(self.extents, None)
        stage = self.schedule.at(position)
        if logged is not None and stage.attach == "root":
            # Ansor logs 0 where it has not inferred bounds before the split.
            differs = np.not_equal(logged, stage.leaves[loop].extent) & (logged != 0)
            self.schedule.contradicted = self.schedule.contradicted | differs


def apply(
    dag: ComputeDAG,
    skeleton: tuple[Step, ...],
    decisions: Decisions,
    extents: Ints | None = None,
) -> Schedule:
    """Apply ``skeleton`` to ``dag`` for decision vectors ``decisions`` int64 [N, d].

    Loop extents are those of whole tensors until bounds are inferred; ``extents`` int64 [N, splits]
    are compared with them (`Schedule.contradicted`). Raises `UnsupportedProgram` for stages or
    loops that do not exist, and more than `MAX_LOOPS` of a stage.
    """
    logged = iter(()) if extents is None else iter(extents.T)
    state = _State(initial_schedule(dag, len(decisions)), skeleton, decisions, logged)
    for number, step in enumerate(skeleton):
        try:
            _APPLY[step.tag](state, *step.fields)
        except (UnsupportedProgram, MemoryError):
            raise
        except Exception as error:  # wrong steps show as any error: bad index, missing loop, ...
            detail = f"step {number} {step}: {type(error).__name__} {error}"
            raise UnsupportedProgram("step-mismatch", detail[:300]) from error
    return state.schedule


def _apply_split(
    stage: StageState, position: int, lengths: list[IntLike], *, inner_to_outer: bool
) -> None:
    """Split a loop into inner lengths, or into outer counts."""
    rest = loop = stage.leaves[position]
    if len(stage.leaves) + len(lengths) > MAX_LOOPS:
        raise ValueError(f"more than {MAX_LOOPS} loops")
    made: list[IterVar] = []
    kept, other = ("i", "o") if inner_to_outer else ("o", "i")
    # As TE's split: by factors from the innermost outwards, each outer loop is what is left.
    for length in reversed(lengths) if inner_to_outer else lengths:
        parent, part = rest, IterVar(f"{loop.name}.{kept}", loop.kind, length)
        rest = IterVar(f"{loop.name}.{other}", loop.kind, -(-parent.extent // length))
        outer, inner = (rest, part) if inner_to_outer else (part, rest)
        stage.relations.append(SplitRelation(parent, outer, inner, length, inner_to_outer))
        made.append(part)
    made.append(rest)
    stage.leaves[position : position + 1] = made[::-1] if inner_to_outer else made


def _split(
    s: _State, number: int, loop: int, slots: tuple[Slot, ...], inner_to_outer: bool
) -> None:
    lengths = [s.value(slot) for slot in slots]
    s.compare(number, loop)
    _apply_split(s.schedule.at(number), loop, lengths, inner_to_outer=inner_to_outer)


def _follow_split(s: _State, number: int, loop: int, followed: int, num: int) -> None:
    """Split like step ``followed``: its first ``num - 1`` lengths, the others multiplied."""
    source = s.lengths(followed)
    if not 1 <= num <= len(source) + 1:
        raise ValueError(f"{len(source)} lengths cannot be followed by {num}")
    # FollowSplitStep::ExtractSplitLengths: lengths from `num` on are multiplied into the last one.
    rest = math.prod(source[num - 1 :])
    _apply_split(s.schedule.at(number), loop, [*source[: num - 1], rest], inner_to_outer=True)


def _follow_fused_split(
    s: _State, number: int, loop: int, sources: tuple[int, ...], level: int, by_factor: bool
) -> None:
    # FollowFusedSplitStep: the fused loop of the followed splits has the product of their lengths.
    length = math.prod(s.lengths(source)[level] for source in sources)
    _apply_split(s.schedule.at(number), loop, [length], inner_to_outer=by_factor)


def _reorder(s: _State, number: int, order: tuple[int, ...]) -> None:
    stage = s.schedule.at(number)
    if sorted(order) != list(range(len(stage.leaves))):
        raise ValueError(f"order does not name the {len(stage.leaves)} loops once each")
    stage.leaves = [stage.leaves[i] for i in order]


def _fuse(s: _State, number: int, loops: tuple[int, ...]) -> None:
    stage = s.schedule.at(number)
    if not loops:  # TE's fuse of nothing: a loop of extent 1 in front
        loop = IterVar("singleton", "spatial", 1)
        stage.leaves.insert(0, loop)
        return
    first, last = loops[0], loops[-1]
    if last >= len(stage.leaves) or loops != tuple(range(first, last + 1)):
        raise ValueError(f"of {len(stage.leaves)} loops only neighbours can be fused")
    fused = stage.leaves[first]
    for inner in stage.leaves[first + 1 : last + 1]:
        # A fused loop reduces if either part does: TE's fuse keeps the larger IterVarType.
        kind: LoopKind = "reduce" if "reduce" in (fused.kind, inner.kind) else "spatial"
        both = IterVar(f"{fused.name}.{inner.name}.f", kind, fused.extent * inner.extent)
        stage.relations.append(FuseRelation(fused, inner, both))
        fused = both
    stage.leaves[first : last + 1] = [fused]


def _annotate(s: _State, number: int, loop: int, kind: str) -> None:
    stage = s.schedule.at(number)
    if kind == "tensorize":
        raise UnsupportedProgram("tensorize", "tensorised loops are not understood")
    if kind != "none":
        stage.marks[stage.leaves[loop]] = Mark(kind)


def _unroll(s: _State, number: int, loop: int, depth: Slot) -> None:
    stage = s.schedule.at(number)
    if loop > 0 and loop >= len(stage.leaves):
        raise IndexError(f"there are {len(stage.leaves)} loops")
    # The pragma of a stage without loops has nothing to act on; Ansor logs it with iterator 0.
    if stage.leaves:
        stage.unroll[stage.leaves[loop]] = s.value(depth)


def _compute_at(s: _State, number: int, other: int, inside: int) -> None:
    target, stage = s.schedule.at(other), s.schedule.at(number)
    loop = target.leaves[inside]
    around = target
    # A cycle of attachments would make every later walk endless; TVM fails on it, too.
    while around.key != stage.key:
        if not isinstance(around.attach, Attach):
            break
        around = s.schedule.pool[around.attach.stage]
    else:
        raise ValueError("a stage cannot be computed inside itself")
    stage.attach = Attach(target.key, loop)


def _place(s: _State, number: int, *, where: Literal["root", "inline"]) -> None:
    s.schedule.at(number).attach = where


def _copy_axes(stage: StageState) -> list[IterVar]:
    return [IterVar(f"ax{i}", "spatial", axis.extent) for i, axis in enumerate(stage.axes)]


def _derived(
    s: _State,
    stage: StageState,
    suffix: str,
    axes: list[IterVar],
    reduce: list[IterVar],
    body: Expr | None,
) -> StageState:
    return StageState(
        key=len(s.schedule.pool),
        name=f"{stage.name}.{suffix}",
        dtype=stage.dtype,
        shape=stage.shape,
        axes=axes,
        reduce=reduce,
        body=body,
        leaves=[*axes, *reduce],
    )


def _load_of(stage: StageState) -> Load:
    indices = tuple(Axis(i) for i in range(len(stage.axes)))
    return Load(stage.key, indices, stage.dtype)


def _cache_read(s: _State, number: int, scope: str, readers: tuple[int, ...]) -> None:
    source = s.schedule.at(number)
    cache = _derived(s, source, scope, _copy_axes(source), [], _load_of(source))
    cache.scope = scope
    stages = [s.schedule.at(r) for r in readers]
    # Only the named readers use the copy: other stages go on reading the source.
    for reader in stages:
        assert reader.body is not None
        reader.body = redirect_loads(reader.body, source.key, cache.key)
    s.schedule.new_stage(cache, source, after=True)


def _cache_write(s: _State, number: int, scope: str) -> None:
    stage = s.schedule.at(number)
    if stage.relations:
        # TE would carry the splits over to the cache; Ansor caches before it splits.
        raise UnsupportedProgram("late-cache-write", "cache_write after a split")
    cache = _derived(s, stage, scope, _copy_axes(stage), stage.reduce, stage.body)
    cache.combiner, cache.identity = stage.combiner, stage.identity
    cache.const_matrix, cache.scope = stage.const_matrix, scope
    # The stage keeps its name and readers, and becomes a copy of the cache.
    stage.body, stage.combiner, stage.reduce = _load_of(cache), None, []
    stage.leaves = list(stage.axes)
    s.schedule.new_stage(cache, stage, after=False)


def _rfactor(s: _State, number: int, loop: int, factor_axis: int) -> None:
    """Make a reduction loop an axis of a partial result ``C.rf[f, i]``, reduced afterwards."""
    stage = s.schedule.at(number)
    factor = stage.leaves[loop]
    if factor.kind != "reduce" or stage.body is None:
        raise ValueError("rfactor of a loop that is not a reduction")
    # Only reduction axes that the loop is made of move into the partial result (Schedule::rfactor).
    roots = [r for r in stage.reduce if factor in touched_by(stage, {r: 1})]
    touched = touched_by(stage, dict.fromkeys(roots, 1))
    keep = [r for r in stage.reduce if r not in touched]
    parts = [loop for loop in stage.leaves if loop in touched]
    moved = [loop for loop in parts if loop is not factor]
    # A negative axis counts from the end, of axes with the new one.
    position = factor_axis if factor_axis >= 0 else len(stage.axes) + 1 + factor_axis
    if not 0 <= position <= len(stage.axes):
        raise ValueError(f"{len(stage.axes)} axes have no place {factor_axis}")
    rf_axis = IterVar(factor.name, "spatial", factor.extent)
    axes = _copy_axes(stage)
    axes.insert(position, rf_axis)
    reduce = [*keep, *(IterVar(m.name, "reduce", m.extent) for m in moved)]
    slot_of: dict[IterVar, int] = {factor: position}
    slot_of |= {m: len(axes) + len(keep) + i for i, m in enumerate(moved)}
    # The partial body reads the old reduction axes through the loops that remain.
    root_values = _up_index(stage, {loop: Axis(slot_of[loop]) for loop in parts})
    spatial = [Axis(i if i < position else i + 1) for i in range(len(stage.axes))]
    table: list[Expr] = [
        *spatial,
        *(Axis(len(axes) + keep.index(r)) if r in keep else root_values[r] for r in stage.reduce),
    ]
    partial = _derived(s, stage, "rf", axes, reduce, substitute_axes(stage.body, table))
    partial.shape = tuple(a.extent for a in axes)
    partial.combiner, partial.identity = stage.combiner, stage.identity
    # The old stage reduces over the new axis alone; its splits went with the partial result.
    total = IterVar(f"{factor.name}.v", "reduce", factor.extent)
    indices: list[Expr] = [Axis(i) for i in range(len(stage.axes))]
    indices.insert(position, Axis(len(stage.axes)))
    stage.body = Load(partial.key, tuple(indices), stage.dtype)
    stage.reduce, stage.relations = [total], []
    stage.leaves = [*stage.axes, total]
    s.schedule.new_stage(partial, stage, after=False)


def _up_index(stage: StageState, values: dict[IterVar, Expr]) -> dict[IterVar, Expr]:
    """Express root loops in the loops made from them (``PassUpIndex``)."""
    out = dict(values)
    for rel in reversed(stage.relations):
        if isinstance(rel, SplitRelation):
            if rel.outer in out and rel.inner in out:
                scaled = Binary("mul", out[rel.outer], _const(rel.inner.extent), "int32")
                out[rel.parent] = Binary("add", out[rel.inner], scaled, "int32")
        elif rel.fused in out:
            extent = _const(rel.inner.extent)
            out[rel.outer] = Binary("floordiv", out[rel.fused], extent, "int32")
            out[rel.inner] = Binary("floormod", out[rel.fused], extent, "int32")
    return out


def _const(value: IntLike) -> Const:
    return Const(value if isinstance(value, int) else np.asarray(value))  # type: ignore[arg-type]


_APPLY: dict[str, Callable[..., None]] = {
    "SP": _split,
    "FSP": _follow_split,
    "FFSP": _follow_fused_split,
    "RE": _reorder,
    "FU": _fuse,
    "AN": _annotate,
    "PR": _unroll,
    "CA": _compute_at,
    "CI": partial(_place, where="inline"),
    "CR": partial(_place, where="root"),
    "CHR": _cache_read,
    "CHW": _cache_write,
    "RF": _rfactor,
    "SA": lambda *_: None,  # row padding changes addresses only, which no feature reads
}
