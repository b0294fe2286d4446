"""Kinds of TVM's targets, asked in one place."""

from __future__ import annotations

from typing import Any

POCL_MODEL = "pocl"
CUDA, OPENCL = "cuda", "opencl"  # kinds of targets, and TVM's names of their devices
GPU_KINDS = (CUDA, OPENCL)  # whose programs bind loops to blocks and threads


def is_gpu(target: Any) -> bool:
    """Whether programs of a target are of GPU kind: blocks, threads, shared memory."""
    return str(target.kind.name) in GPU_KINDS


def is_cuda(target: Any) -> bool:
    """Whether a target is a CUDA device, which may have tensor cores and asynchronous copies."""
    return str(target.kind.name) == CUDA


def is_pocl(target: Any) -> bool:
    """Whether a target is a CPU that PoCL makes an OpenCL device, as our platforms say it."""
    return str(target.attrs.get("model", "")) == POCL_MODEL


def is_opencl(target: Any) -> bool:
    """Whether a target is an OpenCL device."""
    return str(target.kind.name) == OPENCL
