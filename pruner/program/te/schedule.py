"""The scheduled state of an operator, for N programs: stages, loops and their relations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from pruner.arrays import IntLike, Mask
from pruner.program.dag.dag import Combiner, ComputeDAG, post_order
from pruner.program.dag.expr import Expr
from pruner.program.index.affine import LoopVar
from pruner.program.nests import LoopKind, Mark


@dataclass(eq=False, slots=True)
class IterVar:
    """A loop of a stage (TE's ``IterVar``): a root axis or derived."""

    name: str
    kind: LoopKind
    extent: IntLike = 0
    var: LoopVar | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SplitRelation:
    """``parent = outer * extent(inner) + inner``; ``factor``: of inner or outer."""

    parent: IterVar
    outer: IterVar
    inner: IterVar
    factor: IntLike
    of_inner: bool

    @property
    def parts(self) -> tuple[IterVar, IterVar]:
        """The loop whose extent is ``factor``, and the other loop."""
        return (self.inner, self.outer) if self.of_inner else (self.outer, self.inner)


@dataclass(frozen=True, slots=True, eq=False)
class FuseRelation:
    """``fused = outer * extent(inner) + inner``."""

    outer: IterVar
    inner: IterVar
    fused: IterVar


Relation = SplitRelation | FuseRelation


@dataclass(frozen=True, slots=True, eq=False)
class Attach:
    """Attachment inside loop ``loop`` of stage ``stage`` (key of :attr:`Schedule.pool`)."""

    stage: int
    loop: IterVar


@dataclass(eq=False, slots=True)
class StageState:
    """One stage under scheduling.

    ``axes`` are the output's dimensions, ``reduce`` the reduction loops; :class:`Axis` slots of
    ``body`` number ``axes + reduce``. Loads name stages by key.
    """

    key: int
    name: str
    dtype: str
    shape: tuple[IntLike, ...]
    axes: list[IterVar]
    reduce: list[IterVar]
    body: Expr | None
    combiner: Combiner | None = None
    identity: float = 0.0
    const_matrix: bool = False
    is_output: bool = False
    scope: str = ""
    attach: Attach | Literal["root", "inline"] = "root"
    relations: list[Relation] = field(default_factory=list)
    leaves: list[IterVar] = field(default_factory=list)
    marks: dict[IterVar, Mark] = field(default_factory=dict)
    unroll: dict[IterVar, IntLike] = field(default_factory=dict)

    @property
    def roots(self) -> list[IterVar]:
        """Root loops in the order of the body's axis slots."""
        return [*self.axes, *self.reduce]


@dataclass(eq=False, slots=True)
class Schedule:
    """All stages of one operator, for N programs.

    ``pool`` by key; ``order``: keys as steps number them; ``nest_order``: keys in TE's depth-first
    order; ``contradicted``: programs whose log gives a split loop another extent.
    """

    pool: list[StageState]
    order: list[int]
    nest_order: list[int]
    num_programs: int = 1
    contradicted: Mask | np.bool_ = field(default_factory=lambda: np.bool_(False))

    def at(self, position: int) -> StageState:
        """Return the stage that steps number ``position``."""
        return self.pool[self.order[position]]

    def new_stage(self, stage: StageState, near: StageState, *, after: bool) -> None:
        """Insert ``stage`` next to ``near`` in both orders."""
        self.pool.append(stage)
        for keys in (self.order, self.nest_order):
            # Steps number stages by position: an insertion shifts the later ones, as in Ansor.
            keys.insert(keys.index(near.key) + (1 if after else 0), stage.key)


def initial_schedule(dag: ComputeDAG, num: int = 1) -> Schedule:
    """Return ``num`` programs with every stage at root (``te.create_schedule``)."""
    pool: list[StageState] = []
    for key, stage in enumerate(dag.stages):
        axes = [IterVar(a.name, "spatial", a.extent) for a in stage.axes]
        reduce = [IterVar(a.name, "reduce", a.extent) for a in stage.reduce_axes]
        if stage.body is None:
            # A placeholder has no axes of its own; caches of it copy these.
            axes = [IterVar(f"i{d}", "spatial", extent) for d, extent in enumerate(stage.shape)]
        pool.append(
            StageState(
                key=key,
                name=stage.name,
                dtype=stage.dtype,
                shape=stage.shape,
                axes=axes,
                reduce=reduce,
                body=stage.body,
                combiner=stage.combiner,
                identity=stage.identity,
                const_matrix=stage.const_matrix,
                is_output=key in dag.outputs,
                leaves=[*axes, *reduce],
            )
        )
    # Two orders: steps count in Ansor's order, nests follow TE's.
    nest_order = post_order([stage.reads for stage in dag.stages], dag.outputs)
    return Schedule(pool, list(range(len(pool))), nest_order, num)


def touched_by(stage: StageState, loops: dict[IterVar, int]) -> dict[IterVar, int]:
    """Pass flags of root loops down to loops made from them (``PassDownBitMaskOr``)."""
    flags = dict(loops)
    for rel in stage.relations:
        if isinstance(rel, SplitRelation):
            for child in (rel.outer, rel.inner):
                # Or: a fused loop of a spatial and a reduction axis carries both flags.
                flags[child] = flags.get(child, 0) | flags.get(rel.parent, 0)
        else:
            both = flags.get(rel.outer, 0) | flags.get(rel.inner, 0)
            flags[rel.fused] = flags.get(rel.fused, 0) | both
    return flags
