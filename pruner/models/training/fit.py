"""Fit a recipe on programs and a split; keep the best epoch.

An interrupted fit continues::

    fitted = fit(Recipe(epochs=4), programs, split, folder=Path("run"))
    report = judge(fitted.ranker, programs, split)
"""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers import Logger
from torch import Tensor

from pruner import features
from pruner.data.frozen import Side
from pruner.data.splits import TaskSplit
from pruner.errors import PrunerError
from pruner.features.dataflow import kind_of
from pruner.files import write_atomic
from pruner.models.checkpoint.checkpoint import (
    ADAPTED,
    BEST,
    MODELS_FOLDER,
    CheckpointInfo,
    git_commit,
    load_checkpoint,
    save_checkpoint,
)
from pruner.models.checkpoint.tensors import OLD_SUFFIX, SUFFIX, existing
from pruner.models.model import Model, RankingNetwork
from pruner.models.programs.assemble import divide, keys_of, sampled, sampled_tasks, spread
from pruner.models.programs.program_table import ProgramTable
from pruner.models.ranker import NeuralRanker, Ranker
from pruner.models.registry import ModelSpec, Trainable, models_with
from pruner.models.training.averaging import AVERAGED, greedy, mean_weights
from pruner.models.training.distributed import Process, in_processes
from pruner.models.training.lit import RankingModule
from pruner.models.training.recipe import Recipe, Scaling, Start
from pruner.models.training.training import (
    FitResult,
    Throughput,
    build_network,
    fit_network,
    make_trainer,
    validated,
)
from pruner.models.trees.xgboost import Grown, TreeRanker
from pruner.paths import checkpoint_named

BEST_EPOCH = f"best-epoch{SUFFIX}"  # the best epoch where the mean of the last ones is better
SOUP_SEEDS = 7919  # distance of the members' batch seeds, larger than any list of seeds
PICKS = {"random": sampled, "spread": spread, "tasks": sampled_tasks}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A fit and its result; `ranker` is the best epoch's model.

    It is in `checkpoint`, too. `numbers` are those of a run's ``metrics.json``: best_valid,
    best_epoch, epochs (networks), num_rounds (trees), soup_members, num_train_programs,
    train_programs_per_second, and, where the fit continues a model, num_blind_columns
    (`ColumnScaler.num_blind`). `finished` is False where `stop_after` ended the fit early; the same
    call without it continues.
    """

    ranker: Ranker
    info: CheckpointInfo
    checkpoint: Path
    numbers: Mapping[str, Any] = field(default_factory=dict)
    finished: bool = True


@contextmanager
def cpu_threads(number: int | None) -> Iterator[None]:
    """Run the body with `number` torch threads (None: the present number)."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def check_recipe(recipe: Recipe, *, goes_on: bool = False) -> Model:
    """Build the parts of a fit once, before any work.

    Returns the untrained model. With `goes_on` the fit is of a trained model, which may stay
    unchanged. Raises PrunerError for a model that learns nothing, and for a trainer that cannot
    work here, such as a trainer for a device that this machine does not have.
    """
    if recipe.epochs < 1 and not goes_on:
        raise PrunerError("trainer.max_epochs=0: a new model learns nothing; give 1 or more")
    model: Any = build_network(recipe.model, seed=0)
    ModelSpec.of(recipe.model)
    if not isinstance(model, Model):
        raise PrunerError(
            f"{type(model).__name__}: a model derives from pruner.models.model.RankingNetwork or "
            "from pruner.models.trees.xgboost.TreeRanker"
        )
    if not model.needs_fit:
        raise PrunerError(f"{type(model).__name__} has nothing to train; use it with evaluate.py")
    make_trainer(recipe, logger=False)
    return model


def checkpoint_file(path: Path) -> Path:
    """The file of a checkpoint, bundled name or run folder; raises PrunerError."""
    path = checkpoint_named(path)
    if not path.is_dir():
        return path
    for file in (path / BEST, path / MODELS_FOLDER / f"{ADAPTED}{SUFFIX}"):
        if (found := existing(file)).exists():
            return found
    endings = (SUFFIX, OLD_SUFFIX)
    parts = [p for end in endings for p in sorted(path.glob(f"{MODELS_FOLDER}/*{end}"))]
    parts += [p for end in endings for p in sorted(path.glob(f"*/best{end}"))]
    if parts:
        raise PrunerError(
            f"{path} holds {len(parts)} models; name one, such as checkpoint={parts[0]}"
        )
    return path / BEST


def ranker_of(path: Path, own: Sequence[type[Trainable]] = ()) -> tuple[Ranker, CheckpointInfo]:
    """Load a model; `own`: further classes; raises DataError or PrunerError."""
    return load_checkpoint(
        checkpoint_file(path),
        feature_version=features.FEATURE_SET_VERSION,
        models=models_with(own),
    )


