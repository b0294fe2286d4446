"""Design spaces of an operator, generated once a process; nobody may change them."""

import json
from functools import cache

from pruner.tune.spaces.design import design_spaces
from pruner.tune.tvm_import import load_tvm
from pruner.tune.workloads import from_operator


def designs_of(sizes, target):
    """The spaces of an operator of these sizes for a target of TVM, by its name or its table."""
    return list(_designs(json.dumps(sizes, sort_keys=True), json.dumps(target, sort_keys=True)))


@cache
def _designs(sizes, target):
    module = from_operator(json.loads(sizes)).module
    return design_spaces(module, load_tvm().tvm.target.Target(json.loads(target)))


def kind_of(design):
    """What the programs of a space multiply with: ``mma``, ``wmma`` or scalar lanes."""
    kinds = {inst.kind.name for inst in design.trace.insts}
    return "mma" if "ReadAt" in kinds else "wmma" if "Blockize" in kinds else "lanes"
