"""Models by name: the closed table for reading checkpoints.

A checkpoint holds the name of a class and its arguments. The name is looked up here (or among
classes that the caller hands over), so that data never imports code, and a module that moves breaks
no checkpoint.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pruner.errors import DataError, PrunerError
from pruner.models.model import RankingNetwork
from pruner.models.networks.hardware_attention import HardwareAttention
from pruner.models.networks.mlp import TenSetMLP
from pruner.models.networks.pacm import PaCM
from pruner.models.networks.tlp import TLP
from pruner.models.trees.lightgbm import LightGBMRanker
from pruner.models.trees.xgboost import TreeRanker, XGBoostRanker

Trainable = RankingNetwork | TreeRanker
ModelFactory = Callable[[], Trainable]  # a class, or a `functools.partial` of one
ModelTable = Mapping[str, type[Trainable]]
MODELS: ModelTable = {
    model.__name__: model
    for model in (PaCM, TenSetMLP, TLP, HardwareAttention, XGBoostRanker, LightGBMRanker)
}


def models_with(own: Sequence[type[Trainable]]) -> dict[str, type[Trainable]]:
    """The table with a user's classes; raises PrunerError where a name is taken."""
    table = dict(MODELS)
    for model in own:
        if table.setdefault(model.__name__, model) is not model:
            raise PrunerError(f"{model.__module__}.{model.__name__}: the name is taken; rename it")
    return table


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model to construct: the name of its class and keyword arguments."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(factory: Any) -> "ModelSpec":
        """The spec of a class or a partial; raises PrunerError for other callables."""
        arguments: dict[str, Any] = {}
        if isinstance(factory, partial):
            factory, positional, arguments = factory.func, factory.args, dict(factory.keywords)
            if positional:
                raise PrunerError(f"{factory}: give the arguments of a model by keyword")
        if not isinstance(factory, type):
            raise PrunerError(f"{factory}: a model is a class or a functools.partial of a class")
        return ModelSpec(name=factory.__name__, arguments=arguments)

    @staticmethod
    def from_content(content: Mapping[str, Any]) -> "ModelSpec":
        """The spec in a checkpoint's content; format 1 holds a dotted path."""
        if "_target_" not in content:
            return ModelSpec(name=str(content["name"]), arguments=dict(content["arguments"]))
        arguments = {key: value for key, value in content.items() if key != "_target_"}
        return ModelSpec(name=str(content["_target_"]).rpartition(".")[2], arguments=arguments)

    def build(self, models: ModelTable = MODELS) -> Trainable:
        """Construct the model; raises DataError for a name outside `models`."""
        if self.name not in models:
            raise DataError(
                f"the checkpoint holds a {self.name}, which is not among {', '.join(models)}; "
                "give a class of your own with models.own=[package.module.Class]"
            )
        return models[self.name](**self.arguments)
