"""A campaign that could not run anything ends before its first minute, in one line."""

from dataclasses import replace

import pytest

from experiments.gpu import ready
from experiments.gpu.options import CampaignOptions
from experiments.gpu.ready import described_gpu
from pruner.errors import PrunerError
from pruner.program.device import load_device
from tests.paths import CONF

DEVICES = [load_device(path) for path in sorted((CONF / "platform").glob("*.yaml"))]


@pytest.fixture
def options(tmp_path, monkeypatch):
    monkeypatch.setattr(ready, "cuda_environment", lambda: {"PATH": str(tmp_path)})
    monkeypatch.setattr(ready, "make_platform", lambda device: device.name)
    monkeypatch.setattr(ready, "missing_device", lambda _: None)
    nvcc = tmp_path / "nvcc"
    nvcc.touch()
    nvcc.chmod(0o755)
    return CampaignOptions(out=tmp_path, platform="h200")


def test_what_is_found_is_for_the_commands(options, tmp_path):
    assert ready.environment_of(options) == {"PATH": str(tmp_path)}
    assert ready.environment_of(replace(options, device="cpu")) == {}


def test_without_a_compiler_nothing_is_begun(options, tmp_path, monkeypatch):
    (tmp_path / "nvcc").unlink()
    monkeypatch.setattr(ready, "_has_nvrtc", lambda: True)
    assert ready.environment_of(options)
    with pytest.raises(PrunerError, match="no nvcc on the path: "):  # no driver, which NVRTC needs
        ready.environment_of(replace(options, compile_only=True))
    monkeypatch.setattr(ready, "_has_nvrtc", lambda: False)
    with pytest.raises(PrunerError, match="no nvcc on the path, nor cuda-bindings"):
        ready.environment_of(options)


def test_a_device_that_cannot_be_used_is_told_unless_none_is_needed(options, monkeypatch):
    monkeypatch.setattr(ready, "missing_device", lambda platform: f"{platform} is not there")
    with pytest.raises(PrunerError, match="platform=h200: h200 is not there"):
        ready.environment_of(options)
    assert ready.environment_of(replace(options, compile_only=True))


@pytest.mark.parametrize(
    ("name", "capability", "platform"),
    [
        ("NVIDIA H200", "9.0", "h200"),
        ("NVIDIA H100 80GB HBM3", "9.0", "h100"),
        ("NVIDIA A100-SXM4-80GB", "8.0", "a100"),
        ("NVIDIA A100-PCIE-40GB", "8.0", "a100_40"),
        ("NVIDIA GeForce RTX 4090", "8.9", "rtx4090"),
        ("Tesla V100-SXM2-16GB", "7.0", "v100"),
        ("Tesla T4", "7.5", "t4"),
        ("NVIDIA TITAN V", "7.0", "titanv"),
    ],
)
def test_names_as_drivers_tell_them(name, capability, platform):
    gpus = [{"name": name, "compute_cap": capability}, {"name": "other", "compute_cap": "1.0"}]
    assert described_gpu(gpus, DEVICES) == platform


def test_an_unknown_one_is_told_with_those_of_its_architecture():
    with pytest.raises(PrunerError, match=r"NVIDIA GH200 480GB .*: h100, h200"):
        described_gpu([{"name": "NVIDIA GH200 480GB", "compute_cap": "9.0"}], DEVICES)
    with pytest.raises(PrunerError, match=r"NVIDIA T400 4GB .*: t4"):
        described_gpu([{"name": "NVIDIA T400 4GB", "compute_cap": "7.5"}], DEVICES)
    for variant in ("NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D"):
        with pytest.raises(PrunerError, match=r"RTX 4090 .*: .*rtx4090"):
            described_gpu([{"name": variant, "compute_cap": "8.9"}], DEVICES)
    with pytest.raises(PrunerError, match=r"RTX 3080 Ti .*: .*rtx3080"):
        described_gpu([{"name": "NVIDIA GeForce RTX 3080 Ti", "compute_cap": "8.6"}], DEVICES)
    with pytest.raises(PrunerError, match=r"sm_123\) has no description"):
        described_gpu([{"name": "NVIDIA H200", "compute_cap": "12.3"}], DEVICES)
    with pytest.raises(PrunerError, match="no NVIDIA GPU is visible"):
        described_gpu([], DEVICES)
