"""A campaign that could not run anything ends before its first minute, in one line."""

from dataclasses import replace

import pytest

from pruner.errors import PrunerError
from pruner.study.device import ready
from pruner.study.device.options import CampaignOptions


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
