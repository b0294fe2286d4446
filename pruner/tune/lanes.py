"""Vectors of CUDA programs that TVM cannot write: their lanes become loops that it unrolls.

Its check of GPU code takes them, its compiler does not. CUDA has no vectors of an odd number of
16-bit floats ("Only support an even number of lanes for half type", codegen_cuda.cc). And where the
lanes of a fetch straddle rows, their places in shared memory may stay vectors of which
``CommonSubexprElim`` gives parts a name; inside a loop ``ThreadSync`` asks for the range of such a
place and stops at a number that is added to all lanes ("(eval_vec_) is false", int_set.cc). Such
lanes are written one after the other in any case.
"""

from __future__ import annotations

import importlib
from typing import Any

from pruner.tune.tvm_import import load_tvm

_VECTORIZED, _UNROLLED = 2, 3  # kinds of loops
_HALVES = ("float16", "bfloat16")


def lanes_written_out(module: Any, target: Any) -> Any:
    """The scheduled functions, with loops in place of the vectors that TVM cannot write.

    Whether lanes that straddle rows stop its compiler only its passes say, so they are run once
    more for functions that have such lanes.
    """
    tvm, changed = load_tvm().tvm, dict[Any, Any]()
    for name, function in module.functions_items():
        if not isinstance(function, tvm.tirx.PrimFunc):
            continue
        vectors = [x for x in _inside(function.body, tvm.tirx.For) if int(x.kind) == _VECTORIZED]
        stop = [loop for loop in vectors if _is_odd(loop)]
        straddling = [loop for loop in vectors if _straddles(loop)]
        if straddling and not _lowers(_unrolled(function, stop), target):
            stop += straddling
        if stop:
            changed[name] = _unrolled(function, stop)
    module = module.clone() if changed else module
    for name, function in changed.items():
        module[name] = function
    return module


def _inside(part: Any, kind: Any) -> list[Any]:
    found: list[Any] = []
    importlib.import_module("tvm_ffi").structural_walk(part, (kind, found.append))
    return found


def _blocks(loop: Any) -> list[Any]:
    return _inside(loop.body, load_tvm().s_tir.SBlockRealize)


def _is_odd(loop: Any) -> bool:
    """Whether a vector has an odd number of 16-bit floats, but not one."""
    blocks = [one.block for one in _blocks(loop)]
    buffers = [region.source for block in blocks for region in (*block.reads, *block.writes)]
    lanes = int(loop.extent)
    return lanes > 1 and lanes % 2 == 1 and any(str(x.dtype) in _HALVES for x in buffers)


def _straddles(loop: Any) -> bool:
    """Whether lanes of one vector may be on two rows of what is fetched into shared memory."""
    tirx, lanes = load_tvm().tvm.tirx, int(loop.extent)
    return any(
        int(part.b) % lanes != 0
        for one in _blocks(loop)
        if any(str(region.source.scope()).startswith("shared") for region in one.block.writes)
        for value in one.iter_values
        for kind in (tirx.FloorDiv, tirx.FloorMod)
        for part in _inside(value, kind)
    )


def _lowers(function: Any, target: Any) -> bool:
    """Whether the passes of TVM's compiler take a function, in the settings that are in force."""
    tvm = load_tvm().tvm
    host = target.host if target.host is not None else tvm.target.Target("llvm")
    bound = tvm.tirx.transform.BindTarget(target.with_host(host))
    passes, *_ = tvm.tirx.get_default_tir_pipeline(target)
    try:
        passes(bound(tvm.IRModule({"main": function})))
    except Exception:  # compilers raise kinds of their own
        return False
    return True


def _unrolled(function: Any, loops: list[Any]) -> Any:
    """The function with these loops unrolled."""
    if not loops:
        return function
    tvm, ffi = load_tvm().tvm, importlib.import_module("tvm_ffi")

    def rule(loop: Any) -> Any:
        if not any(loop.same_as(other) for other in loops):
            return loop
        place = (loop.thread_binding, loop.annotations, loop.step, loop.span)
        return type(loop)(loop.loop_var, loop.min, loop.extent, _UNROLLED, loop.body, *place)

    return ffi.structural_map(function, (tvm.tirx.For, rule))
