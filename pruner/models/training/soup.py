"""Average the weights of several fits from one model.

Model soups (Wortsman et al., ICML 2022): fits that continue from the same weights with other seeds
end in one basin of the loss, where the mean of their weights is as good as an ensemble of them and
costs a single model. Fits from different random weights do not, so the members begin where a first
fit ended. The greedy recipe (their Recipe 1): members in the order of their validation metric, the
best first; each stays only where the mean with it is no worse. So on validation tasks the soup is
never worse than its best member.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

_Part = TypeVar("_Part")


def greedy(
    members: Sequence[_Part],
    value: Callable[[Sequence[_Part]], float],
) -> tuple[list[_Part], float]:
    """The members that stay, and the value of their mean.

    ``value`` judges a mean of members.

    >>> greedy([1.0, 4.0, 2.0], lambda parts: -abs(sum(parts) / len(parts) - 2.5))
    ([2.0, 4.0], -0.5)
    """
    alone = [value([member]) for member in members]
    # Stable: of equal members the first fit stays before its successors.
    order = sorted(range(len(members)), key=lambda number: -alone[number])
    kept, best = [members[order[0]]], alone[order[0]]
    for number in order[1:]:
        found = value([*kept, members[number]])
        if found >= best:
            kept, best = [*kept, members[number]], found
    return kept, best
