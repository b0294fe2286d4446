"""Which of many scored programs are kept: the best, kept apart from each other, some by chance.

A draft ranks by formulas that are wrong in their own ways: its first programs are near-copies of
one favourite, and where it is mistaken, all of them are. Among programs that are all good its
differences mean little. Two answers, both off by default:

* *apart*: maximal marginal relevance (Carbonell and Goldstein, SIGIR 1998). The next program is the
  one of the best ``score - apart * likeness``, where likeness is the share of decisions that it has
  in common with the most alike of those already kept;
* *noise*: the score's own error, in its units (log seconds). Programs left out whose scores are
  less than that below the last one kept cannot be told from it; as large as their share of all
  that are left out is the share of places that chance gives away. Where everything is within the
  noise, chance decides alone, so the draft is no worse than it.
"""

from __future__ import annotations

import numpy as np

from pruner.arrays import Decisions, Ints, Scores


def kept(
    score: Scores,
    num: int,
    *,
    rng: np.random.Generator,
    decisions: Decisions | None = None,
    apart: float = 0.0,
    noise: float = 0.0,
) -> Ints:
    """Positions of at most `num` programs in the order in which they are picked.

    Scores of minus infinity are never kept. With neither `apart` (which needs `decisions`) nor
    `noise` these are the best, ties in their order. Chance's come last. `rng` is asked only where
    there is noise.
    """
    legal = np.flatnonzero(np.isfinite(score))
    order = legal[np.argsort(-score[legal], kind="stable")]
    if len(order) <= num or not (apart or noise):
        return order[:num]
    by_chance = round(num * flat_share(score[order], num, noise)) if noise else 0
    first = order[: num - by_chance]
    if apart and decisions is not None:
        first = _apart(score, decisions, order, num - by_chance, apart)
    if not by_chance:
        return first
    others = order[~np.isin(order, first)]
    return np.concatenate([first, rng.choice(others, by_chance, replace=False)])


def flat_share(score: Scores, num: int, noise: float) -> float:
    """Share of the programs left out whose score is less than `noise` below the last one kept.

    `score` in descending order, more than `num` of them.

    >>> flat_share(np.array([0.0, -1.0, -1.2, -1.4, -3.0]), 2, noise=0.3)
    0.3333333333333333
    """
    return float(np.mean(score[num:] > score[num - 1] - noise))


def _apart(score: Scores, decisions: Decisions, order: Ints, num: int, apart: float) -> Ints:
    """The first `num` by score less `apart` times the likeness to those picked before."""
    rows, value = decisions[order], score[order].astype(np.float64)
    likeness = np.zeros(len(order))
    left = np.ones(len(order), bool)
    picked = np.empty(num, np.int64)
    for place in range(num):
        best = int(np.argmax(np.where(left, value - apart * likeness, -np.inf)))
        picked[place], left[best] = best, False
        np.maximum(likeness, (rows == rows[best]).mean(axis=1), out=likeness)
    return order[picked]
