"""``train.py store=vectors trainer=ddp``: the same models, otherwise computed."""

import json
import os
import subprocess
import sys

import pytest
import torch

from tests.places import DATASETS, REPOSITORY

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
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / "train.py"), *OPTIONS, f"outputs={folder}", *more],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.strip().splitlines()[-1])
    return torch.load(folder / result["checkpoint"], weights_only=True)["state"]["network"]


@pytest.mark.slow
def test_vectors_and_two_processes_learn_what_features_and_one_do(tmp_path):
    wanted = train(tmp_path, "store=features")
    vectors = ("store=vectors", "store.num_workers=1")
    found = train(tmp_path, *vectors)
    assert all(torch.equal(found[name], value) for name, value in wanted.items())
    shared = train(tmp_path, *vectors, "trainer=ddp")
    for name, value in wanted.items():
        torch.testing.assert_close(shared[name], value, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.slow
def test_trees_say_that_they_need_features(tmp_path):
    done = subprocess.run(
        [
            *(sys.executable, str(REPOSITORY / "train.py"), "model=xgboost", "store=vectors"),
            *("platform=cpu-avx512", f"data.root={DATASETS / 'bundled'}", f"outputs={tmp_path}"),
        ],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "store=vectors: XGBoostRanker is grown from all features at once" in done.stderr
