"""Outline a network: its tasks, and the memory of its tensors.

The tasks are those of a tuning run: the same import and the same lowering make them. Values of
weights do not count.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from pruner.arrays import dtype_bytes
from pruner.tune.networks.lowered_parts import LoweredParts
from pruner.tune.networks.lowering import NetworkFormat, lower_somehow
from pruner.tune.networks.network_tasks import NetworkTask, network_tasks
from pruner.tune.networks.rewrites.operators import operator_name
from pruner.tune.tvm_import import inside, load_tvm


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """Tasks and memory of a network, or the ``reason`` for their lack.

    ``tasks``: with the text of TVM's module, or None where the reader has the draft of the task.
    ``parameter_bytes``: of all constants, after norms are folded. ``activation_bytes``: the largest
    sum of the tensors that are needed at the same time, inputs and outputs included.
    """

    name: str = ""
    reason: str = ""
    tasks: Sequence[NetworkTask] = ()
    parameter_bytes: int = 0
    activation_bytes: int = 0
    form: NetworkFormat = field(default_factory=NetworkFormat)

    @property
    def flops(self) -> float:
        """Count the floating-point operations of an inference."""
        return sum(task.weight * task.flops for task in self.tasks)


def outline(module: Any, target: Any, form: NetworkFormat, known: Collection[str] = ()) -> Outline:
    """Lower an imported network and describe the result; `known`: keys of drafted tasks.

    Raises `PrunerError`: TVM cannot lower it.
    """
    known_parts = _known(str(target))
    lowered, form, _ = lower_somehow(module, target, form, known_parts)
    save = load_tvm().tvm.ir.save_json
    tasks = [
        replace(task, module=None if task.key in known else str(save(task.module)))
        for task in network_tasks(lowered, target)
    ]
    return Outline(
        tasks=tasks,
        parameter_bytes=parameter_bytes(lowered),
        activation_bytes=activation_bytes(lowered, known_parts),
        form=form,
    )


@cache
def _known(target: str) -> LoweredParts:
    """Return what earlier lowerings of this process for the target have made."""
    return LoweredParts()


def parameter_bytes(lowered: Any) -> int:
    """Count the bytes of the constants of a lowered module, shared constants once."""
    found = inside(lowered["main"].body, load_tvm().tvm.ir.GenericConst)
    distinct = {hash(one): one for one in found}  # the hash is that of the object
    return sum(_bytes(one.ty) for one in distinct.values())


def activation_bytes(lowered: Any, known: LoweredParts | None = None) -> int:
    """Compute the largest sum of the tensors that are needed at the same time.

    A tensor is needed from the call that writes it to the last call that reads it, inputs and
    outputs of the network all the time. Reshapes are views. TVM's plan of the memory may take more:
    it reuses whole blocks.
    """
    relax, main, known = load_tvm().relax, lowered["main"], known or LoweredParts()
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    last = len(bindings)
    sizes: list[int] = []
    spans: list[list[int]] = []  # first and last binding that needs a tensor
    tensors: dict[int, frozenset[int]] = {}  # numbers of tensors by the hash of a variable

    def new(var: Any, place: int) -> None:
        tensors[hash(var)] = frozenset([len(sizes)])
        sizes.append(_bytes(var.ty))
        spans.append([place, place])

    def read(value: Any) -> frozenset[int]:
        variables = (hash(var) for var in relax.analysis.free_vars(value))
        return frozenset().union(*(tensors.get(var, frozenset()) for var in variables))

    for var in main.params:
        new(var, 0)
    inputs = range(len(sizes))
    for place, binding in enumerate(bindings):
        taken = read(binding.value)
        for number in taken:
            spans[number][1] = place
        if _moves_nothing(lowered, binding.value, known):
            tensors[hash(binding.var)] = taken
        else:
            new(binding.var, place)
    for number in (*inputs, *read(main.body.body)):
        spans[number][1] = last
    return _most(sizes, spans, last + 1)


def _most(sizes: Sequence[int], spans: Sequence[Sequence[int]], places: int) -> int:
    """Return the largest sum of sizes at a place."""
    change = np.zeros(places + 1, np.int64)
    first, end = np.array(spans, np.int64).reshape(-1, 2).T
    np.add.at(change, first, sizes)
    np.add.at(change, end + 1, np.negative(sizes))
    return int(change.cumsum().max(initial=0))


def _moves_nothing(lowered: Any, value: Any, known: LoweredParts) -> bool:
    """Check for a view, or for what only groups or selects tensors."""
    relax = load_tvm().relax
    if not isinstance(value, relax.Call):
        return True
    name = operator_name(value)
    if name == "relax.call_tir":
        function = lowered[value.args[0]]
        return bool(known.of("view", function, relax.analysis.has_reshape_pattern))
    return name == "relax.reshape"


def _bytes(ty: Any) -> int:
    """Count the bytes of a tensor, or of all in a tuple."""
    fields = getattr(ty, "fields", None)
    if fields is not None:
        return sum(map(_bytes, fields))
    if getattr(ty, "shape", None) is None or not hasattr(ty, "dtype"):
        return 0
    return math.prod(int(extent) for extent in ty.shape) * dtype_bytes(str(ty.dtype))
