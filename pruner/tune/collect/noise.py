"""How well the measurements repeat: within one set of repeats, and measured again later."""

from __future__ import annotations

import gzip
import json
import subprocess
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pruner.errors import PrunerError
from pruner.files import as_written, read_json
from pruner.places import sources_folder
from pruner.progress import Tell
from pruner.tune.collect.driver import CollectPlan, worker_spec
from pruner.tune.collect.layout import TaskPaths, damaged, write_sums
from pruner.tune.rivals.ansor_environment import child_environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Remeasured:
    """The repeats of record ``line`` of a task, taken again in a new process."""

    platform: str
    task: str
    line: int
    first_s: list[float]
    again_s: list[float]

    @property
    def ratio(self) -> float:
        """New latency over old."""
        return float(np.mean(self.again_s) / np.mean(self.first_s))


def relative_spread(costs_s: list[float]) -> float:
    """Largest minus smallest repeat, relative to their median."""
    return (max(costs_s) - min(costs_s)) / float(np.median(costs_s))


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the records of one gzipped file. Raises `DataError` where it is damaged."""
    try:
        return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    except (EOFError, ValueError, zlib.error, gzip.BadGzipFile) as error:
        raise damaged(path, str(error)) from error


def noise_summary(out: Path) -> dict[str, float]:
    """Return the spread of the repeats, and of the re-measurement where one was made.

    ``repeat_spread_*`` are quantiles over all valid records of ``relative_spread``;
    ``remeasure_change_*`` are over ``|new / old - 1|`` of the mean latencies.
    """
    costs = [
        record["r"][0]
        for path in sorted((out / "measure_records").glob("*/*.json.gz"))
        for record in read_records(path)
        if record["r"][1] == 0
    ]
    summary = _quantiles("repeat_spread", [relative_spread(repeats) for repeats in costs])
    again = out / "remeasured.json"
    if again.exists():
        with as_written(again):
            rows = [Remeasured(**row) for row in read_json(again, list)]
        summary |= _quantiles("remeasure_change", [abs(row.ratio - 1) for row in rows])
    return summary


def _quantiles(name: str, values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    return {
        f"{name}_median": float(np.median(values)),
        f"{name}_p90": float(np.quantile(values, 0.9)),
        f"{name}_max": float(np.max(values)),
    }


def remeasure(plan: CollectPlan, count: int, tell: Tell) -> list[Remeasured]:
    """Measure about ``count`` valid records again, spread evenly over tasks and targets.

    Raises:
        PrunerError: there are no records, or a child process failed.
    """
    rng = np.random.default_rng(plan.seed)
    pairs = [(task, target) for task in plan.tasks for target in plan.targets]
    pairs = [pair for pair in pairs if _paths(plan, *pair).records.exists()]
    if not pairs:
        raise PrunerError(f"no records to measure again under {plan.out / 'measure_records'}")
    order = rng.permutation(len(pairs))
    chosen = [pairs[order[i % len(pairs)]] for i in range(count)]
    rows: list[Remeasured] = []
    for task, target in chosen:
        paths = _paths(plan, task, target)
        records = read_records(paths.records)
        line = int(rng.choice([i for i, record in enumerate(records) if record["r"][1] == 0]))
        spec = worker_spec(plan, task, target, paths, attempt=0).to_json()
        done = subprocess.run(
            [str(plan.python), "-m", "pruner.tune.collect.remeasure", spec],
            input=json.dumps([records[line]]),
            capture_output=True,
            text=True,
            env=child_environment(target.cores),
            cwd=sources_folder(),
            timeout=plan.child_timeout_s,
            check=False,
        )
        if done.returncode != 0:
            raise PrunerError(f"could not measure {task.name} again: {done.stderr.strip()[-200:]}")
        row = Remeasured(
            platform=target.platform,
            task=task.name,
            line=line,
            first_s=records[line]["r"][0],
            again_s=json.loads(done.stdout)[0],
        )
        tell(f"{row.platform} {row.task} line {line}: new / old = {row.ratio:.3f}")
        rows.append(row)
    text = json.dumps([asdict(row) for row in rows], indent=1) + "\n"
    (plan.out / "remeasured.json").write_text(text)
    write_sums(plan.out)
    return rows


def _paths(plan: CollectPlan, task: Any, target: Any) -> TaskPaths:
    return TaskPaths(out=plan.out, platform=target.platform, task=task.name)
