"""Average weights: over the last epochs of a fit, and over several fits.

Stochastic weight averaging (Izmailov et al., UAI 2018): with a rate that does not fall to nothing
the last epochs wander around a flat minimum, and their mean is nearer to its middle than each
epoch. Running statistics of norms are averaged like weights, where the paper computes them anew:
our last epochs differ little in them.

Model soups (Wortsman et al., ICML 2022): fits that continue from the same weights with other seeds
end in one basin of the loss, where the mean of their weights is as good as an ensemble of them and
costs a single model. Fits from different random weights do not, so the members begin where a first
fit ended. The greedy recipe (their Recipe 1): members in the order of their validation metric, the
best first; each stays only where the mean with it is no worse. So on validation tasks the soup is
never worse than its best member.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch import Tensor

AVERAGED = -2  # the epoch number of the mean

Weights = dict[str, Tensor]
_Part = TypeVar("_Part")


def mean_weights(parts: list[Weights]) -> Weights:
    """Mean of weights and float buffers, else the last; raises ValueError for other shapes."""
    shapes = [{name: value.shape for name, value in part.items()} for part in parts]
    if any(shape != shapes[0] for shape in shapes):
        raise ValueError("weights of different models have no mean")
    return {
        name: torch.stack([part[name] for part in parts]).mean(dim=0)
        if value.is_floating_point()
        else parts[-1][name].clone()
        for name, value in parts[0].items()
    }


def greedy(
    members: Sequence[_Part], value: Callable[[Sequence[_Part]], float]
) -> tuple[list[_Part], float]:
    """The members that stay, and the `value` of their mean.

    >>> greedy([1.0, 4.0, 2.0], lambda parts: -abs(sum(parts) / len(parts) - 2.5))
    ([2.0, 4.0], -0.5)
    """
    alone = [value([member]) for member in members]
    # Stable: of equal members the first fit stays before its successors.
    order = sorted(range(len(members)), key=lambda number: -alone[number])
    kept, best = [members[order[0]]], alone[order[0]]
    for number in order[1:]:
        found = value([*kept, members[number]])
        if found >= best:
            kept, best = [*kept, members[number]], found
    return kept, best


class LastEpochs(Callback):
    """Keep the running mean of the weights over the last `number` epochs.

    The mean is stored in Lightning's own checkpoint, so a resumed fit has the mean of an
    uninterrupted fit. A finished fit that is given more epochs begins a new mean, unless its new
    last epochs follow directly on the averaged epochs.
    """

    def __init__(self, number: int) -> None:
        if number < 1:
            raise ValueError(f"average_epochs: got {number}; need at least 1")
        self.number = number
        self.count = 0
        self.mean: Weights = {}
        self._newest = -1  # epoch

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Add the weights if this is among the last epochs."""
        most, epoch = trainer.max_epochs, trainer.current_epoch
        if most is not None and epoch >= most - self.number:
            if epoch > self._newest + 1:  # the averaged epochs were the last of a shorter fit
                self.count, self.mean = 0, {}
            self._newest = epoch
            self.add({name: value.detach() for name, value in pl_module.state_dict().items()})

    def add(self, weights: Weights) -> None:
        """Update by ``mean + (weights - mean) / count``, in place."""
        self.count += 1
        for name, value in weights.items():
            known = self.mean.get(name)
            if known is not None and known.device != value.device:  # a saved state is on the CPU
                known = self.mean[name] = known.to(value.device)
            if known is None or not value.is_floating_point():
                self.mean[name] = value.clone()
            else:
                # Equal values are left alone: the scaler's limit may be infinite, and inf - inf is
                # NaN.
                known += torch.where(value == known, 0.0, value - known) / self.count

    def state_dict(self) -> dict[str, Any]:
        """The state that a resumed run restores."""
        return {"count": self.count, "mean": self.mean, "newest": self._newest}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.count, self.mean = state_dict["count"], dict(state_dict["mean"])
        self._newest = state_dict["newest"]
