"""Everything that can only be seen on a CUDA device; without one these tests skip."""

import os

import pytest


@pytest.fixture(scope="session")
def platform():
    """The description of the GPU that `CUDA_VISIBLE_DEVICES` names."""
    from experiments.gpu.ready import described_gpu
    from pruner.program.device import load_device
    from pruner.tune.pools.conditions import about_gpus
    from tests.paths import CONF

    if not os.environ.get("CUDA_VISIBLE_DEVICES") or not about_gpus():
        pytest.skip("no CUDA device is visible; make gpu GPU=0 names one")
    devices = [load_device(path) for path in sorted((CONF / "platform").glob("*.yaml"))]
    return described_gpu(about_gpus(), devices)
