"""Rules that TVM's own operators ask for and TVM 0.27 does not have.

Poolings ask for ``meta_schedule.pool_max`` and the like. MetaSchedule would look for such a rule,
warn on stderr and go on as if nothing were asked; here it is told that.
"""

from __future__ import annotations

import importlib
from typing import Any

from pruner.tune.tvm_import import load_tvm

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
