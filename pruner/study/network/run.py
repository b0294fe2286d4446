"""Read a network's run folder: tasks, trials, seconds, deployment, baselines."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pruner.arrays import dtype_bytes
from pruner.errors import DataError
from pruner.files import as_written, load_metrics, read_json
from pruner.study.tuning_plots import RunCurve
from pruner.tune.compare.baselines import OURS
from pruner.tune.compare.benchmark import SideBySide
from pruner.tune.deploy.built_files import COMPARISON_FILE, DEPLOY_FILE
from pruner.tune.deploy.forms import built_form
from pruner.tune.networks.extraction import TASKS
from pruner.tune.networks.network_tasks import MIN_SHARE
from pruner.tune.networks.request import REQUEST
from pruner.tune.run.journal import JOURNAL_FILE, Trial, read_trials

CONFIG_FILE = "config.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLine:
    """A task of the network, with calls, share of arithmetic and seconds.

    It is called ``weight`` times and has ``share`` of the network's arithmetic. Seconds are those
    of a call, None where nothing was measured; ``first_s`` of the first program that ran, the
    draft's favourite where the run drafted before it measured; ``bound_s`` of the roofline: its
    arithmetic at the peak rate, or its buffers once through memory, whichever is longer.
    ``forecast_s``: low, median and high of the best program's forecast, empty without it.
    ``in_turns``: the best program is the fastest of the finalists.
    """

    name: str
    weight: float
    flops: float
    share: float
    buffers: str
    best_s: float | None = None
    first_s: float | None = None
    untuned_s: float | None = None
    bound_s: float | None = None
    forecast_s: Sequence[float] = ()
    trials: int = 0
    failures: int = 0
    in_turns: bool = False

    @property
    def tuned(self) -> bool:
        """Whether trials are spent on it."""
        return self.share >= MIN_SHARE

    @property
    def total_s(self) -> float:
        """Seconds of all its calls; 0 while unknown."""
        return self.weight * (self.best_s or 0.0)

    @property
    def gflops_per_s(self) -> float | None:
        """GFLOP/s of its best program."""
        return self.flops / self.best_s / 1e9 if self.best_s else None

    @property
    def roofline(self) -> float | None:
        """Ratio of the roofline's seconds to its best program's (above 1: data of caches)."""
        return self.bound_s / self.best_s if self.bound_s and self.best_s else None


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRun:
    """A run folder; ``curve`` is None while a tuned task is unmeasured."""

    name: str
    folder: Path
    command: str
    config: Mapping[str, Any]
    metrics: Mapping[str, Any]
    tasks: Sequence[TaskLine]
    curve: RunCurve | None
    deployed: Mapping[str, Any]
    comparison: SideBySide | None

    @property
    def seconds(self) -> Mapping[str, float]:
        """Seconds of the run by phase."""
        found: Mapping[str, float] = self.metrics.get("seconds", {})
        return found

    @property
    def ours(self) -> Mapping[str, Any]:
        """Timings of the built network, interleaved with others or alone; empty if untimed."""
        rows = self.comparison.ran if self.comparison is not None else []
        alone = self.deployed if self.deployed.get("median_s") is not None else {}
        return next((row for row in rows if row["name"] == OURS), alone)

    @property
    def estimate_s(self) -> float:
        """Sum of the best seconds of all calls of the measured tasks."""
        return sum(task.total_s for task in self.tasks)

    @property
    def first_s(self) -> float:
        """Sum of all calls' seconds with each task's first (else best) program."""
        return sum(task.weight * (task.first_s or task.best_s or 0.0) for task in self.tasks)


def read_network_run(folder: Path) -> NetworkRun:
    """Read a run folder; raises `DataError` if it is not a network's."""
    if not (folder / TASKS).is_file():
        raise DataError(f"{folder}: no {TASKS}; name the run folder of a network")
    metrics = load_metrics(folder) or {}
    config, command = _read_config(folder / CONFIG_FILE)
    trials = read_trials(folder / JOURNAL_FILE)
    ran = [trial for trial in reversed(trials) if trial.latency_s < float("inf")]
    first = {trial.task: trial.latency_s for trial in ran}  # the first overwrites the later
    known = metrics["tasks"] if "tasks" in metrics else _from_journal(trials)
    place, tasks = built_form(folder) / TASKS, list[TaskLine]()
    with as_written(place):
        rates = _rates(folder, config)
        for row in read_json(place, list):
            found, bound_s = known.get(row["name"], {}), None
            if rates is not None:
                sizes = (math.prod(shape) * dtype_bytes(dtype) for shape, dtype in row["shapes"])
                bound_s = max(float(row["flops"]) / rates[0], sum(sizes) / rates[1])
            tasks.append(
                TaskLine(
                    name=row["name"],
                    weight=float(row["weight"]),
                    flops=row["flops"],
                    share=row["share"],
                    buffers=" ".join("x".join(map(str, shape)) for shape, _ in row["shapes"]),
                    best_s=found.get("best_latency_s"),
                    first_s=first.get(row["name"]),
                    untuned_s=found.get("untuned_latency_s"),
                    bound_s=bound_s,
                    forecast_s=found.get("forecast_s") or (),
                    trials=found.get("trials", 0),
                    failures=sum(found.get("failures", {}).values()),
                    in_turns=found.get("finalists") is not None,
                )
            )
    weights = {task.name: task.weight for task in tasks if task.tuned}
    curve = RunCurve.of(folder.name, trials, weights, metrics.get("seconds", {}))
    return NetworkRun(
        name=str(config.get("network", folder.name)),
        folder=folder,
        command=command,
        config=config,
        metrics=metrics,
        tasks=tasks,
        curve=curve if len(curve.best_s) else None,
        deployed=_json(folder / DEPLOY_FILE),
        comparison=SideBySide.read(folder / COMPARISON_FILE),
    )


