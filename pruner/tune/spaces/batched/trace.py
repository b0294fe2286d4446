"""A MetaSchedule trace as instructions of :mod:`pruner.program.tir.trace`."""

from __future__ import annotations

from typing import Any

from pruner.program.tir.trace import Instruction, Ref

_WIDTH = {"SampleCategorical": 1, "SampleComputeLocation": 1}


def read_trace(trace: Any) -> tuple[tuple[Instruction, ...], int]:
    """Instructions before the postprocessors, and the length of a decision vector."""
    numbers: dict[Any, int] = {}
    out: list[Instruction] = []
    slots = 0
    for inst in trace.insts:
        kind = str(inst.kind.name)
        if kind == "EnterPostproc":
            break
        outputs = []
        inputs = tuple(_input(value, numbers) for value in inst.inputs)
        for value in inst.outputs:
            numbers[value] = len(numbers)
            outputs.append(numbers[value])
        slot, width = -1, decision_width(inst)
        if width:
            slot, slots = slots, slots + width
        attrs = tuple(_plain(attr) for attr in inst.attrs)
        out.append(Instruction(kind, inputs, attrs, tuple(outputs), slot))
    return tuple(out), slots


def decision_width(inst: Any) -> int:
    """Slots that the decision of an instruction takes."""
    kind = str(inst.kind.name)
    return int(inst.attrs[0]) if kind == "SamplePerfectTile" else _WIDTH.get(kind, 0)


def _input(value: Any, numbers: dict[Any, int]) -> Any:
    if type(value).__name__ in ("Array", "list", "tuple"):
        return tuple(_input(item, numbers) for item in value)
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
