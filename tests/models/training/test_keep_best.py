"""Which validation epoch is kept, across a resumed run."""

from types import SimpleNamespace

import pytest
import torch

from pruner.errors import PrunerError
from pruner.models.training.training import KeepBest, StopFlat


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
        trainer = SimpleNamespace(current_epoch=epoch, should_stop=False)
        for loss in each:
            stop.on_train_batch_end(trainer, None, {"loss": torch.tensor(loss)}, None, 0)
        assert stop.state_dict()["average"] == pytest.approx(averages[epoch])
        stop.on_train_epoch_end(trainer, None)
        if trainer.should_stop:
            ended.append(epoch)
            break
    assert ended == [3]  # epochs 2 and 3 were not below epoch 1
