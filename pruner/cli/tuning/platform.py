"""The platform that options name, where its programs run, and what drafts for it."""

from contextlib import suppress
from typing import Any

from omegaconf import DictConfig

from pruner.cli.shared.options import plain
from pruner.cli.shared.output import say
from pruner.errors import DataError, PrunerError
from pruner.models.analyzer.analyzer import Analyzer, AnyForm
from pruner.program.device import device_from_mapping
from pruner.tune.analyzer import platform_analyzer
from pruner.tune.kinds import CUDA, OPENCL
from pruner.tune.measure.jobs import RpcAddress
from pruner.tune.measure.machine import make_platform, missing_device, on_opencl
from pruner.tune.measure.measurer import Platform
from pruner.tune.measure.places import visible_gpus, with_devices
from pruner.tune.measure.remote import check_health

CPU = "cpu"


def asked_platform(config: DictConfig, *, measures: bool) -> Platform:
    """The platform that options name, told.

    ``measures``: its device is needed, now and here.

    Raises:
        PrunerError: see :func:`platform_of`; or there is no such device.
    """
    platform = platform_of(config, plain(config.target))
    if platform.device == OPENCL and config.get("network") is not None:
        raise PrunerError(
            f"network={config.network}: networks are not built for OpenCL yet; tune an operator "
            "(workload=) there, or name a CUDA device or a CPU"
        )
    there = 1
    if platform.address is not None and measures:
        found = check_health(platform.address, config.runner.health_timeout_s)
        key, seconds, there = platform.address.key, found["seconds"], found["servers"]
        say(f"{found['servers']} device(s) {key}, answer in {seconds:.2f} s")
    if measures and platform.device == OPENCL:
        platform = _on_opencl(platform, config)
    reason = missing_device(platform) if measures else None
    if reason is not None:
        raise PrunerError(
            f"platform={config.platform.name}: {reason}; use runner=rpc, compile_only=true, "
            "platform=cpu or, for a network, effort=draft"
        )
    if measures:
        if platform.address is None and platform.device == CUDA:
            there = len(visible_gpus())
        platform = with_devices(platform, config.measure.get("devices", 1), there)
        if len(platform.places) > 1:
            say(f"{len(platform.places)} devices measure at the same time")
    say(f"target {platform.target_json}")
    return platform


def _on_opencl(platform: Platform, config: DictConfig) -> Platform:
    """The platform on the OpenCL device of this machine that options choose, told."""
    device = device_from_mapping(plain(config.platform))
    own_limits = config.target is None
    placed, found = on_opencl(platform, device, config.measure.get("device"), own_limits=own_limits)
    say(f"OpenCL device {found}")
    halves = "float16" in str(config.get("workload"))
    if halves and not found.has_half:
        raise PrunerError(
            f"workload.dtype=float16: {found.name} has no float16 (cl_khr_fp16); use float32"
        )
    return placed


def placed_platform(config: DictConfig) -> Platform:
    """The platform of a run's options as it was measured on; an OpenCL device that is gone leaves
    the described one."""
    platform = platform_of(config, plain(config.target))
    if platform.device == OPENCL:
        with suppress(PrunerError):
            return _on_opencl(platform, config)
    return platform


def platform_of(config: DictConfig, target: Any) -> Platform:
    """The described platform for a target (None: its own); no device is asked.

    Raises:
        PrunerError: a target that TVM does not know, or a remote device without a name.
    """
    address = None
    if config.runner.kind == "rpc":
        names = ("host", "port", "key", "session_timeout_s")
        address = RpcAddress(**{name: config.runner[name] for name in names})
    device = device_from_mapping(plain(config.platform))
    return make_platform(device, target=target, address=address)


def load_draft(platform: Platform, form: AnyForm = "hardware") -> Analyzer | None:
    """The platform's analyzer; None where there is none, which is told.

    Raises:
        PrunerError: a form that is for GPUs was asked for a CPU.
    """
    try:
        return platform_analyzer(platform, form)
    except DataError as error:
        say(f"no draft: {error}")
        return None
