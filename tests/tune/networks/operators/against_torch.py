"""Import a function of torch, run it untuned in TVM and compare it with torch."""

import warnings

import torch
from torch.utils import _pytree


class Function(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def assert_equal(function, *inputs, tolerance=1e-5):
    """Compare all outputs: number, shapes, types and values. Integers are equal exactly."""
    from pruner.tune.networks.lowering import lower
    from pruner.tune.networks.operators.program import from_exported
    from pruner.tune.tvm_import import load_tvm

    tvm, relax = load_tvm().tvm, load_tvm().relax
    module = function if isinstance(function, torch.nn.Module) else Function(function)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's of its own modules
        imported = from_exported(torch.export.export(module.eval(), inputs))
        wanted = _pytree.tree_leaves(module(*(part.clone() for part in inputs)))
    target = tvm.target.Target({"kind": "llvm", "num-cores": 1, "opt-level": 0})
    built = relax.build(lower(imported, target), target)
    machine = relax.VirtualMachine(built, tvm.cpu())
    found = _leaves(machine["main"](*(tvm.runtime.tensor(part.numpy()) for part in inputs)))
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        close = {"atol": tolerance, "rtol": tolerance} if one.is_floating_point() else {}
        torch.testing.assert_close(one, other, equal_nan=True, **close)


def _leaves(result):
    if hasattr(result, "numpy"):
        return [torch.from_numpy(result.numpy())]
    return [leaf for part in result for leaf in _leaves(part)]
