"""Select scored programs: the best, apart from each other, some at random.

* *apart*: maximal marginal relevance (Carbonell and Goldstein, SIGIR 1998), because the first
  programs of a draft are near-copies. The next program has the largest ``score - apart *
  likeness``; its likeness is the largest share of decisions that it has in common with a
  program already selected;
* *noise*: the score's own error (log seconds). Programs left out that score less than that below
  the last selected score are indistinguishable from it; their share of all that are left out is
  the share of places that are filled at random.
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
    beside: Decisions | None = None,
) -> Ints:
    """Positions of at most `num` selected programs, in the order of selection.

    ``beside``: programs selected earlier, from which these lie `apart` (needs `decisions`), too.
    Random programs (`noise`, which alone uses `rng`) come last. Minus infinity: never.
    """
    legal = np.flatnonzero(np.isfinite(score))
    order = legal[np.argsort(-score[legal], kind="stable")]
    # Before any use of `rng`: the default selection must not move the random stream of the search.
    if len(order) <= num or not (apart or noise):
        return order[:num]
    by_chance = round(num * flat_share(score[order], num, noise)) if noise else 0
    first = order[: num - by_chance]
    if apart and decisions is not None:
        first = _apart(score, decisions, order, num - by_chance, apart, beside)
    if not by_chance:
        return first
    others = order[~np.isin(order, first)]
    return np.concatenate([first, rng.choice(others, by_chance, replace=False)])


def flat_share(score: Scores, num: int, noise: float) -> float:
    """Share of the programs left out within `noise` of the last selected.

    `score` is in descending order and longer than `num`.

    >>> flat_share(np.array([0.0, -1.0, -1.2, -1.4, -3.0]), 2, noise=0.3)
    0.3333333333333333
    """
    return float(np.mean(score[num:] > score[num - 1] - noise))


def _apart(
    score: Scores,
    decisions: Decisions,
    order: Ints,
    num: int,
    apart: float,
    beside: Decisions | None,
) -> Ints:
    """The first `num` programs by score less `apart` times the likeness."""
    rows, value = decisions[order], score[order].astype(np.float64)
    likeness = np.zeros(len(order))
    for other in () if beside is None else beside:
        np.maximum(likeness, (rows == other).mean(axis=1), out=likeness)
    left = np.ones(len(order), bool)
    picked = np.empty(num, np.int64)
    for place in range(num):
        best = int(np.argmax(np.where(left, value - apart * likeness, -np.inf)))
        picked[place], left[best] = best, False
        # A running maximum: one comparison with the newest program instead of all selected pairs.
        np.maximum(likeness, (rows == rows[best]).mean(axis=1), out=likeness)
    return order[picked]
