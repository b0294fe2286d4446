"""Choose the changes that help, by a rule fixed before any fit.

The rule uses validation tasks alone. A change is compared with the unchanged model in pairs of one
setting, platform and seed, which share their split. The measure is the mean of the task-mean Top-1
and of pairwise accuracy: the first is the goal but noisy, the second depends less on the top and is
steady. A change helps where the mean of its differences is above their standard error; pairs of one
seed share workloads, so the error is that of the means of seeds where there are three or more, and
never below that of all pairs. The helpful changes are joined; the model of the ablation has the
best mean among the unchanged model, the single changes that help, and the joined model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pruner.errors import PrunerError

JUDGED = ("top1_task_mean", "pairwise_accuracy")
Pair = tuple[str, str, int]  # setting, platform, seed
Row = Mapping[str, Any]


def value(row: Row) -> float:
    """Mean of a row's numbers `JUDGED`, the measure of the choice."""
    return float(np.mean([row[name] for name in JUDGED]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A change against the unchanged model: differences and their error."""

    model: str
    pairs: int
    gain: float
    error: float
    numbers: Mapping[str, float]  # mean differences of each number of `JUDGED`

    @property
    def helps(self) -> bool:
        """Whether the change helps, by the rule of this module."""
        return self.gain > self.error

    @property
    def row(self) -> dict[str, Any]:
        """The comparison as a row of a table."""
        about = asdict(self)
        gains = {f"{name} gain": value for name, value in about.pop("numbers").items()}
        return {**about, **gains, "helps": self.helps}


def _pairs(rows: Sequence[Row], model: str) -> dict[Pair, Row]:
    return {
        (row["setting"], row["platform"], int(row["seed"])): row
        for row in rows
        if row["model"] == model
    }


def compared(rows: Sequence[Row], model: str, basis: str) -> Comparison:
    """Compare a change with the model `basis` in pairs; raises PrunerError for none."""
    theirs, ours = _pairs(rows, basis), _pairs(rows, model)
    shared = sorted(theirs.keys() & ours.keys())
    if not shared:
        raise PrunerError(f"{model} and {basis} have no setting, platform and seed in common")
    gains = np.array([value(ours[pair]) - value(theirs[pair]) for pair in shared])
    seeds = np.array([pair[2] for pair in shared])
    numbers = {
        name: float(np.mean([ours[pair][name] - theirs[pair][name] for pair in shared]))
        for name in JUDGED
    }
    return Comparison(
        model=model,
        pairs=len(shared),
        gain=float(gains.mean()),
        error=_error(gains, seeds),
        numbers=numbers,
    )


def _error(gains: np.ndarray, seeds: np.ndarray) -> float:
    """Standard error of the mean; infinite for a single pair."""
    found = [_standard_error(gains)]
    means = np.array([gains[seeds == seed].mean() for seed in np.unique(seeds)])
    if len(means) > 2:
        found.append(_standard_error(means))
    return max(found)


def _standard_error(values: np.ndarray) -> float:
    if len(values) < 2:
        return float("inf")
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def helping(rows: Sequence[Row], changes: Sequence[str], basis: str) -> list[Comparison]:
    """Every change compared, the most helpful first."""
    found = [compared(rows, change, basis) for change in changes]
    return sorted(found, key=lambda one: -one.gain)


def best(rows: Sequence[Row], models: Sequence[str], basis: str) -> str:
    """The model of the best gain, or `basis` without any gain."""
    gains = {basis: 0.0} | {
        model: compared(rows, model, basis).gain for model in models if model != basis
    }
    return max(gains, key=lambda model: gains[model])
