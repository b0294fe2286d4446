"""Several processes that share every batch compute what one would."""

from functools import partial

import pytest
import pytorch_lightning as pl
import torch

from pruner.data.splits import TaskSplit
from pruner.errors import PrunerError
from pruner.models.checkpoint.tensors import load_tensors
from pruner.models.networks.mlp import TenSetMLP
from pruner.models.networks.pacm import PaCM
from pruner.models.networks.tlp import TLP
from pruner.models.training.distributed import in_processes
from pruner.models.training.fit import fit
from pruner.models.training.losses import LambdaRank, ListNet
from pruner.models.training.recipe import Recipe
from pruner.models.training.sampler import MixedBatches, TaskBatches
from tests.models import synthetic

SMALL = partial(PaCM, width=16, dataflow_hidden=8, dataflow_width=8)
SGD = partial(torch.optim.SGD, lr=0.01)  # Adam makes a rounding of nothing a step of full length
STORE = synthetic.store(sizes=(40, 37, 21, 30))
CASES = {
    "pacm": {},
    "mixed": {"loss": LambdaRank(lists="batch"), "batches": MixedBatches(programs=31)},
    "mlp": {"model": TenSetMLP, "loss": ListNet()},
    # no program is of the second head's platform
    "heads": {"model": partial(TLP, platforms=("v100", "k80"))},
}


def fitted(folder, processes, epochs=2, stop_after=None, **changes):
    keys = STORE.keys
    split = TaskSplit(name="x", seed=0, train=keys[:3], valid=keys[3:], test=keys[3:])
    recipe = Recipe(
        batches=changes.pop("batches", TaskBatches(tasks=3, programs=7)),
        trainer={"accelerator": "cpu", "devices": processes},
        epochs=epochs,
        optimizer=SGD,
        **{"model": SMALL, **changes},
    )
    losses = Losses()
    found = fit(recipe, STORE, split, folder=folder, callbacks=[losses], stop_after=stop_after)
    return found, torch.tensor(losses.seen)


class Losses(pl.Callback):
    def __init__(self):
        self.seen = []

    def on_train_batch_end(self, trainer, module, outputs, batch, number):
        self.seen.append(float(outputs["loss"]))


# the number of processes divides a batch, whatever the network and the loss
@pytest.mark.parametrize(
    ("case", "processes"),
    [
        *(("pacm", 2), ("mixed", 3), ("heads", 2)),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in (("pacm", 3), ("mlp", 2))),
    ],
)
def test_the_losses_and_weights_are_those_of_one_process(tmp_path, case, processes):
    alone, wanted = fitted(tmp_path / "one", 1, **CASES[case])
    shared, found = fitted(tmp_path / "more", processes, **CASES[case])
    assert len(found) == len(wanted) > 4
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    ours, theirs = shared.ranker.state_dict(), alone.ranker.state_dict()
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-3, atol=1e-5, msg=name)
    assert shared.numbers["best_epoch"] == alone.numbers["best_epoch"]
    assert shared.numbers["num_train_programs"] == alone.numbers["num_train_programs"]
    assert not torch.distributed.is_initialized()


def test_a_resumed_fit_of_two_processes_equals_an_uninterrupted_one(tmp_path):
    fitted(tmp_path / "whole", 2)
    stopped, _ = fitted(tmp_path / "parts", 2, stop_after=1)
    assert not stopped.finished
    resumed, _ = fitted(tmp_path / "parts", 2)
    assert (resumed.finished, resumed.numbers["epochs"]) == (True, 2)
    ours, theirs = (
        load_tensors(tmp_path / name / "last.safetensors")["state_dict"]
        for name in ("parts", "whole")
    )
    synthetic.exactly(ours, theirs)


def test_copies_end_with_the_first_and_say_here_what_fails():
    def run(process):
        if not process.is_first:
            raise ValueError("no such thing")
        raise RuntimeError("connection closed by peer")

    with pytest.raises(PrunerError, match="process 1 of 2: ValueError: no such thing"):
        in_processes(2, run)
    assert in_processes(3, lambda process: process.rank) == 0
    with pytest.raises(ZeroDivisionError):
        in_processes(2, lambda process: 1 // process.rank)


def test_several_threads_or_machines_are_refused(tmp_path):
    torch.set_num_threads(2)
    with pytest.raises(PrunerError, match="need num_threads=1"):
        in_processes(2, lambda process: process.rank)
    with pytest.raises(PrunerError, match="num_nodes"):
        fit(
            Recipe(trainer={"accelerator": "cpu", "num_nodes": 2}),
            STORE,
            TaskSplit(name="x", seed=0, train=STORE.keys[:3], valid=STORE.keys[3:], test=()),
            folder=tmp_path,
        )
