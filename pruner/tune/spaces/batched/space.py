"""A MetaSchedule design space that computes programs in batches, without TVM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Decisions, Ints, Mask, Scores, Verdicts
from pruner.errors import UnsupportedProgram, unforeseen_refused
from pruner.features.batch import DEFAULT, FeatureSpec, ProgramFeatures, featurize_nests
from pruner.features.symbols.symbol_table import Symbols
from pruner.models.analyzer.analyzer import Analyzer, SymbolAnalyzer
from pruner.models.proposals.decision_tokens import TokenSpace
from pruner.program.device import Device
from pruner.program.nests import LoopNests
from pruner.program.relaxed import RelaxedDecisions
from pruner.program.replay import UNCERTAIN
from pruner.program.tir.apply_trace import apply_groups
from pruner.program.tir.lower import lower
from pruner.program.tir.postprocs import layouts_permute
from pruner.program.tir.regions import buffer_scopes
from pruner.program.tir.shared import waits_are_numbers
from pruner.program.tir.tree import Tree
from pruner.program.tir.verify import TirLimits, stages_cover, verify_gpu_code
from pruner.search.construct import Tiling
from pruner.search.explorer import NoneFound
from pruner.search.space import RowKeys
from pruner.tune.kinds import is_gpu
from pruner.tune.spaces.batched.decisions import (
    CPU,
    GPU,
    Mutators,
    TileDecision,
    open_decisions,
)
from pruner.tune.spaces.batched.prim_func import module_flags
from pruner.tune.spaces.batched.tiling import thread_ranges, tiling_of
from pruner.tune.spaces.batched.token_reading import tokens_of
from pruner.tune.spaces.batched.trace import read_program
from pruner.tune.spaces.design import DesignSpace

if TYPE_CHECKING:
    from pruner.models.analyzer.derivatives import RelaxedScores

_TRIES = 400  # draws for every legal program that is wanted
_BATCH = 4096  # rows of one replay, which bounds the memory of its trees
PROBES = 8  # each has a structure of its own, so each costs milliseconds
_SHARE_PROBES = 1024


class BatchedSpace:
    """A trace with open sampling decisions, whose programs are computed in batches.

    A vector int64 [d] holds its decisions in order: all factors of ``sample_perfect_tile``, the
    index of ``sample_categorical``, the location of ``sample_compute_location``.
    """

    can_draft = True  # the draft score differs between programs
    has_features = True  # a model can rank them
    affordable: int | None = None  # programs a generation where each takes milliseconds

    def __init__(self, design: DesignSpace, *, probes: int = PROBES) -> None:
        """Read a design space and probe it; raise `UnsupportedProgram` without batched form."""
        self.design = design
        on_gpu, kind = is_gpu(design.target), str(design.target.kind.name)
        if not on_gpu and kind != "llvm":
            raise UnsupportedProgram("target", kind)
        if len(design.module.functions) != 1:
            raise UnsupportedProgram("functions", "one function is understood")
        with unforeseen_refused():
            self.program = read_program(design)
        instructions, self.num_slots = self.program.instructions, self.program.num_slots
        self._workload = module_flags(design.module)
        self._last: tuple[Decisions, list[tuple[Ints, Tree]], dict[int, str]] | None = None
        self._limits = TirLimits.of_target(design.target) if on_gpu else None
        self.keys = RowKeys(self.num_slots)
        with unforeseen_refused():
            self._decisions = open_decisions(self.program, design.vector(design.trace))
        shares = GPU if on_gpu else CPU
        self._threads = thread_ranges(instructions)
        self._mutators = Mutators(instructions, self._decisions, shares)
        self._legal_share: float | None = None  # of random programs, computed on first use
        draws = self.sample_any(probes, np.random.default_rng(0))
        reasons = {*self.features(draws).failures.values(), *self._judged(draws)[1].values()}
        # single uncertain programs score minus infinity later; any other refusal is a form that the
        # engine lacks, and would recur in the search
        reasons -= {UNCERTAIN}
        if reasons:
            raise UnsupportedProgram(sorted(reasons)[0], "a random program of this space")

    def sample_any(self, num: int, rng: np.random.Generator) -> Decisions:
        """Draw from MetaSchedule's distributions, legal or not, int64 [num, d]."""
        out = np.zeros((num, self.num_slots), np.int64)
        # in the order of the trace: locations depend on the tiles that are already drawn
        for decision in self._decisions.values():
            decision.sample(out, rng)
        return out

    def _plausible(self, num: int, rng: np.random.Generator) -> Decisions:
        """Draw `num` rows and drop rows with too many threads."""
        draws = self.sample_any(num, rng)
        for threads in self._threads:
            draws = draws[threads.holds(draws)]
        return draws

    def sample(self, num: int, rng: np.random.Generator) -> Decisions:
        """Draw programs that TVM would accept, int64 [num, d]; raise `NoneFound` if none.

        On CPUs nothing is checked: uncertain programs have a draft score of minus infinity.
        """
        if self._limits is None:
            return self.sample_any(num, rng)
        if self._legal_share is None:
            # of random draws, above zero
            plausible = self._plausible(_SHARE_PROBES, np.random.default_rng(0))
            self._legal_share = max(1, self.legal(plausible).sum()) / _SHARE_PROBES
        found: list[Decisions] = []
        count = drawn = 0
        while count < num and drawn < max(num * _TRIES, 16 * _BATCH):
            # a fifth more than expected: one pass, which replays a batch, usually suffices
            wanted = int(1.2 * (num - count) / self._legal_share) + 16
            size = min(wanted, 4 * _BATCH)
            draws = self._plausible(size, rng)
            good = draws[self.allowed(draws)]
            found.append(good)
            count, drawn = count + len(good), drawn + size
        if num and not count:
            raise NoneFound("no random schedule of this space is legal on this target")
        # the empty array keeps the shape where num is 0
        some = np.concatenate([np.zeros((0, self.num_slots), np.int64), *found])
        return some[:num] if count >= num else some[rng.integers(0, len(some), num)]

    def allowed(self, draws: Decisions) -> Verdicts:
        """Check which rows :meth:`sample` may return, bool [N]; on CPUs nothing is checked."""
        return np.ones(len(draws), bool) if self._limits is None else self.legal(draws)

    def mutate(self, parents: Decisions, rng: np.random.Generator) -> Decisions:
        """Mutate every parent [N, d] as MetaSchedule, but for the parallel annotation."""
        return self._mutators.mutate(parents, rng)

    def legal(self, decisions: Decisions) -> NDArray[np.bool_]:
        """Check which rows TVM would accept and compile, bool [N]; not refused rows."""
        out = np.zeros(len(decisions), bool)
        for rows, _, good in self._judged(decisions)[0]:
            out[rows] = good
        return out

    def features(self, decisions: Decisions, spec: FeatureSpec = DEFAULT) -> ProgramFeatures:
        """Compute features; rows that the engine refuses are invalid."""
        groups, refused = self._trees(decisions)
        nests = []
        for rows, tree in groups:
            try:
                with unforeseen_refused():
                    nests.append((rows, lower(tree)))
            except UnsupportedProgram as error:
                refused |= dict.fromkeys(rows.tolist(), error.reason)
            # after lowering, which is where the last regions are found to be uncertain
            unsure = np.broadcast_to(tree.uncertain, len(rows))
            refused |= dict.fromkeys(rows[unsure].tolist(), UNCERTAIN)
        return featurize_nests(
            nests,
            len(decisions),
            spec,
            workload=self._workload,
            failures=refused,
        )

    def draft_score(self, decisions: Decisions, analyzer: Analyzer) -> NDArray[np.float64]:
        """Score programs without a learned model, [N]; minus infinity where illegal."""
        out = np.full(len(decisions), -np.inf)
        found = list(self._lowered(decisions))
        for (rows, good, _), scores in zip(
            found, score_each([nests for *_, nests in found], analyzer), strict=True
        ):
            if scores is not None:
                out[rows] = np.where(good, scores, -np.inf)
        return out

    def tiling(self, device: Device) -> Tiling:
        """Find the tiles and the units of a device; see :mod:`pruner.search.construct`."""
        return tiling_of(self.program, self._decisions, self._threads, device)

    def tokens(self, device: Device) -> TokenSpace:
        """List the decisions for a proposal model; see :mod:`pruner.models.proposals`."""
        return tokens_of(self.program, self._decisions, device, self._workload)

    def options(self, decisions: Decisions, slot: int) -> tuple[Ints, Mask]:
        """List values [V] of another decision than tiles, and where offered, [N, V]."""
        decision = self._decisions[slot]
        assert not isinstance(decision, TileDecision), slot
        return decision.options(decisions)

    def symbols(
        self, decisions: Decisions, analyzer: SymbolAnalyzer
    ) -> list[tuple[Ints, Scores, Symbols]]:
        """Compute rows, scores (minus infinity: illegal) and symbols of each legal group."""
        found = []
        for rows, good, nests in self._lowered(decisions):
            with suppress(UnsupportedProgram), unforeseen_refused():
                symbols = analyzer.symbols(nests)
                found.append((rows, np.where(good, analyzer.scores(symbols), -np.inf), symbols))
        return found

    def with_symbols(
        self, decisions: Decisions, analyzer: SymbolAnalyzer
    ) -> Iterator[tuple[Ints, LoopNests, Symbols]]:
        """Yield rows, loop nests and symbols of each group with a legal program."""
        found = [(rows, nests) for rows, _, nests in self._lowered(decisions)]
        try:
            with unforeseen_refused():
                every = analyzer.all_symbols([nests for _, nests in found])
        except UnsupportedProgram:
            return
        for (rows, nests), symbols in zip(found, every, strict=True):
            yield rows, nests, symbols

    def relaxed(
        self, decisions: Decisions, analyzer: SymbolAnalyzer
    ) -> list[tuple[Ints, RelaxedScores]]:
        """Record scores of each group that depends on tiles as functions of their sizes."""
        # here, because torch takes seconds to import
        from pruner.models.analyzer.derivatives import relaxed_scores

        tiles = [one for one in self._decisions.values() if isinstance(one, TileDecision)]
        slots = {slot for one in tiles for slot in range(one.slots.start, one.slots.stop)}
        found = []
        for rows, tree in apply_groups(self.program, RelaxedDecisions.of(decisions, slots))[0]:
            with suppress(UnsupportedProgram), unforeseen_refused():
                scores = relaxed_scores(lower(tree), analyzer)
                found += [] if scores is None else [(rows, scores)]
        return found

    def instantiate(self, decisions: Decisions) -> list[Any | None]:
        """Create the schedules by TVM, postprocessed; None where TVM refuses.

        TVM's check of GPU code takes half of the time; the verdict of :meth:`legal` stands for it
        (of 4,512 programs it differed for six: docs/metaschedule-features.md).
        """
        if self._limits is None:
            return [self.design.replay(row, 1) for row in decisions]
        good = self.legal(decisions)
        return [
            self.design.replay(row, 1, verify=False) if accepted else None
            for row, accepted in zip(decisions, good, strict=True)
        ]

    def _trees(self, decisions: Decisions) -> tuple[list[tuple[Ints, Tree]], dict[int, str]]:
        """Replay rows to trees; the last result is cached, with the refusals."""
        last = self._last  # read once: another thread may replace it
        if last is not None and np.array_equal(last[0], decisions):
            return last[1], dict(last[2])
        groups: list[tuple[Ints, Tree]] = []
        refused: dict[int, str] = {}
        for start in range(0, len(decisions), _BATCH):
            some, bad = apply_groups(self.program, decisions[start : start + _BATCH])
            groups += [(rows + start, tree) for rows, tree in some]
            refused |= {row + start: reason for row, reason in bad.items()}
        # legality, features and draft score of one generation are computed one after the other
        self._last = (decisions.copy(), groups, refused)
        return groups, dict(refused)

    def clear_cache(self) -> None:
        """Release the trees of the last call, which may be gigabytes."""
        self._last = None

    def _judged(
        self, decisions: Decisions
    ) -> tuple[list[tuple[Ints, Tree, Verdicts]], dict[int, str]]:
        """Group trees by rows with TVM's verdicts, and collect refusals."""
        groups, refused = self._trees(decisions)
        judged = []
        for rows, tree in groups:
            try:
                with unforeseen_refused():
                    judged.append((rows, tree, self._accepted(tree)))
            except UnsupportedProgram as error:
                refused |= dict.fromkeys(rows.tolist(), error.reason)
        return judged, refused

    def _lowered(self, decisions: Decisions) -> Iterator[tuple[Ints, Verdicts, LoopNests]]:
        """Yield rows, verdicts and loop nests of each group with a legal program."""
        for rows, tree, good in self._judged(decisions)[0]:
            if good.any():
                try:
                    with unforeseen_refused():
                        nests = lower(tree)
                except UnsupportedProgram:
                    continue
                yield rows, good, nests

    def _accepted(self, tree: Tree) -> NDArray[np.bool_]:
        buffer_scopes(tree)  # computes all regions, and by that marks the uncertain ones
        certain = np.broadcast_to(~np.asarray(tree.uncertain), tree.num_programs)
        if self._limits is None:
            return certain
        # checks that TVM makes outside VerifyGPUCode: LowerAutoCopy's permuted layouts, ComputeAt's
        # stage pipeline, cp.async's constant waits
        whole = layouts_permute(tree) & stages_cover(tree) & waits_are_numbers(tree)
        return certain & verify_gpu_code(tree, self._limits) & whole


def score_each(nests: Sequence[LoopNests], analyzer: Analyzer) -> list[Scores | None]:
    """Score loop nests, together or else singly; None where scoring fails."""
    try:
        with unforeseen_refused():
            return [*analyzer.score_all(nests)]
    except UnsupportedProgram:
        out: list[Scores | None] = [None] * len(nests)
        for place, one in enumerate(nests):
            with suppress(UnsupportedProgram), unforeseen_refused():
                out[place] = analyzer.score_nests(one)
        return out
