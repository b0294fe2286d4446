"""PoCL, where the extra `opencl` is installed."""

import importlib.util
import shutil

import pytest

from pruner.tune.measure.machine import make_platform, on_opencl
from tests.tune.targets import device_of


@pytest.fixture(scope="session")
def pocl():
    """The platform opencl-pocl on this machine's PoCL."""
    for package in ("tvm", "pyopencl", "pocl_binary_distribution"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed; pip install 'pruner[tvm,opencl]'")
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler (g++) on this machine")
    device = device_of("opencl-pocl")
    return on_opencl(make_platform(device), device)[0]
