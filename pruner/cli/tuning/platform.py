"""Make the platform of the options, with its device and analyzer."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from omegaconf import DictConfig

from pruner.cli.shared.options import plain
from pruner.cli.shared.output import say
from pruner.errors import DataError, PrunerError
from pruner.models.analyzer.analyzer import Analyzer, AnyFormula
from pruner.program.device import device_from_mapping
from pruner.tune.kinds import CUDA, OPENCL
from pruner.tune.measure.jobs import RpcAddress
from pruner.tune.measure.machine import (
    check_health,
    make_platform,
    missing_device,
    on_opencl,
    platform_analyzer,
    visible_gpus,
    with_devices,
)
from pruner.tune.measure.measurer import Platform
from pruner.tune.networks.lowering import NetworkFormat
from pruner.tune.networks.rewrites.layout import chosen_layout, chosen_precision


def chosen_platform(config: DictConfig, *, measures: bool) -> Platform:
    """Make and print the platform; check its device if the run ``measures``.

    Raises `PrunerError` for a network on OpenCL, for a target as `make_platform`, and if a run that
    measures lacks the device.
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
        if len(platform.environments) > 1:
            say(f"{len(platform.environments)} devices measure at the same time")
    say(f"target {platform.target_json}")
    return platform


def check_device(named: str | int | None, platforms: Sequence[Platform]) -> None:
    """Refuse ``measure.device=`` where no platform reads it."""
    if named is not None and all(platform.device != OPENCL for platform in platforms):
        raise PrunerError(
            f"measure.device={named}: it chooses among OpenCL devices; leave it out, and choose a "
            "CUDA device by the variable CUDA_VISIBLE_DEVICES"
        )


def _on_opencl(platform: Platform, config: DictConfig) -> Platform:
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
    """Make the platform of a run, with its OpenCL device if that is here."""
    platform = platform_of(config, plain(config.target))
    if platform.device == OPENCL:
        with suppress(PrunerError):
            return _on_opencl(platform, config)
    return platform


def platform_of(config: DictConfig, target: Any) -> Platform:
    """Make the described platform for a target, None: its own; open no device."""
    device = device_from_mapping(plain(config.platform))
    return make_platform(device, target=target, address=address_of(config))


def address_of(config: DictConfig) -> RpcAddress | None:
    """Return the device of ``runner=rpc``, None: of this machine."""
    if config.runner.kind != "rpc":
        return None
    if "key" not in config.runner:
        raise PrunerError("runner.kind=rpc: choose it by runner=rpc runner.key=KEY")
    names = ("host", "port", "key", "session_timeout_s")
    return RpcAddress(**{name: config.runner[name] for name in names})


def network_format(device: str, *, layout: str = "auto", precision: str) -> NetworkFormat:
    """Choose layout and precision of a network for a kind of device."""
    chosen = chosen_precision(precision)
    form = chosen_layout(layout, device=device, precision=chosen)
    return NetworkFormat(layout=form, precision=chosen)


def load_draft(platform: Platform, form: AnyFormula = "hardware") -> Analyzer | None:
    """Load the platform's analyzer; report and return None if missing."""
    try:
        return platform_analyzer(platform, form)
    except DataError as error:
        say(f"no draft: {error}")
        return None
