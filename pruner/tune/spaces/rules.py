"""Rules that TVM's own operators ask for and TVM 0.27 does not have.

Poolings ask for ``meta_schedule.pool_max`` and the like. MetaSchedule would look for such a rule,
warn on stderr and go on as if nothing were asked; here it is told that.
"""

from __future__ import annotations

import importlib
from typing import Any

from pruner.tune.kinds import is_pocl
from pruner.tune.tvm_import import load_tvm

POCL_STEPS = (0, 16, 32, 64)  # steps of a loop that a program for PoCL may write out
_RULE, _NO_RULE = "schedule_rule", "None"  # an annotation of blocks; its value for none at all


def provide_rules(module: Any, target: Any) -> None:
    """Have TVM know a rule for everything that the module's blocks ask for on this target."""
    ffi, blocks = importlib.import_module("tvm_ffi"), list[Any]()
    for _, function in module.functions_items():
        ffi.structural_walk(function.body, (load_tvm().s_tir.SBlock, blocks.append))
    for rule in {str(block.annotations.get(_RULE, _NO_RULE)) for block in blocks} - {_NO_RULE}:
        names = [f"s_tir.meta_schedule.{key}.{rule}" for key in target.keys]  # where TVM looks
        if all(ffi.get_global_func(name, allow_missing=True) is None for name in names):
            ffi.register_global_func(names[0], _as_any_block)


def _as_any_block(schedule: Any, block: Any) -> list[Any]:
    """A rule: the block is scheduled by the default rules."""
    schedule.unannotate(block, _RULE)
    return [schedule]


def rules_of(name: str, target: Any) -> Any:
    """TVM's rules of a name; for PoCL with short unrolled loops only.

    PoCL hands a work group's loop over its items, around every stretch between two barriers, to
    LLVM. Bodies of thousands of lines take it half a minute to minutes to compile, and run slower
    than loops do (matmul 128x128x128, 512 steps: 2,356 lines, 17 s to compile, 10 ms to run; 64
    steps: 1.4 s and .65 ms). The design space is narrowed, not the program that was chosen, so the
    decision vector, and with it every feature, says what runs.
    """
    if not is_pocl(target):
        return name
    rule = load_tvm().meta_schedule.schedule_rule.ParallelizeVectorizeUnroll
    short = rule(max_jobs_per_core=-1, max_vectorize_extent=-1, unroll_max_steps=list(POCL_STEPS))
    found = load_tvm().meta_schedule.ScheduleRule.create("cuda")  # OpenCL's are the same
    return [short if isinstance(one, rule) else one for one in found]
