"""Apply a skeleton to decision vectors; on failure, bisect to faulty programs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Generic, TypeVar

import numpy as np

from pruner.arrays import Ints
from pruner.errors import ReplayFailed, UnsupportedProgram, unforeseen_refused
from pruner.program.dag.dag import ComputeDAG
from pruner.program.nests import LoopNests
from pruner.program.te.apply import apply
from pruner.program.te.lower import lower
from pruner.program.te.skeleton import SkeletonGroup
from pruner.program.te.steps import Primitive

logger = logging.getLogger(__name__)
_PATIENCE = 32  # give up on a chunk after this many consecutive failures

Found = TypeVar("Found")


class Replay(Generic[Found]):
    """Results of `compute` on programs' loop nests; failures by row."""

    def __init__(
        self,
        dag: ComputeDAG,
        skeleton: tuple[Primitive, ...],
        compute: Callable[[LoopNests], Found],
    ) -> None:
        self.failures: dict[int, str] = {}
        self._dag, self._skeleton, self._compute = dag, skeleton, compute
        self._patience = _PATIENCE

    def chunks(self, group: SkeletonGroup, size: int) -> list[tuple[Ints, Found]]:
        """Return (rows, result) of the programs, at most ``size`` at once.

        Patience is counted per chunk: a chunk in which every program fails does not affect the
        next.
        """
        out: list[tuple[Ints, Found]] = []
        for some in group.chunks(size):
            self._patience = _PATIENCE
            out += self._programs(some)
        return out

    def _programs(self, group: SkeletonGroup) -> list[tuple[Ints, Found]]:
        """Replay a chunk in as few parts as possible."""
        if not len(group.rows):
            return []
        try:
            with unforeseen_refused():  # an error of any kind costs its program only
                schedule = apply(self._dag, self._skeleton, group.decisions, group.extents)
                wrong = np.broadcast_to(schedule.contradicted, len(group.rows))
                if not wrong.any():
                    found = self._compute(lower(schedule))
        except ReplayFailed as error:
            return self._divided(group, error)
        except UnsupportedProgram as error:
            self._fail(group.rows, error)
            return []
        if wrong.any():
            # Steps that contradict their own log are a damaged record: refused, and the rest
            # repeated.
            self._fail(group.rows[wrong], UnsupportedProgram("contradicting-extent"))
            return self._programs(replace(group.select(~wrong), extents=None))
        self._patience = _PATIENCE
        return [(group.rows, found)]

    def _divided(self, group: SkeletonGroup, error: ReplayFailed) -> list[tuple[Ints, Found]]:
        """Replay each half by itself, down to the programs at fault."""
        num = len(group.rows)
        if num > 1 and self._patience:
            halves = group.select(slice(0, num // 2)), group.select(slice(num // 2, num))
            return [part for half in halves for part in self._programs(half)]
        # Bisecting a chunk in which all fail costs N applications; patience ends it early.
        self._patience -= num == 1
        self._fail(group.rows, error)
        return []

    def _fail(self, rows: Ints, error: UnsupportedProgram) -> None:
        self.failures |= dict.fromkeys(rows.tolist(), error.reason)
        logger.debug("%d programs not replayed: %s", len(rows), error)
