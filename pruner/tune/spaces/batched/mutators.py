"""Choose the decision that a mutation changes, by MetaSchedule's mutators and probabilities.

Defaults of ``Mutator::DefaultCUDA`` and ``DefaultLLVM`` (src/s_tir/meta_schedule/mutator).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pruner.arrays import Decisions
from pruner.program.tir.trace import Instruction, Ref
from pruner.tune.spaces.batched.decisions import (
    ChoiceDecision,
    Decision,
    LocationDecision,
    TileDecision,
)

GPU = {"tile": 0.90, "unroll": 0.08, "threads": 0.02}
# without MutateParallel's 0.02: it changes an annotation, no decision
CPU = {"tile": 0.90, "location": 0.05, "unroll": 0.03}


class Mutators:
    """Decisions grouped by their mutator, without empty groups."""

    def __init__(
        self,
        instructions: Sequence[Instruction],
        decisions: dict[int, Decision],
        shares: dict[str, float],
    ) -> None:
        """Group ``decisions``, which are keyed by the slot where they start."""
        samples = {i.outputs[0]: i.slot for i in instructions if i.kind == "SampleCategorical"}
        groups: dict[str, list[Decision]] = {name: [] for name in shares}
        groups["tile"] = [d for d in decisions.values() if isinstance(d, TileDecision)]
        # MutateTileSize also changes the vector lanes of cooperative fetches (mutate_tile_size.cc)
        groups["tile"] += _of(decisions, _annotated(instructions, samples, "cooperative_fetch"))
        groups["unroll"] = _of(decisions, _annotated(instructions, samples, "unroll_"))
        groups["location"] = [d for d in decisions.values() if isinstance(d, LocationDecision)]
        if "threads" in groups:
            groups["threads"] = _of(decisions, _thread_factors(instructions, samples))
        kept = {name: [d for d in found if d.can_change()] for name, found in groups.items()}
        self._groups = [found for found in kept.values() if found]
        chances = np.array([shares.get(name, 0.0) for name, found in kept.items() if found])
        # MetaSchedule draws another mutator if the first finds nothing to change: the rest share
        # its probability
        self._chances = chances / chances.sum() if len(chances) else chances

    def mutate(self, parents: Decisions, rng: np.random.Generator) -> Decisions:
        """Mutate every parent once; a space without choices returns the parents unchanged."""
        out = parents.copy()
        if not self._groups:
            return out
        group = rng.choice(len(self._groups), size=len(out), p=self._chances)
        for number, decisions in enumerate(self._groups):
            which = rng.integers(0, len(decisions), len(out))
            for place, decision in enumerate(decisions):
                rows = np.flatnonzero((group == number) & (which == place))
                if len(rows):
                    decision.mutate(out, rows, rng)
        return out


def _of(decisions: dict[int, Decision], slots: Sequence[int]) -> list[Decision]:
    found = [decisions[slot] for slot in slots]
    return [decision for decision in found if isinstance(decision, ChoiceDecision)]


def _annotated(instructions: Sequence[Instruction], samples: dict[int, int], key: str) -> list[int]:
    """List the slots of choices that annotations with ``key`` use."""
    out = []
    for i in instructions:
        if i.kind == "Annotate" and f"meta_schedule.{key}" in str(i.attrs[0]):
            value = i.inputs[1]
            if isinstance(value, Ref) and value.number in samples:
                out.append(samples[value.number])
    return out


def _thread_factors(instructions: Sequence[Instruction], samples: dict[int, int]) -> list[int]:
    """List the slots of choices that split off ``threadIdx.x``."""
    inner: dict[int, int] = {}
    out = []
    for i in instructions:
        # MutateThreadBinding looks for [None, factor]: the form in which AutoBind splits a fused
        # loop
        if i.kind == "Split" and len(i.inputs) == 3 and i.inputs[1] is None:
            factor = i.inputs[2]
            if isinstance(factor, Ref) and factor.number in samples:
                inner[i.outputs[1]] = samples[factor.number]
        elif i.kind == "Bind" and i.attrs[0] == "threadIdx.x" and i.inputs[0].number in inner:
            out.append(inner[i.inputs[0].number])
    return out
