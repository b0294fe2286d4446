"""Functions written out for vector units against those of SciPy, and what comes out at the ends."""

import numpy as np
import pytest
from scipy import special

from pruner.tune.compiling import compiled
from pruner.tune.tvm_import import load_tvm

pytestmark = pytest.mark.tvm

EXACT = {"exp": np.exp, "erf": special.erf, "tanh": np.tanh, "sigmoid": special.expit}
ENDS = {
    "exp": (np.inf, 0.0, 1.0),
    "erf": (1.0, -1.0, 0.0),
    "tanh": (1.0, -1.0, 0.0),
    "sigmoid": (1.0, 0.0, 0.5),
}
DENORMAL = 1.2e-38


def executable(name, dtype="float32", kind="llvm"):
    from tvm import te, tirx

    tvm = load_tvm().tvm
    x = te.placeholder((64, 256), dtype, "x")
    y = te.compute((64, 256), lambda i, j: getattr(tirx, name)(x[i, j]), "y")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([x, y]))
    outer, inner = schedule.get_loops(schedule.get_sblock("y"))
    del outer
    schedule.vectorize(schedule.split(inner, [None, 16])[1])
    return compiled(schedule.mod, tvm.target.Target({"kind": kind, "num-cores": 1}))


def computed(library, x):
    tvm = load_tvm().tvm
    given, found = tvm.runtime.tensor(x), tvm.runtime.tensor(np.zeros_like(x))
    library(given, found)
    return found.numpy()


@pytest.mark.parametrize("name", EXACT)
def test_values_are_those_of_scipy_and_no_library_is_called(name):
    library = executable(name)
    assembly = library.mod.inspect_source("asm")
    assert not any(f"{call}f" in assembly for call in ("exp", "erf", "tanh"))
    x = np.linspace(-100.0, 100.0, 64 * 256, dtype=np.float32).reshape(64, 256)
    for scale in (1.0, 0.05, 1e-5):
        given = x * np.float32(scale)
        with np.errstate(over="ignore", under="ignore"):
            exact = EXACT[name](given.astype(np.float64))
            kept = (np.abs(exact) > DENORMAL) & (exact < np.finfo(np.float32).max)
        error = np.abs(computed(library, given) - exact)[kept] / np.abs(exact)[kept]
        assert error.max() < 5e-7


@pytest.mark.parametrize("name", EXACT)
def test_ends_and_nan(name):
    x = np.zeros((64, 256), np.float32)
    x[0, :5] = np.inf, -np.inf, 0.0, np.nan, -200.0
    found = computed(executable(name), x)[0]
    high, low, middle = ENDS[name]
    assert found[0] == pytest.approx(high, abs=5e-7)
    assert found[1] == pytest.approx(low, abs=5e-7)
    assert found[2] == middle
    assert np.isnan(found[3])
    assert found[4] == pytest.approx(low, abs=5e-7)


def test_exp_reaches_both_ends_of_float32():
    x = np.zeros((64, 256), np.float32)
    x[0, :4] = 88.72, 88.73, -87.33, -87.34
    found = computed(executable("exp"), x)[0, :4].astype(np.float64)
    assert found[0] == pytest.approx(np.exp(np.float64(np.float32(88.72))), rel=5e-7)
    assert np.isinf(found[1])
    assert found[2] == pytest.approx(np.exp(np.float64(np.float32(-87.33))), rel=5e-7)
    assert found[3] == 0.0


def test_other_types_are_left_alone():
    x = np.linspace(-3.0, 3.0, 64 * 256).reshape(64, 256)
    found = computed(executable("exp", dtype="float64"), x)
    np.testing.assert_allclose(found, np.exp(x), rtol=1e-14)


LACKING = {
    **{"acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh, "atan": np.arctan},
    **{"cosh": np.cosh, "erf": special.erf, "log1p": np.log1p, "sinh": np.sinh},
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, "float16") for name in LACKING), ("cosh", "float32"), ("sinh", "float64")],
)
def test_functions_that_tvm_lacks_are_those_of_numpy(name, dtype):
    """Of float16, and hyperbolic functions of vectors."""
    near = np.finfo(dtype).eps * 4
    x = np.linspace(-9, 9, 64 * 256).astype(dtype).reshape(64, 256)
    with np.errstate(divide="ignore", invalid="ignore"):
        wanted = LACKING[name](x.astype(np.float64))
    np.testing.assert_allclose(computed(executable(name, dtype), x), wanted, near, near)
