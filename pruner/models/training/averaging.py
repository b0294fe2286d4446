"""Weights averaged over the last epochs of a fit.

Stochastic weight averaging (Izmailov et al., UAI 2018): with a rate that does not fall to nothing
the last epochs wander around a flat minimum, and their mean lies nearer to its middle than any of
them. Running statistics of norms are averaged like weights, where the paper computes them anew: our
last epochs differ little in them.
"""

from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch import Tensor

AVERAGED = -2  # the number of the epoch that the mean counts as

Weights = dict[str, Tensor]


def mean_weights(parts: list[Weights]) -> Weights:
    """Mean of every weight and floating-point buffer; of others, such as counters, the last.

    Raises ValueError where the parts are not of one model.
    """
    first = parts[0]
    shapes = [{name: value.shape for name, value in part.items()} for part in parts]
    if any(shape != shapes[0] for shape in shapes):
        raise ValueError("weights of different models have no mean")
    return {
        name: torch.stack([part[name] for part in parts]).mean(dim=0)
        if value.is_floating_point()
        else parts[-1][name].clone()
        for name, value in first.items()
    }


class LastEpochs(Callback):
    """Keep the running mean of the weights after each of the last `number` epochs.

    It travels in Lightning's own checkpoint, so a resumed fit has the mean of an uninterrupted one.
    A finished fit that is given more epochs begins anew with its new last ones, unless they follow
    on those that are in.
    """

    def __init__(self, number: int) -> None:
        if number < 1:
            raise ValueError(f"average_epochs: got {number}; need at least 1")
        self.number = number
        self.count = 0
        self.mean: Weights = {}
        self._newest = -1  # epoch

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take the weights of one of the last epochs in."""
        most, epoch = trainer.max_epochs, trainer.current_epoch
        if most is not None and epoch >= most - self.number:
            if epoch > self._newest + 1:  # those that are in were the last of fewer epochs
                self.count, self.mean = 0, {}
            self._newest = epoch
            self.add({name: value.detach() for name, value in pl_module.state_dict().items()})

    def add(self, weights: Weights) -> None:
        """``mean + (weights - mean) / count``, so that only one copy is kept."""
        self.count += 1
        for name, value in weights.items():
            known = self.mean.get(name)
            if known is None or not value.is_floating_point():
                self.mean[name] = value.clone()
            else:
                # what does not move stays as it is: the scaler's limit may be infinite
                known += torch.where(value == known, 0.0, value - known) / self.count

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs."""
        return {"count": self.count, "mean": self.mean, "newest": self._newest}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.count, self.mean = state_dict["count"], dict(state_dict["mean"])
        self._newest = state_dict["newest"]
