"""Vectors of odd lanes are divided into those of registers, and compute the same."""

import numpy as np
import pytest

from pruner.tune.compiling import compiled, even_vectors, written_out
from pruner.tune.tvm_import import load_tvm

pytestmark = pytest.mark.tvm


def scheduled(lanes):
    """A function that scales 3 x lanes numbers, a row as one vector."""
    from tvm import te

    a = te.placeholder((3, lanes), name="a")
    b = te.compute((3, lanes), lambda i, j: a[i, j] * 2.0 + j, name="b")
    module = load_tvm().tvm.IRModule({"main": te.create_prim_func([a, b])})
    schedule = load_tvm().s_tir.Schedule(module)
    schedule.vectorize(schedule.get_loops(schedule.get_sblock("b"))[1])
    return schedule.mod


@pytest.mark.parametrize(
    ("lanes", "divided"),
    [(40, "8)"), (24, "8)"), (48, "16)"), (32, None), (12, None), (34, None), (35, None)],
)
def test_only_long_vectors_of_odd_lanes_are_divided(lanes, divided):
    tvm, module = load_tvm().tvm, scheduled(lanes)
    target = tvm.target.Target({"kind": "llvm", "num-cores": 1})
    text = written_out(module, target)["main"].script()
    vector = f"T.vectorized({lanes})" if divided is None else f"T.vectorized({divided}"
    assert vector in text
    assert ("T.unroll(" in text) == (divided is not None)
    given = np.random.default_rng(0).standard_normal((3, lanes)).astype(np.float32)
    found = tvm.runtime.tensor(np.zeros_like(given))
    compiled(module, target).jit()["main"](tvm.runtime.tensor(given), found)
    np.testing.assert_array_equal(found.numpy(), given * 2 + np.arange(lanes, dtype=np.float32))


def test_loops_of_other_starts_steps_or_annotations_stay():
    tvm, tirx = load_tvm().tvm, load_tvm().tirx
    loops = []
    note = (tirx.For, lambda one: loops.append(one) or one)
    load_tvm().ffi.structural_map(scheduled(40)["main"], note)
    (loop,) = (one for one in loops if int(one.kind) == 2)
    var, kind = loop.loop_var, loop.kind
    eight, two = (tirx.IntImm(loop.extent.ty.dtype, number) for number in (8, 2))
    zero, body = loop.min, loop.body
    changed = {
        True: [tirx.For(var, zero, loop.extent, kind, body)],
        False: [
            tirx.For(var, eight, loop.extent, kind, body),
            tirx.For(var, zero, loop.extent, kind, body, step=two),
            tirx.For(var, zero, loop.extent, kind, body, annotations={"note": 1}),
        ],
    }
    for divided, ones in changed.items():
        for one in ones:
            module = tvm.IRModule({"main": tirx.PrimFunc([], one)})
            assert (even_vectors(module)["main"].body.loop_var.name != var.name) == divided
