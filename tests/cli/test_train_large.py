"""``train.py store=stream trainer=ddp``: the same models, otherwise computed."""

import pytest
import torch

from pruner.models.checkpoint.tensors import load_tensors
from tests.commands import ran
from tests.paths import DATASETS

OPTIONS = (
    f"data.root={DATASETS / 'bundled'}",
    "platform=cpu-avx512",
    "split=bundled",
    "trainer.max_epochs=2",
    "trainer.accelerator=cpu",
    "optimizer=sgd",  # Adam makes a rounding of nothing a step of full length
    "batches.per_task=32",
    "batches.programs=16",
    "batches.window=4",
    "keep=last",
)


def train(folder, *more):
    result, _ = ran("train.py", *OPTIONS, f"outputs={folder}", *more, cwd=folder)
    return load_tensors(folder / result["checkpoint"])["state"]["network"]


@pytest.mark.slow
def test_streams_and_two_processes_learn_what_features_and_one_do(tmp_path):
    wanted = train(tmp_path, "store=features")
    found = train(tmp_path, "store=stream")
    assert all(torch.equal(found[name], value) for name, value in wanted.items())
    shared = train(tmp_path, "store=stream", "trainer=ddp")
    for name, value in wanted.items():
        torch.testing.assert_close(shared[name], value, rtol=1e-3, atol=1e-5, msg=name)
