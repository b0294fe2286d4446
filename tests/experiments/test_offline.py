"""The offline item trains as published where it says so, and every seed has a model of its own."""

from types import SimpleNamespace

import pytest
import torch

from pruner.cli.shared.recipe_options import recipe_of
from pruner.models.training.recipe import Recipe
from tests.cli.test_paper_presets import composed


def items(recipe):
    (group,) = recipe.optimizer([torch.zeros(1, requires_grad=True)]).param_groups
    return {
        "loss": (type(recipe.loss), recipe.loss.lists),
        "optimizer": (group["lr"], group["weight_decay"]),
        "schedule": recipe.schedule,
        "batches": (type(recipe.batches), recipe.batches.programs),
        "inputs": (recipe.relative, recipe.scale),
        "kept": (recipe.keep, recipe.patience, recipe.epochs),
        "clip": recipe.trainer["gradient_clip_val"],
    }


def test_the_published_recipe_is_that_of_the_twin(script):
    ours = Recipe(**script("offline")["PUBLISHED"])
    assert items(ours) == items(recipe_of(composed("train", "paper_training")))


def test_a_model_a_seed_and_one_for_those_that_share_it(script, tmp_path):
    offline, made = script("offline"), []
    options = offline["Options"](data=offline["Data"](root=str(tmp_path)), runs=str(tmp_path))
    models = offline["Models"](ground=SimpleNamespace(), options=options)
    offline["Models"]._make = lambda _, name, recipe, seed: made.append((name, seed)) or object()
    ways = offline["ways"]("ours")
    first = models.ranker("pruner_offline", ways["pruner_offline"], 0)
    assert models.ranker("ours_offline", ways["ours_offline"], 0) is first
    assert models.ranker("pruner_offline", ways["pruner_offline"], 1) is not first
    assert made == [("pruner_offline", 0), ("pruner_offline", 1)]


def test_an_unknown_recipe_is_refused(script):
    with pytest.raises(Exception, match="recipe=theirs is unknown"):
        script("offline")["ways"]("theirs")
