"""Fit a network on a store, up to the best checkpoint, resumable."""

import logging
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytorch_lightning as pl
import torch
from jaxtyping import Int
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.callbacks import Callback, LambdaCallback, ModelCheckpoint
from pytorch_lightning.loggers import Logger
from pytorch_lightning.plugins.io import TorchCheckpointIO
from torch import Tensor

from pruner.errors import DataError, PrunerError
from pruner.models.checkpoint.tensors import SUFFIX, load_content, save_tensors
from pruner.models.judging.judge import ranking_metrics
from pruner.models.programs.batch import LabelledBatch
from pruner.models.programs.program_table import ProgramTable
from pruner.models.ranker import NeuralRanker
from pruner.models.training.averaging import AVERAGED, LastEpochs
from pruner.models.training.distributed import SINGLE_PROCESS, Process
from pruner.models.training.lit import RankingModule
from pruner.models.training.recipe import Recipe

GIVEN = -1  # the epoch number of a model before its first epoch
LAST = f"last{SUFFIX}"  # Lightning's full state after the last finished epoch
OLD_LAST = "last.ckpt"  # this state as earlier versions wrote it
TRAINER: Mapping[str, Any] = {
    "accelerator": "auto",
    "devices": 1,
    "precision": "32-true",
    "gradient_clip_val": 0.5,
    "num_sanity_val_steps": 0,
    "use_distributed_sampler": False,  # the batch plan already gives each process its share
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
SMALLEST_NORMAL = torch.finfo(torch.float32).tiny
_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """The result of a fit; not `finished`, it can continue."""

    best_value: float
    best_epoch: int
    epochs: int
    finished: bool


class KeepBest(Callback):
    """Call `save(metrics)` whenever the validation metric `monitor` improves.

    The best value is stored in Lightning's own checkpoint, so that a resumed run keeps comparing
    with it. With `last` every epoch counts as an improvement. Raises PrunerError for a metric that
    validation does not log.
    """

    def __init__(
        self, save: Callable[[dict[str, float]], None], *, monitor: str, last: bool = False
    ) -> None:
        self._save, self.monitor, self.last = save, monitor, last
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
        if self.best is not None and value <= self.best and not self.last:
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


class StopFlat(Callback):
    """Stop after `patience` epochs without a lower training loss.

    As the release does (``PAMModelInternal``): the loss is the average ``0.95 a + 0.05 loss`` after
    the epoch's last batch, which continues over epochs. It is stored in Lightning's own checkpoint.
    """

    DECAY = 0.95

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.stopped = False
        self._average: float | None = None
        self._lowest, self._lowest_epoch = float("inf"), -1

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: LabelledBatch,
        batch_idx: int,
    ) -> None:
        """Add the loss of a batch to the average."""
        loss, before = float(outputs["loss"]), self._average
        self._average = loss if before is None else self.DECAY * before + (1 - self.DECAY) * loss

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop the trainer where the loss has been flat for long enough."""
        epoch = trainer.current_epoch
        if self._average is not None and self._average < self._lowest:
            self._lowest, self._lowest_epoch = self._average, epoch
        elif epoch - self._lowest_epoch >= self.patience and epoch + 1 >= (trainer.min_epochs or 0):
            self.stopped = trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        """The state that a resumed run restores."""
        lowest = {"lowest": self._lowest, "lowest_epoch": self._lowest_epoch}
        return {"average": self._average, **lowest, "stopped": self.stopped}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self._average = state_dict["average"]
        self._lowest, self._lowest_epoch = state_dict["lowest"], state_dict["lowest_epoch"]
        self.stopped = state_dict.get("stopped", False)  # earlier versions did not store it


class Throughput(Callback):
    """Count the programs trained on and the seconds it took, validation excluded."""

    def __init__(self) -> None:
        self.num_programs = 0
        self.seconds = 0.0
        self._started = 0.0

    @property
    def programs_per_second(self) -> float:
        """Training throughput so far."""
        return self.num_programs / self.seconds if self.seconds else 0.0

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock of an epoch."""
        self._started = time.perf_counter()

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: LabelledBatch,
        batch_idx: int,
    ) -> None:
        """Count a batch."""
        now = time.perf_counter()
        self.num_programs += len(batch.label)
        self.seconds += now - self._started
        self._started = now


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Run the body with denormals as zero in this thread, if possible.

    The weights of a unit that never fires only decay, and Adam's mean of their gradients halves
    with every seventh step: after some 800 steps it is below 2**-126 and stays there. A CPU takes
    many times longer for such a number, so a long fit would become slower and slower
    (``benchmarks/denormals.py``).
    """
    before = are_flushed()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def are_flushed() -> bool:
    """Whether this thread's arithmetic rounds denormal numbers to zero."""
    # torch cannot read the flag; half of the smallest normal number shows it.
    return bool((torch.tensor([SMALLEST_NORMAL]) / 2 == 0).item())


