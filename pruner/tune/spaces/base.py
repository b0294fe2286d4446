"""The interface of a MetaSchedule design space in the tuning loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Decisions, Keys
from pruner.features.batch import Extra, ProgramFeatures
from pruner.features.dataflow import DataflowKind
from pruner.models.analyzer.analyzer import Analyzer
from pruner.models.proposals.decision_tokens import TokenSpace
from pruner.program.device import Device
from pruner.search.construct import Tiling
from pruner.tune.spaces.design import DesignSpace


class LiveSpace(Protocol):
    """The interface of a trace with open sampling decisions.

    A decision vector int64 [d] holds all sampling decisions of the trace in order: the factors of
    ``sample_perfect_tile`` (all of them, the outermost too), the index of ``sample_categorical``,
    the location index of ``sample_compute_location``.

    ``can_draft``: the draft score distinguishes legal programs. ``has_features``: programs have
    features of the definition that models learn from, so that a model can rank them.
    ``affordable``: how many programs a generation may have where each takes milliseconds; None: no
    limit.
    """

    num_slots: int
    can_draft: bool
    has_features: bool
    affordable: int | None

    @property
    def design(self) -> DesignSpace:
        """TVM's form of the space."""

    def sample(self, num: int, rng: np.random.Generator) -> Decisions:
        """Draw programs with MetaSchedule's distributions, int64 [num, d]."""

    def mutate(self, parents: Decisions, rng: np.random.Generator) -> Decisions:
        """Apply a random mutation of MetaSchedule to every parent, int64 [N, d].

        Mutated are tile size, unroll depth, compute location and thread binding; not the parallel
        annotation, which no decision vector holds.
        """

    @property
    def keys(self) -> Callable[[Decisions], Keys]:
        """Compute a 64-bit key of every row; equal rows have equal keys."""

    def legal(self, decisions: Decisions) -> NDArray[np.bool_]:
        """Check which rows TVM's postprocessors (``VerifyGPUCode`` and others) accept, bool [N]."""

    def features(
        self,
        decisions: Decisions,
        dataflow: DataflowKind = "paper",
        extra: Extra | None = None,
    ) -> ProgramFeatures:
        """Compute the features of N programs.

        ``dataflow`` is the kind of dataflow rows, `extra` adds columns.
        """

    def draft_score(self, decisions: Decisions, analyzer: Analyzer) -> NDArray[np.float64]:
        """Score programs without a learned model, [N]; higher is better.

        Minus infinity where a program is illegal, NaN where it is legal and the draft has no score.
        """

    def tiling(self, device: Device) -> Tiling | None:
        """Find the tiles and the units of a device; None without a batched form."""

    def tokens(self, device: Device) -> TokenSpace | None:
        """List the decisions for a proposal model; None without a batched form."""

    def clear_cache(self) -> None:
        """Release cached programs after a proposal."""

    def instantiate(self, decisions: Decisions) -> list[Any | None]:
        """Replay and postprocess ``tvm.s_tir.Schedule``s with TVM; None where TVM refuses."""
