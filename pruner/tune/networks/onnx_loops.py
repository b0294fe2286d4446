"""Unroll the loops of an ONNX file, which TVM's front end lacks."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pruner.errors import PrunerError

MOST = 4096  # operators in all steps of a loop: each takes time to import and to lower
RANDOM = (  # operators that draw random numbers
    *("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"),
    "RandomUniformLike",
)


def unroll(model: Any) -> bool:
    """Replace loops by the operators of their steps; whether there were any.

    A loop stays if its number of steps follows from values of the inputs.

    Raises `PrunerError`: a loop has more than :data:`MOST` operators.
    """
    loops = [node for node in model.graph if (node.domain, node.op_type) == ("", "Loop")]
    found = {node: steps for node in loops if (steps := _steps(model, node)) is not None}
    for loop, steps in found.items():
        _Unrolled(model, loop).run(steps)
    return bool(found)


def _steps(model: Any, loop: Any) -> int | None:
    """Return the number of steps, None where it is not constant.

    Raises `PrunerError`: they have too many operators.
    """
    body, values = loop.attributes["body"].as_graph(), _Values(model, loop)
    limit, goes_on = (*loop.inputs, None, None)[:2]
    most, starts = values.of(limit), values.of(goes_on)
    if (limit is not None and most is None) or (goes_on is not None and starts is None):
        return None
    steps = 0
    is_on = starts is None or bool(starts.item())
    while is_on and (most is None or steps < most.item()):
        condition = values.at(steps, body.outputs[0])
        if condition is None:
            return None
        is_on, steps = bool(condition.item()), steps + 1
        if steps * max(len(body), 1) > MOST:
            # exporters write the largest number for a loop that has no limit
            count = f"at least {steps}"
            if most is not None and most.item() < np.iinfo(np.int64).max:
                count = f"up to {most.item()}"
            raise PrunerError(
                f"its Loop has {count} steps of {len(body)} operators, and at most {MOST} "
                "operators can be unrolled; export it with fewer steps"
            )
    has_rows = len(body.outputs) > 1 + len(loop.inputs[2:])
    # the shape of a tensor without rows is not known here
    return None if has_rows and not steps else steps


class _Values:
    """Compute constant values in the steps of a loop, from which its condition follows."""

    def __init__(self, model: Any, loop: Any) -> None:
        self._ir = importlib.import_module("onnx_ir")
        self._opsets, self._starts = dict(model.opset_imports), loop.inputs[2:]
        self._body = loop.attributes["body"].as_graph()
        self._places = {value: place for place, value in enumerate(self._body.inputs)}
        self.at = cache(self._at)

    def of(self, value: Any) -> NDArray[Any] | None:
        """Return the value of a constant, None for others."""
        tensor = None if value is None else self._ir.convenience.get_const_tensor(value)
        return None if tensor is None else np.asarray(tensor.numpy())

    def _at(self, step: int, value: Any) -> NDArray[Any] | None:
        """Return a constant value of the body in a step, else None."""
        place = self._places.get(value)
        if place == 0:
            return np.array(step, np.int64)
        if place == 1:  # else there is no such step
            return np.array(True)
        if place is not None and not step:
            return self.of(self._starts[place - 2])
        if place is not None:
            return self.at(step - 1, self._body.outputs[place - 1])
        node = value.producer()
        if node is None or node.graph is not self._body or node.op_type == "Constant":
            return self.of(value)
        given = {one.name: self.at(step, one) for one in node.inputs if one is not None}
        has_graph = any(
            one.type == self._ir.AttributeType.GRAPH for one in node.attributes.values()
        )
        if node.op_type in RANDOM or has_graph or not given:
            return None
        if any(one is None for one in given.values()):
            return None
        evaluator = importlib.import_module("onnx.reference").ReferenceEvaluator
        proto = self._ir.serde.serialize_node(node)
        # of any kind: the evaluator lacks an operator, or the network's own step fails
        with suppress(Exception):
            results = evaluator(proto, opsets=self._opsets).run(None, given)
            return np.asarray(results[list(node.outputs).index(value)])
        return None


class _Unrolled:
    """Writes the steps of a loop before it, and removes the loop."""

    def __init__(self, model: Any, loop: Any) -> None:
        self._ir = importlib.import_module("onnx_ir")
        self._graph, self._loop = model.graph, loop
        self._version = model.opset_imports[""]
        self._label = next(one.name for one in loop.outputs if one.name)  # no other has it
        self._body = loop.attributes["body"].as_graph()

    def run(self, steps: int) -> None:
        """Write all steps."""
        body, states = self._body, list(self._loop.inputs[2:])
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

    def _node(self, operator: str, inputs: Sequence[Any], name: str, attributes: Any = None) -> Any:
        node = self._ir.node(operator, inputs, attributes or {})
        (value,) = node.outputs
        value.name = name
        self._graph.insert_before(self._loop, node)
        return value
