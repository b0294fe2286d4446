"""Unroll the loops of an ONNX file, which TVM's front end lacks."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from pruner.errors import PrunerError

MOST = 4096  # operators in all steps of a loop: each takes time to import and to lower


def unroll(model: Any) -> bool:
    """Replace loops by the operators of their steps; whether there were any.

    A loop stays if its number of steps is not constant, or if it ends on a computed condition.

    Raises:
        PrunerError: a loop has more than :data:`MOST` operators.
    """
    loops = [node for node in model.graph if (node.domain, node.op_type) == ("", "Loop")]
    steps = {node: count for node in loops if (count := _steps(node)) is not None}
    for loop, count in steps.items():
        _Unrolled(model, loop).run(count)
    return bool(steps)


def _steps(loop: Any) -> int | None:
    """Return the number of steps, None where it is not constant."""
    body = loop.attributes["body"].as_graph()
    limit, start = (*loop.inputs, None, None)[:2]
    count = None if limit is None else _number(limit)
    starts = 1 if start is None else _number(start)
    goes_on = _condition(body)
    if count is None or starts is None or goes_on is None:
        return None
    steps = max(int(count), 0) if starts else 0
    has_rows = len(body.outputs) > 1 + len(loop.inputs[2:])
    if not steps and has_rows:  # a tensor of no rows: its shape is not known here
        return None
    return steps if goes_on else min(steps, 1)


def _condition(body: Any) -> int | None:
    """Return whether a step goes on to the next, None where that is computed."""
    value = body.outputs[0]
    while (node := value.producer()) is not None and node.op_type in ("Cast", "Identity"):
        value = node.inputs[0]
    # the first step begins where this is true
    return 1 if value is body.inputs[1] else _number(value)


def _number(value: Any) -> int | None:
    tensor = importlib.import_module("onnx_ir").convenience.get_const_tensor(value)
    return None if tensor is None else int(tensor.numpy().item())


class _Unrolled:
    """Writes the steps of a loop before it, and removes the loop."""

    def __init__(self, model: Any, loop: Any) -> None:
        self._ir = importlib.import_module("onnx_ir")
        self._graph, self._loop = model.graph, loop
        self._version = model.opset_imports[""]
        self._label = next(one.name for one in loop.outputs if one.name)  # no other has it
        self._body = loop.attributes["body"].as_graph()

    def run(self, steps: int) -> None:
        """Write all steps.

        Raises:
            PrunerError: they have too many operators.
        """
        body, states = self._body, list(self._loop.inputs[2:])
        if steps * len(body) > MOST:
            raise PrunerError(
                f"its Loop has {steps} steps of {len(body)} operators, and at most {MOST} operators"
                " can be unrolled; export it with fewer steps"
            )
        for place, value in enumerate(list(body.outputs)):
            node = value.producer()
            if node is None or node.graph is not body:  # a copy has only results of its nodes
                same = self._ir.node("Identity", [value], name=f"same_{place}")
                same.outputs[0].name = f"same_{place}"
                body.append(same)
                body.outputs[place] = same.outputs[0]
        for name in list(body.initializers):  # one for all steps
            value = body.initializers.pop(name)
            value.name = f"{self._label}_{name}"
            self._graph.register_initializer(value)
        rows: list[list[Any]] = [[] for _ in body.outputs[1 + len(states) :]]
        true = self._constant(np.array(True), "condition")
        for step in range(steps):
            number = self._constant(np.array(step, np.int64), f"number_{step}")
            _, *found = self._written([number, true, *states], step)
            states = found[: len(states)]
            for row, value in zip(rows, found[len(states) :], strict=True):
                row.append(value)
        stacked = [self._stacked(row, place) for place, row in enumerate(rows)]
        for output, value in zip(self._loop.outputs, [*states, *stacked], strict=False):
            # by a node of its own: the value may be an input, or another output
            name, output.name = output.name, None
            same = self._node("Identity", [value], name)
            same.type = output.type
            output.replace_all_uses_with(same, replace_graph_outputs=True)
        self._graph.remove(self._loop, safe=True)

    def _written(self, given: Sequence[Any], step: int) -> list[Any]:
        """Write a copy of the body for given inputs; return its outputs."""
        part = self._body.clone(allow_outer_scope_values=True)
        found = list(part.outputs)
        part.outputs.clear()
        for formal, actual in zip(part.inputs, given, strict=True):
            formal.replace_all_uses_with(actual)
        for node in self._ir.traversal.RecursiveGraphIterator(part):
            node.name = None
            for value in node.outputs:
                if value.name:
                    value.name = f"{self._label}_{step}_{value.name}"
                value.shape = None  # it may differ from step to step
        nodes = list(part)
        part.remove(nodes)
        self._graph.insert_before(self._loop, nodes)
        return found

    def _stacked(self, row: Sequence[Any], place: int) -> Any:
        """Join the values of all steps along a new first dimension."""
        if self._version < 13:
            more, attributes = [], {"axes": [0]}
        else:
            more, attributes = [self._constant(np.array([0]), f"axes_{place}")], {}
        name = f"{self._label}_row_{place}"
        found = [
            self._node("Unsqueeze", [value, *more], f"{name}_{step}", attributes)
            for step, value in enumerate(row)
        ]
        return self._node("Concat", found, name, {"axis": 0})

    def _constant(self, values: Any, name: str) -> Any:
        tensor = self._ir.tensor(values)
        return self._node("Constant", [], f"{self._label}_{name}", {"value": tensor})

    def _node(
        self, operator: str, inputs: Sequence[Any], name: str, attributes: Any = None
    ) -> Any:
        node = self._ir.node(operator, inputs, attributes or {})
        (value,) = node.outputs
        value.name = name
        self._graph.insert_before(self._loop, node)
        return value
