"""Faithful presets: each item of the paper or its release that a twin has, and that it runs.

The right-hand sides are docs/paper.md's (sections 4.2 to 4.6 and 5), written out here.
"""

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from pruner.cli.adapt import known_methods
from pruner.cli.shared.options import build, check_options, plain
from pruner.cli.shared.training import recipe_of
from pruner.features.columns import DATAFLOW_COLUMNS
from pruner.features.dataflow import NUM_ROWS
from pruner.models.adaptation.base import Setting
from pruner.models.checkpoint.checkpoint import load_checkpoint
from pruner.models.networks.pacm import PaCM
from pruner.models.programs.batch import NUM_STATEMENT_COLUMNS
from pruner.models.programs.scaler import ColumnScaler
from pruner.models.ranker import NeuralRanker
from pruner.models.training.fit import TRAINER
from pruner.study.adaptation.bench import Budget
from tests.places import CONF

TWINS = {
    "train": ["paper_training", "paper_training_release", "paper_finetuning", "ours_training"],
    "adapt": ["paper_adaptation", "ours_adaptation"],
}


def test_every_twin_is_compared_here():
    there = {path.stem for path in (CONF / "experiment").glob("*.yaml")}
    named = {name for names in TWINS.values() for name in names}
    assert {name for name in there if name.startswith(("paper_", "ours_"))} == named


def composed(command, experiment, *options):
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose(command, overrides=[f"experiment={experiment}", *options])
    check_options(config)
    return config


def network_items(config):
    """Section 4.1 to 4.4: sizes."""
    network = recipe_of(config).model()
    return {
        "rows": network.num_dataflow_rows,
        "rows of features": NUM_ROWS[config.features.dataflow],
        "dataflow columns": len(DATAFLOW_COLUMNS),
        "statement columns": NUM_STATEMENT_COLUMNS,
        "parameters": sum(value.numel() for value in network.parameters()),
        "statement encoder": [m.out_features for m in linear(network.statement_encoder)],
        "dataflow encoder": [m.out_features for m in linear(network.dataflow_encoder)],
        "heads": network.attention.num_heads,
        "normalised by": plain(config.model).get("norm_statistics", "running"),
    }


def linear(module):
    return [part for part in module.modules() if isinstance(part, torch.nn.Linear)]


def recipe_items(config):
    """Sections 4.3, 4.5, 4.6: inputs, loss, optimiser, epochs, what is kept."""
    recipe = recipe_of(config)
    optimizer = recipe.optimizer([torch.zeros(1, requires_grad=True)])
    (group,) = optimizer.param_groups
    return {
        "inputs": "absolute" if not recipe.relative else "relative",
        "divided by": recipe.scale,
        "loss": type(recipe.loss).__name__,
        "lists": recipe.loss.lists,
        "batch": (type(recipe.batches).__name__, recipe.batches.programs),
        "optimizer": type(optimizer).__name__,
        "rate": group["lr"],
        "decay": group["weight_decay"],
        "momentum": group.get("momentum", 0),
        "schedule": recipe.schedule,
        "clip": recipe.trainer["gradient_clip_val"],
        "epochs": recipe.epochs,
        "kept": recipe.keep,
        "early stop": recipe.patience,
        "seed": recipe.seed,
    }


RELEASE = {
    "inputs": "absolute",  # 4.3: raw columns ...
    "divided by": "max",  # ... divided by their maximum over the training set
    "loss": "LambdaRank",  # 4.5
    "lists": "batch",  # 4.5: the whole batch as one list, mixing tasks
    "batch": ("MixedBatches", 512),  # 4.6
    "optimizer": "Adam",
    "rate": 7e-4,
    "decay": 1e-6,
    "momentum": 0,
    "schedule": None,  # 4.6: no decay at 50 epochs
    "clip": 0.5,
    "epochs": 50,
    "kept": "last",  # 4.6, 9 #12: the last, not the best, weights
    "early stop": 50 // 3,  # 16 epochs of the training loss
    "seed": 0,
}


@pytest.mark.parametrize("name", ["paper_training", "paper_training_release"])
def test_the_training_twins_train_as_the_release_does(name):
    assert recipe_items(composed("train", name)) == RELEASE


