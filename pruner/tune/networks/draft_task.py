"""Draft a task: find the best program by the analyzer.

Nothing is built or run, except that a GPU's program must compile. Worker processes of
:mod:`pruner.tune.networks.draft_network` call `draft`; its arguments and results can be pickled.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pruner.arrays import Decisions
from pruner.errors import PrunerError, lines_of
from pruner.models.analyzer.analyzer import Analyzer
from pruner.progress import silent
from pruner.search.explorer import ExplorerSettings, Memoised, explore
from pruner.tune.compiling import compiled
from pruner.tune.measure.jobs import load_target, ready
from pruner.tune.phases import Phases
from pruner.tune.run.database import NEVER_MEASURED_S, block_names, record_json
from pruner.tune.spaces.design import design_spaces
from pruner.tune.spaces.opening import open_spaces
from pruner.tune.spaces.union import UnionSpace
from pruner.tune.tvm_import import load_tvm

__all__ = ["Draft", "DraftJob", "Drafted", "draft", "ready"]

DRAWN, REPLAYED, NONE, VIEW = "drafted", "by chance", "none", "view"

_PROBES = 2  # of a space: refused programs score minus infinity, so more would cost time only
_REPLAYED = 4  # random programs of a task without a draft score
_KEPT, _CHILDREN = 32, 16  # best programs of a round, and mutations of each
_MOVES = 0.01  # a round that improves the estimate by a smaller share is the last


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """How thoroughly a task is drafted: random programs, then mutation rounds."""

    sample: int
    rounds: int

    @staticmethod
    def of_share(share: float) -> Depth:
        """Choose the depth for a task's share of the network's time."""
        return next((depth for least, depth in _DEPTHS if share >= least), _SHALLOW)


# By the least share. A round of a hundred programs costs about as much as a round of a thousand,
# most of which share their structure with others: so rounds are few and large.
_DEPTHS = ((0.02, Depth(sample=1536, rounds=2)), (0.003, Depth(sample=512, rounds=2)))
_SHALLOW = Depth(sample=192, rounds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """The result of drafting a task.

    ``how``: drafted; by chance, without a draft score; none, with the ``reason``; or view, for a
    reshape, which moves nothing and must not be scheduled. ``replayed``: how many of its design
    spaces with legal programs only TVM can replay, the ``reason`` says why; None: they were not
    opened, or none has a legal program. ``columns``: the analyzer's columns of the program
    (:mod:`pruner.models.analyzer.columns`), from which seconds are forecast.
    """

    task: str
    how: str
    estimate_s: float | None = None
    reason: str | None = None
    replayed: int | None = None
    columns: Sequence[float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftJob:
    """A task to draft, in a form that can be pickled.

    ``module`` and ``target`` are the texts of TVM's objects, ``analyzer`` None: the task gets its
    first legal random program. Equal jobs give equal drafts in any process.
    """

    task: str
    module: str
    target: str
    analyzer: Analyzer | None
    depth: Depth
    seed: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """A draft, and TVM's record of the program as JSON, if any.

    ``blocks``: the names of the task's blocks, by which the record's trace finds them, in the order
    of the program.
    """

    draft: Draft
    record: Any | None = None
    blocks: Sequence[str] = ()


def draft(job: DraftJob) -> Drafted:
    """Draft a task, or give the reason why it has no program."""
    module, target = load_tvm().tvm.ir.load_json(job.module), load_target(job.target)
    try:
        found, schedule = _drafted(job, module, target)
        if schedule is None:
            return Drafted(draft=found)
        # a cost that no program has, so that the record is never taken for a measurement
        record = record_json(module, schedule, (NEVER_MEASURED_S,), target)
    except Exception as error:  # TVM's own kinds: one task of many, the others have their drafts
        lines = [line for line in str(error).strip().splitlines() if line.strip()]
        reason = f"{type(error).__name__}: {lines[-1].strip() if lines else ''}".rstrip(": ")
        return Drafted(draft=Draft(task=job.task, how=NONE, reason=reason))
    blocks = block_names(module)
    return Drafted(draft=found, record=json.loads(json.dumps(record)), blocks=blocks)


def is_view(module: Any) -> bool:
    """Check whether TVM may replace a function by a view (a reshape)."""
    analysis = load_tvm().relax.analysis
    return bool(analysis.has_reshape_pattern(module["main"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Programs of a task, the best first, and ``estimates_s`` of each.

    ``estimates_s`` is None without a draft score. ``replayed``: for each design space that TVM
    replays, why it is refused; ``left_out``: how many of these no program is of.
    """

    space: UnionSpace
    rows: Decisions
    estimates_s: list[float] | None
    replayed: Sequence[str] = ()
    left_out: int = 0


def draw(job: DraftJob, module: Any, target: Any) -> Drawn:
    """Choose legal programs of a task, by the engine's verdict; raise `PrunerError` without."""
    rng = np.random.default_rng(job.seed)
    # silent: lines of parallel workers would mix, and the summary has the reasons
    found = open_spaces(
        design_spaces(module, target),
        name=job.task,
        analyzer=job.analyzer,
        learns=False,
        phases=Phases(),
        log=silent,
        probes=_PROBES,
    )
    told_apart = [space for space in found.spaces if space.can_draft]
    if not told_apart or job.analyzer is None:
        # several, since TVM may fail to compile the first
        rows = found.sample(_REPLAYED, rng)
        return Drawn(space=found, rows=rows, estimates_s=None, replayed=found.replayed)
    # replayed spaces cost milliseconds a program: they are drafted only if there is nothing else
    batched = [space for space in told_apart if space.affordable is None]
    space = UnionSpace(batched or told_apart, Phases(), job.analyzer)
    depth = job.depth
    if space.affordable is not None:
        # no rounds: every mutation would be replayed by TVM
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
        columns=None if estimate_s is None else drawn.space.columns(drawn.rows[place]),
    )
    return found, schedule


def _why_replayed(drawn: Drawn) -> str | None:
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
    """Search the best drafted programs; return estimated seconds, too.

    The best program comes first. No program is scored twice. The best are mutated until that no
    longer pays.
    """
    score = Memoised(space, space.draft_score)
    settings = ExplorerSettings(population=depth.sample, generations=0, keep=_KEPT)
    found = explore(space, score, settings, rng)
    for _ in range(depth.rounds):
        before = found.score[0]
        changed = space.mutate(np.repeat(found.decisions, _CHILDREN, axis=0), rng)
        both = np.concatenate([found.decisions, changed])
        found = explore(space, score, settings, rng, start=both)
        # scores are minus the logarithm of seconds: a difference is a ratio
        if found.score[0] - before < -math.log1p(-_MOVES):
            break
    return found.decisions, [math.exp(-score) for score in found.score]


def _first_built(
    space: UnionSpace, rows: Decisions, target: Any
) -> tuple[int | None, Any | None, str]:
    """Return the first of `rows` that TVM builds, with its schedule.

    If there is none, the last error is returned.
    """
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
    """Compile a GPU program; return the error, None for CPUs.

    On GPUs TVM fails on some sums over threads that its own rules propose, and one such function
    would fail the complete network.
    """
    if target.kind.name == "llvm":
        return None
    try:
        compiled(schedule.mod, target)
    except Exception as error:  # compilers raise kinds of their own
        return lines_of(error)[-1]
    return None
