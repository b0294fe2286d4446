"""A schedule for every task without a measurement: the best that the analyzer finds.

The records lie in a database of their own, ``drafted/``, with a cost that no program has
(:data:`NEVER_MEASURED_S`), so that they cannot be taken for measured ones; ``drafted.json`` beside
them says what each task was given and the latency that the analyzer estimates.
"""

from __future__ import annotations

import importlib
import json
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pruner.arrays import Decisions
from pruner.errors import PrunerError
from pruner.files import write_json
from pruner.models.analyzer.analyzer import Analyzer
from pruner.progress import Tell, silent
from pruner.search.explorer import ExplorerSettings, explore
from pruner.tune.measure.measurer import Platform
from pruner.tune.phases import Phases
from pruner.tune.run.database import NEVER_MEASURED_S, Database
from pruner.tune.run.setup import open_spaces
from pruner.tune.spaces.design import design_spaces
from pruner.tune.spaces.union import UnionSpace
from pruner.tune.tvm_import import load_tvm
from pruner.tune.workloads import Workload

FOLDER, SUMMARY = "drafted", "drafted.json"
DRAWN, REPLAYED, NONE, VIEW = "drafted", "by chance", "none", "view"

_SAMPLE = ExplorerSettings(population=768, generations=0, keep=32)
_ROUNDS, _CHILDREN = 2, 8  # the best are changed so often, into so many each
_REPLAYED = 4  # random programs that TVM replays where the engine has no form for the space


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What one task was given.

    ``how``: drafted; by chance, where nothing tells its programs apart; none, with the ``reason``;
    or view, for a reshape, which moves nothing and must not be scheduled.
    """

    task: str
    how: str
    estimate_s: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSummary:
    """What came of drafting; ``folder`` holds the database, ``seconds`` all of it took."""

    drafts: Sequence[Draft]
    folder: Path
    seconds: float
    counts: Counter[str] = field(init=False)

    def __post_init__(self) -> None:
        """Count."""
        object.__setattr__(self, "counts", Counter(draft.how for draft in self.drafts))

    def estimate_s(self, tasks: Sequence[Workload]) -> float:
        """The analyzer's estimate of all calls together, of those tasks that it drafted."""
        weight = {task.name: task.weight for task in tasks}
        return sum(weight[d.task] * d.estimate_s for d in self.drafts if d.estimate_s is not None)


def draft_tasks(
    tasks: Sequence[Workload],
    platform: Platform,
    analyzer: Analyzer | None,
    folder: Path,
    *,
    seed: int = 0,
    tell: Tell = silent,
) -> DraftSummary:
    """Draft every task into the database in `folder`; nothing is built or run.

    A task that has its draft there keeps it. ``analyzer=None``: each gets its first legal random
    program. `folder` must not be that of measured records.
    """
    start = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    database, known = Database(folder), read_drafts(folder)
    drafts: list[Draft] = []
    for number, task in enumerate(tasks, start=1):
        if task.name in known and database.tvm_database.has_workload(task.module):
            drafts.append(known[task.name])
            continue
        rng = np.random.default_rng([seed, number])
        draft, schedule = _drafted(task, platform, analyzer, rng)
        if schedule is not None:
            database.commit(task.module, schedule, (NEVER_MEASURED_S,), platform.target)
        drafts.append(draft)
        known[task.name] = draft
        write_json(folder / SUMMARY, [asdict(one) for one in known.values()], indent=1)
        tell(f"drafted {number}/{len(tasks)}: {_line(draft)}")
    return DraftSummary(drafts=drafts, folder=folder, seconds=time.perf_counter() - start)


def read_drafts(folder: Path) -> dict[str, Draft]:
    """What the tasks in the database of `folder` were given, by name; empty where there is none."""
    path = folder / SUMMARY
    rows = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    return {row["task"]: Draft(**row) for row in rows}


def _line(draft: Draft) -> str:
    if draft.estimate_s is not None:
        return f"{draft.task}, estimate {1e3 * draft.estimate_s:.3g} ms"
    return f"{draft.task}, {draft.how}" + (f" ({draft.reason})" if draft.reason else "")


def _drafted(
    task: Workload, platform: Platform, analyzer: Analyzer | None, rng: np.random.Generator
) -> tuple[Draft, Any | None]:
    if is_view(task.module):
        return Draft(task=task.name, how=VIEW), None
    try:
        designs = design_spaces(task.module, platform.target)
        found = open_spaces(
            designs,
            name=task.name,
            analyzer=analyzer,
            learns=False,
            phases=Phases(),
            tell=silent,
        )
    except PrunerError as error:
        return Draft(task=task.name, how=NONE, reason=str(error)), None
    batched = [space for space in found.spaces if space.can_draft]
    if not batched or analyzer is None:
        rows = found.sample(_REPLAYED, rng)
        place, schedule, reason = _first_built(found, rows, platform.target)
        if place is None:
            reason = f"TVM builds no random program: {reason}"
            return Draft(task=task.name, how=NONE, reason=reason), None
        return Draft(task=task.name, how=REPLAYED), schedule
    space = UnionSpace(batched, Phases(), analyzer)
    rows, estimates_s = _best(space, rng)
    place, schedule, reason = _first_built(space, rows, platform.target)
    if place is None:
        reason = f"TVM builds nothing that the draft chose: {reason}"
        return Draft(task=task.name, how=NONE, reason=reason), None
    return Draft(task=task.name, how=DRAWN, estimate_s=estimates_s[place]), schedule


def _first_built(
    space: UnionSpace, rows: Decisions, target: Any
) -> tuple[int | None, Any | None, str]:
    """Which of `rows` TVM builds first and its schedule; else why the last one is not built."""
    reason = "its postprocessors refuse them"
    for place, row in enumerate(rows):
        (schedule,) = space.instantiate(row[None])
        if schedule is None:
            continue
        error = _build_error(schedule, target)
        if error is None:
            return place, schedule, ""
        reason = error
    return None, None, reason


def _build_error(schedule: Any, target: Any) -> str | None:
    """Why TVM cannot compile it, None where it can; asked for GPUs only.

    There it fails on some sums over threads that its own rules propose, and one such function would
    cost the whole network.
    """
    if target.kind.name == "llvm":
        return None
    try:
        load_tvm().tvm.compile(schedule.mod, target=target)
    except Exception as error:  # compilers raise kinds of their own
        return (str(error).strip().splitlines() or [repr(error)])[-1]
    return None


def _best(space: UnionSpace, rng: np.random.Generator) -> tuple[Decisions, list[float]]:
    """The best drafted programs, the best first, and their estimated seconds.

    Programs of one structure cost as much to score as one of them, so many are drawn at once and
    only the best few are changed again.
    """
    found = explore(space, space.draft_score, _SAMPLE, rng)
    for _ in range(_ROUNDS):
        changed = space.mutate(np.repeat(found.decisions, _CHILDREN, axis=0), rng)
        both = np.concatenate([found.decisions, changed])
        found = explore(space, space.draft_score, _SAMPLE, rng, start=both)
    return found.decisions, [math.exp(-score) for score in found.score]


def is_view(module: Any) -> bool:
    """Whether TVM may replace the function by another view of the same memory (a reshape)."""
    analysis = importlib.import_module("tvm.relax.analysis")
    return bool(analysis.has_reshape_pattern(module["main"]))
