"""The values of a compute DAG's stages with numpy: the slow second implementation of operators."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pruner.program.dag.dag import ComputeDAG, Stage
from pruner.program.dag.expr import Axis, Binary, Call, Const, Expr, Load

OPS: dict[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
    "ge": np.greater_equal,
    "lt": np.less,
    "and": np.logical_and,
}
COMBINERS: dict[str, Any] = {"add": np.sum, "max": np.max, "min": np.min, "mul": np.prod}


def dag_values(dag: ComputeDAG, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The value of every stage, the placeholders being ``inputs`` in order."""
    given = iter(inputs)
    values: list[np.ndarray] = []
    for stage in dag.stages:
        values.append(next(given) if stage.body is None else stage_value(stage, values))
        assert values[-1].shape == stage.shape
    return values


def stage_value(stage: Stage, values: list[np.ndarray]) -> np.ndarray:
    assert stage.body is not None
    extents = [axis.extent for axis in stage.axes + stage.reduce_axes]
    slots = np.indices(extents, sparse=True) if extents else ()
    body = np.broadcast_to(value_of(stage.body, slots, values), extents)
    if stage.combiner is None:
        return np.array(body)
    over = tuple(range(len(stage.axes), len(extents)))
    return np.asarray(COMBINERS[stage.combiner](body, axis=over, initial=stage.identity))


def value_of(expr: Expr, slots: Any, values: list[np.ndarray]) -> Any:
    match expr:
        case Const(value=value):
            return value
        case Axis(slot=slot):
            return slots[slot]
        case Binary(op=op, a=a, b=b):
            return OPS[op](value_of(a, slots, values), value_of(b, slots, values))
        case Call(name="if_then_else", args=args):
            return np.where(*(value_of(arg, slots, values) for arg in args))
        case Call(name="exp", args=(arg,)):
            return np.exp(value_of(arg, slots, values))
        case Load(stage=stage, indices=indices):
            # both sides of a condition are evaluated here: what the condition hides may lie outside
            places = [value_of(index, slots, values) for index in indices]
            shape = values[stage].shape
            return values[stage][
                tuple(np.clip(p, 0, size - 1) for p, size in zip(places, shape, strict=True))
            ]
        case _:
            raise NotImplementedError(expr)
