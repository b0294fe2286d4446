"""The fallback: a design space whose programs TVM replays, slowly.

A space whose programs cannot be read has neither features nor draft.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Decisions
from pruner.errors import UnsupportedProgram
from pruner.features.batch import DEFAULT, FeatureSpec, ProgramFeatures, featurize_nests
from pruner.models.analyzer.analyzer import Analyzer
from pruner.program.device import Device
from pruner.program.nests import LoopNests
from pruner.search.explorer import NoneFound
from pruner.search.space import RowKeys
from pruner.tune.spaces.batched.prim_func import module_flags
from pruner.tune.spaces.batched.space import BatchedSpace, score_each
from pruner.tune.spaces.design import DesignSpace, Finished
from pruner.tune.spaces.lowered import lowered
from pruner.tune.tvm_import import load_tvm

_TRIES = 20  # draws for every program that is wanted
_LEAST = 16  # programs whose draws are made, however few are wanted, before a space counts as empty
# the modulus of TVM's random engine (minstd_rand), which multiplies its state: 0 would stay 0
_MAX_SEED = (1 << 31) - 1
_CACHED = 4096  # finished schedules that are kept
_REFUSED = "refused-by-tvm"


class ReplaySpace:
    """A space replayed by TVM; ``unreadable``: why it has neither features nor draft."""

    affordable: int | None = 64

    def __init__(self, design: DesignSpace) -> None:
        """Probe a space; raise `UnsupportedProgram` for decisions without vector form."""
        self.design = design
        self.num_slots = sum(design.widths)
        self.keys = RowKeys(self.num_slots)
        self._workload = module_flags(design.module)
        self._finished: dict[int, Finished | None] = {}
        self._read: dict[int, LoopNests | str] = {}  # or the reason why there are none
        chances = dict(design.context.space_generator.mutator_probs.items())
        # MutateParallel moves an annotation, no sampling decision: a vector cannot hold it
        kept = [(m, float(p)) for m, p in chances.items() if "Parallel" not in type(m).__name__]
        self._mutators = [m for m, _ in kept]
        self._chances = np.array([p for _, p in kept])
        self.unreadable = self._probed()
        self.can_draft = self.has_features = not self.unreadable

    def _probed(self) -> str:
        """Probe why no program can be read; empty where some can be."""
        own = self.design.vector(self.design.trace)
        for seed in range(1, _TRIES + 1):
            found = self.design.finished(own if seed == 1 else None, seed, verify=False)
            if found is not None:
                nests = _read(found)
                return nests if isinstance(nests, str) else ""
        return _REFUSED

    def sample(self, num: int, rng: np.random.Generator) -> Decisions:
        """Draw traces that TVM accepts [num, d]; raise `NoneFound` where it refuses all."""
        found: list[NDArray[np.int64]] = []
        for draw in range(max(num, _LEAST) * _TRIES):
            if found and draw >= num * _TRIES:
                break
            drawn = self.design.finished(None, int(rng.integers(1, _MAX_SEED)))
            if drawn is not None:
                trace = drawn.schedule.trace
                found.append(self.design.vector(trace))
                # its vector replays to the same program, unless postprocessors draw, too
                draws = [one for one in trace.insts if one.kind.name.startswith("Sample")]
                if len(draws) == len(self.design.sampling):
                    (key,) = self.keys(found[-1][None]).tolist()
                    self._keep(key, drawn)
            if len(found) == num:
                return np.array(found, np.int64).reshape(num, self.num_slots)
        if not found:
            raise NoneFound("TVM refuses every random schedule of this space on this target")
        # too few legal draws: repeat them, since callers rely on num rows
        return np.array(found, np.int64)[rng.integers(0, len(found), num)]

    def mutate(self, parents: Decisions, rng: np.random.Generator) -> Decisions:
        """Mutate by TVM's own mutators, with a seed; keep parents that cannot change."""
        out = parents.copy()
        if not self._mutators:
            return out
        loaded = load_tvm()
        s_tir, apply = loaded.s_tir, loaded.tvm.get_global_func("s_tir.meta_schedule.MutatorApply")
        chances = self._chances / self._chances.sum()
        for row, parent in enumerate(parents):
            mutator = self._mutators[rng.choice(len(self._mutators), p=chances)]
            trace = s_tir.Trace(self.design.trace.insts, self.design.mapping(parent))
            changed = apply(mutator, trace, int(rng.integers(1, _MAX_SEED)))
            if changed is not None:
                out[row] = self.design.vector(changed)
        return out

    def tiling(self, device: Device) -> None:
        """Return None: tiles are known of batched spaces alone."""

    def tokens(self, device: Device) -> None:
        """Return None: tokens are known of batched spaces alone."""

    def legal(self, decisions: Decisions) -> NDArray[np.bool_]:
        """Check which rows TVM replays and its postprocessors accept, bool [N]."""
        return np.array([made is not None for made in self.instantiate(decisions)], bool)

    def instantiate(self, decisions: Decisions) -> list[Any | None]:
        """Replay every vector; None where TVM refuses."""
        found = [self._replayed(key, row) for key, row in self._keyed(decisions)]
        return [None if one is None else one.schedule for one in found]

    def _keyed(self, decisions: Decisions) -> list[tuple[int, NDArray[np.int64]]]:
        return list(zip(self.keys(decisions).tolist(), decisions, strict=True))

    def _replayed(self, key: int, decision: NDArray[np.int64]) -> Finished | None:
        if key not in self._finished:
            # the seed depends on the row alone: equal in every call and after a resume
            self._keep(key, self.design.finished(decision, key % _MAX_SEED + 1))
        return self._finished[key]

    def _keep(self, key: int, finished: Finished | None) -> None:
        if len(self._finished) >= _CACHED:
            # both caches: nests never outlive the schedule that they were read from
            self._finished.clear()
            self._read.clear()
        self._finished.setdefault(key, finished)

    def _nests(self, decisions: Decisions) -> list[LoopNests | str]:
        """Read the loop nests of every vector, or the reason why there are none."""
        out = []
        for key, row in self._keyed(decisions):
            finished = self._replayed(key, row)
            if key not in self._read:
                self._read[key] = _REFUSED if finished is None else _read(finished)
            out.append(self._read[key])
        return out

    def clear_cache(self) -> None:
        """Keep everything: the cache is bounded, and expensive to refill."""

    def features(self, decisions: Decisions, spec: FeatureSpec = DEFAULT) -> ProgramFeatures:
        """Compute features as a batched space; rows refused or unreadable are invalid."""
        found = self._nests(decisions)
        return featurize_nests(
            [(np.array([n]), one) for n, one in enumerate(found) if not isinstance(one, str)],
            len(decisions),
            spec,
            workload=self._workload,
            failures={n: one for n, one in enumerate(found) if isinstance(one, str)},
        )

    def draft_score(self, decisions: Decisions, analyzer: Analyzer) -> NDArray[np.float64]:
        """Score as a batched space; NaN for legal programs without a score."""
        out = np.where(self.legal(decisions), np.nan, -np.inf)
        if not self.can_draft:
            return out
        found = enumerate(self._nests(decisions))
        read = {n: one for n, one in found if not isinstance(one, str)}
        for row, score in zip(read, score_each(list(read.values()), analyzer), strict=True):
            if score is not None:
                (out[row],) = np.broadcast_to(score, 1)
        return out


def _read(finished: Finished) -> LoopNests | str:
    try:
        return lowered(finished.module)
    except UnsupportedProgram as error:
        return error.reason


LiveSpace = BatchedSpace | ReplaySpace