def start_of(path: Path, own: Sequence[type[Trainable]] = (), scaling: Scaling = "keep") -> Start:
    """Load a start; raises as `ranker_of`, and PrunerError for trees, which cannot continue."""
    file = checkpoint_file(path)
    ranker, info = ranker_of(file, own)
    if not isinstance(ranker, NeuralRanker):
        raise PrunerError(
            f"checkpoint={path}: {info.model.name} is always grown from all records; only "
            "networks continue: leave checkpoint= out, or name a network's"
        )
    return Start(ranker=ranker, info=info, inherited=info.inherited(file), scaling=scaling)


def fit(
    recipe: Recipe,
    programs: ProgramTable,
    split: TaskSplit,
    *,
    folder: Path,
    config: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[Logger] = (),
    grown: Grown | None = None,
    stop_after: int | None = None,
    start: Start | None = None,
) -> Fitted:
    """Train a model on training tasks and keep the best validation epoch.

    The same recipe, programs and split give the same model. ``<folder>/best.safetensors`` is the
    checkpoint. ``<folder>/last.safetensors`` lets a later call with the same arguments continue
    exactly.

    `config` is stored in the checkpoint as information. `callbacks` and `loggers` are Lightning's;
    `grown` receives the rounds of trees. `stop_after` ends the fit after so many epochs, like an
    interruption. `start` is a trained model to continue from, instead of the recipe's model and
    inputs. Before the first update it counts as an epoch, so the result is never worse on the
    validation tasks. The new checkpoint lists its seen tasks and those of this training.

    Raises:
        DataError: a side of the split is empty, ``last.safetensors`` is damaged, or `start` has
            other dataflow rows than the programs.
        PrunerError: the recipe is impossible, or the fit diverged (``best.safetensors`` is older).
    """
    folder.mkdir(parents=True, exist_ok=True)
    options: Mapping[str, Any] = {"loggers": loggers, "stop_after": stop_after}
    if recipe.soup:
        one = partial(fit, programs=programs, split=split, config=config, callbacks=callbacks)
        return _fit_soup(recipe, programs, split, one, folder, {**options, "start": start})
    if start is not None:
        start.check(programs)
        recipe = start.recipe(recipe)
    with cpu_threads(recipe.num_threads):
        sides = _sides(recipe, programs, split)
        began = time.perf_counter()
        if start is None:
            model = build_network(recipe.model, recipe.seed)
        else:  # in training mode, which Lightning leaves as it is
            model = deepcopy(start.ranker.network).train()
        info = _info(recipe, programs, sides, config or {}, start)
        if isinstance(model, TreeRanker):
            fitted = _fit_trees(recipe, programs, sides, model, info, folder, grown)
        else:
            options = {**options, "callbacks": callbacks}
            fitted = _fit_network(recipe, programs, sides, model, info, folder, start, options)
        seconds = round(time.perf_counter() - began, 2)
    return replace(fitted, numbers={**fitted.numbers, "fit_seconds": seconds})


def _sides(recipe: Recipe, programs: ProgramTable, split: TaskSplit) -> dict[Side, Tensor]:
    """Programs of every side; the training side as the recipe picks."""
    sides, pick = divide(programs, split), PICKS[recipe.train_pick]
    # Only the training side is thinned: the other sides must stay comparable between shares.
    sides["train"] = pick(programs, sides["train"], recipe.train_share, recipe.seed)
    return sides


def _info(
    recipe: Recipe,
    programs: ProgramTable,
    sides: Mapping[Side, Tensor],
    config: Mapping[str, Any],
    start: Start | None,
) -> CheckpointInfo:
    fresh = CheckpointInfo(
        model=ModelSpec.of(recipe.model),
        feature_version=features.FEATURE_SET_VERSION,
        dataflow=kind_of(programs.num_dataflow_rows),
        config=config,
        git_commit=git_commit(),
        **({} if start is None else start.inherited),
    )
    return fresh.with_seen(keys_of(programs, (sides["train"], sides["valid"])))


def _fit_trees(
    recipe: Recipe,
    programs: ProgramTable,
    sides: Mapping[Side, Tensor],
    model: TreeRanker,
    info: CheckpointInfo,
    folder: Path,
    grown: Grown | None,
) -> Fitted:
    rounds = model.fit(
        # A booster needs all columns at once.
        programs.in_memory(),
        sides["train"],
        sides["valid"],
        seed=recipe.seed,
        num_threads=torch.get_num_threads(),
        grown=grown,
    )
    save_checkpoint(folder / BEST, model, info)
    numbers = {"num_rounds": rounds, "num_train_programs": len(sides["train"])}
    return Fitted(ranker=model, info=info, checkpoint=folder / BEST, numbers=numbers)


