"""Lowered for CUDA: indices of 32 bits wherever they are enough, and the same results."""

import importlib

import pytest

from pruner.tune.networks import lowering
from pruner.tune.networks.lowering import narrowed
from pruner.tune.networks.rewrites.packing import tensors_of
from tests.tune.networks.lowered import lowered, source, torch_error
from tests.tune.targets import A100

pytestmark = pytest.mark.tvm


@pytest.mark.parametrize("name", ["residual", "encoder"])
def test_a_network_for_cuda_computes_what_torch_computes(name, tvm):
    module = lowered(name, A100)
    functions = [f for _, f in module.functions_items() if isinstance(f, tvm.tvm.tirx.PrimFunc)]
    data = [{str(tensor.dtype) for tensor in tensors_of(function)} for function in functions]
    wide = ["int64" in function.script() for function in functions]
    assert wide == ["int64" in types for types in data]
    assert not all(wide)
    assert torch_error(source(name), module) < 1e-5


def outer_sum(te, rows, columns):
    """Arguments of one axis each, and a sum of two of which every element has its place first."""
    a, b = te.placeholder((rows,), "float32", "a"), te.placeholder((columns,), "float32", "b")
    both = te.compute((rows, columns), lambda i, j: a[i] + b[j], "both")
    j = te.reduce_axis((0, columns), "j")
    return [a, b, te.compute((rows,), lambda i: te.sum(both[i, j], axis=j))]


def counted(te, rows, columns):
    """64-bit integers as data."""
    a = te.placeholder((rows, columns), "int64", "a")
    return [a, te.compute((rows, columns), lambda i, j: a[i, j] + te.const(1, "int64"))]


@pytest.mark.parametrize(
    ("operator", "rows", "columns", "narrow"),
    [
        (outer_sum, 64, 32, True),
        (outer_sum, 65536, 32767, True),  # 2^31 - 2^16 elements between the parts
        (outer_sum, 65536, 65536, False),
        (counted, 64, 32, False),
    ],
)
def test_what_32_bits_do_not_reach_keeps_its_indices(operator, rows, columns, narrow, tvm):
    te = importlib.import_module("tvm.te")

    made = te.create_prim_func(operator(te, rows, columns), index_dtype_override="int64")
    module = tvm.tvm.IRModule({"main": made})
    found = narrowed(module)["main"]
    assert ("int64" not in found.script()) == narrow
    if not narrow:
        assert found.same_as(made) or found.script() == made.script()


def test_variants_that_cannot_be_lowered_are_given_up_before_the_layout(monkeypatch, tvm):
    wanted = lowering.NetworkFormat(layout="NHWC", variants={"class": ["order 0"]})
    for works in ("NHWC float32", "NCHW float32"):

        def lower(module, target, form, works=works):
            if str(form) != works:
                raise ValueError(f"not {form}")
            return module

        monkeypatch.setattr(lowering, "lower", lower)
        _, form, reason = lowering.lower_somehow(None, None, wanted)
        assert str(form) == works
        assert reason == "ValueError: not NHWC float32, 1 variants"
