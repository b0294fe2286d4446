"""Sizes that a network may be asked for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """Sizes of the inputs, and how many layers; None: the network's own."""

    batch: int = 1
    image: int | None = None
    length: int | None = None
    layers: int | None = None

    @property
    def given(self) -> list[str]:
        """Names of those that are asked for, the batch aside, which every network has."""
        return [name for name in ("image", "length", "layers") if getattr(self, name) is not None]
