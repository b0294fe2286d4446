"""Check every network, target and precision: tasks, batching, compilation.

For each network and form (layout and precision), the script measures the seconds and the memory of
``tune.py network=X list=true``, which finds the tasks. For each target it makes MetaSchedule's
design spaces of every task and checks whether the engine batches them; a task is batched if all its
spaces are batched. On CUDA targets, TVM replays the best drafted programs of every task with its
check of GPU code. The script counts their tensor-core instructions, and nvcc compiles their CUDA
source. No program runs, so no GPU is needed.

    python benchmarks/coverage.py [network ...] [targets=a100,h100,orin,cpu-avx512] [programs=2]
        [forms=NCHW:float32,NHWC:float16] [folder=outputs/coverage]

Without ``forms=`` a target has the layouts of ``layout=auto`` for float32 and float16 (a CPU has
both layouts in float32). ``folder`` stores a file per network or task. A stored result is not
computed again, so an interrupted command continues. A network is listed for one CUDA target,
because the others have the same tasks.

The table is ``benchmarks/results/coverage.csv``. A row with empty numbers was not run; rows of
other networks and targets stay. In the rows ``all``, a task that several networks share counts
once. The last line is a JSON object.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from network_cells import (
    TaskCell,
    known_list,
    listed,
    pending,
    settle,
    task_rows,
    tasks_file,
    try_task,
)
from nvcc import compiled

from pruner.cli.shared.output import say
from pruner.errors import PrunerError
from pruner.files import merged_table, read_table, write_table
from pruner.paths import conf_folder
from pruner.program.device import load_device
from pruner.tune.measure.machine import make_platform
from pruner.tune.measure.measurer import Platform
from pruner.tune.networks.catalog import NETWORKS
from pruner.tune.networks.extraction import read_tasks
from pruner.tune.networks.lowering import NetworkFormat
from pruner.tune.run.tune_options import platform_analyzer

TABLE = Path(__file__).resolve().parent / "results" / "coverage.csv"
CUDA, CPU = ("a100", "h100", "orin"), ("cpu-avx512",)
TARGETS = (*CUDA, *CPU)
FORMS = {
    **dict.fromkeys(CUDA, ("NCHW:float32", "NHWC:float16")),
    **dict.fromkeys(CPU, ("NHWC:float32", "NCHW:float32")),
}
ALL = "all"
KEY = ("network", "target", "layout", "precision")
STAGES = ("verdict", "replay", "tensorize", "tvm", "nvcc")
COLUMNS = (
    *KEY, "list_wall_s", "list_cpu_s", "list_peak_mib", "tasks", "tasks_tried", "tasks_batched",
    "spaces", "spaces_batched", "flops_batched", "not_batched", "views", "tasks_without_program",
    "programs", *(f"refused_{stage}" for stage in STAGES), "compiled", "reasons", "cpu_s",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The command line."""

    networks: tuple[str, ...]
    targets: tuple[str, ...]
    forms: tuple[str, ...] | None
    programs: int
    folder: Path

    @staticmethod
    def read(words: list[str]) -> "Asked":
        """Parse words like ``resnet18`` and ``targets=a100``."""
        given = dict(word.split("=", 1) for word in words if "=" in word)
        forms = given.get("forms")
        return Asked(
            networks=tuple(w for w in words if "=" not in w) or tuple(NETWORKS),
            targets=tuple(given.get("targets", ",".join(TARGETS)).split(",")),
            forms=None if forms is None else tuple(forms.split(",")),
            programs=int(given.get("programs", 2)),
            folder=Path(given.get("folder", "outputs/coverage")).absolute(),
        )

    def cells(self) -> Iterator["Cell"]:
        """Networks in the given order, each with all requested cells."""
        for network in self.networks:
            for target in self.targets:
                for form in self.forms or FORMS[target]:
                    layout, precision = form.split(":")
                    yield Cell(network, target, NetworkFormat(layout=layout, precision=precision))


@dataclass(frozen=True, slots=True)
class Cell:
    """A row of the table."""

    network: str
    target: str
    form: NetworkFormat

    @property
    def lists_on(self) -> str:
        """The target that the network is listed for."""
        return CUDA[0] if self.target in CUDA else self.target

    def listing(self, folder: Path) -> Path:
        """Folder of the network's listing."""
        form = f"{self.form.layout}-{self.form.precision}"
        return folder / "networks" / f"{self.network}-{self.lists_on}-{form}"

    def key(self, network: str | None = None) -> dict[str, str]:
        """The first columns of its row."""
        names = (network or self.network, self.target, self.form.layout, self.form.precision)
        return dict(zip(KEY, names, strict=True))


def run(cell: Cell, asked: Asked, platforms: Mapping[str, Platform]) -> None:
    """Compute the missing parts of a row."""
    found = listed(cell.listing(asked.folder), cell.network, cell.lists_on, cell.form)
    if found.error is not None:
        say(f"{cell.network} {cell.lists_on} {cell.form}: {found.error}")
        return
    tasks = read_tasks(tasks_file(cell.listing(asked.folder)))
    platform, folder = platforms[cell.target], asked.folder / cell.target
    programs = asked.programs if cell.target in CUDA else 0
    analyzer = platform_analyzer(platform)
    for number, task in enumerate(tasks, start=1):
        path = folder / f"{task.key}.json"
        known = TaskCell.read(path)
        if known is not None and (known.programs or known.none or not programs):
            continue
        tried = try_task(path, task, platform, analyzer, programs)
        what = f"{tried.coverage}, {len(tried.programs)} programs, {tried.cpu_s:.1f} s"
        say(f"{cell.network} {cell.target} {cell.form} {number}/{len(tasks)} {task.name}: {what}")
    sources = pending(folder, [task.key for task in tasks])
    arch, start = str(platform.target.attrs.get("arch", "")), time.perf_counter()
    done = 0
    for verdicts in compiled(sources, arch):
        settle(folder, verdicts)
        done += len(verdicts)
        say(f"nvcc {arch} {done}/{len(sources)} programs, {time.perf_counter() - start:.0f} s")


