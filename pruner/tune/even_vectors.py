"""Divide long vectors of odd lanes in a CPU's programs.

LLVM is slow where the number of lanes is no power of two: it widens a vector of 40 lanes to 64, and
takes 40 s for a loop of 512 such steps that is written out. As five vectors of 8 lanes the same
loop takes a tenth of a second.
"""

from __future__ import annotations

from typing import Any

from pruner.tune.tvm_import import load_tvm

_VECTORIZED, _UNROLLED = 2, 3  # kinds of loops
_LONGEST, _SHORTEST = 16, 4  # lanes: shorter vectors fit a register; shorter parts gain nothing


def even_vectors(module: Any) -> Any:
    """Divide long vectors of scheduled functions where their lanes are uneven."""
    tvm, ffi = load_tvm().tvm, load_tvm().ffi
    changed = module.clone()
    for name, function in module.functions_items():
        if isinstance(function, tvm.tirx.PrimFunc):
            new = ffi.structural_map(function, (tvm.tirx.For, _divided))
            if not new.same_as(function):
                changed[name] = new
    return changed


def _divided(loop: Any) -> Any:
    tirx, ffi = load_tvm().tirx, load_tvm().ffi
    if int(loop.kind) != _VECTORIZED or not isinstance(loop.extent, tirx.IntImm):
        return loop
    zero = tirx.IntImm(loop.extent.ty.dtype, 0)
    if loop.step is not None or loop.annotations or not ffi.structural_equal(loop.min, zero):
        return loop  # of a user's program: schedules make none
    lanes, whole = int(loop.extent), loop.loop_var
    part = lanes & -lanes  # the largest power of two that divides them
    if lanes <= _LONGEST or part in (lanes, *range(_SHORTEST)):
        return loop
    outer, inner = (tirx.Var(f"{whole.name}_{end}", whole.ty) for end in ("part", "lane"))
    value = outer * part + inner
    body = ffi.structural_map(
        loop.body, (tirx.Var, lambda var: value if var.same_as(whole) else var)
    )
    parts, of_part = (tirx.IntImm(loop.extent.ty.dtype, n) for n in (lanes // part, part))
    vector = type(loop)(inner, loop.min, of_part, _VECTORIZED, body)
    return type(loop)(outer, loop.min, parts, _UNROLLED, vector)
