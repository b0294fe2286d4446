"""Make the platform of a device: target, analyzer, devices, and what it lacks."""

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pruner.commands import nvidia_smi
from pruner.errors import PrunerError
from pruner.models.analyzer.analyzer import Analyzer, AnyFormula, load_analyzer
from pruner.paths import conf_folder
from pruner.processes import Worker, preload
from pruner.program.device import CpuDevice, Device, GpuDevice
from pruner.tune.compiling import foreign_triple
from pruner.tune.cuda import runtime_error
from pruner.tune.kinds import CUDA, GPU_KINDS, OPENCL, POCL_MODEL, is_gpu
from pruner.tune.measure.jobs import JOBS, PRELOADED, RpcAddress
from pruner.tune.measure.measurer import GIB, Platform
from pruner.tune.measure.targets import CPU_TARGETS, hidden_vectors, widest_processor
from pruner.tune.opencl.runtime import CHOSEN, POCL, OpenCLDevice, find_device
from pruner.tune.tvm_import import load_tvm

TARGET_FORM = "'target={kind:llvm,mcpu:haswell,num-cores:2}'"  # as a shell's command line takes it
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def make_platform(
    device: Device,
    *,
    target: str | Mapping[str, Any] | None = None,
    address: RpcAddress | None = None,
) -> Platform:
    """Make the platform of a described device, or of a `target` (`TARGET_FORM`, or JSON).

    ``target="host"`` is this machine's CPU with all its cores and instructions. Attributes that a
    given target lacks come from this machine (cores) or from the platform (CUDA). Raises
    `PrunerError`: a target that TVM does not know or that does not fit, or a device without one.
    """
    if target == "host":
        if address is not None:
            raise PrunerError("runner=rpc: name the device, platform= or target=; host is this CPU")
        target = {"kind": "llvm", "mcpu": host_cpu()}
    built = _built(_described(device) if target is None else _completed(target, device, address))
    kind = str(built.kind.name) if is_gpu(built) else "cpu"
    if kind == OPENCL and address is not None:
        raise PrunerError(
            f"platform={device.name}: OpenCL programs run on this machine's devices; leave "
            "runner=rpc out"
        )
    cores = int(built.attrs["num-cores"]) if kind == "cpu" else 1
    # the description's peak is of all its cores
    share = cores / device.num_cores if isinstance(device, CpuDevice) else 1.0
    return Platform(
        target=built,
        device=kind,
        cores=cores,
        address=address,
        name=device.name,
        peak_flops_per_s=share * device.peak_flops_per_s,
        half_peak_flops_per_s=(
            device.half_peak_flops_per_s if isinstance(device, GpuDevice) else None
        ),
    )


def _completed(
    target: str | Mapping[str, Any], device: Device, address: RpcAddress | None
) -> dict[str, Any]:
    given = dict(target) if isinstance(target, Mapping) else _parsed(str(target))
    kind = str(_built(given).kind.name)
    if kind != _kind_of(device):
        raise PrunerError(
            f"target={target}: kind {kind} does not fit platform={device.name}; "
            "tune.py takes llvm for CPUs, cuda for CUDA devices and opencl for OpenCL's"
        )
    if kind in GPU_KINDS:
        return {**_described(device), **given}
    if address is not None and "num-cores" not in given:
        raise PrunerError(f"target={target}: give num-cores, too: {TARGET_FORM}")
    given.setdefault("num-cores", os.cpu_count() or 1)
    if given["num-cores"] < 1:
        raise PrunerError(f"target={target}: num-cores must be at least 1")
    return given


def _kind_of(device: Device) -> str:
    if isinstance(device, CpuDevice):
        return "llvm"
    assert isinstance(device, GpuDevice), type(device)
    return OPENCL if device.architecture == OPENCL else CUDA


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
        # without TVM's suffix that the creation of the target failed
        reason = str(error).splitlines()[0].partition(". Target creation")[0]
        raise PrunerError(
            f"target={given.get('kind')}: {reason}; write for example {TARGET_FORM}"
        ) from error


