"""Report progress to the caller, which decides how to show it."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

_Item = TypeVar("_Item")
Log = Callable[[str], None]


class Tracker(Protocol):
    """Passes `total` items on while showing their number."""

    def __call__(self, items: Iterable[_Item], what: str, total: int) -> Iterator[_Item]:
        """Return the same items."""


def silent(*_: object) -> None:
    """Discard a line."""


def pass_on(items: Iterable[_Item], what: str, total: int) -> Iterator[_Item]:
    """Return the items, without a display."""
    return iter(items)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Lines and counts for people; silent by default."""

    log: Log = silent
    track: Tracker = pass_on
