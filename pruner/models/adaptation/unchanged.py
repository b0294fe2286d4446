"""No adaptation: the source model as it is."""

from pruner.models.adaptation.base import Adaptation
from pruner.models.programs.store import ProgramStore


class Unchanged(Adaptation):
    """Score with the source model for ever (``pam-no-update`` of the release).

    The row that says what adaptation is worth. The centres of tasks become known as in
    the other methods, so that weights alone make the difference. Without
    a source model its scores mean nothing.
    """

    def _update(self, store: ProgramStore) -> None:
        pass