def counted(tasks: Iterable[Mapping[str, Any]], folder: Path) -> dict[str, Any]:
    """The counts of a row, of all tried tasks; a task is batched if all its spaces are."""
    tasks = list(tasks)
    read = [(task, TaskCell.read(folder / f"{task['key']}.json")) for task in tasks]
    tried = [(task["weight"] * task["flops"], cell) for task, cell in read if cell is not None]
    if not tried:
        return {"tasks": len(tasks)}
    cells = [cell for _, cell in tried]
    flops, batched = sum(of for of, _ in tried), sum(of * c.coverage.whole for of, c in tried)
    programs = [program for cell in cells for program in cell.programs]
    stages = Counter(program.refused_by for program in programs)
    not_batched = Counter(one.partition(":")[0] for cell in cells for one in cell.refused)
    why = Counter[str]()
    for cell in cells:
        refused = [program for program in cell.programs if program.refused_by is not None]
        why.update(f"{program.refused_by}: {program.reason}" for program in refused)
        why.update([cell.none] if cell.none not in (None, "view") else [])
    return {
        "tasks": len(tasks),
        "tasks_tried": len(cells),
        "tasks_batched": sum(cell.coverage.whole for cell in cells),
        "spaces": sum(cell.spaces for cell in cells),
        "spaces_batched": sum(cell.coverage.batched for cell in cells),
        "flops_batched": f"{batched / flops if flops else 1.0:.4f}",
        "not_batched": _told(not_batched),
        "views": sum(cell.none == "view" for cell in cells),
        "tasks_without_program": sum(cell.none not in (None, "view") for cell in cells),
        "programs": len(programs),
        **{f"refused_{stage}": stages[stage] for stage in STAGES},
        "compiled": sum(program.compiled for program in programs),
        "reasons": _told(why),
        "cpu_s": f"{sum(cell.cpu_s for cell in cells):.0f}",
    }


def _told(counts: Counter[str]) -> str:
    return "; ".join(f"{n} {reason}" for reason, n in counts.most_common())


def row(cell: Cell, folder: Path) -> dict[str, Any]:
    """The row of a cell; empty where it was not run."""
    empty = dict.fromkeys(COLUMNS, "") | cell.key()
    where = cell.listing(folder)
    found = known_list(where)
    if found is None:
        return empty
    if found.error is not None:
        return empty | {"reasons": f"not listed: {found.error}"}
    cost: dict[str, str] = {}
    if cell.target == cell.lists_on:
        names = ("list_wall_s", "list_cpu_s", "list_peak_mib")
        cost = {name: f"{getattr(found, name.removeprefix('list_')):.0f}" for name in names}
    return empty | cost | counted(task_rows(where), folder / cell.target)


def every(cells: list[Cell], folder: Path) -> dict[str, Any]:
    """The row of all networks of a form and target; shared tasks count once."""
    found = {task["key"]: task for cell in cells for task in task_rows(cell.listing(folder))}
    counts = counted(found.values(), folder / cells[0].target)
    counts["flops_batched"] = ""  # of no network
    return dict.fromkeys(COLUMNS, "") | cells[0].key(ALL) | counts


def keep(cell: Cell, folder: Path) -> list[Mapping[str, Any]]:
    """Write the table with a cell's row; also rows of networks that were not run."""
    beside = [Cell(name, cell.target, cell.form) for name in NETWORKS]
    there = {tuple(old[name] for name in KEY) for old in read_table(TABLE)}
    fresh = [one for one in beside if one == cell or tuple(one.key().values()) not in there]
    rows = [*(row(one, folder) for one in fresh), every(beside, folder)]
    order = {name: place for place, name in enumerate([*NETWORKS, ALL, *TARGETS])}
    kept = sorted(
        merged_table(TABLE, rows, KEY),
        key=lambda r: (order[r["network"]], order[r["target"]], r["precision"], r["layout"]),
    )
    write_table(TABLE, kept)
    return kept


def main() -> None:
    """Run the missing cells; write the table after every network and target."""
    asked = Asked.read(sys.argv[1:])
    platforms = {
        name: make_platform(load_device(conf_folder() / "platform" / f"{name}.yaml"))
        for name in asked.targets
    }
    kept: list[Mapping[str, Any]] = []
    for cell in asked.cells():
        try:
            run(cell, asked, platforms)
        except PrunerError as error:
            say(f"{cell.network} {cell.target}: {error}")
        kept = keep(cell, asked.folder)
    distinct = [found for found in kept if found["network"] == ALL]
    total = {
        name: sum(int(found[name] or 0) for found in distinct)
        for name in ("tasks_tried", "programs", *(f"refused_{s}" for s in STAGES), "compiled")
    }
    print(json.dumps({"rows": len(kept), **total}))


if __name__ == "__main__":
    main()
