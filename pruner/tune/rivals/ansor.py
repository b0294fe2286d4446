"""Tune our operators by Ansor (TVM 0.19, own environment) in our harness.

Equal are operator, target features, timing, check and journal. Its log ``ansor.json`` has all
repeats of every program; ``pruner import_logs`` makes it a data root.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pruner.commands import Commands
from pruner.errors import PrunerError
from pruner.files import complete_lines, cut_incomplete_line
from pruner.paths import datasets_folder, sources_folder
from pruner.tune.measure.measurer import BUILDS, DeviceMeasurer, Platform
from pruner.tune.phases import PHASES, Phases
from pruner.tune.run.journal import JOURNAL_FILE, Trial, read_trial, read_trials
from pruner.tune.workloads import Workload, arguments

if TYPE_CHECKING:
    from pruner.tune.run.tune_options import TuneOptions

REQUIREMENTS = datasets_folder() / "ansor-requirements.txt"
_LOG = "ansor.json"
_VECTOR_BYTES, _CACHE_LINE_BYTES = 64, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Ansor:
    """Ansor's search, model and measurer in its own environment; CPUs only."""

    takes_model: ClassVar[bool] = False
    trusts_draft: ClassVar[bool] = False

    environment: str = ".venv-ansor"
    population: int = 2048
    generations: int = 4
    num_warmup_samples: int = 100  # measured programs before the model counts

    def __post_init__(self) -> None:
        if min(self.population, self.generations) < 1:
            raise PrunerError("policy=ansor_tvm: population and generations must be at least 1")

    def run(
        self,
        workloads: Sequence[Workload],
        options: TuneOptions,
        folder: Path,
        report: Callable[[Trial], None],
        interrupted: Callable[[], bool],
    ) -> Mapping[str, float]:
        """Tune a named operator, write the journal; return seconds by phase.

        It ends early if ``interrupted`` returns True. Raises `PrunerError`: the program is no named
        operator, the platform no local CPU, the Ansor environment is missing, or the child failed.
        """
        if len(workloads) != 1:
            raise PrunerError("policy=ansor_tvm tunes one operator a run; choose one workload")
        (workload,), platform, measure = workloads, options.platform, options.measure
        if workload.spec is None or platform.device != "cpu" or platform.address is not None:
            raise PrunerError("policy=ansor_tvm tunes named operators on this machine's CPU only")
        python = interpreter(sources_folder() / self.environment)
        for name in (_LOG, JOURNAL_FILE):
            # before the child starts: it appends to both files, and Ansor reads its log line by
            # line
            cut_incomplete_line(folder / name)
        rows = read_trials(folder / JOURNAL_FILE)
        start, earlier = time.time(), rows[-1].elapsed_s if rows else 0.0
        path, mcpu = folder / "reference.npz", platform.target.attrs.get("mcpu")
        if measure.check and not path.is_file():
            with DeviceMeasurer(platform, measure, Phases(), folder / BUILDS) as measurer:
                module = workload.module
                measurer.begin_reference(module, arguments(module), path).result()
        logged = complete_lines(folder / _LOG)  # whose records keep their key
        key = str(json.loads(logged[0])["i"][0][0]) if logged else workload.key
        spec = {
            "task": workload.name,
            "key": key,
            "operator": dict(workload.spec),
            "arguments": arguments(workload.module),
            "target": f"llvm -mcpu={mcpu}" if mcpu else "llvm",
            # explicit parameters: Ansor's own detection would read those of the machine, not of the
            # target
            "hardware_params": [platform.cores, _VECTOR_BYTES, _CACHE_LINE_BYTES, 0, 0, 0, 0, 0],
            "journal": str((folder / JOURNAL_FILE).resolve()),
            "log": str((folder / _LOG).resolve()),
            "reference": str(path.resolve()) if path.is_file() else "",
            # the child's clock includes earlier starts, so elapsed_s of a resumed run continues
            "started": start - earlier,
            "seed": options.seed,
            "trials": options.budget.trials,
            "batch": options.budget.batch,
            "builders": measure.builders or platform.cores,
            "build_timeout_s": measure.build_timeout_s,
            "run_timeout_s": measure.run_timeout_s,
            "population": self.population,
            "generations": self.generations,
            "num_warmup_samples": self.num_warmup_samples,
            **{k: v for k, v in asdict(measure.timing).items() if k != "priority"},
        }
        _follow(python, spec, platform, folder, report, interrupted)
        return _seconds(folder, time.time() - start + earlier)


def _follow(
    python: Path,
    spec: dict[str, Any],
    platform: Platform,
    folder: Path,
    report: Callable[[Trial], None],
    interrupted: Callable[[], bool],
) -> None:
    num_logged = len(complete_lines(folder / JOURNAL_FILE))

    def log_new() -> bool:
        nonlocal num_logged
        rows = complete_lines(folder / JOURNAL_FILE)
        for row in rows[num_logged:]:
            with suppress(ValueError):  # a damaged one
                report(read_trial(row))
        num_logged = len(rows)
        return not interrupted()

    words = [str(python), "-m", "pruner.tune.rivals.ansor_child", json.dumps(spec)]
    unpinned = {"TVM_NUM_THREADS": str(platform.cores), "TVM_BIND_THREADS": "0"}
    environment = {**os.environ, **unpinned, "PYTHONPATH": str(sources_folder())}
    commands = Commands(sources_folder(), environment)
    log = folder / "ansor.log"
    code = commands.run(words, log, append=True, patience_s=0.0, watch=log_new)
    # an interrupted child has a status, too; it is an error only without a request
    if log_new() and code != 0:
        raise PrunerError(f"Ansor ended with status {code}; see {log}")


def _seconds(folder: Path, total_s: float) -> dict[str, float]:
    """Sum the child's phases; the rest of its time is search."""
    rows = read_trials(folder / JOURNAL_FILE)
    counted = rows[-1].extra["seconds"] if rows else {}
    seconds = {name: counted.get(name, 0.0) for name in PHASES}
    # sampling, evolution and prediction happen inside Ansor, which reports no times
    seconds["sample"] = max(0.0, total_s - sum(seconds.values()))
    return {**seconds, "idle": 0.0}


def interpreter(folder: Path) -> Path:
    """Return the environment's Python; raise `PrunerError` if it has no Ansor."""
    python, detail = folder / "bin" / "python", "not there"
    if python.exists():
        # in a process of its own: both environments have a package called tvm
        probe = "import tvm.auto_scheduler, xgboost"
        done = subprocess.run([python, "-c", probe], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return python
        detail = (done.stderr.strip().splitlines() or ["crashed"])[-1]
    raise PrunerError(
        f"no working Ansor environment in {folder} ({detail}); "
        "run: pruner collect setup=true (or: make ansor-env)"
    )


def install(folder: Path) -> None:
    """Create the environment of datasets/ansor-requirements.txt; raise `PrunerError` on failure."""
    commands = [
        [sys.executable, "-m", "venv", str(folder)],
        [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "-r", str(REQUIREMENTS)],
    ]
    for command in commands:
        if subprocess.run(command, stdout=sys.stderr, check=False).returncode != 0:
            raise PrunerError(f"could not install Ansor into {folder}; see the messages above")
