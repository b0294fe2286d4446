"""TVM for the tests of tuning."""

import pytest


@pytest.fixture(scope="session")
def tvm():
    """TVM's modules, as `load_tvm` returns them."""
    from pruner.tune.tvm_import import load_tvm

    return load_tvm()


@pytest.fixture(scope="session")
def platform(tvm):
    """A CPU with two cores."""
    from pruner.tune.measure.measurer import Platform

    target = tvm.tvm.target.Target({"kind": "llvm", "num-cores": 2})
    return Platform(target=target, device="cpu", cores=2, name="cpu-avx2")
