"""How work tells its caller what it does; who prints it, and where, is the caller's business."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

_Item = TypeVar("_Item")
Tell = Callable[[str], None]


class Track(Protocol):
    """Passes `total` items on while it shows how many have gone by."""

    def __call__(self, items: Iterable[_Item], what: str, total: int) -> Iterator[_Item]:
        """The same items."""


def silent(_: object) -> None:
    """Tell nobody."""


def pass_on(items: Iterable[_Item], what: str, total: int) -> Iterator[_Item]:
    """The items, without a display."""
    return iter(items)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Lines and counts for people; silent by default."""

    tell: Tell = silent
    track: Track = pass_on
