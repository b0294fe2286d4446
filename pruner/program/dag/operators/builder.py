"""`DagBuilder` (a compute DAG under construction) and `Operator`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pruner.errors import UnsupportedProgram
from pruner.program.dag.dag import AxisDef, Combiner, ComputeDAG, Stage
from pruner.program.dag.expr import Expr

Dims = list[tuple[str, int]]
Tensors = list[Any]  # TE tensors: the inputs, then the output


def positive(**sizes: Any) -> None:
    """Refuse sizes that are not positive integers, naming the first."""
    for name, size in sizes.items():
        # A key comes from a record file: true is an int in Python, and 1.5 is valid JSON.
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"{name} must be a positive integer, got {size!r}")


def axis_defs(dims: Dims) -> tuple[AxisDef, ...]:
    """Return loops from (name, extent) pairs; refuse extents below 1."""
    for name, extent in dims:
        if extent < 1:
            raise UnsupportedProgram("bad-arguments", f"axis {name} has extent {extent}")
    return tuple(AxisDef(name=name, extent=extent) for name, extent in dims)


class DagBuilder:
    """Collects stages; the last stage added is the output."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []

    @property
    def last(self) -> int:
        """Position of the stage added last."""
        return len(self.stages) - 1

    def placeholder(self, name: str, shape: tuple[int, ...]) -> int:
        """Add a float32 kernel input; return its position."""
        axis_defs([(name, size) for size in shape])
        self.stages.append(Stage(name=name, shape=shape, dtype="float32"))
        return self.last

    def compute(self, name: str, dims: Dims, body: Expr, **more: Any) -> int:
        """Add a stage with the spatial axes ``dims`` (``more`` of `Stage`); return its position."""
        shape, axes = tuple(extent for _, extent in dims), axis_defs(dims)
        stage = Stage(name=name, shape=shape, dtype="float32", axes=axes, body=body, **more)
        self.stages.append(stage)
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
    ) -> int:
        """Add a reduction of ``source`` over the axes ``over``; return its position."""
        return self.compute(
            name,
            dims,
            source,
            reduce_axes=axis_defs(over),
            combiner=combiner,
            identity=identity,
        )

    def finish(self) -> ComputeDAG:
        """Return the finished DAG."""
        return ComputeDAG(stages=tuple(self.stages), outputs=(self.last,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator; its arguments follow the workload key.

    ``dag`` gives the compute DAG so far (epilogues follow; None: none), with stages, axes and
    expressions as TE orders them, because schedule steps refer to them by number.

    ``te`` gives the same as TE tensors, from the modules ``tvm.te`` and ``tvm.topi`` of either
    version of TVM, the dtype and the arguments. ``torch`` makes the reference of deployed kernels
    from the module and the options, a function of the inputs in the order of ``te`` (and of a bias
    or None where ``torch_takes_bias``); None: no comparison.

    ``options`` are the arguments a user sets in ``tune.py workload=<operator>``, in the order of
    task names; empty where the operator is not tuned by name. ``fixed`` has the other arguments'
    values, and ``choices`` the values of options that are no size.
    """

    dag: Callable[..., DagBuilder] | None
    te: Callable[..., Tensors]
    torch: Callable[[Any, Mapping[str, Any]], Callable[..., Any]] | None = None
    torch_takes_bias: bool = False
    options: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
