"""Which validation epoch is kept, across a resumed run."""

from types import SimpleNamespace

import pytest
import torch

from pruner.errors import PrunerError
from pruner.models.training.keep_best import KeepBest


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


def test_an_unknown_monitor_names_the_known_ones():
    trainer = SimpleNamespace(callback_metrics={"valid/top1": torch.tensor(0.5)})
    with pytest.raises(PrunerError, match="validation logs valid/top1"):
        KeepBest(print, monitor="valid/accuracy").on_validation_end(trainer, None)
