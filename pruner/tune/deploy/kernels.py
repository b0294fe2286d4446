"""Write libraries and sources of single operators' tuned kernels."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pruner.errors import DataError
from pruner.files import temporaries_in, write_text
from pruner.tune.compiling import compiled, link
from pruner.tune.deploy.apply_records import recorded_keys
from pruner.tune.deploy.built_files import TEMPORARY, WORK, deploying
from pruner.tune.kinds import is_opencl
from pruner.tune.networks.network_tasks import task_key
from pruner.tune.opencl.runtime import RUNNER, launch_plan, load_runtime
from pruner.tune.run.database import Database
from pruner.tune.run.finalists import best_module, chosen_trials
from pruner.tune.run.journal import JOURNAL_FILE, read_trials
from pruner.tune.run.tuning import candidate_path, kernel_path
from pruner.tune.tvm_import import load_tvm
from pruner.tune.workloads import Workload, arguments

OPENCL_LOADER = "run_opencl.py"
_LLVM = {"ll": "ll", "s": "asm"}  # suffix: TVM's name of the format


def deploy_kernels(
    folder: Path, workloads: Sequence[Workload], target: Any, database: Path | None = None
) -> dict[str, list[Path]]:
    """Write every task's best program to ``kernels/``; return library and sources by task.

    In a run that only compiled, it is the first program of its search. Tasks without program are
    left out. Raises `PrunerError`: no task has a program, records of another target, or another
    process builds them.
    """
    with deploying(folder), temporaries_in(folder / WORK / TEMPORARY):
        found = _measured(workloads, target, folder, database or folder)
        found = found or _chosen(folder, workloads)
        if not found:
            raise DataError(f"{folder}: {_lacking(folder)}")
        return {name: _exported(folder, name, module, target) for name, module in found.items()}


def _lacking(folder: Path) -> str:
    if any(trial.error is None for trial in read_trials(folder / JOURNAL_FILE)):
        return (
            "its programs ran, but TVM's database has none of them: Ansor's stay in its own log; "
            "tune with another policy"
        )
    return (
        "no task has a program that ran or was compiled; tune it longer: "
        f"python tune.py resume={folder} budget.trials=..."
    )


def _measured(
    workloads: Sequence[Workload], target: Any, folder: Path, place: Path
) -> Mapping[str, Any]:
    """Make the best program of every task: the chosen trial, or TVM's best record."""
    recorded = recorded_keys(place, target)
    if not recorded:
        return {}
    chosen = chosen_trials(folder, read_trials(folder / JOURNAL_FILE))
    database = Database.read(place)
    return {
        task.name: best_module(database, task.module, target, chosen.get(task.name))
        for task in workloads
        if task_key(task.module) in recorded
    }


def _chosen(folder: Path, workloads: Sequence[Workload]) -> Mapping[str, Any]:
    """Load every task's first compiled program of a run without measurements."""
    first: dict[str, int] = {}
    for trial in read_trials(folder / JOURNAL_FILE):
        if trial.compiled_only and trial.error is None:
            first.setdefault(trial.task, trial.trial)
    known = [task.name for task in workloads if task.name in first]
    return {name: _program(candidate_path(folder, first[name])) for name in known}


def _program(path: Path) -> Any:
    if not path.is_file():
        raise DataError(f"{path}: not there, an older version wrote the run; compile a new one")
    try:
        return load_tvm().tvm.ir.load_json(path.read_text(encoding="utf-8"))
    except Exception as error:  # TVM's errors are of many kinds
        raise DataError(f"{path}: damaged ({type(error).__name__}); compile a new run") from error


def _exported(folder: Path, name: str, module: Any, target: Any) -> list[Path]:
    library = kernel_path(folder, name)
    library.parent.mkdir(exist_ok=True)
    if is_opencl(target):
        load_runtime()
    executable = compiled(module, target)
    partial = library.with_name(f".{library.name}")  # TVM takes the format from the suffix
    link(executable, target, partial)
    partial.replace(library)
    if target.kind.name == "llvm":
        texts = {k: executable.mod.inspect_source(word) for k, word in _LLVM.items()}
    else:
        # device code is an imported module of the host's
        text = "\n".join(part.inspect_source() for part in executable.mod.imports)
        texts = {"cl" if is_opencl(target) else "cu": text}
    files = {library.with_suffix(f".{suffix}"): text for suffix, text in texts.items()}
    if is_opencl(target):
        plan = launch_plan(executable, arguments(module), str(target))
        files[library.with_suffix(".json")] = json.dumps(plan, indent=1)
        files[library.parent / OPENCL_LOADER] = RUNNER
    for path, text in files.items():
        write_text(path, text)
    return [library, *files]
