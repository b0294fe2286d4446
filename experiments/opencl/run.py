"""OpenCL on this machine's CPU (PoCL): check GPU-like programs and searches.

    python -m experiments.opencl.run                                   programs, 50 of every space
    python -m experiments.opencl.run programs=10 sources=[operators] out=DIR
    python -m experiments.opencl.run part=search                       ours, random, MetaSchedule
    python -m experiments.opencl.run part=search trials=8 seeds=1 out=DIR

The first part checks whether programs are right. It draws random programs from every design space
of all named operators and of the tasks of six small networks, builds and runs them, and compares
their results with the results of the unscheduled program. The second part compares how fast
searches find fast programs; it needs an idle machine. Finished programs and searches are not run
again, so you can stop and start the script at any time. It needs the extra ``opencl``. With out=DIR
everything goes there instead of to outputs/ and this folder.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from experiments.common.comparison import Tunings, places
from experiments.tune.run import cell_name
from pruner.cli.shared.output import say
from pruner.cli.shared.script import keep_tables, run_script
from pruner.errors import PrunerError, UnsupportedProgram, check_chosen
from pruner.files import JsonLines, complete_lines, json_of, load_metrics, write_table
from pruner.program.device import load_device
from pruner.search.space import Candidate
from pruner.tune.measure.jobs import Timing
from pruner.tune.measure.machine import make_platform, on_opencl
from pruner.tune.measure.measurer import DeviceMeasurer, MeasureSettings, Outcome, Platform
from pruner.tune.networks.extraction import TASKS, extract_tasks, read_tasks
from pruner.tune.networks.sizes import NetworkOptions
from pruner.tune.networks.source import NetworkSource
from pruner.tune.phases import Phases
from pruner.tune.spaces.batched.space import BatchedSpace
from pruner.tune.spaces.design import DesignSpace, design_spaces
from pruner.tune.workloads import Workload, arguments, from_operator

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PLATFORM = "opencl-pocl"
OPERATORS: list[dict[str, Any]] = [
    {"operator": "matmul", "m": 32, "n": 64, "k": 32},
    {"operator": "matmul", "m": 24, "n": 20, "k": 36, "epilogue": ["bias", "relu"]},
    {"operator": "batch_matmul", "batch": 3, "m": 16, "n": 32, "k": 16},
    {"operator": "conv2d", "n": 1, "ci": 16, "h": 8, "w": 8, "co": 16, "kh": 1, "kw": 1,
     "stride": 1, "padding": 0, "epilogue": ["bias", "relu"]},
    {"operator": "conv2d", "n": 1, "ci": 8, "h": 10, "w": 10, "co": 16, "kh": 3, "kw": 3,
     "stride": 1, "padding": 1, "epilogue": ["bias", "add", "relu"]},
    {"operator": "conv2d", "n": 2, "ci": 8, "h": 14, "w": 14, "co": 8, "kh": 3, "kw": 3,
     "stride": 2, "padding": 1},
    {"operator": "depthwise_conv2d", "n": 1, "c": 16, "h": 10, "w": 10, "kh": 3, "kw": 3,
     "stride": 1, "padding": 1, "epilogue": ["bias", "relu"]},
    {"operator": "grouped_conv2d", "n": 1, "ci": 16, "h": 8, "w": 8, "co": 16, "groups": 4,
     "kh": 3, "kw": 3, "stride": 1, "padding": 1},
    {"operator": "pool", "kind": "max", "n": 1, "c": 16, "h": 12, "w": 12, "kh": 3, "kw": 3,
     "stride": 2, "padding": 1},
    {"operator": "pool", "kind": "avg", "n": 1, "c": 8, "h": 9, "w": 9, "kh": 3, "kw": 3,
     "stride": 1, "padding": 1},
    {"operator": "softmax", "rows": 16, "columns": 64},
    {"operator": "layer_norm", "rows": 8, "columns": 96},
]  # fmt: skip
NETWORKS = {
    "resnet18": NetworkOptions(image=32),
    "mobilenet_v2": NetworkOptions(image=32),
    "squeezenet1_1": NetworkOptions(image=64),
    "bert_tiny": NetworkOptions(length=16, layers=1),
    "gpt2": NetworkOptions(length=16, layers=1),
    "vit_b_16": NetworkOptions(image=32, layers=1),
}
SEARCHED = {
    "matmul": ["workload=matmul", "workload.m=128", "workload.n=128", "workload.k=128"],
    "conv2d_3x3": [
        "workload=conv2d", "workload.ci=32", "workload.h=28", "workload.w=28", "workload.co=32",
        "workload.kh=3", "workload.kw=3", "workload.padding=1",
    ],
    "softmax": ["workload=softmax", "workload.rows=256", "workload.columns=512"],
}  # fmt: skip
# MetaSchedule gets half its default batch and learns from the first on, as in experiments/tune.
POLICIES = {
    "ours": ["policy=pruner_live", "budget.batch=16"],
    "random": ["policy=random", "budget.batch=16"],
    "metaschedule": ["policy=metaschedule", "budget.batch=32", "+policy.num_warmup_samples=32"],
}
SETTINGS = ["measure.min_repeat_ms=20", "measure.repeats=3", "num_threads=1"]
RIGHT = "right"
_NO_ROW = np.zeros(0, np.int64)  # programs are known by their numbers here


@dataclass(kw_only=True)
class Options:
    """Options of the script; ``build_s``: limit of one build."""

    part: str = "programs"
    programs: int = 50
    sources: list[str] = field(default_factory=lambda: ["operators", *NETWORKS])
    trials: int = 64
    seeds: int = 3
    build_s: float = 60.0
    out: str = str(HERE)


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A program and its result: `RIGHT`, or the kind of failure."""

    source: str
    task: str
    operator: str
    space: int
    number: int
    result: str
    message: str
    build_s: float


