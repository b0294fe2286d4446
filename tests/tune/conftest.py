"""TVM for the tests of tuning."""

import importlib
import importlib.util
import typing
from functools import cache

import pytest


def pytest_collection_modifyitems(items):
    """Tests that need TVM are skipped without it."""
    if importlib.util.find_spec("tvm") is None:
        for item in items:
            if item.get_closest_marker("tvm"):
                item.add_marker(pytest.mark.skip(reason="TVM 0.27 is not installed"))


@pytest.fixture(scope="session", autouse=True)
def _exports_are_quick():
    """A third of an export by torch: the same operators are looked up for each of its namespaces,
    and an annotation is built 12,000 times, which `typing` keeps."""
    utils = importlib.import_module("torch._export.utils")
    with pytest.MonkeyPatch.context() as patch:
        if found := getattr(utils, "_materialize_cpp_cia_ops", None):
            patch.setattr(utils, "_materialize_cpp_cia_ops", cache(found))
        patch.setattr("torch._ops.Callable", typing.Callable)
        yield


@pytest.fixture(scope="module", autouse=True)
def _spaces_are_generated_once():
    """A run, a draft and a pool get the design spaces of a module that this process has made.

    The same seed gives the same spaces; equal modules are those of equal text, with all names.
    """
    from pruner.tune.networks import draft_task
    from pruner.tune.pools import measured_set
    from pruner.tune.run import setup

    with pytest.MonkeyPatch.context() as patch:
        for module in (setup, draft_task, measured_set):
            patch.setattr(module, "design_spaces", _once)
        yield


_SPACES = {}


def _once(module, target):
    from pruner.tune.spaces.design import design_spaces
    from pruner.tune.tvm_import import load_tvm

    key = load_tvm().tvm.ir.save_json(module), str(target)
    if key not in _SPACES:
        _SPACES[key] = design_spaces(module, target)
    return list(_SPACES[key])


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
