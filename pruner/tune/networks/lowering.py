"""From an imported network to functions that can be tuned: the one lowering of the project.

Records are looked up by the structural hash of a function. So what is tuned and what is built must
come from the same passes in the same order, each run once: lowering a lowered module changes
hashes, and every record is silently lost.
"""

from __future__ import annotations

import importlib
from typing import Any

from pruner.tune.networks.constants import fold_constants

REDUCTION = 2  # IterVar.CommReduce


def lower(module: Any, target: Any) -> Any:
    """A Relax module with bound parameters as fused, unscheduled TIR functions that ``main`` calls.

    Raises:
        ValueError: the module is lowered already.
    """
    tvm = importlib.import_module("tvm")
    relax = importlib.import_module("tvm.relax")
    if any(isinstance(function, tvm.tirx.PrimFunc) for _, function in module.functions_items()):
        raise ValueError("this module holds TIR functions already: it may be lowered once only")
    passes, backend = relax.transform, importlib.import_module("tvm.relax.backend")
    steps = [
        backend.DispatchSampling(),
        backend.DispatchSortScan(),
        passes.DecomposeOpsForInference(),
        passes.CanonicalizeBindings(),
        passes.LegalizeOps(),
        passes.AnnotateTIROpPattern(),
        passes.FoldConstant(),
        passes.FuseOps(),
        passes.FuseTIR(),
        passes.DeadCodeElimination(),
    ]
    with target:
        return _simplified(tvm.transform.Sequential(steps)(fold_constants(module)))


def _simplified(module: Any) -> Any:
    """Indices simplified: a reshape's v // 512 with v < 512 is 0, which affine engines can use.

    Not where a sum would lose a loop of one iteration (a batch of one): MetaSchedule tiles only
    blocks that are bound to loops alone, so a convolution would be left without any tile sizes.
    """
    s_tir, tirx = importlib.import_module("tvm.s_tir"), importlib.import_module("tvm.tirx")
    simple = s_tir.transform.StmtSimplify()(module)
    for name, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc) and _lost_loops(simple[name]):
            simple[name] = function
    return simple


def _lost_loops(function: Any) -> bool:
    """Whether a block that reduces is bound to something else than loop variables."""
    s_tir, tirx = importlib.import_module("tvm.s_tir"), importlib.import_module("tvm.tirx")
    found: list[bool] = []

    def look(realize: Any) -> None:
        if any(int(axis.iter_type) == REDUCTION for axis in realize.block.iter_vars):
            found.extend(not isinstance(value, tirx.Var) for value in realize.iter_values)

    walk = importlib.import_module("tvm_ffi").structural_walk
    walk(function.body, (s_tir.SBlockRealize, look))
    return any(found)