class CompleteFiles(TorchCheckpointIO):
    """Write Lightning's checkpoints atomically, and without temporary files elsewhere."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Write a checkpoint, folder included."""
        save_tensors(Path(path), checkpoint)

    def load_checkpoint(self, path: str | Path, *_: Any, **__: Any) -> dict[str, Any]:
        """Read a checkpoint, on the CPU."""
        return load_content(Path(path))


@contextmanager
def ctrl_c_passes() -> Iterator[None]:
    """Restore KeyboardInterrupt and its handler, which Lightning turns into exit code 1."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as ending:
        # Lightning raises SystemExit while it handles the interrupt.
        if isinstance(ending.__context__, KeyboardInterrupt):
            signal.signal(signal.SIGINT, before)
            raise ending.__context__ from None
        raise


def build_network(make: Callable[[], _Made], seed: int) -> _Made:
    """Construct a model whose initial weights depend on `seed` only."""
    # without devices: their generators would start CUDA, after which no process can be forked
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Silence Lightning's advice that does not apply to batches gathered in this process."""
    lightning = logging.getLogger("pytorch_lightning")
    level = lightning.level
    lightning.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        for message in (
            "does not have many workers",
            "Checkpoint directory .* exists",
            "smaller than the logging interval",
            "isinstance.treespec, LeafSpec",
            "sync_dist=True",  # every process computes the metrics of the whole batch
        ):
            warnings.filterwarnings("ignore", message=f".*{message}.*")
        try:
            yield
        finally:
            lightning.setLevel(level)


class Resumed(NamedTuple):
    """A state to continue from: its file, its epochs, and whether patience ended it."""

    path: Path
    epochs: int
    flat: bool


def _resumed(path: Path, module: RankingModule) -> Resumed | None:
    """The state to continue from, or None; raises DataError if damaged."""
    path = path if path.is_file() else path.with_name(OLD_LAST)
    if not path.is_file():
        return None
    try:  # Lightning would fail in the middle of an archive, or run code in it
        content, wanted = load_content(path), module.state_dict()
        found, callbacks = content["state_dict"], content.get("callbacks", {})
        fits = {n: v.shape for n, v in found.items()} == {n: v.shape for n, v in wanted.items()}
        flat = callbacks.get(StopFlat.__qualname__, {}).get("stopped", False)
        resumed = Resumed(path, content.get("epoch", -1) + 1, flat)
    except (DataError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} is damaged; delete it and resume: this fit then starts again ({error})"
        ) from error
    if not fits:
        raise DataError(f"{path} is of another model; delete it, or resume the run it belongs to")
    return resumed


def validated(
    ranker: NeuralRanker, programs: ProgramTable, valid: Int[Tensor, " program"]
) -> dict[str, float]:
    """Metrics of the validation programs, under the names of Lightning's module."""
    found = ranking_metrics(ranker.score_tasks(programs, valid)).items()
    return {f"valid/{name}": float(value) for name, value in found}


def _consider(keep: KeepBest, epoch: int, module: RankingModule, process: Process) -> None:
    found = validated(module.ranker, module.store, module.judged)
    keep.consider(found, epoch, saving=process.is_first)


def _run(trainer: pl.Trainer, module: RankingModule, resumed: Resumed | None) -> None:
    done, most = 0 if resumed is None else resumed.epochs, trainer.max_epochs
    if most is not None and 0 <= most < done:
        raise PrunerError(f"trainer.max_epochs={most}: {done} epochs are done; give {done} or more")
    if most == 0:
        return
    path = None if resumed is None else str(resumed.path)
    try:
        trainer.fit(module, ckpt_path=path, weights_only=True)
    except MisconfigurationException as error:
        raise PrunerError(f"trainer: {str(error).splitlines()[0]}") from error


