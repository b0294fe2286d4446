"""What the fits of a run say together."""

from functools import partial

import pytest
import torch

from pruner.data.splits import TaskSplit
from pruner.errors import PrunerError
from pruner.models.networks.mlp import TenSetMLP
from pruner.models.training.recipe import Recipe
from pruner.study.training_run import AVERAGED, NETWORK_MEANS, Fold, run_fold, summarise
from tests.models import synthetic

SPLIT = TaskSplit(name="by_network", seed=0, train=(), valid=(), test=())


def summary(tmp_path, *fits):
    parts = [
        Fold(name=f"seed-{seed}", folder=tmp_path / str(seed), split=SPLIT, seed=seed)
        for seed in range(len(fits))
    ]
    numbers = dict.fromkeys(AVERAGED, 0.5) | {"best_k": {}}
    results = {part.name: numbers | fit for part, fit in zip(parts, fits, strict=True)}
    return summarise(parts, results, transfer=False)


def fit(value, chance, networks=5):
    means = dict.fromkeys(NETWORK_MEANS, value)
    random = {"top1": 0.1, "top1_network_mean": chance, "top5_network_mean": chance}
    return means | {"random": random, "num_networks": networks}


def test_means_over_networks_are_averaged_over_seeds_where_there_are_any(tmp_path):
    found = summary(tmp_path, fit(0.8, 0.2), fit(0.6, 0.4))
    assert found["top1_network_mean"] == pytest.approx(0.7)
    assert found["spread"]["top5_network_mean"] == pytest.approx(0.2 / 2**0.5)
    assert found["random"]["top1_network_mean"] == pytest.approx(0.3)
    assert found["num_networks"] == 5
    assert found["parts"]["seed-1"]["top1_network_mean"] == 0.6
    found = summary(tmp_path, {"random": {"top1": 0.1}}, {"random": {"top1": 0.3}})
    assert found["top1"] == 0.5
    assert found["random"] == {"top1": pytest.approx(0.2)}
    assert not [name for name in found if "network" in name]


def test_a_fit_that_never_had_finite_scores_leaves_no_model(tmp_path):
    store = synthetic.store()
    split = TaskSplit(name="x", seed=0, train=store.keys[:-1], valid=store.keys[-1:], test=())
    part = Fold(name="seed-0", folder=tmp_path, split=split, seed=0)
    recipe = Recipe(
        model=TenSetMLP,
        epochs=2,
        optimizer=partial(torch.optim.SGD, lr=1e30),
        trainer={"accelerator": "cpu"},
    )
    with pytest.raises(PrunerError, match="diverged after epoch 1"):
        run_fold(recipe, store, part)
    assert not list(tmp_path.iterdir())  # neither a model nor results nor an epoch to go on from
