"""Describe device and machine once, and before and after every step."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from pruner.files import JsonLines, complete_lines, json_of, read_json, write_json
from pruner.tune.pools.conditions import Conditions, about_gpus, about_machine

STATE_FILE, READINGS_FILE = "device.json", "readings.jsonl"
BEGUN = ("platform", "small")  # what a folder is of
COMPILED, MEASURED = "compiled", "measured"


class State:
    """Readings of a campaign, a line each in its folder's file."""

    def __init__(self, out: Path, device: str) -> None:
        self._out, self._device = out, device
        self._conditions = Conditions(device)

    def begin(self, options: Mapping[str, Any]) -> None:
        """Write the description of machine and device, and the options."""
        self._out.mkdir(parents=True, exist_ok=True)
        path = self._out / STATE_FILE
        begun = begun_with(read_json(path, dict)) if path.is_file() else {}
        begun[_kind(options)] = {name: options.get(name) for name in BEGUN}
        about: dict[str, Any] = {"machine": about_machine(), "asked": dict(options), "begun": begun}
        if self._device != "cpu":
            about["gpus"] = about_gpus()
        write_json(self._out / STATE_FILE, about, indent=1)

    def note(self, step: str, when: str) -> None:
        """Store clocks, temperature, power, load; ``when``: before or after the step."""
        reading = {"step": step, "when": when, **self._conditions.read()}
        JsonLines(self._out / READINGS_FILE).append(reading)


def begun_with(about: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Device and size of a folder, for its compiled and measured parts."""
    asked = about.get("asked")
    if not isinstance(asked, dict):
        return {}
    return {_kind(asked): asked, **about.get("begun", {})}


def _kind(asked: Mapping[str, Any]) -> str:
    return COMPILED if asked.get("compile_only", False) else MEASURED


def about_device(out: Path) -> dict[str, Any]:
    """Readings of `State` as least, median, most; raises DataError if damaged."""
    path = out / STATE_FILE
    if not path.is_file():
        return {}
    found: dict[str, Any] = read_json(path, dict)
    values: dict[str, list[float]] = {}
    for line in complete_lines(out / READINGS_FILE):
        with suppress(ValueError):  # earlier versions may have appended behind a cut line
            for name, value in json_of(line).items():
                if isinstance(value, float) and name != "at":
                    values.setdefault(name, []).append(value)
    found["readings"] = {
        name: {"min": min(v), "median": float(np.median(v)), "max": max(v), "number": len(v)}
        for name, v in sorted(values.items())
    }
    return found
