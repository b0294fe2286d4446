"""Devices that measure at the same time: local GPUs or RPC servers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from pruner.commands import nvidia_smi
from pruner.errors import PrunerError
from pruner.tune.kinds import OPENCL
from pruner.tune.measure.measurer import Platform

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def with_devices(platform: Platform, wanted: int | None, there: int) -> Platform:
    """Give a platform `wanted` of the devices that are `there`, None: all.

    Every runner has one device: on this machine the GPU that its process may see, behind a tracker
    any free server of the key.

    Raises:
        PrunerError: more devices than there are, or several of a CPU or of an OpenCL platform.
    """
    if platform.device == OPENCL:
        if wanted not in (None, 1):
            raise PrunerError(
                f"measure.devices={wanted}: OpenCL programs run on one device; measure.device= "
                "chooses it"
            )
        return platform
    if platform.device == "cpu" and platform.address is None:
        if wanted not in (None, 1):
            raise PrunerError(f"measure.devices={wanted}: this machine's CPU is one device")
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
