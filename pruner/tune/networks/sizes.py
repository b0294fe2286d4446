"""The sizes of a network that a user may set."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """Sizes of inputs and number of layers; None: the network's own."""

    batch: int = 1
    image: int | None = None
    length: int | None = None
    layers: int | None = None

    @property
    def given(self) -> list[str]:
        """List the sizes that are set, except the batch of every network."""
        return [name for name in ("image", "length", "layers") if getattr(self, name) is not None]