def _from_journal(trials: Sequence[Trial]) -> dict[str, dict[str, Any]]:
    found = {}
    for name in dict.fromkeys(trial.task for trial in trials):
        mine = [trial for trial in trials if trial.task == name]
        ran_s = [trial.latency_s for trial in mine if trial.latency_s < math.inf]
        found[name] = {
            "best_latency_s": min(ran_s, default=None),
            "trials": len(mine),
            "failures": Counter(t.error for t in mine if t.error is not None),
        }
    return found


def _rates(folder: Path, config: Mapping[str, Any]) -> tuple[float, float] | None:
    """Peak float32 FLOP/s and bytes/s of the target's cores, by the platform's description."""
    platform = config.get("platform") or {}
    flops, traffic = platform.get("peak_flops_per_s"), platform.get("dram_bytes_per_s")
    if flops is None or traffic is None or config.get("precision", "float32") != "float32":
        return None
    cores = platform.get("num_cores") or 1
    used = _json(folder / REQUEST).get("target", {}).get("num-cores", cores)
    return float(flops) * used / cores, float(traffic)


def _read_config(path: Path) -> tuple[dict[str, Any], str]:
    """The configuration, and the command line in its first comment."""
    if not path.is_file():
        return {}, ""
    try:
        text = path.read_text(encoding="utf-8")
        found = yaml.safe_load(text) or {}
    except (RecursionError, ValueError, yaml.YAMLError) as error:
        message = " ".join(str(error).split())[:120]
        raise DataError(f"{path}: no configuration ({message}); put it back") from error
    first = text.partition("\n")[0]
    return found, first[2:] if first.startswith("# ") else ""


def _json(path: Path) -> dict[str, Any]:
    return read_json(path, dict) if path.is_file() else {}


def baseline_rows(network: str, run: NetworkRun, ours: str) -> list[dict[str, Any]]:
    """The baselines of a run; ``over_ours``: their median latency over ours."""
    if run.comparison is None:
        return []
    medians = {row["name"]: row["median_s"] for row in run.comparison.ran}
    rows = []
    for row in run.comparison.rows:
        out = {"network": network, "contender": row["label"], "error": row["error"]}
        if row["error"] is None:
            names = ("median_s", "min_s", "low_s", "high_s", "runs", "relative_error")
            out |= {name: row[name] for name in names}
            out |= {name: row[name] for name in ("watts", "joules") if name in row}
            out["ready_s"] = row["facts"].get("ready_s")
            if ours in medians:
                out["over_ours"] = row["median_s"] / medians[ours]
        rows.append(out)
    return rows
