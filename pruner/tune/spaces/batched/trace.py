"""Convert a MetaSchedule trace to instructions of :mod:`pruner.program.tir.trace`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pruner.errors import UnsupportedProgram
from pruner.program.tir.trace import KINDS, TILES, Instruction, Ref, TraceProgram
from pruner.tune.kinds import is_gpu
from pruner.tune.spaces.batched.prim_func import places_of, read_prim_func
from pruner.tune.spaces.design import DesignSpace
from pruner.tune.tvm_import import load_tvm

_WIDTH = {"SampleCategorical": 1, "SampleComputeLocation": 1}


def numbered(insts: Iterable[Any]) -> dict[Any, int]:
    """Number all results of instructions in order."""
    made = (value for inst in insts for value in inst.outputs)
    return {value: number for number, value in enumerate(made)}


def read_trace(trace: Any, head: int = 0) -> tuple[tuple[Instruction, ...], int]:
    """Convert instructions from ``head`` to the postprocessors; count the slots.

    Raises `UnsupportedProgram` for index maps that are no quotient or remainder of axes.
    """
    numbers = numbered(trace.insts[:head])
    out: list[Instruction] = []
    slots = 0
    for inst in trace.insts[head:]:
        kind = str(inst.kind.name)
        if kind == "EnterPostproc":
            break
        outputs = []
        inputs = tuple(_input(value, numbers) for value in inst.inputs)
        for value in inst.outputs:
            numbers[value] = len(numbers)
            outputs.append(numbers[value])
        slot, width = -1, int(inst.attrs[0]) if kind in TILES else _WIDTH.get(kind, 0)
        if width:
            slot, slots = slots, slots + width
        attrs = tuple(_plain(attr) for attr in inst.attrs)
        out.append(Instruction(kind, inputs, attrs, tuple(outputs), slot))
    return tuple(out), slots


def _input(value: Any, numbers: dict[Any, int]) -> Any:
    if type(value).__name__ in ("Array", "list", "tuple"):
        return tuple(_input(item, numbers) for item in value)
    if type(value).__name__ == "IndexMap":
        # the accumulator's layout is the only index map with decisions in it, see the rule
        # MultiLevelTilingTensorCore of TVM
        axes = {var: axis for axis, var in enumerate(value.initial_indices)}
        return tuple(_quotient(index, axes, numbers) for index in value.final_indices)
    return Ref(numbers[value]) if value in numbers else _plain(value)


def _plain(value: Any) -> Any:
    kind = type(value).__name__
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if kind in ("IntImm", "FloatImm"):
        return value.value
    if isinstance(value, str):
        return str(value)
    if kind in ("Array", "list", "tuple"):
        return tuple(_plain(item) for item in value)
    return value


def _quotient(
    index: Any, axes: dict[Any, int], numbers: dict[Any, int]
) -> tuple[int, tuple[Any, ...], tuple[Any, ...] | None]:
    """Read an index ``(i // a) % c`` as axis, divisors, extent or None."""
    kind = type(index).__name__
    if kind in ("FloorMod", "FloorDiv"):
        axis, divisors, extent = _quotient(index.a, axes, numbers)
        # TVM writes the remainder outermost; anything else is not a tile of an axis
        if extent is None:
            factors = _factors(index.b, numbers)
            is_rest = kind == "FloorMod"
            return (axis, divisors, factors) if is_rest else (axis, (*divisors, *factors), None)
    elif index in axes:
        return axes[index], (), None
    raise UnsupportedProgram("index-map", str(index))


def _factors(value: Any, numbers: dict[Any, int]) -> tuple[Any, ...]:
    kind = type(value).__name__
    if kind == "Mul":
        return (*_factors(value.a, numbers), *_factors(value.b, numbers))
    if kind == "IntImm":
        return (int(value.value),)
    if value in numbers:
        return (Ref(numbers[value]),)
    raise UnsupportedProgram("index-map", str(value))


def read_program(design: DesignSpace) -> TraceProgram:
    """Read a design space as a tree and its decision-dependent instructions.

    TVM applies the head of tensor-core spaces (``ReIndex``, ``TransformLayout``, ``PadEinsum``).
    Raises `UnsupportedProgram` without batched form.
    """
    length = _head_length(design.trace.insts)
    instructions, num_slots = read_trace(design.trace, length)
    on_gpu = is_gpu(design.target)
    (func,) = (f for _, f in design.module.functions_items())
    if not length:
        return TraceProgram(read_prim_func(func), instructions, num_slots, on_gpu)
    func, known = _apply_head(design, length)
    tree = read_prim_func(func)
    return TraceProgram(tree, instructions, num_slots, on_gpu, places_of(func, known))


def _head_length(insts: Any) -> int:
    """Count instructions up to the last unbatched kind before any decision."""
    length = 0
    for number, inst in enumerate(insts):
        kind = str(inst.kind.name)
        if kind.startswith("Sample"):
            break
        strange = kind not in KINDS or kind in _WITH_DECISIONS
        length = number + 1 if strange else length
    return length


_WITH_DECISIONS = ("TransformLayout", "Blockize")  # batched where decisions are in them


def _apply_head(design: DesignSpace, length: int) -> tuple[Any, dict[int, Any]]:
    s_tir = load_tvm().s_tir
    # debug_mask=0: without it TVM verifies its state again after every primitive
    schedule = s_tir.Schedule(design.module, seed=1, debug_mask=0, error_render_level="none")
    s_tir.Trace(design.trace.insts[:length], {}).apply_to_schedule(schedule, remove_postproc=False)
    known: dict[int, Any] = {}
    for value, number in numbered(schedule.trace.insts).items():
        try:
            known[number] = schedule.get(value)
        except ValueError as error:  # a later instruction of the head took the block or loop away
            if "no longer exists" not in str(error):
                raise
    return schedule.mod["main"], known
