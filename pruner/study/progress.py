"""How a study tells its caller what it does: nothing is printed in this room."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

Item = TypeVar("Item")
Tell = Callable[[str], None]


class Track(Protocol):
    """Passes `total` items on while it shows how many have gone by."""

    def __call__(self, items: Iterable[Item], what: str, total: int) -> Iterator[Item]:
        """The same items."""


def silent(line: str) -> None:
    """Tell nobody."""


def pass_on(items: Iterable[Item], what: str, total: int) -> Iterator[Item]:
    """The items, without a display."""
    return iter(items)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Lines and counts for people; silent by default."""

    tell: Tell = silent
    track: Track = pass_on
