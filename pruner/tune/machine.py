"""Which target a platform name means: this machine's own CPU, a described CPU, or a CUDA device."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Any

from pruner.errors import PrunerError
from pruner.program.device import CpuDevice, Device, GpuDevice
from pruner.tune.ansor.targets import CPU_TARGETS, missing_flags
from pruner.tune.jobs import RpcAddress
from pruner.tune.measure import Platform
from pruner.tune.tvm_import import load_tvm


def local_platform() -> str:
    """The described CPU platform whose instructions this machine has, the widest first.

    Raises:
        PrunerError: none of them.
    """
    for target in reversed(CPU_TARGETS):
        if not missing_flags(target):
            return target.platform
    known = ", ".join(target.platform for target in CPU_TARGETS)
    raise PrunerError(f"this CPU has the instructions of none of {known}; name a platform=")


def make_platform(
    device: Device, *, target: str | None = None, address: RpcAddress | None = None
) -> Platform:
    """The target of a described device; `target` (TVM's JSON or text) replaces it.

    ``target="host"`` is this machine's CPU with all its cores and instructions.

    Raises:
        PrunerError: a target that TVM does not know, or a device without one.
    """
    cores = device.num_cores if isinstance(device, CpuDevice) else 1
    if target == "host":
        cores = os.cpu_count() or 1
        chosen: Any = {"kind": "llvm", "mcpu": host_cpu(), "num-cores": cores}
    elif target is not None:
        chosen = json.loads(target) if target.lstrip().startswith("{") else target
    else:
        chosen = _described(device)
    try:
        built = load_tvm().tvm.target.Target(chosen)
    except (ValueError, TypeError, RuntimeError) as error:
        raise PrunerError(f"target={chosen}: {str(error).splitlines()[0]}") from error
    kind = "cuda" if built.kind.name == "cuda" else "cpu"
    return Platform(target=built, device=kind, cores=cores, address=address)


def _described(device: Device) -> dict[str, Any]:
    if isinstance(device, CpuDevice):
        found = [t for t in CPU_TARGETS if t.platform == device.name]
        if not found:
            raise PrunerError(f"platform={device.name} has no target; give target='llvm -mcpu=...'")
        return {
            "kind": "llvm",
            "mcpu": found[0].target.rpartition("=")[2],
            "num-cores": device.num_cores,
        }
    assert isinstance(device, GpuDevice), type(device)
    if device.architecture is None or not device.architecture.startswith("sm_"):
        raise PrunerError(f"platform={device.name} is no CUDA device; give target=")
    return {
        "kind": "cuda",
        "arch": device.architecture,
        "max_threads_per_block": device.max_threads_per_block,
        "max_shared_memory_per_block": device.shared_bytes_per_block,
        "thread_warp_size": device.warp_size,
        "registers_per_block": device.registers_per_block,
        "host": {"kind": "llvm", "mcpu": host_cpu()},
    }


def host_cpu() -> str:
    """LLVM's name for the processor of this machine."""
    return str(load_tvm().tvm.target.codegen.llvm_get_system_cpu())


def missing_device(platform: Platform) -> str | None:
    """Why programs of a platform cannot run here, None where they can."""
    if platform.address is not None or platform.device == "cpu":
        return None
    if shutil.which("nvidia-smi") is None:
        return "no NVIDIA driver on this machine"
    done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return None if done.stdout.strip() else "no NVIDIA GPU is visible"
