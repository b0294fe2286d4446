"""Join all design spaces of a task; column 0 numbers the space."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Decisions, Floats, Ints, Mask, Scores
from pruner.errors import PrunerError
from pruner.features.batch import DEFAULT, FeatureSpec, ProgramFeatures
from pruner.features.symbols.symbol_table import Symbols
from pruner.models.analyzer.analyzer import Analyzer, SymbolAnalyzer
from pruner.models.analyzer.columns import DraftColumns
from pruner.models.analyzer.estimates import code_bytes, energy_model_j, scratch_bytes
from pruner.models.proposals.decision_tokens import TokenSpace
from pruner.program.device import CpuDevice, Device
from pruner.program.nests import LoopNests
from pruner.search.explorer import NoneFound, select
from pruner.search.space import RowKeys
from pruner.tune.phases import Phases
from pruner.tune.spaces.batched.space import BatchedSpace
from pruner.tune.spaces.tvm import LiveSpace
from pruner.tune.tvm_import import load_tvm

if TYPE_CHECKING:
    from pruner.models.analyzer.derivatives import RelaxedScores

OfSymbols = Callable[[Ints, LoopNests, Symbols, Device], Floats]
_REFERENCE, _GENERATIONS = 512, 2  # programs of a design space, and how often they evolve


class UnionSpace:
    """A union of spaces, each drawn alike, as MetaSchedule does."""

    def __init__(
        self,
        spaces: Sequence[LiveSpace],
        phases: Phases,
        analyzer: Analyzer | None = None,
        replayed: Sequence[str] = (),
    ) -> None:
        """Join spaces; without `analyzer` no draft score. Raises `PrunerError` for none.

        `replayed`: why the engine refuses each space that TVM replays.
        """
        if not spaces:
            raise PrunerError("MetaSchedule has no design space for this program and target")
        self.spaces, self._phases, self.analyzer = list(spaces), phases, analyzer
        self.replayed = replayed
        self.widths = [space.num_slots for space in spaces]
        self.num_slots = 1 + max(self.widths)
        self.keys = RowKeys(self.num_slots)
        self._drafted: NDArray[np.float64] | None = None
        self.can_draft = any(space.can_draft for space in spaces)
        self.has_features = any(space.has_features for space in spaces)
        limits = [space.affordable for space in spaces if space.affordable is not None]
        # all spaces are drawn alike, so that only a share of a generation is slow
        self.affordable = min(limits) * len(spaces) // len(limits) if limits else None

    def sample(self, num: int, rng: np.random.Generator) -> Decisions:
        """Draw programs of all spaces, int64 [num, d]; raise `NoneFound` if none has any."""
        out = np.zeros((num, self.num_slots), np.int64)
        able, left = np.arange(len(self.spaces)), np.arange(num)
        with self._phases.time("sample"):
            while len(left):
                if not len(able):
                    raise NoneFound("no random schedule of this task is legal on this target")
                out[left, 0] = able[rng.integers(0, len(able), len(left))]
                lacking = list[int]()
                for space, rows, _ in self._parts(out[left]):
                    try:
                        out[left[rows], 1 : 1 + space.num_slots] = space.sample(len(rows), rng)
                    except NoneFound:
                        lacking += left[rows].tolist()
                left = np.array(lacking, np.int64)
                able = np.setdiff1d(able, out[left, 0])
        return out

    def mutate(self, parents: Decisions, rng: np.random.Generator) -> Decisions:
        """Mutate every parent inside its own design space, int64 [N, d]."""
        out = parents.copy()
        with self._phases.time("sample"):
            for space, rows, vectors in self._parts(parents):
                out[rows, 1 : 1 + space.num_slots] = space.mutate(vectors, rng)
        return out

    def draft_score(self, decisions: Decisions) -> NDArray[np.float64]:
        """Score programs by the analyzer, [N]; without it zero for legal programs.

        Where a space has no draft model, scores are drawn from those of the other spaces.
        """
        out = np.full(len(decisions), -np.inf)
        with self._phases.time("draft"):
            for space, rows, vectors in self._parts(decisions):
                if self.analyzer is None:
                    out[rows] = np.where(space.legal(vectors), 0.0, -np.inf)
                else:
                    out[rows] = space.draft_score(vectors, self.analyzer)
            unknown = np.isnan(out)
            # NaN is a legal program that the draft cannot score: a quantile drawn by its key makes
            # it comparable with the scored spaces
            if unknown.any():
                out[unknown] = np.quantile(self._reference(), self.chance(decisions[unknown]))
        return out

    def _reference(self) -> NDArray[np.float64]:
        """Draft scores of all generations of the scored spaces; else [0]."""
        if self._drafted is None:
            assert self.analyzer is not None
            rng, known = np.random.default_rng(20250330), [np.zeros(0)]
            for space in self.spaces:
                if not space.can_draft:  # and drawing takes seconds
                    continue
                try:
                    rows = space.sample(min(_REFERENCE, space.affordable or _REFERENCE), rng)
                except NoneFound:
                    continue
                for _ in range(_GENERATIONS + 1):
                    scores = space.draft_score(rows, self.analyzer)
                    known.append(scores[np.isfinite(scores)])
                    rows = space.mutate(rows[select(scores, len(rows), rng)], rng)
            scores = np.concatenate(known)
            self._drafted = scores if len(scores) else np.zeros(1)
        return self._drafted

    def chance(self, decisions: Decisions) -> NDArray[np.float64]:
        """Hash rows to numbers in [0, 1), equal for equal rows."""
        # Fibonacci hashing: keys that differ little must not get neighbouring quantiles
        mixed = self.keys(decisions).view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        # the 53 high bits are what a float64 holds exactly
        return (mixed >> np.uint64(11)) / 2.0**53

    def ranked(self, decisions: Decisions) -> NDArray[np.bool_]:
        """Select the rows of spaces with features, which a model ranks."""
        return np.array([space.has_features for space in self.spaces])[decisions[:, 0]]

    def features(self, decisions: Decisions, spec: FeatureSpec = DEFAULT) -> ProgramFeatures:
        """Compute the features of all rows; invalid where a space has none."""
        num, found = len(decisions), self._parts(decisions)
        parts = [(rows, space.features(vectors, spec)) for space, rows, vectors in found]
        if not parts:
            return ProgramFeatures.empty(num, spec)
        workload = parts[0][1].workload  # of the task, so of every space
        return ProgramFeatures.empty(num, spec, workload=workload).scatter(parts)

    def symbols(self, number: int, decisions: Decisions) -> list[tuple[Ints, Scores, Symbols]]:
        """Compute the symbols of vectors [N, d] of a batched space; see `BatchedSpace`."""
        space: Any = self.spaces[number]
        with self._phases.time("draft"):
            return list(space.symbols(decisions, self.analyzer))

    def columns(self, row: Ints) -> list[float] | None:
        """Compute a program's columns for a forecast; None without hardware symbols."""
        number, analyzer = int(row[0]), self.analyzer
        space = self.spaces[number]
        if not isinstance(space, BatchedSpace) or not isinstance(analyzer, SymbolAnalyzer):
            return None
        if analyzer.form != "hardware":
            return None
        columns = DraftColumns(analyzer.uncalibrated())
        groups = self.symbols(number, row[None, 1 : 1 + space.num_slots])
        found = [columns.of(symbols) for *_, symbols in groups if not symbols.on_tensor_cores]
        return [float(value) for value in found[0][0]] if found else None

    def size_bytes(self, decisions: Decisions) -> Floats:
        """Estimate code and scratch memory in bytes, [N]; NaN where no symbols are."""

        def size(rows: Ints, nests: LoopNests, symbols: Symbols, device: Device) -> Floats:
            cores = device.num_cores if isinstance(device, CpuDevice) else 1
            return scratch_bytes(nests, cores) + code_bytes(symbols)

        return self._by_symbols(decisions, size)

    def energy_model_j(self, decisions: Decisions, latency_s: Floats) -> Floats:
        """Model the joules of programs that take `latency_s`, [N]; NaN where no symbols are."""

        def joules(rows: Ints, nests: LoopNests, symbols: Symbols, device: Device) -> Floats:
            return energy_model_j(symbols, latency_s[rows], device)

        return self._by_symbols(decisions, joules)

    def _by_symbols(self, decisions: Decisions, value: OfSymbols) -> Floats:
        """Compute a number of every program [N] from its loop nests and symbols."""
        out, analyzer = np.full(len(decisions), np.nan), self.analyzer
        with self._phases.time("draft"):
            for space, rows, vectors in self._parts(decisions):
                if isinstance(space, BatchedSpace) and isinstance(analyzer, SymbolAnalyzer):
                    for own, nests, symbols in space.with_symbols(vectors, analyzer):
                        places = rows[own]
                        out[places] = value(places, nests, symbols, analyzer.device)
        return out

    def relaxed(self, number: int, decisions: Decisions) -> list[tuple[Ints, RelaxedScores]]:
        """Record the scores of vectors [N, d] of a batched space; see `BatchedSpace`."""
        space: Any = self.spaces[number]
        with self._phases.time("draft"):
            return list(space.relaxed(decisions, self.analyzer))

    def options(self, number: int, decisions: Decisions, slot: int) -> tuple[Ints, Mask]:
        """List the values of a decision of a batched space; see `BatchedSpace`."""
        space: Any = self.spaces[number]
        with self._phases.time("draft"):
            values, offered = space.options(decisions, slot)
        return values, offered

    def token_spaces(self) -> list[TokenSpace | None]:
        """List the tokens of each space, None without tokens or device."""
        if self.analyzer is None:
            return [None] * len(self.spaces)
        return [space.tokens(self.analyzer.device) for space in self.spaces]

    def drawn(
        self, number: int, draw: Callable[[], tuple[Decisions, Floats]]
    ) -> tuple[Decisions, Floats]:
        """Keep the drawn vectors that the sampling of a batched space accepts."""
        space: Any = self.spaces[number]
        with self._phases.time("sample"):
            rows, scores = draw()
            kept = space.allowed(rows)
        return rows[kept], scores[kept]

    def instantiate(self, decisions: Decisions) -> list[Any | None]:
        """Create the schedules of all rows; None where TVM refuses."""
        out: list[Any | None] = [None] * len(decisions)
        with self._phases.time("instantiate"):
            for space, rows, vectors in self._parts(decisions):
                for row, schedule in zip(rows, space.instantiate(vectors), strict=True):
                    out[row] = schedule
        return out

    def clear_cache(self) -> None:
        """Release the cached programs of all spaces after a proposal."""
        for space in self.spaces:
            space.clear_cache()

    def _parts(
        self, decisions: Decisions
    ) -> Iterator[tuple[LiveSpace, NDArray[np.intp], Decisions]]:
        for number, space in enumerate(self.spaces):
            rows = np.flatnonzero(decisions[:, 0] == number)
            if len(rows):
                yield space, rows, decisions[rows, 1 : 1 + space.num_slots]


