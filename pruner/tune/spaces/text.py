"""Print a TIR function as Ansor prints a DAG, for equal workload flags."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float32

from pruner.features.columns import text_flags
from pruner.program.dag.dag import ASSIGNMENT, INFIX, shortened
from pruner.program.dag.expr import TVM_BINARY
from pruner.tune.spaces.batched.prim_func import blocks_in, kind_of

_SPATIAL = 0  # IterVar.DataPar


def module_flags(module: Any) -> Float32[np.ndarray, " flag"]:
    """Compute the workload flags of a task's module."""
    return text_flags(module_text(module))


def module_text(module: Any) -> str:
    """Print the computation of a module, a line for every input and store."""
    return "".join(_func_text(func) for _, func in module.functions_items())


def _func_text(func: Any) -> str:
    # Ansor prints no structure above the stores: the root block and nested blocks vanish
    blocks = list(blocks_in(func.body, lambda block: kind_of(block.body) == "BufferStore"))
    written = {str(block.body.buffer.name) for block in blocks}
    buffers = [
        param if hasattr(param, "shape") else func.buffer_map[param] for param in func.params
    ]
    lines = [
        f"{buffer.name} = PLACEHOLDER [{', '.join(map(str, buffer.shape))}]"
        for buffer in buffers
        if str(buffer.name) not in written
    ]
    lines += [_line(block) for block in blocks]
    return "".join(shortened(line) + "\n" for line in lines)


def _line(block: Any) -> str:
    axes = [_name(it.var) for it in block.iter_vars if int(it.iter_type) == _SPATIAL]
    value, sign = block.body.value, ASSIGNMENT[None]
    combiner: Any = TVM_BINARY.get(kind_of(value))
    if block.init is not None and combiner is not None and combiner in ASSIGNMENT:
        # C[i] = C[i] + x of a reduction is C(i) += x
        value, sign = value.b, ASSIGNMENT[combiner]
    return f"{block.name_hint}({', '.join(axes)}){sign}{_text(value)}"


def _name(var: Any) -> str:
    return str(var.name).removeprefix("v_")  # TVM names block iterators v_AXIS


def _text(expr: Any) -> str:
    kind = kind_of(expr)

    def listed(parts: Any) -> str:
        return ", ".join(_text(part) for part in parts)

    if kind in TVM_BINARY:
        op = TVM_BINARY[kind]
        if op not in INFIX:  # minima, maxima and floors are printed as calls
            return f"{op}({listed((expr.a, expr.b))})"
        return f"({_text(expr.a)}{INFIX[op]}{_text(expr.b)})"
    if kind == "Not":
        return f"!{_text(expr.a)}"
    if kind == "Cast":
        return f"{expr.ty}({_text(expr.value)})"
    if kind == "Select":
        return f"select({listed((expr.condition, expr.true_value, expr.false_value))})"
    if kind == "TensorLoad":
        return f"{expr.source.name}[{listed(expr.indices)}]"
    if kind == "Call":
        return f"tir.{str(expr.op.name).split('.')[-1]}({listed(expr.args)})"
    if kind in ("Var", "PrimVar"):
        return _name(expr)
    return str(expr.value) if kind in ("IntImm", "FloatImm") else str(expr)