def workloads_of(source: str, platform: Platform, work: Path) -> list[Workload]:
    """Operators at small shapes, or a network's tasks with arithmetic."""
    if source == "operators":
        return [from_operator(spec) for spec in OPERATORS]
    folder = work / "networks" / source
    if not (folder / TASKS).is_file():
        folder.mkdir(parents=True, exist_ok=True)
        network = NetworkSource(name=source, options=NETWORKS[source])
        extract_tasks(network, platform.target_json, folder)
    return [task.workload for task in read_tasks(folder / TASKS) if task.tuned]


def schedules(design: DesignSpace, number: int) -> Iterator[Any]:
    """Drawn programs of a space; TVM draws where the engine cannot."""
    try:
        rows = BatchedSpace(design).sample(number, np.random.default_rng(0))
        yield from (design.replay(row, 1) for row in rows)
    except UnsupportedProgram:
        yield from (design.replay(None, seed) for seed in range(1, number + 1))


class Programs:
    """Try programs and store each result as a line of a file."""

    def __init__(self, measurer: DeviceMeasurer, work: Path, programs: int) -> None:
        self._measurer, self._work, self._programs = measurer, work, programs
        self._lines = JsonLines(work / "programs.jsonl")
        self.tried = [Tried(**json_of(line)) for line in complete_lines(self._lines.path)]
        self._known = {(t.source, t.task, t.space, t.number) for t in self.tried}

    def fill(self, source: str, workload: Workload, target: Any) -> None:
        """Try the untried programs of all spaces of a task."""
        check: Path | None = None
        for space, design in enumerate(design_spaces(workload.module, target)):
            place = source, workload.name, space
            if all((*place, n) in self._known for n in range(self._programs)):
                continue
            check = check or self._reference(workload)
            made = list(enumerate(schedules(design, self._programs)))
            left = [(n, one) for n, one in made if (*place, n) not in self._known]
            batch = [
                Candidate(space=space, decisions=_NO_ROW, schedule=one)
                for _, one in left
                if one is not None
            ]
            built = self._measurer.begin(batch, arguments(workload.module))
            outcomes = self._measurer.results(built, lambda *_: True, check)
            for n, one in left:
                outcome = Outcome(error="refused") if one is None else next(outcomes)[1]
                self.tried.append(Tried(
                    source=source, task=workload.name, space=space, number=n,
                    operator=workload.operator or "fused", result=outcome.error or RIGHT,
                    message=outcome.message[-200:], build_s=round(outcome.build_s, 2),
                ))  # fmt: skip
                self._lines.append(asdict(self.tried[-1]))

    def _reference(self, workload: Workload) -> Path:
        path, module = self._work / "reference.npz", workload.module
        reason = self._measurer.begin_reference(module, arguments(module), path).result()
        if reason is not None:
            raise PrunerError(f"{workload.name}: no reference ({reason})")
        return path


