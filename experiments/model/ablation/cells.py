"""Cells of an ablation: model, setting and seed, with expected times."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Literal, Self

from pruner.data.splits import TaskSplit, make_split
from pruner.data.tasks import TaskKey
from pruner.errors import PrunerError
from pruner.files import load_metrics

EVERY = "all"  # the setting that learns from all platforms
WITHOUT = "without-"  # settings that leave one out
Rates = Literal["shipped", "nested"]
SHIPPED: Rates = "shipped"  # the analyzer's defaults, chosen with all logs in view
NESTED: Rates = "nested"  # fitted to the training and validation tasks of the cell's own split


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The platforms that a model learns from and that judge it.

    `learned`: platforms whose training tasks it sees; `judged`: those whose tasks judge it; where
    they differ, the second was left out. `split`: that of :mod:`pruner.data.splits`, where none is.
    """

    name: str
    learned: tuple[str, ...]
    judged: tuple[str, ...]
    split: str = "by_task"

    @property
    def left_out(self) -> tuple[str, ...]:
        """Platforms that judge and are not learned from."""
        return tuple(name for name in self.judged if name not in self.learned)

    @property
    def platforms(self) -> tuple[str, ...]:
        """All platforms to read, by name; settings with equal ones share programs."""
        return tuple(sorted({*self.learned, *self.judged}))

    def divided(self, keys: Sequence[TaskKey], seed: int) -> TaskSplit:
        """The seed's own split; validation is always on platforms that are learned from."""
        if self.left_out:
            return make_split("by_platform", keys, seed, held_out=self.left_out)
        return make_split(self.split, keys, seed)


def settings_of(platforms: Sequence[str], split: str = "by_task") -> list[Setting]:
    """Each platform alone, all together, and each left out.

    A single platform has only itself.

    >>> [setting.name for setting in settings_of(["k80", "v100"])]
    ['k80', 'v100', 'all', 'without-k80', 'without-v100']
    """
    every = tuple(platforms)
    found = [Setting(name=name, learned=(name,), judged=(name,), split=split) for name in platforms]
    if len(every) < 2:
        return found
    found.append(Setting(name=EVERY, learned=every, judged=every, split=split))
    for name in platforms:
        others = tuple(other for other in every if other != name)
        found.append(Setting(name=f"{WITHOUT}{name}", learned=others, judged=(name,), split=split))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationCell:
    """A fit of an ablation; `rates` are those of the analyzer that the model reads."""

    setting: Setting
    model: str
    seed: int
    rates: Rates = SHIPPED

    @property
    def variant(self) -> str:
        """The name of the model, with its rates where they are not shipped."""
        return self.model if self.rates == SHIPPED else f"{self.model}_{self.rates}"

    @property
    def name(self) -> str:
        """Its folder below the ablation's folder."""
        return f"{self.setting.name}/{self.variant}/seed-{self.seed}"

    def done(self, folder: Path) -> Mapping[str, Any] | None:
        """The cell's metrics if it is finished, else None."""
        return load_metrics(folder / self.name)

    @classmethod
    def product(
        cls,
        settings: Iterable[Setting],
        models: Iterable[str],
        seeds: Iterable[int],
        rates: Iterable[Rates] = (SHIPPED,),
    ) -> list[Self]:
        """Every combination; of a setting all seeds of a model after another."""
        return [
            cls(setting=setting, model=model, seed=seed, rates=own)
            for setting, model, seed, own in product(settings, models, seeds, rates)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """Guess of a fit's seconds: of the platform, times the model's factor.

    The factor is relative to PaCM. An unknown platform counts as `other_s`; several platforms
    together as the slowest of them times `several`, for their tasks give fewer programs each.
    `took`: seconds of earlier fits by setting and model, used instead where given.
    """

    platform_s: Mapping[str, float]
    model: Mapping[str, float]
    other_s: float = 30.0
    several: float = 1.3
    took: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def seconds(self, cell: AblationCell) -> float:
        """Guessed seconds of a fit on one thread."""
        earlier = self.took.get((cell.setting.name, cell.model))
        if earlier is not None:
            return earlier
        each = [self.platform_s.get(name, self.other_s) for name in cell.setting.learned]
        longest = max(each) * (self.several if len(each) > 1 else 1.0)
        return longest * self.model.get(cell.model, 1.0)


def planned(cells: Sequence[AblationCell], folder: Path, guess: Guess) -> list[dict[str, Any]]:
    """The missing cells, a row a setting and model, with minutes of finished cells or guessed.

    Guesses are scaled by the ratio of the finished cells' times to theirs: another machine is
    slower or faster for all alike.
    """
    found = {cell: cell.done(folder) for cell in cells}
    took = {cell: float(one["fit_seconds"]) for cell, one in found.items() if one is not None}
    guessed = sum(guess.seconds(cell) for cell in took)
    scale = sum(took.values()) / guessed if guessed else 1.0
    out: list[dict[str, Any]] = []
    for name, model in dict.fromkeys((cell.setting.name, cell.variant) for cell in cells):
        own = [cell for cell in cells if (cell.setting.name, cell.variant) == (name, model)]
        known = [took[cell] for cell in own if cell in took]
        each = sum(known) / len(known) if known else scale * guess.seconds(own[0])
        left = (len(own) - len(known)) * each
        row = {"setting": name, "model": model, "cells": len(own), "made": len(known)}
        out.append({**row, "minutes left": left / 60})
    return out


def check_seeds(seeds: Sequence[int]) -> None:
    """Raise PrunerError without seeds, or for one given twice."""
    if not seeds or len(set(seeds)) != len(seeds):
        raise PrunerError(f"seeds={list(seeds)}: give at least one seed, each once")
