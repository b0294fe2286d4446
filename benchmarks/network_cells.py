"""Store the results of `coverage.py`, a file per cell.

A cell is a listed network, or a task on a target. A cell with a file is not computed again. The
structural hash identifies a task, so networks with the same task share its cell.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pruner.errors import PrunerError
from pruner.files import write_json
from pruner.models.analyzer.analyzer import Analyzer
from pruner.paths import sources_folder
from pruner.tune.compiling import compiled
from pruner.tune.measure.measurer import Platform
from pruner.tune.networks.coverage import Coverage, coverage
from pruner.tune.networks.draft_task import Depth, DraftJob, draw, is_view
from pruner.tune.networks.extraction import TASKS
from pruner.tune.networks.lowering import NetworkFormat
from pruner.tune.networks.network_tasks import NetworkTask
from pruner.tune.spaces.tvm import LiveSpace
from pruner.tune.tvm_import import load_tvm

LISTED = "listed.json"
# Networks whose weights need tens of gigabytes: equal layers are the same tasks.
LAYERS = {"opt": 2, "mistral": 2}
_TENSORIZED = ("meta_schedule.auto_tensorize", "meta_schedule.auto_tensorize_init")
_MIB = 1024  # kibibytes, in which Linux counts the memory of a process


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """Cost of ``tune.py network=X list=true``, all its processes, or its ``error``."""

    wall_s: float
    cpu_s: float
    peak_mib: float  # of the largest process
    error: str | None = None


def listed(folder: Path, network: str, platform: str, form: NetworkFormat) -> Listed:
    """Run the command into ``folder``, or read an earlier run's cost."""
    known = known_list(folder)
    if known is not None:
        return known
    shutil.rmtree(folder / "tune", ignore_errors=True)  # begun, not finished
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable, str(sources_folder() / "tune.py"), f"network={network}", "list=true",
        f"platform={platform}", f"layout={form.layout}", f"precision={form.precision}",
        f"sizes.layers={LAYERS.get(network, 'null')}", f"outputs={folder}", "run_id=list",
    ]  # fmt: skip
    log, start = folder / "listed.log", time.perf_counter()
    with log.open("w", encoding="utf-8") as file:
        child = subprocess.Popen(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    wall_s, error = time.perf_counter() - start, None
    if child.returncode:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        error = lines[-1] if lines else f"exit {child.returncode}"
    found = Listed(
        wall_s=wall_s,
        cpu_s=used.ru_utime + used.ru_stime,
        peak_mib=used.ru_maxrss / _MIB,
        error=error,
    )
    write_json(folder / LISTED, asdict(found))
    return found


def known_list(folder: Path) -> Listed | None:
    """The cost of the listing in ``folder``; None without a listing."""
    path = folder / LISTED
    return Listed(**json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def tasks_file(folder: Path) -> Path:
    """Path of the tasks of a listed network."""
    return folder / "tune" / "list" / TASKS


def task_rows(folder: Path) -> list[dict[str, Any]]:
    """Key, weight and FLOPs of a listed network's tasks, or none."""
    found = known_list(folder)
    if found is None or found.error is not None:
        return []
    rows = json.loads(tasks_file(folder).read_text(encoding="utf-8"))
    return [{name: task[name] for name in ("key", "weight", "flops")} for task in rows]


@dataclass(slots=True, kw_only=True)
class Program:
    """A program that the draft chose of a task.

    ``refused_by``: "verdict" (TVM's check of GPU code), "replay" (its other rules), "tensorize" (an
    instruction of tensor cores that does not fit), "tvm" (its code generation) or "nvcc"; None:
    nothing refused it so far. ``compiled``: nvcc took it.
    """

    refused_by: str | None = None
    reason: str = ""
    compiled: bool = False


@dataclass(slots=True, kw_only=True)
class TaskCell:
    """A task on a target: its spaces, and the draft's best programs.

    The best program comes first. ``none``: the reason why there are no programs (a view needs
    none). ``cpu_s``: all of this, without nvcc.
    """

    spaces: int
    refused: list[str]
    programs: list[Program] = field(default_factory=list)
    none: str | None = None
    cpu_s: float = 0.0

    @property
    def coverage(self) -> Coverage:
        """Coverage of its spaces."""
        return Coverage(spaces=self.spaces, refused=self.refused)

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        write_json(path, asdict(self))

    @staticmethod
    def read(path: Path) -> "TaskCell | None":
        """Read the file of `save`; None without file."""
        if not path.is_file():
            return None
        values = json.loads(path.read_text(encoding="utf-8"))
        return TaskCell(**{**values, "programs": [Program(**row) for row in values["programs"]]})


def source_file(cell: Path, number: int) -> Path:
    """Path of a program's CUDA source."""
    return cell.with_name(f"p{cell.stem}_{number}.cu")


def try_task(
    path: Path, task: NetworkTask, platform: Platform, analyzer: Analyzer | None, programs: int
) -> TaskCell:
    """Try a task's spaces; with ``programs``, draft it and write CUDA."""
    start = time.process_time()
    found = coverage(task, platform.target)
    cell = TaskCell(spaces=found.spaces, refused=list(found.refused))
    path.parent.mkdir(parents=True, exist_ok=True)
    if programs and is_view(task.module):
        cell.none = "view"
    elif programs:
        job = DraftJob(
            task=task.name,
            module=load_tvm().tvm.ir.save_json(task.module),
            target=platform.target_json,
            analyzer=analyzer,
            depth=Depth.of_share(task.share),
            seed=(int(task.key, 16),),
        )
        try:
            drawn = draw(job, task.module, platform.target)
            for number, row in enumerate(drawn.rows[:programs]):
                space = drawn.space.spaces[row[0]]
                vector = row[1 : 1 + space.num_slots]
                cell.programs.append(_program(space, vector, source_file(path, number)))
        except PrunerError as error:
            cell.none = str(error)
    cell.cpu_s = time.process_time() - start
    cell.save(path)
    return cell


def _program(space: LiveSpace, vector: Any, source: Path) -> Program:
    """Have TVM make a program and write it as CUDA."""
    design = space.design
    schedule = design.replay(vector, 1)
    if schedule is None:
        unchecked = design.replay(vector, 1, verify=False)
        return Program(refused_by="replay" if unchecked is None else "verdict")
    wanted = sum(
        str(inst.kind.name) == "Annotate" and str(inst.attrs[0]) in _TENSORIZED
        for inst in design.trace.insts
    )
    done = sum(str(inst.kind.name) == "Tensorize" for inst in schedule.trace.insts)
    if done != wanted:
        return Program(refused_by="tensorize", reason=f"{done} of {wanted} instructions")
    try:
        built = compiled(schedule.mod, design.target)
    except Exception as error:  # compilers raise kinds of their own
        lines = str(error).strip().splitlines() or [repr(error)]
        return Program(refused_by="tvm", reason=lines[-1])
    text = "\n".join(str(part.inspect_source()) for part in built.mod.imports)
    source.write_text(text, encoding="utf-8")
    return Program()


def pending(folder: Path, keys: Sequence[str]) -> dict[str, str]:
    """CUDA sources of all programs not yet compiled, by file stem."""
    out: dict[str, str] = {}
    for key in dict.fromkeys(keys):
        path = folder / f"{key}.json"
        cell = TaskCell.read(path)
        for number, program in enumerate(cell.programs if cell else []):
            if program.refused_by is None and not program.compiled:
                source = source_file(path, number)
                out[source.stem] = source.read_text(encoding="utf-8")
    return out


def settle(folder: Path, verdicts: dict[str, str | None]) -> None:
    """Store nvcc's verdicts; accepted sources are deleted."""
    for stem, reason in verdicts.items():
        key, number = stem.removeprefix("p").rsplit("_", 1)
        cell = TaskCell.read(folder / f"{key}.json")
        assert cell is not None, key
        program = cell.programs[int(number)]
        program.compiled = reason is None
        if reason is not None:
            program.refused_by, program.reason = "nvcc", reason
        cell.save(folder / f"{key}.json")
        if program.compiled:
            source_file(folder / f"{key}.json", int(number)).unlink()
