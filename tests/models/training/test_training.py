import signal
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.callbacks import Callback

from pruner.errors import PrunerError
from pruner.models.adaptation.fitting import Example, OnlineFit
from pruner.models.judging import metrics
from pruner.models.networks.mlp import TenSetMLP
from pruner.models.networks.pacm import PaCM
from pruner.models.ranker import NeuralRanker
from pruner.models.training.lit import RankingModule
from pruner.models.training.losses import LambdaRank, ListNet, MeanSquare, RankNet
from pruner.models.training.recipe import Recipe
from pruner.models.training.sampler import MixedBatches, TaskBatches
from pruner.models.training.training import (
    KeepBest,
    StopFlat,
    are_flushed,
    build_network,
    fit_network,
)
from pruner.models.trees.lightgbm import LightGBMRanker, queries
from pruner.models.trees.xgboost import XGBoostRanker
from tests.models import synthetic, zoo


def fit(tmp_path, store, *, batches=None, epochs=6, lr=7e-4, **kwargs):
    everything = torch.arange(store.num_programs)
    ranker = NeuralRanker(build_network(PaCM, 0), store.fit_scaler(everything))
    trainer = {
        "accelerator": "cpu",
        "check_val_every_n_epoch": kwargs.pop("validate_every", 1),
        "max_steps": kwargs.pop("max_steps", -1),
    }
    recipe = Recipe(
        optimizer=partial(torch.optim.Adam, lr=lr),
        batches=batches or TaskBatches(tasks=2, programs=8),
        monitor="valid/pairwise_accuracy",
        epochs=epochs,
        trainer=trainer,
        average_epochs=kwargs.pop("average_epochs", 0),
    )
    module = RankingModule(ranker, recipe, store, {"train": everything, "valid": everything})
    saved = []
    result = fit_network(module, folder=tmp_path, save_best=saved.append, **kwargs)
    return module, result, saved


SLOW = pytest.mark.slow
MIXED = pytest.param(MixedBatches(programs=16), marks=SLOW)
LOSSES = [LambdaRank, RankNet, ListNet, MeanSquare]
# every network, and every loss: the other pairs are slow
PAIRS = [
    pytest.param(one, loss, marks=() if TenSetMLP is one or LambdaRank is loss else SLOW)
    for one in zoo.network_classes()
    for loss in LOSSES
]


@pytest.mark.parametrize(("network", "loss"), PAIRS)
def test_every_network_and_loss_overfits_a_dozen_programs(network, loss):
    """By the plain loop, at a third of the cost of Lightning's, which the next test is of."""
    store = synthetic.store(sizes=(12,))
    everything = torch.arange(12)
    ranker = NeuralRanker(build_network(network, 0), store.fit_scaler(everything))
    example = Example.of(store, ranker, everything)
    for lr, steps in ((3e-3, 40), (3e-4, 20)):
        plain_fit = OnlineFit(
            epochs=steps,
            max_steps=None,
            batches=TaskBatches(tasks=1, programs=12),
            loss=loss(),
            optimizer=partial(torch.optim.Adam, lr=lr),
        )
        plain_fit(ranker.network, example, seed=0)
    overfitted(ranker, store)


def test_a_fit_overfits_a_dozen_programs(tmp_path):
    store = synthetic.store(sizes=(12,))
    batches = TaskBatches(tasks=1, programs=12)
    module, _, _ = fit(tmp_path, store, batches=batches, epochs=40, lr=5e-3, validate_every=40)
    overfitted(module.ranker, store)


def overfitted(ranker, store):
    scored = ranker.score_tasks(store, torch.arange(12))
    assert metrics.top_k(scored, 1) > 0.99
    assert metrics.pairwise_accuracy(scored) > 0.9


TREES = [
    (XGBoostRanker, {"objective": "rank:pairwise", "min_child_weight": 0}),
    (XGBoostRanker, {"objective": "reg:squarederror", "min_child_weight": 0}),
    (LightGBMRanker, {"objective": "lambdarank", "min_data_in_leaf": 1}),
    (LightGBMRanker, {"objective": "regression", "min_data_in_leaf": 1}),
]


@pytest.mark.parametrize(("kind", "options"), TREES, ids=str)
def test_trees_overfit_a_dozen_programs(kind, options):
    trees = kind(subsample=1.0, **options)
    store = synthetic.store(sizes=(12,))
    told = []
    trees.fit(
        store, torch.arange(12), torch.arange(0), seed=0, num_threads=1,
        grown=lambda done, most: told.append((done, most)),
    )  # fmt: skip
    assert told == [(n, trees.num_rounds) for n in range(1, trees.num_rounds + 1)]
    scored = trees.score_tasks(store, torch.arange(12))
    assert metrics.top_k(scored, 1) > 0.99


def test_a_task_of_more_programs_than_lightgbm_takes_is_several_queries():
    store = synthetic.store(sizes=(12,)).take(torch.arange(10_001) % 12)
    order, sizes = queries(store.task)
    assert sizes.tolist() == [5001, 5000]
    assert order.tolist() == [*range(0, 10_001, 2), *range(1, 10_001, 2)]
    trees = LightGBMRanker(num_rounds=2)
    everything = torch.arange(store.num_programs)
    assert trees.fit(store, everything, everything, seed=0, num_threads=1) > 0


