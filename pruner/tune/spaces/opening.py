"""All design spaces of a task that have legal programs: batched ones, TVM's replay for the rest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pruner.errors import PrunerError, UnsupportedProgram
from pruner.models.analyzer.analyzer import Analyzer
from pruner.progress import Tell
from pruner.tune.phases import Phases
from pruner.tune.spaces.base import LiveSpace
from pruner.tune.spaces.batched.space import BatchedSpace
from pruner.tune.spaces.design import DesignSpace
from pruner.tune.spaces.tvm import ReplaySpace
from pruner.tune.spaces.union import UnionSpace

_PROBES = 8  # programs that tell whether a space has legal ones


def open_spaces(
    designs: Sequence[DesignSpace],
    *,
    name: str,
    analyzer: Analyzer | None,
    learns: bool,
    phases: Phases,
    tell: Tell,
    replay_only: bool = False,
) -> UnionSpace:
    """All spaces of a task that have legal programs; what the engine refuses TVM replays.

    ``learns``: a model will rank, so tell of the spaces whose programs it cannot read.

    Raises:
        PrunerError: no random program of any space is legal on this target.
    """
    with phases.time("sample"):
        made = [_space(design, replay_only=replay_only) for design in designs]
        spaces = [(space, reason) for space, reason, has_programs in made if has_programs]
    empty = len(made) - len(spaces)
    if made and not spaces:
        raise PrunerError(f"{name}: no random program is legal on this target")
    if empty:
        tell(
            f"{name}: {empty} of {len(made)} design spaces are left out, "
            "none of their random programs is legal on this target"
        )
    reasons = [reason for _, reason in spaces if reason]
    if reasons:
        tell(
            f"{name}: {len(reasons)} of {len(spaces)} design spaces go through TVM's "
            f"replay, slowly{_blind([s for s, _ in spaces], learns=learns)} "
            f"({', '.join(sorted(set(reasons)))})"
        )
    union = UnionSpace([s for s, _ in spaces], phases, analyzer, reasons)
    union.forget()
    return union


def _blind(spaces: Sequence[LiveSpace], *, learns: bool) -> str:
    """What is said of spaces whose programs cannot be read."""
    number = sum(not space.can_draft for space in spaces)
    if not number:
        return ""
    how = "without draft" if number == len(spaces) else "drafted by chance"
    if learns:
        how += ", and the learned model does not rank their programs"
    slow = sum(space.affordable is not None for space in spaces)
    return f" and {how}" if number == slow else f", {number} of them {how}"


def _space(design: DesignSpace, *, replay_only: bool) -> tuple[LiveSpace, str, bool]:
    """The space of a design, why it is the slow one, and whether it has legal programs."""
    reason = "spaces=replay"
    if not replay_only:
        try:
            batched = BatchedSpace(design)
            return batched, "", _has_programs(batched)
        except UnsupportedProgram as error:
            reason = str(error)
    replayed = ReplaySpace(design)
    return replayed, reason, _has_programs(replayed)


def _has_programs(space: LiveSpace) -> bool:
    """Whether some random program is legal; a space without any would end the run later.

    Raises:
        UnsupportedProgram: a program that the engine cannot judge.
    """
    try:
        space.sample(_PROBES, np.random.default_rng(0))
    except UnsupportedProgram:
        raise
    except PrunerError:
        return False
    return True
