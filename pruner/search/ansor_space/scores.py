"""Draft scores and legality of decision vectors for the explorer."""

from __future__ import annotations

import numpy as np

from pruner.arrays import Decisions, Mask, Scores
from pruner.errors import UnsupportedProgram
from pruner.models.analyzer.analyzer import Analyzer
from pruner.program.dag.dag import ComputeDAG
from pruner.program.device import Device, GpuDevice
from pruner.program.te.lower import build_nests
from pruner.program.te.steps import Primitive
from pruner.program.te.verify import GpuLimits, legal
from pruner.search.ansor_space.family import Choices, Family

_CHUNK = 2048  # programs at once: arrays that stay in the caches


class DraftScore:
    """Scores of decision vectors of one skeleton; minus infinity where illegal."""

    def __init__(
        self, dag: ComputeDAG, skeleton: tuple[Primitive, ...], analyzer: Analyzer
    ) -> None:
        """Closed formulas where the skeleton has them, else loop nests."""
        self._plan = analyzer.plan(dag, skeleton)
        self._analyzer = analyzer

    def __call__(self, decisions: Decisions) -> Scores:
        """``-log(predicted seconds)`` [N]."""
        out = np.empty(len(decisions))
        for start in range(0, len(decisions), _CHUNK):
            symbols = self._plan.symbols(decisions[start : start + _CHUNK])
            out[start : start + _CHUNK] = self._analyzer.scores(symbols)
        return out


class FamilyScore:
    """Scores of decision vectors of a family, member by member.

    Minus infinity where a program is illegal or its member has no symbols.
    """

    def __init__(self, family: Family, analyzer: Analyzer) -> None:
        self._family, self._analyzer = family, analyzer
        self._scores: dict[Choices, DraftScore] = {}

    def __call__(self, decisions: Decisions) -> Scores:
        """``-log(predicted seconds)`` [N]."""
        out = np.full(len(decisions), -np.inf)
        rows = np.flatnonzero(self._family.valid(decisions))
        for choices, chosen in self._family.members(decisions[rows]):
            if choices not in self._scores:
                member = self._family.member(choices)
                self._scores[choices] = DraftScore(self._family.dag, member, self._analyzer)
            own = decisions[rows[chosen], : self._family.num_slots]
            try:
                out[rows[chosen]] = self._scores[choices](own)
            except UnsupportedProgram:
                continue  # the engine has no loop nests of this member
        return out


class LegalPrograms:
    """The whole check of decision vectors: would the device take the lowered program?

    Every program of a CPU is legal that can be replayed at all.
    """

    def __init__(self, family: Family, device: Device) -> None:
        self._family = family
        self._limits = GpuLimits.of_device(device) if isinstance(device, GpuDevice) else None

    def __call__(self, decisions: Decisions) -> Mask:
        """Bool [N]; False also where the engine has no loop nests."""
        out = np.zeros(len(decisions), bool)
        rows = np.flatnonzero(self._family.valid(decisions))
        for choices, chosen in self._family.members(decisions[rows]):
            own = decisions[rows[chosen], : self._family.num_slots]
            try:
                nests = build_nests(self._family.dag, self._family.member(choices), own)
            except UnsupportedProgram:
                continue
            out[rows[chosen]] = True if self._limits is None else legal(nests, self._limits)
        return out
