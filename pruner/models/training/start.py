"""The start of a continued fit: model, normalisation and seen tasks."""

from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from pruner.data.splits import TaskSplit
from pruner.errors import DataError
from pruner.features.dataflow import NUM_ROWS
from pruner.models.checkpoint.checkpoint import CheckpointInfo
from pruner.models.model import RankingNetwork
from pruner.models.programs.program_table import ProgramTable
from pruner.models.programs.scaler import ColumnScaler
from pruner.models.ranker import NeuralRanker
from pruner.models.training.recipe import Recipe

Scaling = Literal["keep", "renew"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A trained network that a fit continues; it is copied, never changed.

    `inherited` has the fields of a :class:`CheckpointInfo` that the next model takes over.
    `scaling`: "keep" the column statistics that its weights learned with (as the release does when
    it fine-tunes), or "renew" them from the new training programs.
    """

    ranker: NeuralRanker
    info: CheckpointInfo
    inherited: dict[str, Any] = field(default_factory=dict)
    scaling: Scaling = "keep"

    @property
    def scale(self) -> Literal["standard", "max"]:
        """The kind of its normalisation."""
        return "standard" if self.ranker.scaler.is_standard else "max"

    def recipe(self, recipe: Recipe) -> Recipe:
        """The recipe with the model and the inputs that the weights need."""
        # The weights fix architecture and inputs; loss, batches and optimiser stay the recipe's.
        model = partial(type(self.ranker.network), **self.info.model.arguments)
        return replace(recipe, model=model, relative=self.ranker.relative, scale=self.scale)

    def check(self, programs: ProgramTable) -> None:
        """Raise DataError where programs have another number of dataflow rows."""
        wanted = NUM_ROWS[self.info.dataflow]
        if programs.num_dataflow_rows != wanted:
            raise DataError(
                f"the checkpoint learned with {wanted} dataflow rows, these programs have "
                f"{programs.num_dataflow_rows}; features.dataflow={self.info.dataflow} makes them"
            )

    def network(self) -> RankingNetwork:
        """A copy of the network in training mode, which Lightning leaves as it is."""
        return deepcopy(self.ranker.network).train()

    def scaler(self, fresh: ColumnScaler) -> ColumnScaler:
        """The normalisation of the fit; `fresh` has the new programs' statistics."""
        return deepcopy(self.ranker.scaler).train() if self.scaling == "keep" else fresh

    def unseen(self, split: TaskSplit) -> TaskSplit:
        """The split without test tasks whose work the model has seen.

        Work on any platform counts. A split by rows stays as it is: it has every task on every
        side.
        """
        if split.by_rows:
            return split
        test = tuple(key for key in split.test if not self.info.has_seen_work(key))
        return replace(split, test=test)
