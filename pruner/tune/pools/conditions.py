"""Read the machine's identity, and its load and clocks during timing."""

import importlib.metadata
import os
import platform
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from pruner.commands import nvidia_smi

_GPU = ("temperature.gpu", "clocks.sm", "clocks.mem", "power.draw", "utilization.gpu")
_OF_GPU = (
    "name", "compute_cap", "driver_version", "memory.total", "clocks.max.sm", "clocks.max.memory",
    "power.limit", "persistence_mode", "mig.mode.current",
)  # fmt: skip
_MILLI = 1000.0


class Conditions:
    """Successive readings; ``steal`` is the share of CPU time lost in between."""

    def __init__(self, device: str) -> None:
        """Begin to read; ``device``: cpu or cuda."""
        self._device, self._ticks = device, _ticks()

    def read(self) -> dict[str, float]:
        """Read load, temperatures and clocks by name, as far as available."""
        found: dict[str, float] = {"at": time.time()}
        with suppress(OSError):
            found["load_1min"] = os.getloadavg()[0]
        before, self._ticks = self._ticks, _ticks()
        if before and self._ticks:
            spent = np.subtract(self._ticks, before)
            if spent.sum() > 0 and len(spent) > _STEAL:
                found["steal"] = round(float(spent[_STEAL] / spent.sum()), 4)
        found |= _mean(
            "temperature_c", _numbers("/sys/class/thermal", "thermal_zone*/temp"), _MILLI
        )
        clocks = _numbers("/sys/devices/system/cpu", "cpu[0-9]*/cpufreq/scaling_cur_freq")
        found |= _mean("clock_mhz", clocks, _MILLI)
        return found | (_gpu() if self._device == "cuda" else {})


_STEAL = 7  # column of the first line of /proc/stat: time that a hypervisor gave to others


def _ticks() -> list[int]:
    with suppress(OSError, ValueError):
        line = Path("/proc/stat").read_text(encoding="utf-8").partition("\n")[0]
        return [int(word) for word in line.split()[1:9]]
    return []


def _numbers(folder: str, pattern: str) -> list[float]:
    found = []
    for path in sorted(Path(folder).glob(pattern)):
        with suppress(OSError, ValueError):
            found.append(float(path.read_text(encoding="utf-8")))
    return found


def _mean(name: str, values: Sequence[float], unit: float) -> dict[str, float]:
    return {name: round(float(np.mean(values)) / unit, 1)} if values else {}


def _gpu() -> dict[str, float]:
    """Read the first GPU, as far as its driver offers numbers."""
    found = {}
    for name, value in next(iter(_queried(_GPU)), {}).items():
        # the driver prints "[N/A]" for readings that a board lacks
        with suppress(ValueError):
            found[f"gpu_{name}"] = float(value)
    return found


def about_gpus() -> list[dict[str, str]]:
    """Describe every visible GPU by its driver; empty without a driver."""
    return _queried(_OF_GPU)


def _queried(names: Sequence[str]) -> list[dict[str, str]]:
    lines = nvidia_smi(f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits") or ()
    with suppress(ValueError):  # another number of values than was requested
        values = [[value.strip() for value in line.split(",")] for line in lines if line.strip()]
        return [dict(zip(names, row, strict=True)) for row in values]
    return []


def about_machine() -> dict[str, Any]:
    """Describe versions and the processor."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **{name: _version(name) for name in ("apache-tvm", "numpy")},
    }


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