def run_programs(options: Options) -> dict[str, Any]:
    """Try the missing programs; write programs.csv, a row an operator or network."""
    keep_tables(options, HERE, "programs")
    check_chosen("sources", options.sources, ["operators", *NETWORKS])
    device = load_device(ROOT / "conf" / "platform" / f"{PLATFORM}.yaml")
    platform, found = on_opencl(make_platform(device), device)
    say(f"OpenCL device {found}")
    folder, work = places(options.out, HERE, "experiments-opencl")
    work.mkdir(parents=True, exist_ok=True)
    settings = MeasureSettings(
        timing=Timing(repeats=1, min_repeat_ms=0), builders=1, build_timeout_s=options.build_s
    )
    with DeviceMeasurer(platform, settings, Phases()) as measurer:
        programs = Programs(measurer, work, options.programs)
        for source in options.sources:
            for workload in workloads_of(source, platform, work):
                programs.fill(source, workload, platform.target)
                say(f"{source} {workload.name}: {dict(Counter(t.result for t in programs.tried))}")
    rows = table_of(programs.tried)
    write_table(folder / "programs.csv", rows)
    write_table(folder / "failures.csv", [asdict(t) for t in programs.tried if t.result != RIGHT])
    return {"tried": len(programs.tried), "right": sum(t.result == RIGHT for t in programs.tried)}


def table_of(tried: list[Tried]) -> list[dict[str, Any]]:
    """Counts a named operator and a network, and of all."""
    groups = dict[tuple[str, str], list[Tried]]()
    for one in tried:
        operator = one.operator if one.source == "operators" else "all tasks"
        groups.setdefault((one.source, operator), []).append(one)
    groups["all", "all"] = list(tried)
    kinds = sorted({one.result for one in tried} - {RIGHT})
    return [
        {
            "source": source,
            "operator": operator,
            "tasks": len({(one.source, one.task) for one in group}),
            "spaces": len({(one.source, one.task, one.space) for one in group}),
            "programs": len(group),
            RIGHT: sum(one.result == RIGHT for one in group),
            **{kind: sum(one.result == kind for one in group) for kind in kinds},
        }
        for (source, operator), group in groups.items()
    ]


def run_search(options: Options) -> dict[str, Any]:
    """Run the missing searches; write search.csv, a row an operator, policy, seed."""
    cells = {
        (operator, policy, seed): cell_name(operator, policy, seed, options.trials)
        for seed, operator, policy in product(range(options.seeds), SEARCHED, POLICIES)
    }
    words = {
        name: [
            f"platform={PLATFORM}", *SEARCHED[operator], *POLICIES[policy], *SETTINGS,
            f"budget.trials={options.trials}", f"seed={seed}",
        ]
        for (operator, policy, seed), name in cells.items()
    }  # fmt: skip
    folder, work = places(options.out, HERE, "experiments-opencl")
    Tunings(work, ROOT, words).run_all()
    rows = list[dict[str, Any]]()
    for (operator, policy, seed), name in cells.items():
        metrics = load_metrics(work / "tune" / name)
        if metrics is None:
            continue
        best_s = metrics["best_latency_s"]
        rows.append({
            "operator": operator, "policy": policy, "seed": seed, "trials": metrics["trials"],
            "failed": metrics["failed"], "best_latency_s": best_s,
            "total_s": metrics["total_seconds"], "checked": metrics["checked"],
        })  # fmt: skip
    write_table(folder / "search.csv", rows, floats=".6g")
    return {"cells": len(rows)}


def run(options: Options) -> dict[str, Any]:
    """Run a part; raises PrunerError for an unknown part, or without OpenCL."""
    parts = {"programs": run_programs, "search": run_search}
    check_chosen("part", [options.part], parts)
    return parts[options.part](options)


if __name__ == "__main__":
    run_script(Options, run, __doc__)
