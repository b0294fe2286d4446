"""What the tuning loop asks of one MetaSchedule design space of one task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Decisions, Keys
from pruner.features.batch import Extra, ProgramFeatures
from pruner.features.dataflow import DataflowKind
from pruner.models.analyzer.analyzer import Analyzer
from pruner.tune.spaces.design import DesignSpace


class LiveSpace(Protocol):
    """A trace whose sampling decisions are open.

    A decision vector int64 [d] holds all sampling decisions of the trace in order: the factors of
    ``sample_perfect_tile`` (all of them, the outermost too), the index of ``sample_categorical``,
    the location index of ``sample_compute_location``.

    ``can_draft``: its draft score tells legal programs apart. ``has_features``: its programs have
    features of the definition that models learn from, so that a model can rank them.
    ``affordable``: how many programs a generation may have where each takes milliseconds; None: as
    many as one likes.
    """

    num_slots: int
    can_draft: bool
    has_features: bool
    affordable: int | None

    @property
    def design(self) -> DesignSpace:
        """TVM's form of the space."""

    def sample(self, num: int, rng: np.random.Generator) -> Decisions:
        """Draws as MetaSchedule samples, int64 [num, d]."""

    def mutate(self, parents: Decisions, rng: np.random.Generator) -> Decisions:
        """One of MetaSchedule's mutations of every parent (tile size, unroll, compute location,
        thread binding; not parallel, which changes an annotation)."""

    @property
    def keys(self) -> Callable[[Decisions], Keys]:
        """A 64-bit key for every row; equal rows have equal keys."""

    def legal(self, decisions: Decisions) -> NDArray[np.bool_]:
        """Which rows TVM's postprocessors (``VerifyGPUCode`` and the others) would accept."""

    def features(
        self,
        decisions: Decisions,
        dataflow: DataflowKind = "paper",
        extra: Extra | None = None,
    ) -> ProgramFeatures:
        """Features of the N programs, with dataflow rows of one kind, and `extra` columns."""

    def draft_score(self, decisions: Decisions, analyzer: Analyzer) -> NDArray[np.float64]:
        """Score without a learned model, higher is better; minus infinity where illegal, NaN where
        a legal program cannot be told from others."""

    def forget(self) -> None:
        """A proposal is made: let go of what was kept to answer the same question again."""

    def instantiate(self, decisions: Decisions) -> list[Any | None]:
        """``tvm.s_tir.Schedule``s replayed and postprocessed by TVM; None where TVM refuses."""
