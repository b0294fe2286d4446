"""Keep the checkpoint of the best validation epoch, or of the last."""

from collections.abc import Callable
from typing import Any, Literal

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback

from pruner.errors import PrunerError


class KeepBest(Callback):
    """Call `save(metrics)` whenever the monitored validation metric improves.

    The best value is stored in Lightning's own checkpoint, so that a resumed run keeps comparing
    with it. With `last` every epoch counts as an improvement. Raises PrunerError for a metric that
    validation does not log.
    """

    def __init__(
        self,
        save: Callable[[dict[str, float]], None],
        *,
        monitor: str,
        mode: Literal["max", "min"] = "max",
        last: bool = False,
    ) -> None:
        self._save = save
        self.monitor = monitor
        self.last = last
        self._sign = 1.0 if mode == "max" else -1.0
        self.best: float | None = None
        self.best_epoch: int | None = None

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Compare, and save on the first process."""
        values = {name: float(value) for name, value in trainer.callback_metrics.items()}
        # All processes compare, since all have the same metrics; only the first writes.
        self.consider(values, trainer.current_epoch, saving=trainer.is_global_zero)

    def consider(self, values: dict[str, float], epoch: int, *, saving: bool = True) -> None:
        """Keep the model of an epoch if it is best."""
        if self.monitor not in values:
            known = ", ".join(sorted(name for name in values if name.startswith("valid/")))
            raise PrunerError(f"monitor={self.monitor}: no such metric; validation logs {known}")
        value = values[self.monitor]
        # A tie keeps the earlier epoch.
        worse = self.best is not None and self._sign * value <= self._sign * self.best
        if worse and not self.last:
            return
        self.best, self.best_epoch = value, epoch
        if saving:
            self._save({**values, "epoch": float(epoch)})

    def state_dict(self) -> dict[str, Any]:
        """The state that a resumed run restores."""
        return {"best": self.best, "best_epoch": self.best_epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.best, self.best_epoch = state_dict["best"], state_dict["best_epoch"]
