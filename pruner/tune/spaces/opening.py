"""Open the design spaces of a task, batched if possible, else replayed by TVM."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pruner.errors import PrunerError, UnsupportedProgram
from pruner.models.analyzer.analyzer import Analyzer
from pruner.progress import Log
from pruner.search.explorer import NoneFound
from pruner.tune.phases import Phases
from pruner.tune.spaces.batched.prim_func import IN_PLACE
from pruner.tune.spaces.batched.space import PROBES, BatchedSpace
from pruner.tune.spaces.design import DesignSpace
from pruner.tune.spaces.tvm import LiveSpace, ReplaySpace
from pruner.tune.spaces.union import UnionSpace

# instructions that give a block another buffer: TVM does not copy into it what the block updates
_FRESH = {"RFactor", "CacheWrite"}
_PROBES = 8  # programs that are drawn to find out whether a space has legal programs


def open_spaces(
    designs: Sequence[DesignSpace],
    *,
    name: str,
    analyzer: Analyzer | None,
    learns: bool,
    phases: Phases,
    log: Log,
    replay_only: bool = False,
    probes: int = PROBES,
) -> UnionSpace:
    """Open all spaces of a task that have legal programs; raise `PrunerError` for none.

    ``learns``: report the spaces without features. TVM replays what the engine refuses, and with
    ``replay_only`` everything. ``probes``: programs that find the forms that the engine lacks.
    """
    with phases.time("sample"):
        made = [_space(design, replay_only=replay_only, probes=probes) for design in designs]
        spaces = [(space, reason) for space, reason, has_programs in made if has_programs]
    empty = len(made) - len(spaces)
    if made and not spaces:
        reasons = sorted({reason for _, reason, _ in made if reason})
        why = f" ({', '.join(reasons)})" if reasons else ""
        raise PrunerError(f"{name}: no random program is legal on this target{why}")
    if empty:
        log(
            f"{name}: {empty} of {len(made)} design spaces are left out, "
            "none of their random programs is legal on this target"
        )
    reasons = [reason for _, reason in spaces if reason]
    if reasons:
        log(
            f"{name}: {len(reasons)} of {len(spaces)} design spaces go through TVM's "
            f"replay, slowly{_blind([s for s, _ in spaces], learns=learns)} "
            f"({', '.join(sorted(set(reasons)))})"
        )
    union = UnionSpace([s for s, _ in spaces], phases, analyzer, reasons)
    # the probes cached their trees, which may be gigabytes over all spaces
    union.clear_cache()
    return union


def _blind(spaces: Sequence[LiveSpace], *, learns: bool) -> str:
    """Phrase how spaces without features are drafted and ranked."""
    number = sum(not space.can_draft for space in spaces)
    if not number:
        return ""
    how = "without draft" if number == len(spaces) else "drafted by chance"
    if learns:
        how += ", and the learned model does not rank their programs"
    slow = sum(space.affordable is not None for space in spaces)
    return f" and {how}" if number == slow else f", {number} of them {how}"


def _space(design: DesignSpace, *, replay_only: bool, probes: int) -> tuple[LiveSpace, str, bool]:
    """Open a design: space, reason for replay, and whether programs exist."""
    reason = "spaces=replay"
    if not replay_only:
        try:
            batched = BatchedSpace(design, probes=probes)
            return batched, "", _has_programs(batched)
        except UnsupportedProgram as error:
            reason = str(error)
    replayed = ReplaySpace(design)
    kinds = {str(inst.kind.name) for inst in design.trace.insts}
    if reason.startswith(IN_PLACE) and kinds & _FRESH:
        return replayed, reason, False
    # every draw takes TVM a tenth of a second: the first legal draw answers
    return replayed, reason, _has_programs(replayed, 1)


def _has_programs(space: LiveSpace, num: int = _PROBES) -> bool:
    """Check for a legal random program; raise `UnsupportedProgram` if the engine cannot judge."""
    try:
        # sampling rejects illegal draws, so it raises exactly where (nearly) none is legal
        space.sample(num, np.random.default_rng(0))
    except NoneFound:
        return False
    return True
