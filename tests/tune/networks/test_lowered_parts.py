"""A lowering with results of earlier lowerings has the tasks of a lowering without."""

import json

import numpy as np
import pytest

from tests.tune.networks.lowered import ONE_CORE, imported, run

pytestmark = pytest.mark.tvm
NETWORKS = ("channels", "two_outputs", "faint")


def target_of(text=ONE_CORE):
    from pruner.tune.tvm_import import load_tvm

    return load_tvm().tvm.target.Target(json.loads(text) if text.startswith("{") else text)


def tasks(name, known=None, target=None):
    """Name, hash, calls and arithmetic of the tasks of a network with channels last."""
    from pruner.tune.networks.lowering import NetworkFormat, lower
    from pruner.tune.networks.network_tasks import network_tasks

    target = target or target_of()
    module = lower(imported(name), target, NetworkFormat(layout="NHWC"), known)
    found = network_tasks(module, target)
    return [(one.name, one.key, one.weight, one.flops, one.shapes, one.share) for one in found]


def test_tasks_do_not_depend_on_earlier_networks(monkeypatch):
    """The second time no call is lowered and no function is rewritten."""
    from pruner.tune.networks import lowered_parts as kept

    wanted = {name: tasks(name) for name in NETWORKS}
    known = kept.LoweredParts()
    assert {name: tasks(name, known) for name in NETWORKS} == wanted
    made = len(known._functions)
    monkeypatch.setattr(kept, "_learned", lambda *_: pytest.fail("it is known"))
    assert {name: tasks(name, known) for name in reversed(NETWORKS)} == wanted
    assert len(known._functions) == made


def test_functions_for_cuda_are_the_same_too(tvm):
    from pruner.tune.networks.lowered_parts import LoweredParts

    target, known = target_of("nvidia/nvidia-a100"), LoweredParts()
    wanted = tasks("channels", target=target)
    assert tasks("channels", known, target) == wanted
    assert tasks("channels", known, target) == wanted


def sums(parts):
    """A Relax function of two tensors that stacks sums; `parts`: of (first, second) of (x, y)."""
    from tvm import relax

    x, y = (relax.Var(name, relax.TensorType((4, 4), "float32")) for name in "xy")
    builder = relax.BlockBuilder()
    with builder.function("main", [x, y]):
        with builder.dataflow():
            made = [builder.emit(relax.op.add(*part(x, y))) for part in parts]
            out = builder.emit_output(relax.op.concat(made, 0))
        builder.emit_func_output(out)
    return builder.get()


def test_equal_tensors_and_numbers_are_told_apart(tvm):
    """x + x, x + y, y + x, and x + 2, x + 3 have equal kinds of arguments, and other values."""
    from pruner.tune.networks.lowered_parts import LoweredParts
    from pruner.tune.networks.lowering import lower

    relax, known = tvm.relax, LoweredParts()
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((4, 4)).astype(np.float32) for _ in range(2))
    pairs = {
        "xx": (lambda x, y: (x, x), x + x),
        "xy": (lambda x, y: (x, y), x + y),
        "yx": (lambda x, y: (y, x), y + x),
        "x2": (lambda x, y: (x, relax.const(2.0, "float32")), x + 2),
        "x3": (lambda x, y: (x, relax.const(3.0, "float32")), x + 3),
    }
    for order in (list(pairs), list(reversed(pairs))):
        module = lower(sums([pairs[name][0] for name in order]), target_of(), known=known)
        (found,) = run(module, [x, y])
        np.testing.assert_array_equal(found, np.concatenate([pairs[name][1] for name in order]))


def test_numbers_are_told_apart_by_their_signs(tvm):
    """0.0 and -0.0 are equal, and nan is not equal to itself."""
    from pruner.tune.networks.lowered_parts import _argument

    number = lambda value: _argument(tvm.tirx.FloatImm("float32", value), [])  # noqa: E731
    assert number(0.0) != number(-0.0)
    assert number(float("nan")) == number(float("nan"))