def _fit_network(
    recipe: Recipe,
    programs: ProgramTable,
    sides: Mapping[Side, Tensor],
    network: RankingNetwork,
    info: CheckpointInfo,
    folder: Path,
    start: Start | None,
    options: Mapping[str, Any],
) -> Fitted:
    """Fit a network; `options` are further arguments of `fit_network`."""
    store = programs.relative() if recipe.relative else programs
    fresh = store.fit_scaler(sides["train"], recipe.scale)
    scaler = fresh
    if start is not None and start.scaling == "keep":
        scaler = deepcopy(start.ranker.scaler).train()
    ranker = NeuralRanker(network, scaler, relative=recipe.relative)
    module = RankingModule(ranker, recipe, store, sides)
    throughput = Throughput()
    options = {**options, "callbacks": [throughput, *options["callbacks"]]}

    def save(metrics: dict[str, float]) -> None:
        _save_best(folder, ranker, replace(info, metrics=metrics))

    def run(process: Process) -> FitResult:
        return fit_network(
            module,
            folder=folder,
            save_best=save,
            goes_on=start is not None,
            process=process,
            **options,
        )

    result = in_processes(make_trainer(recipe, logger=False).world_size, run)
    if result.best_epoch != AVERAGED and (folder / BEST_EPOCH).exists():
        (folder / BEST_EPOCH).replace(folder / BEST)  # better than the mean of fewer epochs
    checkpoint = existing(folder / BEST)
    best, best_info = load_checkpoint(checkpoint, models=models_with([type(network)]))
    numbers = {
        "monitor": recipe.monitor,
        "best_valid": result.best_value,
        "best_epoch": result.best_epoch,
        "epochs": result.epochs,
        "num_train_programs": len(sides["train"]),
        "train_programs_per_second": round(throughput.programs_per_second),
    }
    if start is not None:
        numbers["num_blind_columns"] = scaler.num_blind(fresh)
    return Fitted(
        ranker=best,
        info=best_info,
        checkpoint=checkpoint,
        numbers=numbers,
        finished=result.finished,
    )


def _save_best(folder: Path, ranker: NeuralRanker, info: CheckpointInfo) -> None:
    """Write the best model; beside a mean, keep the best epoch's."""
    best, epoch = folder / BEST, folder / BEST_EPOCH
    is_mean = info.metrics["epoch"] == AVERAGED
    if is_mean and best.exists() and not epoch.exists():
        with write_atomic(epoch) as partial:
            shutil.copyfile(best, partial)
    save_checkpoint(best, ranker, info)
    if not is_mean:
        epoch.unlink(missing_ok=True)


def _fit_soup(
    recipe: Recipe,
    programs: ProgramTable,
    split: TaskSplit,
    fit_one: Callable[..., Fitted],
    folder: Path,
    options: Mapping[str, Any],
) -> Fitted:
    """Average a fit and fits that continue it; raises PrunerError for trees."""
    if not build_network(recipe.model, recipe.seed).is_network:
        name = ModelSpec.of(recipe.model).name
        raise PrunerError(f"schedule.soup={recipe.soup}: {name} has no weights to average")
    first = fit_one(replace(recipe, soup=0), folder=folder / "first", **options)
    if not first.finished:
        return first
    assert isinstance(first.ranker, NeuralRanker), first
    rankers, seconds = [first.ranker], first.numbers["fit_seconds"]
    start = Start(ranker=first.ranker, info=first.info)
    for number in range(1, recipe.soup + 1):
        more = replace(
            recipe,
            soup=0,
            average_epochs=0,
            epochs=recipe.soup_epochs,
            # Only the order of the batches distinguishes members: they share their start.
            batch_seed=recipe.seed + SOUP_SEEDS * number,
        )
        # A first fit with more epochs has other members: its epochs are part of their names.
        name = f"member-{number}-after-{first.numbers['epochs']}"
        member = fit_one(more, folder=folder / name, start=start)
        assert isinstance(member.ranker, NeuralRanker), member
        rankers.append(member.ranker)
        seconds += member.numbers["fit_seconds"]
    valid = divide(programs, split)["valid"]
    soup = deepcopy(first.ranker)

    def judged(members: Sequence[NeuralRanker]) -> dict[str, float]:
        # Judged as one model on the validation side; the test side must not choose members.
        soup.load_state_dict(mean_weights([one.state_dict() for one in members]))
        return validated(soup, programs, valid)

    with cpu_threads(recipe.num_threads):
        kept, value = greedy(rankers, lambda members: judged(members)[recipe.monitor])
        info = replace(first.info, metrics=judged(kept))
    save_checkpoint(folder / BEST, soup, info)
    numbers = {**first.numbers, "best_valid": value, "soup_members": len(kept)}
    if kept != rankers[:1]:
        numbers["best_epoch"] = AVERAGED
    numbers["fit_seconds"] = round(seconds, 2)
    return Fitted(ranker=soup, info=info, checkpoint=folder / BEST, numbers=numbers)
