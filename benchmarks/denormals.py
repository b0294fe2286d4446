"""Time a long fit with and without flushing of denormal numbers.

    python benchmarks/denormals.py --root DATA_ROOT

PaCM learns from MI50's records by the published recipe (Adam with decay, absolute features, one
list of 512 programs of all tasks). Two processes fit it at the same time from the same seed, so two
idle cores are needed. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from pytorch_lightning.callbacks import Callback

from pruner.data.root import RecordRoot
from pruner.data.splits import make_split
from pruner.files import write_json
from pruner.models.adaptation.fitting import adam
from pruner.models.programs.dataset import load_programs
from pruner.models.programs.program_table import ProgramTable
from pruner.models.training import training
from pruner.models.training.fit import fit
from pruner.models.training.losses import LambdaRank
from pruner.models.training.recipe import Recipe
from pruner.models.training.sampler import MixedBatches

HERE = Path(__file__).resolve().parent


class Watch(Callback):
    """Seconds of every epoch, validation included, and counts of denormals.

    Counted are weights and means of gradients.
    """

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.denormal = 0
        self._began = 0.0

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Start the clock."""
        self._began = time.perf_counter()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Stop it, and count."""
        self.seconds.append(time.perf_counter() - self._began)
        (optimizer,) = trainer.optimizers
        means = [state["exp_avg"] for state in optimizer.state.values()]
        weights = [*pl_module.parameters(), *means]
        self.denormal = sum(_denormal(value.detach()) for value in weights)


def _denormal(value: torch.Tensor) -> int:
    bits = value.numpy().view(np.uint32) & 0x7FFFFFFF  # arithmetic might flush what it is to count
    return int(((bits > 0) & (bits < 0x00800000)).sum())


def fitted(flush: bool, programs: ProgramTable, epochs: int) -> dict[str, Any]:
    """Fit once; seconds of the epochs."""
    recipe = Recipe(
        loss=LambdaRank(lists="batch"),
        optimizer=adam(),
        schedule=None,
        batches=MixedBatches(programs=512),
        relative=False,
        scale="max",
        keep="last",
        epochs=epochs,
    )
    watch, unflushed = Watch(), mock.patch.object(training, "flushed_denormals", nullcontext)
    with tempfile.TemporaryDirectory() as folder, nullcontext() if flush else unflushed:
        split = make_split("by_task", programs.keys, 0)
        result = fit(recipe, programs, split, folder=Path(folder), callbacks=[watch])
    return {
        "flushed": flush,
        "epoch_s": [round(second, 2) for second in watch.seconds],
        "denormal": watch.denormal,
        "best_valid": result.numbers["best_valid"],
    }


def main() -> None:
    """Run both, write results/denormals.json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--root", required=True, help="folder with measure_records/mi50")
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    programs = load_programs(RecordRoot(Path(options.root)), ["mi50"]).store
    run = partial(fitted, programs=programs, epochs=options.epochs)
    with ProcessPoolExecutor(2, mp_context=get_context("fork")) as pool:
        rows = list(pool.map(run, [True, False]))
    with_, without = (row["epoch_s"] for row in rows)
    found = {
        "programs": programs.num_programs,
        "fits": rows,
        "last_epoch_without_over_with": round(without[-1] / with_[-1], 2),
        "without_last_over_first": round(without[-1] / without[0], 2),
        "with_last_over_first": round(with_[-1] / with_[0], 2),
    }
    write_json(HERE / "results" / "denormals.json", found, indent=1)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
