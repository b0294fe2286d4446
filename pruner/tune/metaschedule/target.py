"""Find the described device of a target of TVM."""

from __future__ import annotations

import importlib
import os
import re
from typing import Any

from pruner.errors import PrunerError
from pruner.paths import conf_folder
from pruner.program.device import Device, GpuDevice, load_device
from pruner.progress import Log
from pruner.tune.measure.measurer import Platform
from pruner.tune.measure.targets import CPU_TARGETS

_DEVICE_KINDS = {"llvm": "cpu", "cuda": "gpu"}  # of the targets that have an analyzer


def platform_of(target: Any, name: str | None, log: Log) -> Platform:
    """Find the platform `name`, by default the best fit of the target.

    A CPU is found by its instructions, a CUDA device by its architecture; `log` receives a line
    where several fit.

    Raises:
        PrunerError: no described device fits the target, or `name` is of another kind.
    """
    kind = _DEVICE_KINDS.get(str(target.kind.name))
    files = sorted((conf_folder() / "platform").glob("*.yaml"))
    devices = {path.stem: load_device(path) for path in files}
    fitting = {key: device for key, device in devices.items() if device.kind == kind}
    if name is None and fitting:
        name = _cpu(target, log) if kind == "cpu" else _gpu(target, fitting, log)
    if name is None or name not in fitting:
        what = f"platform={name} describes no such device" if name else "no described device fits"
        known = ", ".join(sorted(fitting)) or "none; TVM's own strategy takes this target"
        raise PrunerError(f"target of kind {target.kind.name}: {what}; platform= one of {known}")
    cores = int(target.attrs.get("num-cores", 0)) or os.cpu_count() or 1
    device = "cuda" if kind == "gpu" else "cpu"
    return Platform(target=target, device=device, cores=cores if kind == "cpu" else 1, name=name)


def _cpu(target: Any, log: Log) -> str | None:
    """Find the CPU platform with the widest instructions of the target."""
    has = importlib.import_module("tvm.target.codegen").target_has_features
    for cpu in reversed(CPU_TARGETS):
        if all(has([flag.replace("_", ".")], target) for flag in cpu.cpu_flags):
            return cpu.platform
    if not has(["sse2"], target):
        return None  # no x86-64
    log(
        f"this target generates code for any x86-64; drafted as {CPU_TARGETS[0].platform}. "
        "Name the processor (mcpu) in the target to use its vectors"
    )
    return CPU_TARGETS[0].platform


def _gpu(target: Any, devices: dict[str, Device], log: Log) -> str | None:
    """Find a device of the target's architecture (sm_90a counts as sm_90)."""
    # the suffix selects architecture-specific instructions of the same device
    architecture = re.sub(r"(?<=\d)[a-z]$", "", str(target.attrs.get("arch", "")))
    found = [
        name
        for name, device in devices.items()
        if isinstance(device, GpuDevice) and device.architecture == architecture
    ]
    if len(found) > 1:
        log(f"{architecture}: drafted for {found[0]}; platform= one of {', '.join(found)} chooses")
    return found[0] if found else None
