"""Learn the probability of failure from the decision vectors that failed.

Logistic regression with a Gaussian prior. A slot counts twice: by its logarithm (limits are
products of tile sizes) and by its value (a single location or vector width may be the cause).
"""

from __future__ import annotations

import numpy as np

from pruner.arrays import Decisions, Floats, Mask, Scores
from pruner.search.explorer import ScoreFunction
from pruner.search.space import History

_PRIOR_LOG_ODDS = -3.0  # 5 % of the programs that the legality rules accept fail
_SLOTS_SPREAD = 4.0  # standard deviation of the log-odds over all slots together
_COMMON_SPREAD = 2.0  # and of the part that all programs share
_LIKELY = 0.3  # probability of failure above which a program is avoided
_LEFT = 0.25  # share of the new programs that stays allowed, however bad they look
_REFERENCE = 256  # random programs that represent the space
_STEPS = 50


class FailureModel:
    """A score function that avoids programs that probably fail, learned by design space."""

    def __init__(
        self, history: History, score: ScoreFunction, affordable: int | None = None
    ) -> None:
        """`history`: that of the task, read again at every fit; `affordable`: of its space."""
        self.score = score
        self._num_reference = min(_REFERENCE, affordable or _REFERENCE)
        self._history, self._fitted = history, 0  # _fitted: programs of the history at the last fit
        self._models: dict[int, _Logistic] = {}
        self._reference: Decisions | None = None
        # of the probability; None: not computed since the last fit
        self._limit: float | None = None

    @property
    def failures(self) -> int:
        """Number of programs that failed; untried programs do not count."""
        return int((self._history.tried & ~np.isfinite(self._history.latency_s)).sum())

    def _fit(self) -> None:
        known = self._history
        if len(known) == self._fitted:
            return
        failed = ~np.isfinite(known.latency_s)
        # Untried programs (no device, no worker) say nothing about themselves and are left out.
        numbers = np.where(known.tried, known.decisions[:, 0], -1)
        for number in np.unique(numbers[self._fitted :]).tolist():
            mine = numbers == number
            if number >= 0 and failed[mine].any():
                self._models[number] = _Logistic(known.decisions[mine], failed[mine])
        self._fitted, self._limit = len(known), None

    def probability(self, decisions: Decisions) -> Floats:
        """Estimated probability [N] of failure; 0 in spaces without failures."""
        self._fit()
        out = np.zeros(len(decisions))
        for number, model in self._models.items():
            mine = decisions[:, 0] == number
            out[mine] = model.probability(decisions[mine])
        return out

    def __call__(self, decisions: Decisions) -> Scores:
        """Scores [N]; minus infinity for probable failures, save the least probable quarter."""
        scores = self.score(decisions)
        if not self.failures:
            return scores
        self._fit()
        if self._limit is None:
            self._limit = self._fair_limit()
        return np.where(self.probability(decisions) <= self._limit, scores, -np.inf)

    def _fair_limit(self) -> float:
        """Limit of the probability, from random programs without the tried programs."""
        if self._reference is None:
            # A fixed seed and one sample: the limit moves with the model, not with the draw.
            rng = np.random.default_rng(20250330)
            self._reference = self._history.space.sample(self._num_reference, rng)
        keys = self._history.space.keys(self._reference)
        new = ~np.isin(keys, self._history.keys[self._history.tried])
        risk = self.probability(self._reference[new] if new.any() else self._reference)
        # The quantile raises the limit where nearly everything fails, so that the search can go on.
        return max(_LIKELY, float(np.quantile(risk, _LEFT)))


class _Logistic:
    """Logistic regression: the most probable weights, by Newton's method."""

    def __init__(self, decisions: Decisions, failed: Mask) -> None:
        logs = np.log2(1.0 + np.abs(decisions))
        self._center, spread = logs.mean(axis=0), logs.std(axis=0)
        self._scale = np.where(spread > 0, spread, 1.0)
        self._values = [np.unique(slot) for slot in decisions.T]
        self._weight = _newton(self._columns(decisions), failed.astype(float))

    def probability(self, decisions: Decisions) -> Floats:
        return _sigmoid(_PRIOR_LOG_ODDS + self._columns(decisions) @ self._weight)

    def _columns(self, decisions: Decisions) -> Floats:
        """Columns [N, c]: a constant, scaled logarithms of slots, and equal values."""
        # So the spread of all slots together is the same for any number of them.
        each = _SLOTS_SPREAD / np.sqrt(2 * decisions.shape[1])
        logs = (np.log2(1.0 + np.abs(decisions)) - self._center) / self._scale
        same = [
            slot[:, None] == values for slot, values in zip(decisions.T, self._values, strict=True)
        ]
        common = np.full((len(decisions), 1), _COMMON_SPREAD)
        return np.concatenate([common, each * logs, each * np.concatenate(same, axis=1)], axis=1)


def _newton(columns: Floats, failed: Floats) -> Floats:
    """Weights with the largest posterior density under a standard normal prior."""

    def loss(weight: Floats) -> float:
        odds = _PRIOR_LOG_ODDS + columns @ weight
        return float((np.logaddexp(0, odds) - failed * odds).sum() + weight @ weight / 2)

    weight = np.zeros(columns.shape[1])
    for _ in range(_STEPS):
        chance = _sigmoid(_PRIOR_LOG_ODDS + columns @ weight)
        slope = columns.T @ (chance - failed) + weight
        curve = (columns.T * (chance * (1 - chance))) @ columns + np.eye(len(weight))
        # The prior makes the loss strictly convex; halving the step makes Newton's descent certain
        # even where the failures are separable.
        step, size = np.linalg.solve(curve, slope), 1.0
        while loss(weight - size * step) > loss(weight) and size > 1e-6:
            size /= 2
        weight = weight - size * step
        if size * np.abs(step).max() < 1e-8:
            break
    return weight


def _sigmoid(odds: Floats) -> Floats:
    return np.exp(-np.logaddexp(0, -odds))
