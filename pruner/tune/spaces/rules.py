"""Schedule rules that TVM's operators require and TVM 0.27 lacks.

Poolings require ``meta_schedule.pool_max`` and similar rules. MetaSchedule searches for such a
rule, warns on stderr and continues with its default rules; the rules registered here do the same
without the warning.
"""

from __future__ import annotations

import importlib
from typing import Any

from pruner.tune.kinds import is_pocl
from pruner.tune.tvm_import import load_tvm

POCL_STEPS = (0, 16, 32, 64)  # steps of a loop that a program for PoCL may write out
_RULE, _NO_RULE = "schedule_rule", "None"  # an annotation of blocks; its value for "no rule"


def provide_rules(module: Any, target: Any) -> None:
    """Register a default for every missing rule that the module's blocks require."""
    ffi, blocks = importlib.import_module("tvm_ffi"), list[Any]()
    for _, function in module.functions_items():
        ffi.structural_walk(function.body, (load_tvm().s_tir.SBlock, blocks.append))
    for rule in {str(block.annotations.get(_RULE, _NO_RULE)) for block in blocks} - {_NO_RULE}:
        names = [f"s_tir.meta_schedule.{key}.{rule}" for key in target.keys]  # where TVM looks
        if all(ffi.get_global_func(name, allow_missing=True) is None for name in names):
            # PostOrderApply takes the first key of the target that has the rule: one registration
            # is enough
            ffi.register_global_func(names[0], _as_any_block)


def _as_any_block(schedule: Any, block: Any) -> list[Any]:
    """Apply as a rule: the default rules schedule the block."""
    schedule.unannotate(block, _RULE)
    return [schedule]


def rules_of(name: str, target: Any) -> Any:
    """Create TVM's rules of a name; PoCL gets short unrolled loops.

    PoCL hands a work group's loop over its items, around every stretch between two barriers, to
    LLVM. Bodies of thousands of lines take it half a minute to minutes to compile, and run slower
    than loops do (matmul 128x128x128, 512 steps: 2,356 lines, 17 s to compile, 10 ms to run; 64
    steps: 1.4 s and .65 ms). The design space is narrowed, not the program that was chosen, so the
    decision vector and all features describe the program that runs.
    """
    if not is_pocl(target):
        return name
    rule = load_tvm().meta_schedule.schedule_rule.ParallelizeVectorizeUnroll
    short = rule(max_jobs_per_core=-1, max_vectorize_extent=-1, unroll_max_steps=list(POCL_STEPS))
    found = load_tvm().meta_schedule.ScheduleRule.create("cuda")  # OpenCL has the same rules
    return [short if isinstance(one, rule) else one for one in found]