def make_trainer(recipe: Recipe, **options: Any) -> pl.Trainer:
    """Make Lightning's Trainer; refusals become a PrunerError with their first line."""
    arguments = {**TRAINER, "max_epochs": recipe.epochs, **recipe.trainer, **options}
    try:
        with quiet_lightning():
            trainer = pl.Trainer(**arguments)
    except (MisconfigurationException, TypeError, ValueError) as error:
        raise PrunerError(f"trainer: {str(error).splitlines()[0]}") from error
    if trainer.num_nodes > 1:
        raise PrunerError("trainer.num_nodes: the processes of a fit are copies of one; give 1")
    return trainer


def _stop_after(epochs: int) -> Callback:
    """Stop after so many epochs, like a killed process."""

    def stop(trainer: pl.Trainer, _: pl.LightningModule) -> None:
        if trainer.current_epoch + 1 >= epochs:
            trainer.should_stop = True

    return LambdaCallback(on_train_epoch_end=stop)


def fit_network(
    module: RankingModule,
    *,
    folder: Path,
    save_best: Callable[[dict[str, float]], None],
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[Logger] = (),
    stop_after: int | None = None,
    goes_on: bool = False,
    process: Process = SINGLE_PROCESS,
) -> FitResult:
    """Train to the trainer's last epoch, from ``folder/last.safetensors`` if it exists.

    `save_best` gets the metrics of each new best epoch while `module` holds its weights. Every
    epoch's batches depend on the seed and the epoch number alone, so a resumed fit equals an
    uninterrupted one exactly. With `goes_on` the model is already trained: before its first epoch
    it counts as epoch `GIVEN`, which may be the best, or the only epoch.

    Raises:
        DataError: a damaged file.
        PrunerError: the trainer refuses its options, has fewer epochs than are done, or its limits
            end it before one epoch is validated.
    """
    recipe = module.recipe
    keep = KeepBest(save_best, monitor=recipe.monitor, last=recipe.keep == "last")
    every_epoch = ModelCheckpoint(
        dirpath=folder,
        filename=LAST.removesuffix(SUFFIX),
        save_on_train_epoch_end=True,
        enable_version_counter=False,
    )
    every_epoch.FILE_EXTENSION = SUFFIX
    flat = [] if recipe.patience is None else [StopFlat(recipe.patience)]
    averaged = [LastEpochs(recipe.average_epochs)] if recipe.average_epochs else []
    stop = [*flat, *([] if stop_after is None else [_stop_after(stop_after)])]
    resumed = _resumed(folder / LAST, module)
    if not process.is_first:  # the first process reports
        callbacks, loggers = (), ()
    with quiet_lightning(), ctrl_c_passes(), flushed_denormals():
        trainer = make_trainer(
            recipe,
            callbacks=[*callbacks, keep, *averaged, every_epoch, *stop],
            logger=list(loggers) or False,
            plugins=[CompleteFiles(), *process.plugins],
            # A fit that patience ended has no epoch left.
            **({"max_epochs": resumed.epochs} if resumed and resumed.flat else {}),
        )
        if goes_on and resumed is None:
            _consider(keep, GIVEN, module, process)
        _run(trainer, module, resumed)
    ended = trainer.max_epochs is not None and trainer.current_epoch >= trainer.max_epochs
    ended = ended or 0 <= trainer.max_steps <= trainer.global_step  # -1: no limit
    if ended and averaged and averaged[0].count:
        module.load_state_dict(averaged[0].mean)
        _consider(keep, AVERAGED, module, process)
    if keep.best is None or keep.best_epoch is None:
        raise PrunerError(
            f"the training ended after {trainer.global_step} steps, before an epoch was complete "
            "and validated: raise or leave out trainer.max_steps, trainer.max_time and "
            "trainer.limit_val_batches"
        )
    return FitResult(
        best_value=keep.best,
        best_epoch=keep.best_epoch,
        epochs=trainer.current_epoch,
        finished=any(one.stopped for one in flat) or ended,
    )
