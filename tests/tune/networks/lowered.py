"""Small networks imported and lowered once a process, nobody may change them; what they compute."""

import json
from functools import cache

import numpy as np
import torch

from pruner.tune.networks.lowering import lower
from pruner.tune.networks.network_tasks import network_tasks
from pruner.tune.networks.source import NetworkSource, example_of, import_network
from pruner.tune.tvm_import import load_tvm
from tests.tune.targets import target_of

HERE = "tests.tune.networks.small_networks"
ONE_CORE = '{"kind": "llvm", "num-cores": 1}'
QUICK = {"kind": "llvm", "opt-level": 0}  # to compile


def source(name):
    return NetworkSource(name=f"{HERE}:{name}")


@cache
def imported(name):
    """TVM's module of a network of `small_networks`."""
    return import_network(source(name))


@cache
def lowered(name, target=ONE_CORE):
    """The same for a target of TVM, by its name or the JSON of its table."""
    return lower(imported(name), _target(target))


@cache
def tasks_of(name, target=ONE_CORE):
    """Its tasks."""
    return tuple(network_tasks(lowered(name, target), _target(target)))


def _target(text):
    return target_of(json.loads(text) if text.startswith("{") else text)


def run(module, inputs, compiled=None):
    """Outputs of a module on this CPU, not scheduled; LLVM compiles it quickly."""
    tvm, quick = load_tvm().tvm, target_of(QUICK)
    built = compiled(module, quick) if compiled else tvm.compile(module, target=quick)
    machine = load_tvm().relax.VirtualMachine(built, tvm.cpu())
    found = machine["main"](*[tvm.runtime.tensor(np.array(one, order="C")) for one in inputs])
    return [one.numpy() for one in ([found] if hasattr(found, "numpy") else found)]


def torch_error(given, module):
    """The largest relative error of a lowered network's outputs, whose forms are torch's."""
    network, (inputs, _) = example_of(given)
    with torch.no_grad():
        wanted = network(*inputs)
    wanted, errors = wanted if isinstance(wanted, tuple) else (wanted,), []
    given, wanted = ([one.numpy() for one in some] for some in (inputs, wanted))
    for mine, theirs in zip(run(module, given), wanted, strict=True):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        errors.append(np.abs(mine - theirs).max() / np.abs(theirs).max())
    return np.max(errors)  # keeps NaN
