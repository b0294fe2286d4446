"""Ansor (TVM 0.19, in its own environment) on our operators, in the same harness.

The same definition of the operator, the same target features, the same timing, the same check
against the reference, the same journal. Ansor's log of a run is ``ansor.json`` in its folder.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pruner.errors import PrunerError
from pruner.places import sources_folder
from pruner.tune.measure.measurer import Measurer, MeasureSettings, Platform
from pruner.tune.phases import PHASES, Phases
from pruner.tune.rivals.ansor_environment import child_environment, interpreter
from pruner.tune.rivals.settings import Ansor
from pruner.tune.run.journal import JOURNAL_FILE, Trial, cut_incomplete_line, read_trials
from pruner.tune.run.loop import TuneBudget
from pruner.tune.workloads import Workload, arguments

_LOG = "ansor.json"
_VECTOR_BYTES, _CACHE_LINE_BYTES = 64, 64
_POLL_S = 0.2


def tune_with_ansor(
    workload: Workload,
    platform: Platform,
    policy: Ansor,
    settings: MeasureSettings,
    *,
    budget: TuneBudget,
    seed: int,
    folder: Path,
    report: Callable[[Trial], None],
) -> dict[str, float]:
    """Run the search to the end of the budget; seconds of every phase.

    Raises:
        PrunerError: the program is no named operator, the platform no local CPU, the Ansor
            environment is missing, or the child failed.
    """
    if workload.spec is None or platform.device != "cpu" or platform.address is not None:
        raise PrunerError("policy=ansor_tvm tunes named operators on this machine's CPU only")
    python = interpreter(sources_folder() / policy.environment)
    for name in (_LOG, JOURNAL_FILE):
        cut_incomplete_line(folder / name)
    start, earlier = time.time(), _elapsed_s(folder)
    path, mcpu = folder / "reference.npz", platform.target.attrs.get("mcpu")
    if settings.check and not path.is_file():
        with Measurer(platform, settings, Phases()) as measurer:
            measurer.reference(workload.module, arguments(workload.module), path)
    spec = {
        "task": workload.name,
        "operator": dict(workload.spec),
        "arguments": arguments(workload.module),
        "target": f"llvm -mcpu={mcpu}" if mcpu else "llvm",
        "hardware_params": [platform.cores, _VECTOR_BYTES, _CACHE_LINE_BYTES, 0, 0, 0, 0, 0],
        "journal": str((folder / JOURNAL_FILE).resolve()),
        "log": str((folder / _LOG).resolve()),
        "reference": str(path.resolve()) if path.is_file() else "",
        "started": start - earlier,
        "seed": seed,
        "trials": budget.trials,
        "batch": budget.batch,
        "builders": settings.builders or platform.cores,
        "build_timeout_s": settings.build_timeout_s,
        "run_timeout_s": settings.run_timeout_s,
        "population": policy.population,
        "generations": policy.generations,
        "num_warmup_samples": policy.num_warmup_samples,
        **{k: v for k, v in asdict(settings.timing).items() if k != "priority"},
    }
    _follow(python, spec, platform, folder, report)
    return _seconds(folder, time.time() - start + earlier)


def _follow(
    python: Path,
    spec: dict[str, Any],
    platform: Platform,
    folder: Path,
    report: Callable[[Trial], None],
) -> None:
    """Run the child and tell each new line of its journal."""
    told = len(read_trials(folder / JOURNAL_FILE))
    command = [str(python), "-m", "pruner.tune.rivals.ansor_child", json.dumps(spec)]
    environment = child_environment(platform.cores)
    with (folder / "ansor.log").open("ab") as log:
        child = subprocess.Popen(
            command, stdout=log, stderr=log, env=environment, cwd=sources_folder()
        )
        try:
            running = True
            while running:
                running = child.poll() is None
                time.sleep(_POLL_S)
                journal = folder / JOURNAL_FILE
                text = journal.read_bytes() if journal.is_file() else b""
                rows = text[: text.rfind(b"\n") + 1].splitlines()
                for row in rows[told:]:
                    report(Trial(**json.loads(row)))
                told = len(rows)
        finally:
            child.kill()
            child.wait()
    if child.returncode != 0:
        raise PrunerError(f"Ansor ended with status {child.returncode}; see {folder / 'ansor.log'}")


def _elapsed_s(folder: Path) -> float:
    rows = read_trials(folder / JOURNAL_FILE)
    return rows[-1].elapsed_s if rows else 0.0


def _seconds(folder: Path, total_s: float) -> dict[str, float]:
    """What the child counted; its search (sampling, evolution, prediction) is all the rest."""
    rows = read_trials(folder / JOURNAL_FILE)
    counted = rows[-1].extra["seconds"] if rows else {}
    seconds = {name: counted.get(name, 0.0) for name in PHASES}
    seconds["sample"] = max(0.0, total_s - sum(seconds.values()))
    return {**seconds, "idle": 0.0}
