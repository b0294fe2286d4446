"""The fallback: a design space whose every program is replayed by TVM, one at a time.

Milliseconds a candidate instead of microseconds, without draft and learned model; but any trace
works.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Decisions
from pruner.errors import PrunerError
from pruner.features.batch import Extra, ProgramFeatures
from pruner.features.dataflow import DataflowKind
from pruner.models.analyzer.analyzer import Analyzer
from pruner.search.space import RowKeys
from pruner.tune.spaces.design import DesignSpace
from pruner.tune.spaces.text import module_flags
from pruner.tune.tvm_import import load_tvm

_TRIES = 20  # draws that may be refused for every one that is wanted
_MAX_SEED = (1 << 31) - 1
_CACHED = 4096  # finished schedules that are kept


class ReplaySpace:
    """See :class:`pruner.tune.spaces.base.LiveSpace`."""

    can_draft = False
    has_features = False
    affordable: int | None = 64

    def __init__(self, design: DesignSpace) -> None:
        """Raises `UnsupportedProgram` for a sampling instruction that has no vector form."""
        self._design = design
        self.num_slots = sum(design.widths)
        self.keys = RowKeys(self.num_slots)
        self._workload = module_flags(design.module)
        self._finished: dict[int, Any] = {}
        chances = dict(design.context.space_generator.mutator_probs.items())
        # MutateParallel moves an annotation, no sampling decision: a vector cannot hold it
        kept = [(m, float(p)) for m, p in chances.items() if "Parallel" not in type(m).__name__]
        self._mutators = [m for m, _ in kept]
        self._chances = np.array([p for _, p in kept])

    @property
    def design(self) -> DesignSpace:
        """TVM's form of the space."""
        return self._design

    def sample(self, num: int, rng: np.random.Generator) -> Decisions:
        """Random traces that TVM accepts.

        Raises:
            PrunerError: TVM refuses (nearly) all of them.
        """
        found: list[NDArray[np.int64]] = []
        for _ in range(num * _TRIES):
            schedule = self._design.replay(None, int(rng.integers(1, _MAX_SEED)))
            if schedule is not None:
                found.append(self._design.vector(schedule.trace))
            if len(found) == num:
                return np.array(found, np.int64).reshape(num, self.num_slots)
        if not found:
            raise PrunerError("TVM refuses every random schedule of this space on this target")
        return np.array(found, np.int64)[rng.integers(0, len(found), num)]

    def mutate(self, parents: Decisions, rng: np.random.Generator) -> Decisions:
        """TVM's own mutators; a parent that cannot be changed stays as it is."""
        out = parents.copy()
        if not self._mutators:
            return out
        s_tir = load_tvm().s_tir
        chances = self._chances / self._chances.sum()
        for row, parent in enumerate(parents):
            mutator = self._mutators[rng.choice(len(self._mutators), p=chances)]
            trace = s_tir.Trace(self._design.trace.insts, self._design.mapping(parent))
            changed = mutator.apply(trace)
            if changed is not None:
                out[row] = self._design.vector(changed)
        return out

    def legal(self, decisions: Decisions) -> NDArray[np.bool_]:
        """Which rows TVM replays and its postprocessors accept."""
        return np.array([made is not None for made in self.instantiate(decisions)], bool)

    def instantiate(self, decisions: Decisions) -> list[Any | None]:
        """Replay every vector."""
        return [self._replayed(row) for row in decisions]

    def _replayed(self, decision: NDArray[np.int64]) -> Any | None:
        key = int(self.keys(decision[None])[0])
        if key not in self._finished:
            if len(self._finished) >= _CACHED:
                self._finished.clear()
            self._finished[key] = self._design.replay(decision, key % _MAX_SEED + 1)
        return self._finished[key]

    def forget(self) -> None:
        """Nothing: what it keeps is bounded, and dear to make again."""

    def features(
        self,
        decisions: Decisions,
        dataflow: DataflowKind = "paper",
        extra: Extra | None = None,
    ) -> ProgramFeatures:
        """None: TVM's ``PerStoreFeature`` is another definition than the one models learn from."""
        num = len(decisions)
        why = dict.fromkeys(range(num), "replayed-by-tvm")
        return ProgramFeatures.empty(num, workload=self._workload, dataflow=dataflow, failures=why)

    def draft_score(self, decisions: Decisions, analyzer: Analyzer) -> NDArray[np.float64]:
        """NaN for every accepted program: without loop nests there is nothing to draft with."""
        return np.where(self.legal(decisions), np.nan, -np.inf)