def test_the_seed_decides_the_weights_and_nothing_else_does():
    torch.manual_seed(1)
    first = build_network(PaCM, 7)
    torch.rand(3)
    state = torch.random.get_rng_state()
    second = build_network(PaCM, 7)
    assert torch.equal(torch.random.get_rng_state(), state)  # the global generator is untouched
    third = build_network(PaCM, 8)
    for a, b, c in zip(first.parameters(), second.parameters(), third.parameters(), strict=True):
        assert torch.equal(a, b)
        if len(a.unique()) > 1:  # biases may start at zero
            assert not torch.equal(a, c)


def test_only_better_epochs_are_saved(tmp_path):
    _, result, saved = fit(tmp_path, synthetic.store())
    values = [entry["valid/pairwise_accuracy"] for entry in saved]
    assert values == sorted(set(values))
    assert result.best_value == values[-1]
    assert result.best_epoch == saved[-1]["epoch"]


def test_weights_of_a_unit_that_never_fires_do_not_stay_denormal(tmp_path):
    class Dead(Callback):
        def on_train_start(self, trainer, pl_module):
            layer = pl_module.ranker.network.statement_encoder[0]
            with torch.no_grad():
                layer.bias[0] = -1e9
                layer.weight[0] = 1e-40

    module, _, _ = fit(tmp_path, synthetic.store(), epochs=1, callbacks=[Dead()])
    assert (module.ranker.network.statement_encoder[0].weight[0] == 0).all()
    assert not are_flushed()  # the process goes on as it was


def test_a_limit_that_ends_the_first_epoch_is_named(tmp_path):
    with pytest.raises(PrunerError, match=r"ended after 1 steps, .*: raise or leave out trainer\."):
        fit(tmp_path, synthetic.store(), max_steps=1, validate_every=2)


def test_a_fit_of_so_many_steps_is_finished(tmp_path):
    _, found, _ = fit(tmp_path, synthetic.store(), epochs=50, max_steps=20)
    assert found.finished
    assert 1 <= found.epochs < 50


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_the_epoch_after_which_scores_are_not_finite_is_told(tmp_path, value):
    class Lost(Callback):
        def on_validation_epoch_start(self, trainer, pl_module):
            if trainer.current_epoch == 2:
                with torch.no_grad():
                    list(pl_module.ranker.network.parameters())[-1].fill_(value)

    with pytest.raises(PrunerError, match=r"has diverged after epoch 3: .*smaller optimizer\.lr"):
        fit(tmp_path, synthetic.store(), lr=1e-9, callbacks=[Lost()])


def test_fewer_epochs_than_are_done_and_refusals_of_the_trainer_are_one_line(tmp_path):
    class Refused(Callback):
        def on_train_start(self, trainer, pl_module):
            raise MisconfigurationException("not so\nbut so")

    with pytest.raises(PrunerError, match=r"^trainer: not so$"):
        fit(tmp_path, synthetic.store(), callbacks=[Refused()])
    fit(tmp_path, synthetic.store(), epochs=3)
    for epochs in (1, 2):
        with pytest.raises(PrunerError, match=f"={epochs}: 3 epochs are done; give 3 or more"):
            fit(tmp_path, synthetic.store(), epochs=epochs)


def test_ctrl_c_ends_a_fit_as_it_ends_everything(tmp_path):
    """Lightning would make exit code 1 of it, and ignore the next one."""

    class Asked(Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, synthetic.store(), callbacks=[Asked()])
    assert signal.getsignal(signal.SIGINT) is before


def test_a_resumed_run_still_compares_with_the_best_before():
    saved = []
    first, second = (KeepBest(saved.append, monitor="valid/top1") for _ in range(2))

    def validate(keep, value, epoch):
        metrics = {"valid/top1": torch.tensor(value)}
        trainer = SimpleNamespace(
            callback_metrics=metrics, current_epoch=epoch, is_global_zero=True
        )
        keep.on_validation_end(trainer, None)

    validate(first, 0.75, epoch=0)
    second.load_state_dict(first.state_dict())
    validate(second, 0.5, epoch=1)
    assert (second.best, second.best_epoch) == (0.75, 0)
    validate(second, 0.875, epoch=2)
    assert [entry["valid/top1"] for entry in saved] == [0.75, 0.875]


def test_a_flat_training_loss_ends_the_fit_and_its_average_goes_on_when_resumed():
    """Averages of 8, then 4 for ever: 8, 8 - 0.05 * 4 ...; flat only once the loss rises."""
    losses = [[8.0], [4.0], [20.0], [20.0], [20.0]]
    average, averages = None, []
    for (loss,) in losses:
        average = loss if average is None else 0.95 * average + 0.05 * loss
        averages.append(average)
    assert averages[1] < averages[0] < averages[2]  # the lowest is that of epoch 1
    stop, ended = StopFlat(patience=2), []
    for epoch, each in enumerate(losses):
        again = StopFlat(patience=2)
        again.load_state_dict(stop.state_dict())
        stop = again
        trainer = SimpleNamespace(current_epoch=epoch, should_stop=False, min_epochs=None)
        for loss in each:
            stop.on_train_batch_end(trainer, None, {"loss": torch.tensor(loss)}, None, 0)
        assert stop.state_dict()["average"] == pytest.approx(averages[epoch])
        stop.on_train_epoch_end(trainer, None)
        if trainer.should_stop:
            ended.append(epoch)
            break
    assert ended == [3]  # epochs 2 and 3 were not below epoch 1
    least = SimpleNamespace(current_epoch=3, should_stop=False, min_epochs=5)
    again.stopped = False
    again.on_train_epoch_end(least, None)
    assert (again.stopped, least.should_stop) == (False, False)  # two epochs are asked for yet