_PARALLEL = re.compile(r'(ann_key="meta_schedule\.parallel", ann_val=)\d+')


class Traces:
    """Assigns traces to design spaces, by their instructions before postprocessing."""

    def __init__(self, space: UnionSpace) -> None:
        self._space = space
        steps = [_steps(one.design.trace) for one in space.spaces]
        self._exact = {text: number for number, text in enumerate(steps)}
        self._like = {_PARALLEL.sub(r"\1", text): number for number, text in enumerate(steps)}

    def rows(
        self, traces: Sequence[Any], *, whatever_parallel: bool = False
    ) -> tuple[Decisions, NDArray[np.bool_]]:
        """Convert traces to decision vectors int64 [N, d], and which belong here [N].

        TVM's ``MutateParallel`` changes an annotation, which no vector holds: such a trace belongs
        here only with ``whatever_parallel``.
        """
        rows = np.zeros((len(traces), self._space.num_slots), np.int64)
        known = np.zeros(len(traces), bool)
        for row, trace in enumerate(traces):
            text = _steps(trace)
            number = self._exact.get(text)
            if number is None and whatever_parallel:
                number = self._like.get(_PARALLEL.sub(r"\1", text))
            if number is None:
                continue
            space = self._space.spaces[number]
            vector = space.design.vector(trace)
            # samplings that nothing uses may be gone: then the decisions fill no vector
            if len(vector) == space.num_slots:
                rows[row, 0], rows[row, 1 : 1 + space.num_slots] = number, vector
                known[row] = True
        return rows, known


def _steps(trace: Any) -> str:
    """Print the instructions without decisions and dead code, which TVM's search drops."""
    kept = trace.simplified(True)
    return "\n".join(map(str, load_tvm().s_tir.Trace(kept.insts, {}).as_python(True)))
