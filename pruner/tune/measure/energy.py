"""Read the joules that a device has used, by NVML or powercap.

NVML's total moves ten times a second and covers the board, RAPL's the package: turns last seconds.
"""

import ctypes
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

POWERCAP, THERMAL = Path("/sys/class/powercap"), Path("/sys/class/thermal")
_PACKAGES = ("x86_pkg_temp", "k10temp")  # kinds of thermal zones of processors
NVML = "libnvidia-ml.so.1"  # comes with the driver
_MILLI, _MICRO = 1e-3, 1e-6
LEAST_WINDOW_S = 2.0  # some twenty updates of a counter


class NvmlMeter:
    """The board of the first GPU that this process may see."""

    name = "nvml"

    def __init__(self, library: Any, device: Any) -> None:
        self._library, self._device = library, device

    def read(self) -> tuple[float, float]:
        """Read a clock, s, and a counter, J, of any start, or raise `OSError`."""
        used = ctypes.c_ulonglong()
        code = self._library.nvmlDeviceGetTotalEnergyConsumption(self._device, ctypes.byref(used))
        if code != 0:
            raise OSError(f"NVML: no counter of energy (code {code})")
        return time.monotonic(), _MILLI * used.value

    def temperature_c(self) -> float | None:
        """Read the degrees Celsius of the GPU; None where they cannot be read."""
        found = ctypes.c_uint()
        with suppress(AttributeError):  # a library without this function
            code = self._library.nvmlDeviceGetTemperature(self._device, 0, ctypes.byref(found))
            return float(found.value) if code == 0 else None
        return None


class PowercapMeter:
    """All processor packages of this machine, with wrapping counters added up."""

    name = "powercap"

    def __init__(self, zones: list[Path], thermal: Path = THERMAL) -> None:
        self._zones, self._thermal = zones, thermal
        self._ranges = [_number(zone / "max_energy_range_uj") for zone in zones]
        self._last = [_number(zone / "energy_uj") for zone in zones]
        self._used = 0

    def read(self) -> tuple[float, float]:
        """Read clock and counter; two wraps between reads lose energy."""
        now = [_number(zone / "energy_uj") for zone in self._zones]
        for before, after, size in zip(self._last, now, self._ranges, strict=True):
            self._used += after - before if after >= before else after - before + size
        self._last = now
        return time.monotonic(), _MICRO * self._used

    def temperature_c(self) -> float | None:
        """Read the degrees Celsius of the hottest package; see `NvmlMeter`."""
        found = []
        for zone in self._thermal.glob("thermal_zone*"):
            with suppress(OSError, ValueError):
                if (zone / "type").read_text(encoding="utf-8").strip() in _PACKAGES:
                    found.append(_MILLI * _number(zone / "temp"))
        return max(found, default=None)


EnergyMeter = NvmlMeter | PowercapMeter


def energy_meter(device: str) -> EnergyMeter | None:
    """Open the meter of ``cpu`` or ``cuda``; None without driver or powercap."""
    if device not in ("cpu", "cuda"):
        return None
    with suppress(OSError, ValueError):
        if device == "cuda":
            return _nvml()
        # one colon: packages; deeper zones (cores, DRAM) are parts of them and would count twice
        zones = [z for z in sorted(POWERCAP.glob("intel-rapl:*")) if z.name.count(":") == 1]
        if zones:
            meter = PowercapMeter(zones)
            # a counter that only root may read raises here, not in the middle of a comparison
            meter.read()
            return meter
    return None


def _nvml() -> NvmlMeter:
    """Open NVML's counter of the first visible GPU."""
    library, device = ctypes.CDLL(NVML), ctypes.c_void_p()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip() or "0"
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


def energy_of(meter: EnergyMeter, work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Return the joules and seconds of `work`, and its result; raise `OSError` without counter."""
    start_s, before_j = meter.read()
    found = work()
    end_s, after_j = meter.read()
    return after_j - before_j, end_s - start_s, found


def count_energy(
    meter: EnergyMeter,
    runs: Mapping[int, Callable[[], int | None]],
    *,
    rest: Callable[[], None],
    turns: int = 3,
) -> dict[int, dict[str, Any]]:
    """Count the joules of programs in turns, because a warm device uses more.

    `runs`: each call keeps the device busy with one program for a window of at least
    `LEAST_WINDOW_S` and returns the number of runs; None: it failed, and the program is left out.
    `rest` waits as long: the power meanwhile is the idle power. Returns of each program ``joules``
    of a run (without idle power, the median of the turns; None: not above 0, as when other work ran
    during the rest), mean ``watts``, and the highest ``temperature_c`` after a turn. Raises
    `OSError`: the counter is gone.
    """
    idle_j, rest_s, _ = energy_of(meter, rest)
    found: dict[int, list[tuple[float, float, float | None]]] = {number: [] for number in runs}
    for _ in range(turns):
        for number in list(found):
            used_j, seconds, times = energy_of(meter, runs[number])
            if not times:
                del found[number]
                continue
            watts = used_j / seconds
            joules = (watts - idle_j / rest_s) * seconds / times
            found[number].append((joules, watts, meter.temperature_c()))
    return {number: _of_windows(windows) for number, windows in found.items()}


def _of_windows(windows: Sequence[tuple[float, float, float | None]]) -> dict[str, Any]:
    joules, watts, degrees = zip(*windows, strict=True)
    known, median_j = [value for value in degrees if value is not None], float(np.median(joules))
    return {
        "joules": median_j if median_j > 0 else None,
        "watts": float(np.mean(watts)),
        "temperature_c": max(known, default=None),
    }
