"""Write ``clip`` as minimum and maximum, where TVM cannot take it as it is."""

from __future__ import annotations

from math import isfinite
from typing import Any

from pruner.tune.networks.rewrites.operators import operators_of
from pruner.tune.tvm_import import load_tvm

_CLIP = "relax.clip"


def without_clips(module: Any, *, integers_only: bool = False) -> Any:
    """Replace ``clip`` by minimum and maximum.

    A front end gives infinity for a missing bound, which is no integer: ``integers_only`` replaces
    ``clip`` of integers alone.
    """
    if _CLIP not in operators_of(module):
        return module
    relax = load_tvm().relax
    dpl = relax.dpl
    data, low, high = dpl.wildcard(), dpl.wildcard(), dpl.wildcard()
    clip = dpl.is_op(_CLIP)(data, low, high)

    def rewrite(call: Any, found: Any) -> Any:
        value, dtype = found[data], str(found[data].ty.dtype)
        is_integer = "int" in dtype
        if integers_only and not is_integer:
            return call
        for end, bounded in ((low, relax.op.maximum), (high, relax.op.minimum)):
            bound = found[end].value
            if not is_integer:
                value = bounded(value, relax.const(float(bound), dtype))
            elif isfinite(bound):
                value = bounded(value, relax.const(int(bound), dtype))
        return value

    module = module.clone()
    module["main"] = dpl.rewrite_call(clip, rewrite, module["main"])
    return relax.transform.Normalize()(module)
