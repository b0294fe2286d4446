"""Compare tunings of many networks: ours and a rival's.

The measure is the time until our network is as fast as the rival's final network. A cell is a
network, a policy and a seed. If our layout and the rival's layout differ, the tasks differ, and
their estimates cannot be compared. So built networks are compared, also networks from the records
of a run's first seconds (`experiments.networks.prefixes`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.networks.prefixes import PREFIXES_FILE, Point
from pruner.files import as_written, read_json
from pruner.study.network.run import NetworkRun
from pruner.tune.networks.draft_network import FOLDER as DRAFTS
from pruner.tune.networks.draft_network import read_drafts

RIVAL = "metaschedule"
CHANCE = "random"  # random search in our spaces, in our layout
_MEDIANS = ["tasks", "trials", "estimate_s", "network_s", "total_s", "drafted_s",
            "drafted_network_s", "seconds_to_rival", "estimate_to_rival_s"]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A finished run.

    ``network_s``: the built network's median latency, None if not built. ``start_s``: seconds from
    an empty folder to the beginning of the run's own: the import, and the draft of all tasks where
    the run does not begin with it; ``drafted_s``: to the end of that draft. Both are None where
    they were not timed, ``drafted_s`` of a rival, too. ``points``: its built prefixes;
    ``settled_s``: seconds of the run until its network was the final network, None if unknown.
    """

    network: str
    policy: str
    seed: int
    run: NetworkRun
    network_s: float | None = None
    start_s: float | None = None
    drafted_s: float | None = None
    points: Sequence[Point] = field(default_factory=list)
    settled_s: float | None = None

    def seconds(self, t_s: float | None) -> float | None:
        """Seconds from an empty folder to `t_s` of the run, None if unknown."""
        return None if t_s is None or self.start_s is None else self.start_s + t_s

    def point_s(self, point: Point) -> float | None:
        """Seconds from an empty folder to a prefix, or to the draft's end."""
        return self.seconds(point.t_s) if point.measured else self.drafted_s

    @property
    def to_rival_s(self) -> float | None:
        """Seconds from an empty folder to the rival's final latency, or infinite."""
        if self.settled_s is not None:
            return self.seconds(self.settled_s)
        times = [self.point_s(point) for point in self.points if point.reached]
        timed = [s for s in times if s is not None]
        return min(timed, default=np.inf) if self.points and len(timed) == len(times) else None

    @property
    def tuned(self) -> frozenset[str]:
        """Names of the tuned tasks."""
        return frozenset(task.name for task in self.run.tasks if task.tuned)


def prefixes_of(rival: Path, ours: Path) -> tuple[list[Point], float | None]:
    """The built prefixes beside a rival, and when its network was final.

    Earlier campaigns have the file in our folder only; it names the rival.
    """
    path = next((p for f in (rival, ours) if (p := f / PREFIXES_FILE).is_file()), None)
    if path is None:
        return [], None
    with as_written(path):
        found = read_json(path, dict)
        if path.parent == ours and found["rival"] != rival.name:
            return [], None
        return [Point(**row) for row in found["points"]], found["settled_s"]


def drafts_first(run: NetworkRun) -> bool:
    """Whether a run began with the draft of all its tuned tasks."""
    drafts = read_drafts(run.folder / DRAFTS)
    return all(task.name in drafts for task in run.tasks if task.tuned)


def result_rows(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """A row a cell.

    ``drafted_network_s`` after ``drafted_s``: the network before any trial.
    ``estimate_to_rival_s``: seconds to the rival's final estimate, where both have the same tasks.
    """
    rows = []
    rivals = {(c.network, c.seed): c for c in cells if c.policy == RIVAL}
    for cell in cells:
        rival = rivals.get((cell.network, cell.seed))
        phases = {f"{name}_s": value for name, value in sorted(cell.run.seconds.items())}
        drafted = [point for point in cell.points if not point.measured]
        rows.append(
            {
                "network": cell.network,
                "policy": cell.policy,
                "seed": cell.seed,
                "tasks": sum(task.tuned for task in cell.run.tasks),
                "trials": cell.run.metrics.get("trials"),
                "failed": cell.run.metrics.get("failed"),
                "estimate_s": None if cell.run.curve is None else cell.run.curve.best_s[-1],
                "network_s": cell.network_s,
                "total_s": cell.run.metrics.get("total_seconds"),
                "drafted_s": cell.drafted_s if drafted else None,
                "drafted_network_s": drafted[0].median_s if drafted else None,
                "seconds_to_rival": cell.to_rival_s,
                "estimate_to_rival_s": None if rival is None else _estimate_to(cell, rival),
                **phases,
            }
        )
    return rows


def _estimate_to(cell: Cell, rival: Cell) -> float | None:
    """Seconds until the estimate is the rival's final estimate; None for different tasks."""
    ours, theirs = cell.run.curve, rival.run.curve
    if ours is None or theirs is None or cell.tuned != rival.tuned:
        return None
    reached = np.flatnonzero(ours.best_s <= float(theirs.best_s[-1]))
    return cell.seconds(float(ours.elapsed_s[reached[0]])) if len(reached) else np.inf


def summarise(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Medians over seeds, one row a network and policy.

    ``speedup``: the rival's median seconds to its own final network over these; 0 where its latency
    is never reached. ``spread`` of the built networks' latencies over seeds.
    """
    table = pd.DataFrame(rows)
    table[_MEDIANS] = table[_MEDIANS].astype(float)
    grouped = table.groupby(["network", "policy"], sort=False)
    out = grouped[_MEDIANS].median()
    built = grouped["network_s"]
    out["spread"] = (built.max() - built.min()) / built.median()
    out["seeds"] = grouped.size()
    out = out.reset_index()
    rival = out[out.policy == RIVAL].set_index("network")
    out["speedup"] = out.network.map(rival.seconds_to_rival) / out.seconds_to_rival
    out["network_over_rival"] = out.network_s / out.network.map(rival.network_s)
    return out


def prefix_rows(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """A row a built prefix: seconds, and median latency.

    Seconds include import and draft; both are also relative to the rival's: ``share`` of the
    rival's seconds to its final network, ``over_rival``: latency over its final latency.
    """
    ends = {(c.network, c.seed): c.to_rival_s for c in cells if c.policy == RIVAL}
    rows = []
    for cell in cells:
        end_s = ends.get((cell.network, cell.seed))
        for point in cell.points:
            seconds = cell.point_s(point)
            row = {"network": cell.network, "policy": cell.policy, "seed": cell.seed}
            row |= {"t_s": point.t_s, "seconds": seconds, "measured": point.measured}
            row |= {"median_s": point.median_s, "rival_s": point.rival_s, "error": point.error}
            row["share"] = seconds / end_s if seconds is not None and end_s else None
            rows.append({**row, "over_rival": point.over_rival})
    return rows
