"""Every model there is, found by itself: classes of the table, choices of ``conf/model``."""

import importlib
import inspect
import pkgutil
from functools import partial

from pruner.cli.shared.known import chosen
from pruner.cli.shared.options import plain
from pruner.models.model import RankingNetwork
from pruner.models.registry import MODELS, ModelSpec
from pruner.models.trees.xgboost import TreeRanker
from tests.paths import CONF

# What a class needs to learn from the dozen programs of a test, where its defaults need more.
FEW_PROGRAMS = {"LightGBMRanker": {"min_data_in_leaf": 1}}


def choices():
    """Name of every file of conf/model that learns -> its class and arguments."""
    found = {}
    for path in sorted((CONF / "model").glob("*.yaml")):
        spec = ModelSpec.from_content(plain(chosen("model", path.stem)))
        if spec.name in MODELS:
            found[path.stem] = spec
    return found


def networks():
    """Name -> constructor of every network of conf/model that reads ten dataflow rows or none."""
    makers = {
        name: partial(MODELS[spec.name], **spec.arguments)
        for name, spec in choices().items()
        if MODELS[spec.name].is_network
    }
    return {name: make for name, make in makers.items() if make().num_dataflow_rows in (None, 10)}


def network_classes():
    return [model for model in MODELS.values() if model.is_network]


def specs():
    return {name: ModelSpec(name=name, arguments=FEW_PROGRAMS.get(name, {})) for name in MODELS}


def concrete_classes():
    """Every model class below pruner.models.networks and pruner.models.trees."""
    found = set()
    for package in ("networks", "trees"):
        folder = importlib.import_module(f"pruner.models.{package}")
        for module in pkgutil.iter_modules(folder.__path__, f"{folder.__name__}."):
            for _, member in inspect.getmembers(importlib.import_module(module.name)):
                is_model = inspect.isclass(member) and issubclass(
                    member, RankingNetwork | TreeRanker
                )
                if is_model and member is not RankingNetwork and not inspect.isabstract(member):
                    found.add(member)
    return found
