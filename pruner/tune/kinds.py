"""Kinds of TVM's targets."""

from typing import Any

POCL_MODEL = "pocl"
CUDA, OPENCL = "cuda", "opencl"  # kinds of targets, and TVM's names of their devices
# Errors that no program causes: the process has lost its device, or never got it.
_LOST = (
    "CL_DEVICE_NOT_AVAILABLE", "CL_DEVICE_NOT_FOUND", "CL_INVALID_DEVICE",
    "cudaErrorInitializationError", "cudaErrorNoDevice", "cudaErrorInsufficientDriver",
    "cudaErrorDevicesUnavailable", "cudaErrorSystemNotReady",
)  # fmt: skip
GPU_KINDS = (CUDA, OPENCL)  # whose programs bind loops to blocks and threads


def is_gpu(target: Any) -> bool:
    """True if programs have blocks, threads and shared memory.

    Metal, Vulkan and ROCm among them: logs of others have programs for these.
    """
    return "gpu" in map(str, target.keys)


def is_cuda(target: Any) -> bool:
    """True for a CUDA device, which may have tensor cores and `cp.async`."""
    return str(target.kind.name) == CUDA


def is_pocl(target: Any) -> bool:
    """True for a CPU that PoCL makes an OpenCL device, by the target's model."""
    return str(target.attrs.get("model", "")) == POCL_MODEL


def is_opencl(target: Any) -> bool:
    """True for an OpenCL device."""
    return str(target.kind.name) == OPENCL


def lost_device(error: Exception) -> bool:
    """Check for an error of a lost device, which no program causes."""
    return any(name in str(error) for name in _LOST)
