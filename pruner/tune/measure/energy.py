"""Read the joules that a device has used, by NVML or powercap.

NVML's total (Volta and later, since the driver was loaded) moves about ten times a second and
covers the complete board; RAPL's covers the package. So a turn should last seconds. For kernels of
some microseconds, the gaps between launches are in the number, too: it serves to compare finalists,
not as a label to train on.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

POWERCAP = Path("/sys/class/powercap")
_NVML = "libnvidia-ml.so.1"  # comes with the driver
_MILLI, _MICRO = 1e-3, 1e-6


class EnergyMeter(Protocol):
    """A counter of joules that only increases."""

    name: str

    def read(self) -> tuple[float, float]:
        """Read the seconds of a clock and the joules of a counter.

        Both start at an arbitrary moment; only differences have a meaning.

        Raises:
            OSError: the counter is gone.
        """


class NvmlMeter:
    """The board of the first GPU that this process may see."""

    name = "nvml"

    def __init__(self, library: Any, device: Any) -> None:
        self._library, self._device = library, device

    def read(self) -> tuple[float, float]:
        """Read clock and counter; see `EnergyMeter`."""
        used = ctypes.c_ulonglong()
        code = self._library.nvmlDeviceGetTotalEnergyConsumption(self._device, ctypes.byref(used))
        if code != 0:
            raise OSError(f"NVML tells no energy (code {code})")
        return time.monotonic(), _MILLI * used.value


class PowercapMeter:
    """All processor packages of this machine, with wrapping counters added up."""

    name = "powercap"

    def __init__(self, zones: list[Path]) -> None:
        self._zones = zones
        self._ranges = [_number(zone / "max_energy_range_uj") for zone in zones]
        self._last = [_number(zone / "energy_uj") for zone in zones]
        self._used = 0

    def read(self) -> tuple[float, float]:
        """Read clock and counter; see `EnergyMeter`.

        A counter that wraps more than once between two reads loses energy.
        """
        now = [_number(zone / "energy_uj") for zone in self._zones]
        for before, after, size in zip(self._last, now, self._ranges, strict=True):
            self._used += after - before if after >= before else after - before + size
        self._last = now
        return time.monotonic(), _MICRO * self._used


def energy_meter(
    device: str,
    *,
    powercap: Path = POWERCAP,
    nvml: str = _NVML,
    environment: Mapping[str, str] | None = None,
) -> EnergyMeter | None:
    """Open the meter of ``cpu`` or ``cuda``; None where there is none.

    OpenCL devices have none, and neither have machines without a driver or powercap.
    """
    if device not in ("cpu", "cuda"):
        return None
    with suppress(OSError, ValueError):
        if device == "cuda":
            return _nvml(nvml, os.environ if environment is None else environment)
        # one colon: packages; deeper zones (cores, DRAM) are parts of them and would count twice
        zones = [z for z in sorted(powercap.glob("intel-rapl:*")) if z.name.count(":") == 1]
        if zones:
            meter = PowercapMeter(zones)
            # a counter that only root may read raises here, not in the middle of a comparison
            meter.read()
            return meter
    return None


def _nvml(name: str, environment: Mapping[str, str]) -> NvmlMeter:
    """Open NVML's counter of the first visible GPU.

    Raises:
        OSError: no driver, or no energy counter.
    """
    library, device = ctypes.CDLL(name), ctypes.c_void_p()
    visible = environment.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip() or "0"
    # an index or a UUID, as CUDA_VISIBLE_DEVICES has it; NVML itself ignores that variable
    code = library.nvmlInit_v2()
    if code == 0 and visible.isdigit():
        code = library.nvmlDeviceGetHandleByIndex_v2(int(visible), ctypes.byref(device))
    elif code == 0:
        code = library.nvmlDeviceGetHandleByUUID(visible.encode(), ctypes.byref(device))
    if code != 0:
        raise OSError(f"NVML: no device {visible} (code {code})")
    meter = NvmlMeter(library, device)
    meter.read()
    return meter


def _number(path: Path) -> int:
    return int(path.read_text(encoding="utf-8"))
