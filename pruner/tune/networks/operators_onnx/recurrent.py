"""LSTM, GRU and RNN, step by step.

The steps of a layer are calls of the same functions, so a long sequence has few tasks, too; but
every call is compiled, so a sequence has :data:`LONGEST` steps at most. The equations are those of
the ONNX operators. Gates are in the order iofc for an LSTM, zrh for a GRU.

S steps, B sequences of a batch, I features of the input, H features of a state, G gates.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from pruner.tune.networks.rewrites.operators import (
    array,
    constant,
    dtype_of,
    is_constant,
    shape_of,
)
from pruner.tune.tvm_import import load_tvm

LONGEST = 512  # steps
ACTIVATIONS = ("Relu", "Sigmoid", "Tanh")


class Emitter:
    """Relax's operators, whose results are bound to variables at once."""

    def __init__(self, front: Any) -> None:
        self._emit = front.bb.emit

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return an operator of ``relax.op`` or ``relax.op.nn``."""
        ops = load_tvm().relax.op
        call = getattr(ops, name, None) or getattr(ops.nn, name)
        return lambda *inputs, **options: self._emit(call(*inputs, **options))

    def pieces(self, tensor: Any, count: int) -> list[Any]:
        """Split the last dimension into equal parts."""
        parts = self.split(tensor, count, -1)
        return [self._emit(load_tvm().relax.TupleGetItem(parts, i)) for i in range(count)]


# (operators, input times weights [B, G H], states, recurrent weights [H, G H] and bias [G H] or
# None, activations, attributes, weights of peepholes [3 H] or None) -> states
Step = Callable[..., list[Any]]


def _layer(
    states: int, usual: Sequence[str], step: Step, front: Any, inputs: Any, attrs: Any
) -> Any:
    """Convert a layer with ``states`` that go from step to step."""
    op, data = Emitter(front), inputs[0]
    last = int(attrs.get("layout", 0))  # 1: the batch is the first dimension
    data = op.permute_dims(data, [1, 0, 2]) if last else data
    steps, batch, features = shape_of(data)
    directions, _, width = shape_of(inputs[2])
    names = [n.decode() for n in attrs.get("activations", ())] or [*usual] * directions
    _check(inputs, attrs, names, steps)
    flat, outputs, ends = op.reshape(data, [steps * batch, features]), [], []
    for direction in range(directions):
        weight, recurrence = (
            op.permute_dims(_part(op, one, direction)) for one in (inputs[1], inputs[2])
        )
        given, bias = op.matmul(flat, weight), None  # all steps in one product
        if inputs[3] is not None:
            first, bias = op.pieces(_part(op, inputs[3], direction), 2)
            given = op.add(given, first)
        given = op.reshape(given, [steps, batch, -1])
        peep = inputs[7] if states == 2 else None
        peep = None if peep is None else _part(op, peep, direction)
        now = [
            constant(np.zeros((batch, width)), dtype_of(data))
            if one is None
            else _part(op, op.permute_dims(one, [1, 0, 2]) if last else one, direction)
            for one in (inputs[5 + i] for i in range(states))
        ]
        acts = [getattr(op, name.lower()) for name in names[direction * len(usual) :]]
        order = list(range(steps))
        if direction == 1 or attrs.get("direction") == b"reverse":
            order.reverse()
        found: list[Any] = [None] * steps
        for index in order:
            # by an index that is data: a slice would make a function of its own at every step
            one = op.take(given, constant([index], "int64"), 0)
            one = op.reshape(one, [batch, -1])
            now = step(op, one, now, recurrence, bias, acts, attrs, peep)
            found[index] = now[0]
        outputs.append(found)
        ends.append(now)
    whole = op.stack([op.stack(list(both), last) for both in zip(*outputs, strict=True)], last)
    final = [op.stack([now[i] for now in ends], last) for i in range(states)]
    return load_tvm().relax.Tuple([whole, *final])


def _check(inputs: Any, attrs: Any, names: Sequence[str], steps: int) -> None:
    unknown = [name for name in names if name not in ACTIVATIONS]
    if unknown:
        raise ValueError(f"its activation is {unknown[0]}; known: {', '.join(ACTIVATIONS)}")
    lengths = inputs[4]
    if lengths is not None and not np.all(array(lengths, "sequence_lens") == steps):
        raise ValueError("its sequences have lengths of their own (sequence_lens)")
    if "clip" in attrs:
        raise ValueError("its cells are clipped (clip)")
    if not 0 < steps <= LONGEST:
        raise ValueError(f"a sequence of {steps} steps; 1 to {LONGEST} can be unrolled")


def _part(op: Emitter, tensor: Any, direction: int) -> Any:
    if is_constant(tensor):
        return constant(array(tensor, "")[direction], dtype_of(tensor))
    return op.squeeze(op.strided_slice(tensor, [0], [direction], [direction + 1]), [0])


def _plus(op: Emitter, tensor: Any, bias: Any) -> Any:
    return tensor if bias is None else op.add(tensor, bias)


def _lstm(
    op: Emitter,
    given: Any,
    states: Any,
    recurrence: Any,
    bias: Any,
    acts: Any,
    attrs: Any,
    peep: Any,
) -> list[Any]:
    hidden, cell = states
    total = _plus(op, op.add(given, op.matmul(hidden, recurrence)), bias)
    enter, out, forget, new = op.pieces(total, 4)
    by_enter, by_out, by_forget = [None] * 3 if peep is None else op.pieces(peep, 3)
    if peep is not None:
        enter = op.add(enter, op.multiply(by_enter, cell))
        forget = op.add(forget, op.multiply(by_forget, cell))
    enter, new = acts[0](enter), acts[1](new)
    if attrs.get("input_forget"):
        forget = op.subtract(constant(1, dtype_of(cell)), enter)
    else:
        forget = acts[0](forget)
    cell = op.add(op.multiply(forget, cell), op.multiply(enter, new))
    if peep is not None:
        out = op.add(out, op.multiply(by_out, cell))
    return [op.multiply(acts[0](out), acts[2](cell)), cell]


def _gru(
    op: Emitter, given: Any, states: Any, recurrence: Any, bias: Any, acts: Any, attrs: Any, _: Any
) -> list[Any]:
    (hidden,) = states
    keep, reset, new = op.pieces(given, 3)
    weights = op.pieces(recurrence, 3)
    biases = [None] * 3 if bias is None else op.pieces(bias, 3)

    def product(state: Any, gate: int) -> Any:
        return _plus(op, op.matmul(state, weights[gate]), biases[gate])

    keep = acts[0](op.add(keep, product(hidden, 0)))
    reset = acts[0](op.add(reset, product(hidden, 1)))
    if attrs.get("linear_before_reset"):
        new = op.add(new, op.multiply(reset, product(hidden, 2)))
    else:
        new = op.add(new, product(op.multiply(reset, hidden), 2))
    kept = op.multiply(keep, hidden)
    keep = op.subtract(constant(1, dtype_of(hidden)), keep)
    return [op.add(op.multiply(keep, acts[1](new)), kept)]


def _rnn(
    op: Emitter, given: Any, states: Any, recurrence: Any, bias: Any, acts: Any, attrs: Any, _: Any
) -> list[Any]:
    return [acts[0](_plus(op, op.add(given, op.matmul(states[0], recurrence)), bias))]


CONVERTERS = {
    "GRU": partial(_layer, 1, ("Sigmoid", "Tanh"), _gru),
    "LSTM": partial(_layer, 2, ("Sigmoid", "Tanh", "Tanh"), _lstm),
    "RNN": partial(_layer, 1, ("Tanh",), _rnn),
}
