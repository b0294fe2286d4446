"""Compute DAGs: the computation of an operator before any schedule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pruner.program.dag.expr import Expr, loads

Combiner = Literal["add", "mul", "max", "min"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisDef:
    """One loop of a stage: TE's ``name`` and ``extent`` in iterations."""

    name: str
    extent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One tensor: a kernel input (``placeholder``) or a computation over its axes.

    ``body`` is the value of one element; with ``combiner`` set it is the reduction's source and
    ``identity`` the value the output starts from. ``tag`` is TE's operator tag.
    """

    name: str
    kind: Literal["placeholder", "compute"]
    shape: tuple[int, ...]
    dtype: str
    axes: tuple[AxisDef, ...] = ()
    reduce_axes: tuple[AxisDef, ...] = ()
    body: Expr | None = None
    combiner: Combiner | None = None
    identity: float = 0.0
    tag: str = ""
    const_matrix: bool = False

    @property
    def reads(self) -> tuple[int, ...]:
        """Stages that the body loads, each once, in order of first load."""
        if self.body is None:
            return ()
        # The order matters: Ansor numbers stages by a walk in it (`tenset.schedule_order`).
        return tuple(dict.fromkeys(load.stage for load in loads(self.body)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeDAG:
    """Stages in the order of steps (Ansor's); ``outputs`` are places of the results."""

    stages: tuple[Stage, ...]
    outputs: tuple[int, ...]


def post_order(reads: Sequence[Sequence[int]], outputs: Iterable[int]) -> list[int]:
    """List what ``outputs`` need, inputs before their user (TE's ``PostDFSOrder``)."""
    order: list[int] = []
    visited: set[int] = set()

    def visit(number: int) -> None:
        if number not in visited:
            visited.add(number)
            for source in reads[number]:
                visit(source)
            order.append(number)

    for output in outputs:
        visit(output)
    return order
