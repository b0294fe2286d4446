"""The head of a trace: instructions that TVM applies once.

The head ends before the first decision.

Tensor-core spaces begin with instructions that no decision changes and that have no batched form:
``ReIndex``, ``TransformLayout`` of whole buffers, ``PadEinsum``. The tree is read from the function
after these instructions, and the batched replay continues with the rest of the trace.
"""

from __future__ import annotations

from typing import Any

from pruner.program.tir.trace import KINDS, TraceProgram
from pruner.tune.kinds import is_gpu
from pruner.tune.spaces.batched.prim_func import places_of, read_prim_func
from pruner.tune.spaces.batched.trace import numbered, read_trace
from pruner.tune.spaces.design import DesignSpace
from pruner.tune.tvm_import import load_tvm


def read_program(design: DesignSpace) -> TraceProgram:
    """Read a design space as a tree and its decision-dependent instructions.

    Raises:
        UnsupportedProgram: the function or the trace has no batched form.
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
    """Apply the head; return the function and numbered results."""
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