@pytest.mark.parametrize(
    ("name", "rows", "normalised"),
    [("paper_training", 10, "running"), ("paper_training_release", 8, "batch")],
)
def test_the_training_twins_have_the_published_network(name, rows, normalised):
    found = network_items(composed("train", name))
    assert found == {
        "rows": rows,  # 4.2: 10 x 23 in the paper, 8 x 23 in the code
        "rows of features": rows,
        "dataflow columns": 23,
        "statement columns": 174,  # 4.1: 164 + 10
        "parameters": 417_409,  # 4.4
        "statement encoder": [256, 256],
        "dataflow encoder": [64, 128],
        "heads": 4,
        "normalised by": normalised,  # 9 #9: the release scores by the statistics of the candidates
    }
    assert (
        PaCM().state_dict().keys() == recipe_of(composed("train", name)).model().state_dict().keys()
    )


def test_the_fine_tuning_twin_is_the_release_s():
    """4.6: SGD 7e-4, no momentum, no decay, batch 512, 50 epochs, no clipping, vectors kept."""
    config = composed("train", "paper_finetuning")
    changes = {"optimizer": "SGD", "decay": 0, "clip": None}
    assert recipe_items(config) == {**RELEASE, **changes}
    assert config.scaler == "keep"


def test_our_twin_is_the_default():
    GlobalHydra.instance().clear()
    ours = plain(composed("train", "ours_training"))
    with initialize_config_dir(str(CONF), version_base="1.3"):
        assert plain(compose("train")) == ours
    assert recipe_of(composed("train", "ours_training")).trainer == TRAINER


def made(config, name):
    ranker = NeuralRanker(PaCM(num_dataflow_rows=8), ColumnScaler())
    methods = known_methods(plain(config.variants))
    return build(methods[name], setting=Setting(make_network=PaCM, source=ranker))


@pytest.mark.parametrize(
    ("name", "period", "normalisation"),
    [("moa_official", 4, "online"), ("moa_paper", 1, "source")],
)
def test_the_adaptation_twins_fit_as_published(name, period, normalisation):
    """Section 5: momentum 0.99, every 4th update or every one, fits of 50 epochs of Adam."""
    config = composed("adapt", "paper_adaptation")
    assert set(config.method) == {"none", "finetune_official", "moa_official", "moa_paper"}
    adaptation = made(config, name)
    assert adaptation.momentum == 0.99
    assert (adaptation.period, adaptation.normalisation) == (period, normalisation)
    assert not adaptation.average_buffers  # parameters only, BN buffers never
    fit = adaptation.fit
    (group,) = fit.optimizer([torch.zeros(1, requires_grad=True)]).param_groups
    found = (fit.epochs, fit.max_steps, fit.batches.programs, fit.loss.lists, fit.clip)
    assert found == (50, None, 512, "batch", 0.5)
    assert (group["lr"], group["weight_decay"]) == (7e-4, 1e-6)
    budget = Budget(**plain(config.budget))
    assert (budget.trials, budget.batch, budget.max_steps) == (2000, 10, None)  # 200 rounds of 10
    assert {**recipe_items(config)} == RELEASE  # of the source model
    assert config.features.dataflow == "official"


def test_the_released_fine_tuning_of_a_round():
    adaptation = made(composed("adapt", "paper_adaptation"), "finetune_official")
    optimizer = adaptation.fit.optimizer([torch.zeros(1, requires_grad=True)])
    (group,) = optimizer.param_groups
    assert type(optimizer).__name__ == "SGD"
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (7e-4, 0, 0)
    assert (adaptation.fit.epochs, adaptation.fit.max_steps, adaptation.fit.clip) == (
        50,
        None,
        None,
    )


def test_our_adaptation_twin_is_the_default_but_for_its_methods():
    GlobalHydra.instance().clear()
    ours = plain(composed("adapt", "ours_adaptation", "source=a", "target=b"))
    assert ours.pop("method") == ["none", "finetune", "distill", "moa"]
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        default = plain(compose("adapt", ["source=a", "target=b"]))
    assert default.pop("method") == "moa"
    assert default == ours


def test_the_training_twins_run_and_the_fine_tuning_goes_on(command, toy_root):
    options = (f"data.root={toy_root}", "trainer.max_epochs=2", "trainer.accelerator=cpu")
    code, first, err = command(
        "train", "experiment=paper_training_release", "platform=k80", *options
    )
    assert code == 0, err
    given = f"checkpoint={first['checkpoint']}"
    code, second, err = command(
        "train", "experiment=paper_finetuning", "platform=v100", given, *options
    )
    assert code == 0, err
    (old, about), (new, info) = (_load(run) for run in (first, second))
    assert (about.dataflow, info.dataflow) == ("official", "official")
    assert about.metrics["epoch"] == 1  # the last of two
    assert torch.equal(old.scaler.statement_scale, new.scaler.statement_scale)
    assert set(info.seen_tasks) == {"k80", "v100"}


def _load(result):
    from pathlib import Path

    return load_checkpoint(Path(result["checkpoint"]))
