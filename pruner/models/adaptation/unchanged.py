"""No adaptation: the source model as it is."""

from pruner.models.adaptation.base import Adaptation
from pruner.models.store import ProgramStore


class Unchanged(Adaptation):
    """Score with the source model for ever (``pam-no-update`` of the release).

    The row that says what adaptation is worth. Only the centres of the tasks become known. Without
    a source model its scores mean nothing.
    """

    def _update(self, store: ProgramStore) -> None:
        pass
