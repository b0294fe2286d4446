"""A compute DAG under construction."""

from __future__ import annotations

from typing import Any

from pruner.errors import UnsupportedProgram
from pruner.program.dag.dag import AxisDef, Combiner, ComputeDAG, Stage
from pruner.program.dag.expr import Expr

Dims = list[tuple[str, int]]


def positive(**sizes: Any) -> None:
    """Refuse sizes that are not positive integers, naming the first bad one."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"{name} must be a positive integer, got {size!r}")


def axis_defs(dims: Dims) -> tuple[AxisDef, ...]:
    """Loops from (name, extent) pairs."""
    for name, extent in dims:
        if extent < 1:
            raise UnsupportedProgram("bad-arguments", f"axis {name} has extent {extent}")
    return tuple(AxisDef(name=name, extent=extent) for name, extent in dims)


class DagBuilder:
    """Collects stages; the last one added is the output."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []

    @property
    def last(self) -> int:
        """Position of the stage added last."""
        return len(self.stages) - 1

    def placeholder(self, name: str, shape: tuple[int, ...]) -> int:
        """Add a float32 kernel input; returns its position."""
        axis_defs([(name, size) for size in shape])
        self.stages.append(Stage(name=name, kind="placeholder", shape=shape, dtype="float32"))
        return self.last

    def compute(self, name: str, dims: Dims, body: Expr, *, tag: str = "") -> int:
        """Add an elementwise stage with the spatial axes ``dims``; returns its position."""
        self.stages.append(
            Stage(
                name=name,
                kind="compute",
                shape=tuple(extent for _, extent in dims),
                dtype="float32",
                axes=axis_defs(dims),
                body=body,
                tag=tag,
            )
        )
        return self.last

    def reduce(
        self,
        name: str,
        dims: Dims,
        over: Dims,
        source: Expr,
        *,
        combiner: Combiner = "add",
        identity: float = 0.0,
        tag: str = "",
    ) -> int:
        """Add a reduction of ``source`` over the axes ``over``; returns its position."""
        self.stages.append(
            Stage(
                name=name,
                kind="compute",
                shape=tuple(extent for _, extent in dims),
                dtype="float32",
                axes=axis_defs(dims),
                reduce_axes=axis_defs(over),
                body=source,
                combiner=combiner,
                identity=identity,
                tag=tag,
            )
        )
        return self.last

    def finish(self) -> ComputeDAG:
        """The finished DAG."""
        return ComputeDAG(stages=tuple(self.stages), outputs=(self.last,))
