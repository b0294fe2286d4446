"""From an imported network to functions that can be tuned: the one lowering of the project.

Records are looked up by the structural hash of a function. So what is tuned and what is built must
come from the same passes in the same order, each run once: lowering a lowered module changes
hashes, and every record is silently lost.
"""

from __future__ import annotations

import importlib
from typing import Any

from pruner.tune.networks.constants import fold_constants


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
        # A reshape's v // 512 with v < 512 is 0, which an engine of affine indices can use.
        importlib.import_module("tvm.s_tir").transform.StmtSimplify(),
    ]
    with target:
        return tvm.transform.Sequential(steps)(fold_constants(module))
