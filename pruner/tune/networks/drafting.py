"""The draft of one task, in whichever process: the best program that the analyzer finds.

Nothing is built or run, except that a GPU's program must compile. Worker processes of
:mod:`pruner.tune.networks.drafted` call `draft`; what goes in and out can be pickled.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pruner.arrays import Decisions
from pruner.errors import PrunerError
from pruner.models.analyzer.analyzer import Analyzer
from pruner.progress import silent
from pruner.search.explorer import ExplorerSettings, Memoised, explore
from pruner.tune.compiling import compiled
from pruner.tune.measure.jobs import load_target, ready
from pruner.tune.phases import Phases
from pruner.tune.run.database import NEVER_MEASURED_S, record_json
from pruner.tune.spaces.design import design_spaces
from pruner.tune.spaces.opening import open_spaces
from pruner.tune.spaces.union import UnionSpace
from pruner.tune.tvm_import import load_tvm

__all__ = ["Draft", "DraftJob", "Drafted", "draft", "ready"]

DRAWN, REPLAYED, NONE, VIEW = "drafted", "by chance", "none", "view"

_REPLAYED = 4  # random programs where nothing tells them apart
_KEPT, _CHILDREN = 32, 16  # the best so far are changed, into so many each
_MOVES = 0.01  # a round that makes the estimate less by a smaller share was the last


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """How thoroughly a task is drafted: random programs, then at most so many rounds of changes."""

    sample: int
    rounds: int

    @staticmethod
    def of_share(share: float) -> Depth:
        """For a task that takes about this share of the network's time."""
        return next((depth for least, depth in _DEPTHS if share >= least), _SHALLOW)


# By the least share. A round costs about as much whether it has a hundred programs or a thousand,
# most of which share their structure with others: few and large ones.
_DEPTHS = ((0.02, Depth(sample=1536, rounds=2)), (0.003, Depth(sample=512, rounds=2)))
_SHALLOW = Depth(sample=192, rounds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What one task was given.

    ``how``: drafted; by chance, where nothing tells its programs apart; none, with the ``reason``;
    or view, for a reshape, which moves nothing and must not be scheduled. ``replayed``: how many of
    its design spaces with legal programs only TVM can replay, the ``reason`` says why; None: they
    were not opened, or none has a legal program.
    """

    task: str
    how: str
    estimate_s: float | None = None
    reason: str | None = None
    replayed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftJob:
    """A task to draft: ``module`` and ``target`` are the texts of TVM's objects, ``analyzer`` None:
    it gets its first legal random program. Equal jobs give equal drafts, wherever they are done."""

    task: str
    module: str
    target: str
    analyzer: Analyzer | None
    depth: Depth
    seed: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """A draft, and TVM's record of the program as JSON, where there is one."""

    draft: Draft
    record: Any | None = None


def draft(job: DraftJob) -> Drafted:
    """Draft a task; that nothing was found is an answer."""
    module, target = load_tvm().tvm.ir.load_json(job.module), load_target(job.target)
    found, schedule = _drafted(job, module, target)
    if schedule is None:
        return Drafted(draft=found)
    record = record_json(module, schedule, (NEVER_MEASURED_S,), target)
    return Drafted(draft=found, record=json.loads(json.dumps(record)))


def is_view(module: Any) -> bool:
    """Whether TVM may replace the function by another view of the same memory (a reshape)."""
    analysis = load_tvm().relax.analysis
    return bool(analysis.has_reshape_pattern(module["main"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Programs of one task, the best first; ``estimates_s`` of each, None where nothing tells them
    apart. ``replayed``: why each of its design spaces that TVM replays is refused; ``left_out``:
    how many of these no program is of."""

    space: UnionSpace
    rows: Decisions
    estimates_s: list[float] | None
    replayed: Sequence[str] = ()
    left_out: int = 0


def draw(job: DraftJob, module: Any, target: Any) -> Drawn:
    """What the draft chooses of a task; legal by the engine's verdict, TVM was not asked.

    Raises:
        PrunerError: no legal program was met.
    """
    rng = np.random.default_rng(job.seed)
    found = open_spaces(
        design_spaces(module, target),
        name=job.task,
        analyzer=job.analyzer,
        learns=False,
        phases=Phases(),
        tell=silent,
    )
    told_apart = [space for space in found.spaces if space.can_draft]
    if not told_apart or job.analyzer is None:
        rows = found.sample(_REPLAYED, rng)
        return Drawn(space=found, rows=rows, estimates_s=None, replayed=found.replayed)
    batched = [space for space in told_apart if space.affordable is None]
    space = UnionSpace(batched or told_apart, Phases(), job.analyzer)
    depth = job.depth
    if space.affordable is not None:
        depth = Depth(sample=min(depth.sample, space.affordable), rounds=0)
    rows, estimates_s = best(space, depth, rng)
    return Drawn(
        space=space,
        rows=rows,
        estimates_s=estimates_s,
        replayed=found.replayed,
        left_out=len(found.spaces) - len(space.spaces),
    )


def _drafted(job: DraftJob, module: Any, target: Any) -> tuple[Draft, Any | None]:
    if is_view(module):
        return Draft(task=job.task, how=VIEW), None
    try:
        drawn = draw(job, module, target)
    except PrunerError as error:
        return Draft(task=job.task, how=NONE, reason=str(error)), None
    place, schedule, reason = _first_built(drawn.space, drawn.rows, target)
    if place is None:
        chosen = "nothing that the draft chose" if drawn.estimates_s else "no random program"
        reason = f"TVM builds {chosen}: {reason}"
        return Draft(task=job.task, how=NONE, reason=reason, replayed=len(drawn.replayed)), None
    estimate_s = None if drawn.estimates_s is None else drawn.estimates_s[place]
    found = Draft(
        task=job.task,
        how=REPLAYED if estimate_s is None else DRAWN,
        estimate_s=estimate_s,
        reason=_why_replayed(drawn),
        replayed=len(drawn.replayed),
    )
    return found, schedule


def _why_replayed(drawn: Drawn) -> str | None:
    """Why only TVM can replay some design spaces of the task; None: there are none."""
    if not drawn.replayed:
        return None
    num = len(drawn.replayed)
    spaces = "a design space" if num == 1 else f"{num} design spaces"
    left_out = f" ({drawn.left_out} left out of the draft)" if drawn.left_out else ""
    why = ", ".join(sorted(set(drawn.replayed)))
    return f"only TVM can replay {spaces}{left_out}: {why}"


def best(
    space: UnionSpace, depth: Depth, rng: np.random.Generator
) -> tuple[Decisions, list[float]]:
    """The best drafted programs, the best first, and their estimated seconds.

    No program is scored twice. The best are changed until that no longer pays.
    """
    score = Memoised(space, space.draft_score)
    settings = ExplorerSettings(population=depth.sample, generations=0, keep=_KEPT)
    found = explore(space, score, settings, rng)
    for _ in range(depth.rounds):
        before = found.score[0]
        changed = space.mutate(np.repeat(found.decisions, _CHILDREN, axis=0), rng)
        both = np.concatenate([found.decisions, changed])
        found = explore(space, score, settings, rng, start=both)
        if found.score[0] - before < -math.log1p(-_MOVES):
            break
    return found.decisions, [math.exp(-score) for score in found.score]


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
        compiled(schedule.mod, target)
    except Exception as error:  # compilers raise kinds of their own
        return (str(error).strip().splitlines() or [repr(error)])[-1]
    return None
