"""Which target a platform name means: this machine's own CPU, a described CPU, or a CUDA device."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

from pruner.errors import PrunerError
from pruner.program.device import CpuDevice, Device, GpuDevice
from pruner.tune.cuda import runtime_error
from pruner.tune.measure.jobs import RpcAddress
from pruner.tune.measure.measurer import Platform
from pruner.tune.measure.targets import CPU_TARGETS, missing_flags
from pruner.tune.tvm_import import load_tvm

TARGET_FORM = "'target={kind:llvm,mcpu:haswell,num-cores:2}'"  # as a shell's command line takes it


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
    device: Device,
    *,
    target: str | Mapping[str, Any] | None = None,
    address: RpcAddress | None = None,
) -> Platform:
    """The target of a described device; `target` (`TARGET_FORM`, or its JSON text) replaces it.

    ``target="host"`` is this machine's CPU with all its cores and instructions. What a given
    target leaves open is as on this machine (cores) or as the platform has it (CUDA).

    Raises:
        PrunerError: a target that TVM does not know or that does not fit, or a device without one.
    """
    if target == "host":
        if address is not None:
            raise PrunerError("runner=rpc: name the device, platform= or target=; host is this CPU")
        target = {"kind": "llvm", "mcpu": host_cpu()}
    built = _built(_described(device) if target is None else _completed(target, device, address))
    kind = "cuda" if built.kind.name == "cuda" else "cpu"
    cores = int(built.attrs["num-cores"]) if kind == "cpu" else 1
    share = cores / device.num_cores if isinstance(device, CpuDevice) else 1.0
    return Platform(
        target=built,
        device=kind,
        cores=cores,
        address=address,
        name=device.name,
        peak_flops_per_s=share * device.peak_flops_per_s,
    )


def _completed(
    target: str | Mapping[str, Any], device: Device, address: RpcAddress | None
) -> dict[str, Any]:
    given = dict(target) if isinstance(target, Mapping) else _parsed(str(target))
    kind = _built(given).kind.name
    if kind != ("llvm" if isinstance(device, CpuDevice) else "cuda"):
        raise PrunerError(
            f"target={target}: kind {kind} does not fit platform={device.name}; "
            "tune.py takes llvm for CPUs and cuda for CUDA devices"
        )
    if kind == "cuda":
        return {**_described(device), **given}
    if address is not None and "num-cores" not in given:
        raise PrunerError(f"target={target}: give num-cores, too: {TARGET_FORM}")
    given.setdefault("num-cores", os.cpu_count() or 1)
    if given["num-cores"] < 1:
        raise PrunerError(f"target={target}: num-cores must be at least 1")
    return given


def _parsed(text: str) -> dict[str, Any]:
    if not text.lstrip().startswith("{"):
        return {"kind": text}
    try:
        return dict(json.loads(text))
    except json.JSONDecodeError as error:
        raise PrunerError(f"target={text}: no JSON ({error}); write {TARGET_FORM}") from error


def _built(given: Mapping[str, Any]) -> Any:
    try:
        return load_tvm().tvm.target.Target(dict(given))
    except (ValueError, TypeError, RuntimeError) as error:
        reason = str(error).splitlines()[0].partition(". Target creation")[0]
        raise PrunerError(
            f"target={given.get('kind')}: {reason}; write for example {TARGET_FORM}"
        ) from error


def _described(device: Device) -> dict[str, Any]:
    if isinstance(device, CpuDevice):
        # Runs begun before the files of platforms named it have none in their configuration.
        earlier = {t.platform: t.target.rpartition("=")[2] for t in CPU_TARGETS}
        processor = device.architecture or earlier.get(device.name)
        if processor is None:
            raise PrunerError(
                f"platform={device.name} has no target; give its file an architecture: "
                f"(LLVM's name, as haswell), or {TARGET_FORM}"
            )
        return {"kind": "llvm", "mcpu": processor, "num-cores": device.num_cores}
    assert isinstance(device, GpuDevice), type(device)
    if device.architecture is None or not device.architecture.startswith("sm_"):
        raise PrunerError(
            f"platform={device.name} is no CUDA device; tune.py takes CUDA devices and CPUs"
        )
    return {
        "kind": "cuda",
        "arch": device.architecture,
        "max_threads_per_block": device.max_threads_per_block,
        "max_shared_memory_per_block": device.shared_bytes_per_block_opt_in
        or device.shared_bytes_per_block,
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
    return runtime_error() if done.stdout.strip() else "no NVIDIA GPU is visible"
