"""Encode a device as numbers: log2 of its constants, for every platform."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from pruner.paths import conf_folder
from pruner.program.device import Device, load_device

PLATFORM_FOLDER = conf_folder() / "platform"


# Written out, not read off the classes: checkpoints depend on this order. Values are log2 of the
# constants of conf/platform, 0 where absent; `is_gpu` is 0 or 1.
HARDWARE_NAMES = (
    "is_gpu",
    "clock_hz", "peak_flops_per_s", "dram_bytes_per_s", "transaction_bytes", "vector_bytes",
    "num_sms", "float32_lanes_per_sm", "schedulers_per_sm", "warp_size", "max_threads_per_block",
    "shared_bytes_per_block", "registers_per_block", "max_registers_per_thread",
    "num_cores", "simd_bytes", "flops_per_cycle_per_core",
    "l1_bytes_per_core", "l2_bytes_per_core", "l3_bytes",
)  # fmt: skip


def hardware_features(device: Device) -> NDArray[np.float32]:
    """Return float32 [len(HARDWARE_NAMES)]; constants that the device lacks are 0."""
    # log2(1) = 0 makes "absent" and "one" alike, which is_gpu tells apart.
    values = [np.log2(getattr(device, name, 1)) for name in HARDWARE_NAMES[1:]]
    return np.array([device.kind == "gpu", *values], np.float32)


@cache
def platform_features(platform: str) -> NDArray[np.float32]:
    """Return `hardware_features` of a platform; raise `DataError` without its file."""
    return hardware_features(load_device(PLATFORM_FOLDER / f"{platform}.yaml"))


def platform_kind(platform: str) -> str | None:
    """Return ``gpu`` or ``cpu`` as ``conf/platform`` has it, otherwise None."""
    if platform not in known_platforms():
        return None
    return load_device(PLATFORM_FOLDER / f"{platform}.yaml").kind


@cache
def known_platforms() -> tuple[str, ...]:
    """Return the names of all devices in ``conf/platform``, sorted."""
    return tuple(sorted(path.stem for path in PLATFORM_FOLDER.glob("*.yaml")))
