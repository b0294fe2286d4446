"""Compare a function of torch with its import: built by TVM, or as it was rewritten for TVM."""

import warnings

import pytest
import torch
from torch.utils import _pytree

from pruner.tune.networks.lowering import lower
from pruner.tune.networks.operators.complex_numbers import touches_complex
from pruner.tune.networks.operators.program import converters, decomposed, from_exported
from pruner.tune.tvm_import import load_tvm
from tests.tune.targets import target_of


class Function(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


class All(torch.nn.Module):
    """What several layers make of one input."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, x):
        return [layer(x) for layer in self.layers]


def assert_equal(function, *inputs, tolerance=1e-5):
    """Run it untuned in TVM; compare number, shapes, types and values of all outputs."""
    tvm, relax = load_tvm().tvm, load_tvm().relax
    program, wanted = _exported(function, inputs)
    imported = from_exported(program)
    target = target_of({"kind": "llvm", "num-cores": 1, "opt-level": 0})
    built = relax.build(lower(imported, target), target)
    machine = relax.VirtualMachine(built, tvm.cpu())
    found = _leaves(machine["main"](*(tvm.runtime.tensor(part.numpy()) for part in inputs)))
    _assert_close(found, wanted, tolerance)


def assert_rewritten(function, *inputs, tolerance=1e-5):
    """Let torch run what its operators are replaced by: TVM has each of them, none is complex."""
    load_tvm()
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    program, wanted = _exported(function, inputs)
    rewritten = decomposed(program, converters(ExportedProgramImporter()))
    assert not any(map(touches_complex, rewritten.graph.nodes))
    with torch.no_grad():
        found = rewritten.module(check_guards=False)(*inputs)
    _assert_close(_pytree.tree_leaves(found), wanted, tolerance)


# TVM builds what is left after rewriting in the slow tests: other fast tests build its operators.
WAYS = pytest.mark.parametrize(
    "assert_same",
    [
        pytest.param(assert_rewritten, id="rewritten"),
        pytest.param(assert_equal, marks=pytest.mark.slow, id="built"),
    ],
)


def _exported(function, inputs):
    """The program and what torch computes."""
    module = function if isinstance(function, torch.nn.Module) else Function(function)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's of its own modules
        program = torch.export.export(module.eval(), inputs)
        return program, _pytree.tree_leaves(module(*(part.clone() for part in inputs)))


def _assert_close(found, wanted, tolerance):
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        close = {"atol": tolerance, "rtol": tolerance} if one.is_floating_point() else {}
        torch.testing.assert_close(one, other, equal_nan=True, **close)


def _leaves(result):
    if hasattr(result, "numpy"):
        return [torch.from_numpy(result.numpy())]
    return [leaf for part in result for leaf in _leaves(part)]
