"""How programs are kept in memory and in the cache: as features, or as decision vectors."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from os import cpu_count
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import torch

from pruner.data.tasks import TaskKey, TaskRecords
from pruner.errors import PrunerError
from pruner.features.batch import ProgramFeatures
from pruner.features.dataflow import DataflowKind
from pruner.features.primitives import PrimitiveTokens
from pruner.models.model import Model
from pruner.models.programs.relative import Center
from pruner.models.programs.store import ProgramStore, TaskPrograms
from pruner.models.programs.table import ProgramTable
from pruner.models.programs.vectors import (
    MeasuredVectors,
    SkeletonVectors,
    TaskVectors,
    VectorStore,
)
from pruner.program.replay import Definitions

Part = TypeVar("Part")
Store = TypeVar("Store", bound=ProgramTable)
Arrays = dict[str, np.ndarray]

_FEATURES = ("statement", "row_start", "dataflow", "workload", "valid")
_KNOWN = ("latency_s", "line", "digest", "timed_s")
_CENTER = ("statement", "dataflow", "tokens", "draft")
_EXTRA = "extra"  # where asked for
_TOKENS = ("structure", "place", "skeleton", "number")


class Form(ABC, Generic[Part, Store]):
    """How to encode the programs of one task, and how to concatenate tasks.

    `settings` distinguish the cache entries of this form from those of others.
    """

    settings: ClassVar[Mapping[str, Any]] = {}

    def learned_by(self, model: Model) -> Self:
        """The form for a fit of `model`; raises PrunerError where it cannot learn from it."""
        return self

    @abstractmethod
    def of(self, part: TaskPrograms, records: TaskRecords) -> Part:
        """The programs of a task that have features; `records` has those and others."""

    @abstractmethod
    def packed(self, part: Part) -> tuple[Arrays, dict[str, Any]]:
        """Arrays by name, and everything else as plain values."""

    @abstractmethod
    def unpacked(self, arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> Part:
        """What was packed."""

    @abstractmethod
    def store(
        self, parts: Iterable[Part], definitions: Definitions, dataflow: DataflowKind
    ) -> Store:
        """All tasks; raises DataError when none has a program."""


class Features(Form[TaskPrograms, ProgramStore]):
    """All features in memory, some 3.4 kB a program: the fastest as long as they fit."""

    def of(self, part: TaskPrograms, records: TaskRecords) -> TaskPrograms:
        """They are there."""
        return part

    def packed(self, part: TaskPrograms) -> tuple[Arrays, dict[str, Any]]:
        """Features, and what is known of the programs."""
        arrays = _known(part) | {name: getattr(part.features, name) for name in _FEATURES}
        if part.features.extra is not None:
            arrays[_EXTRA] = part.features.extra
        if part.features.tokens is not None:
            arrays |= {name: getattr(part.features.tokens, name) for name in _TOKENS}
        return arrays, _about(part)

    def unpacked(self, arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> TaskPrograms:
        """What was packed."""
        has_tokens = _TOKENS[0] in arrays
        tokens = PrimitiveTokens(**_named(arrays, _TOKENS)) if has_tokens else None
        made = ProgramFeatures(
            **_named(arrays, _FEATURES), failures={}, tokens=tokens, extra=arrays.get(_EXTRA)
        )
        return TaskPrograms(
            **_named(arrays, _KNOWN),
            key=_key(about),
            features=made,
            num_failed=about["num_failed"],
        )

    def store(
        self, parts: Iterable[TaskPrograms], definitions: Definitions, dataflow: DataflowKind
    ) -> ProgramStore:
        """All features, one task after another."""
        return ProgramStore.build(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vectors(Form[MeasuredVectors, VectorStore]):
    """Decision vectors in memory, some 100 bytes a program; features are computed on the way.

    `num_workers` processes compute them (None: one for each core but one). `tokens`: schedule
    primitives too, where the model reads them.
    """

    # Raise the number when what an entry holds is computed in another way.
    settings: ClassVar[Mapping[str, Any]] = {"vectors": 1}

    num_workers: int | None = None
    tokens: bool = True

    def learned_by(self, model: Model) -> Self:
        """Primitives only for a model that reads them; raises PrunerError for trees."""
        if not model.is_network:
            raise PrunerError(
                f"store=vectors: {type(model).__name__} is grown from all features at once; "
                "give store=features"
            )
        return replace(self, tokens=self.tokens and model.reads_primitives)

    def of(self, part: TaskPrograms, records: TaskRecords) -> MeasuredVectors:
        """Decisions of the programs that have features, and the mean of these."""
        return MeasuredVectors.of(part, records.select(np.isin(records.line, part.line)).steps)

    def packed(self, part: MeasuredVectors) -> tuple[Arrays, dict[str, Any]]:
        """Decisions by skeleton, one step list each, the centre, and what is known."""
        vectors, center = part.vectors, part.vectors.center
        arrays = _known(part) | {"skeleton": vectors.skeleton}
        for number, one in enumerate(vectors.skeletons):
            arrays[f"decisions.{number}"] = one.decisions
        for name in _CENTER:
            mean = getattr(center, name)
            if mean is not None:
                arrays[f"center.{name}"] = mean.numpy()
        return arrays, _about(part) | {"steps": [one.steps for one in vectors.skeletons]}

    def unpacked(
        self, arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]
    ) -> MeasuredVectors:
        """What was packed."""
        means = {name: arrays.get(f"center.{name}") for name in _CENTER}
        center = Center(
            **{name: torch.from_numpy(mean) for name, mean in means.items() if mean is not None}
        )
        skeletons = [
            SkeletonVectors(steps, arrays[f"decisions.{number}"])
            for number, steps in enumerate(about["steps"])
        ]
        return MeasuredVectors(
            **_named(arrays, _KNOWN),
            key=_key(about),
            vectors=TaskVectors.of(skeletons, arrays["skeleton"], center),
            num_failed=about["num_failed"],
        )

    def store(
        self, parts: Iterable[MeasuredVectors], definitions: Definitions, dataflow: DataflowKind
    ) -> VectorStore:
        """All vectors, one task after another."""
        workers = max(1, (cpu_count() or 1) - 1) if self.num_workers is None else self.num_workers
        return VectorStore.build(
            parts, definitions, dataflow=dataflow, tokens=self.tokens, num_workers=workers
        )


def _known(part: TaskPrograms | MeasuredVectors) -> Arrays:
    return {name: getattr(part, name) for name in _KNOWN}


def _about(part: TaskPrograms | MeasuredVectors) -> dict[str, Any]:
    return {"key": asdict(part.key), "num_failed": part.num_failed}


def _key(about: Mapping[str, Any]) -> TaskKey:
    return TaskKey(**{**about["key"], "fused": tuple(about["key"]["fused"])})


def _named(arrays: Mapping[str, np.ndarray], names: Iterable[str]) -> Arrays:
    return {name: arrays[name] for name in names}