def _described(device: Device) -> dict[str, Any]:
    if isinstance(device, CpuDevice):
        # Runs begun before the files of platforms named it have none in their configuration.
        earlier = {t.platform: t.processor for t in CPU_TARGETS}
        processor = device.architecture or earlier.get(device.name)
        if processor is None:
            raise PrunerError(
                f"platform={device.name} has no target; give its file an architecture: "
                f"(LLVM's name, as haswell), or {TARGET_FORM}"
            )
        return {"kind": "llvm", "mcpu": processor, "num-cores": device.num_cores}
    assert isinstance(device, GpuDevice), type(device)
    if device.architecture == OPENCL:
        return {
            "kind": OPENCL,
            "max_threads_per_block": device.max_threads_per_block,
            "max_num_threads": device.max_threads_per_block,
            "max_shared_memory_per_block": device.shared_bytes_per_block,
            # TVM leaves out the barriers inside a warp, and OpenCL promises no such thing
            "thread_warp_size": 1,
            **({"model": POCL_MODEL} if device.opencl_device == POCL else {}),
            "host": {"kind": "llvm", "mcpu": host_cpu()},
        }
    if device.architecture is None or not device.architecture.startswith("sm_"):
        raise PrunerError(
            f"platform={device.name} is no CUDA device; tune.py takes CUDA and OpenCL devices and "
            "CPUs"
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
    """Return LLVM's name for this processor, or for a simpler processor.

    A virtual machine may hide vector instructions: LLVM's code by family and model would end by
    SIGILL.
    """
    name = str(load_tvm().tvm.target.codegen.llvm_get_system_cpu())
    target = load_tvm().tvm.target.Target({"kind": "llvm", "mcpu": name})
    return widest_processor() if _hidden(target) else name


def _hidden(target: Any) -> list[str]:
    return hidden_vectors(load_tvm().tvm.target.codegen.llvm_get_cpu_features(target))


def missing_device(platform: Platform) -> str | None:
    """Explain why programs of a platform cannot run here, else None."""
    if platform.address is not None:
        return None
    if platform.device == "cpu":
        return _missing_cpu(platform.target)
    if platform.device == OPENCL:
        try:
            find_device(platform.environments[0].get(CHOSEN))
        except PrunerError as error:
            return str(error)
        return None
    gpus = nvidia_smi("-L")
    if gpus is None:
        return "no NVIDIA driver on this machine"
    # a GPU alone is not enough: TVM's runtime opens CUDA's libraries when it is loaded
    return runtime_error() if gpus else "no NVIDIA GPU is visible"


def _missing_cpu(target: Any) -> str | None:
    codegen, triple = load_tvm().tvm.target.codegen, foreign_triple(target)
    if triple is not None:
        return f"this machine is {codegen.llvm_get_system_triple()}, no {triple}"
    processor = target.attrs.get("mcpu")
    known = {
        str(one) for one in codegen.llvm_get_cpu_archlist(load_tvm().tvm.target.Target("llvm"))
    }
    if processor is None:
        return None
    if str(processor) in known:
        lacking = _hidden(target)
        return f"this machine lacks {', '.join(lacking[:3])} of {processor}" if lacking else None
    return f"this machine is {host_cpu()}, no {processor}"


def on_opencl(
    platform: Platform, device: Device, wanted: str | int | None = None, *, own_limits: bool = True
) -> tuple[Platform, OpenCLDevice]:
    """Bind a platform to the OpenCL device that runs its programs.

    ``wanted``: number or words of the device, instead of the words in the platform's file.
    ``own_limits``: the device limits work groups and local memory, where the platform's file
    describes another device or none. Raises `PrunerError`: there is no such device, or no OpenCL.
    """
    assert isinstance(device, GpuDevice), type(device)
    found = find_device(wanted, device.opencl_device)
    attributes = json.loads(platform.target_json)
    threads, shared = found.max_threads_per_block, found.shared_bytes_per_block
    if (wanted is None and device.opencl_device is not None) or not own_limits:
        threads = min(threads, int(attributes["max_threads_per_block"]))
        shared = min(shared, int(attributes["max_shared_memory_per_block"]))
    attributes |= {
        "max_threads_per_block": threads,
        "max_num_threads": threads,
        "max_shared_memory_per_block": shared,
    }
    if found.driver == POCL:
        attributes["model"] = POCL_MODEL
    # a runner finds its device by this variable: TVM itself numbers only the chosen device
    place = {CHOSEN: str(found.number)}
    return replace(
        platform, target=_built(attributes), environments=(place,), on_cpu=found.on_cpu
    ), found


def with_devices(platform: Platform, wanted: int | None, there: int) -> Platform:
    """Give a platform `wanted` of the devices that are `there`, None: all.

    Every runner has one device: on this machine the GPU that its process may see, behind a tracker
    any free server of the key. Raises `PrunerError`: more devices than there are, or several of a
    CPU or of an OpenCL platform.
    """
    if platform.device == OPENCL and wanted not in (None, 1):
        raise PrunerError(
            f"measure.devices={wanted}: OpenCL programs run on one device; measure.device= "
            "chooses it"
        )
    is_cpu = platform.device == "cpu" and platform.address is None
    if is_cpu and wanted not in (None, 1):
        raise PrunerError(f"measure.devices={wanted}: this machine's CPU is one device")
    if is_cpu or platform.device == OPENCL:
        return platform
    number = there if wanted is None else wanted
    if not 1 <= number <= there:
        raise PrunerError(f"measure.devices={wanted}: there are {there}; null takes all of them")
    if platform.address is not None:
        address = replace(platform.address, devices=number)
        return replace(platform, address=address, environments=({},) * number)
    if number == 1:
        return platform
    # CUDA reads this variable once a process: a runner with one visible GPU always uses cuda:0
    environments = tuple({_VISIBLE: name} for name in visible_gpus()[:number])
    return replace(platform, environments=environments)


def visible_gpus(environment: Mapping[str, str] | None = None) -> list[str]:
    """List the names in `CUDA_VISIBLE_DEVICES` of all usable GPUs."""
    given = (os.environ if environment is None else environment).get(_VISIBLE)
    if given is not None:
        return [name.strip() for name in given.split(",") if name.strip()]
    listed = [line for line in nvidia_smi("-L") or () if line.startswith("GPU ")]
    return [str(number) for number in range(len(listed))]


def check_health(address: RpcAddress, timeout_s: float) -> dict[str, Any]:
    """Move bytes to a device and back; return ``seconds`` and number of ``servers``.

    It happens in a worker process: TVM's own client retries for minutes and cannot be interrupted.
    Raises `PrunerError`: no tracker, no server of this key, or none that responds in time.
    """
    where = f"runner.host={address.host} runner.port={address.port}"
    try:
        # a plain socket first: TVM's client retries a missing tracker for a minute
        socket.create_connection((address.host, address.port), timeout_s).close()
    except OSError as error:
        raise PrunerError(
            f"{where}: no tracker there ({error.strerror or error}); "
            "start one: python -m tvm.exec.rpc_tracker"
        ) from error
    preload(*PRELOADED)
    with Worker(JOBS, timeout_s=timeout_s, memory_bytes=4 * GIB) as worker:
        worker.call("ready")  # the import is not the device's delay
        found = worker.call("servers", address)
        if found.error is not None:
            raise PrunerError(f"{where}: the tracker does not answer ({found.message})")
        if address.key not in found.value:
            known = ", ".join(found.value) or "none"
            raise PrunerError(
                f"runner.key={address.key}: no device of this key at the tracker; known: {known}"
            )
        reply = worker.call("health", address)
        if reply.error is not None:
            raise PrunerError(
                f"runner.key={address.key}: no free device that answers in {timeout_s:g} s "
                f"({reply.message})"
            )
        return {"seconds": reply.seconds, "servers": found.value[address.key]}


def platform_analyzer(platform: Platform, form: AnyFormula = "hardware") -> Analyzer:
    """Load a platform's analyzer, for its target's number of cores; raise as `load_analyzer`."""
    analyzer = load_analyzer(conf_folder(), platform.name, form=form)
    if isinstance(analyzer.device, CpuDevice):
        # the description is of all cores, the target may use fewer
        return replace(analyzer, device=replace(analyzer.device, num_cores=platform.cores))
    return analyzer
