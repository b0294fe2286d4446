"""The trained models that come with the project: whole, of today's features, better than chance."""

import shutil
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch

from pruner.data.root import RecordRoot
from pruner.errors import DataError, PrunerError
from pruner.models.predict import predict
from pruner.models.training.fit import checkpoint_file, ranker_of, start_of
from pruner.paths import boxed_checkpoints, checkpoints_folder
from tests.paths import DATASETS, SHARED

NAMES = ["cpu", "gpu"]
MAX_BYTES = 2_000_000


def loaded(name):
    try:
        return ranker_of(Path(name))
    except PrunerError as error:
        pytest.fail(f"{error}; make it again: python -m experiments.checkpoints.run name={name}")


def test_all_are_there_small_and_as_they_were_made():
    assert list(boxed_checkpoints()) == NAMES
    assert sum(path.stat().st_size for path in boxed_checkpoints().values()) < MAX_BYTES
    sums = (checkpoints_folder() / "SHA256SUMS").read_text(encoding="utf-8")
    assert sums.splitlines() == [
        f"{sha256(path.read_bytes()).hexdigest()}  {path.name}"
        for path in boxed_checkpoints().values()
    ]


@pytest.mark.parametrize("name", NAMES)
def test_it_fits_the_features_of_today_and_names_no_machine(name):
    ranker, info = loaded(name)
    assert info.says_seen
    assert all(torch.isfinite(weight).all() for weight in ranker.network.parameters())
    (one,) = start_of(Path(name)).inherited["lineage"]
    assert one["checkpoint"] == f"checkpoints/{name}.safetensors"
    content = boxed_checkpoints()[name].read_bytes()
    assert not [word for word in (b"/work", b"/home", b"/tmp", b"+changes") if word in content]


def pairs_right(name, records, platform, folder, few=3):
    """Share of pairs in the right order, of the smallest `few` record files it has not seen."""
    _, info = loaded(name)
    files = [
        path
        for path in (records / "measure_records" / platform).iterdir()
        if path.name.partition(".json")[0] not in info.seen_tasks[platform]
    ]
    assert len(files) >= few
    (folder / "measure_records" / platform).mkdir(parents=True)
    for path in sorted(files, key=lambda path: path.stat().st_size)[:few]:
        shutil.copy(path, folder / "measure_records" / platform)
    if (records / "design_spaces").is_dir():
        (folder / "design_spaces").symlink_to(records / "design_spaces")
    table = predict(Path(name), RecordRoot(folder)).dropna()
    shares = []
    for _, rows in table.groupby("task"):
        faster = np.sign(np.subtract.outer(rows.latency_s.values, rows.latency_s.values))
        better = np.sign(np.subtract.outer(rows.score.values, rows.score.values))
        shares.append((better == -faster)[faster != 0].mean())
    assert len(shares) == few
    return np.mean(shares)


@pytest.mark.slow
def test_the_cpu_model_orders_bundled_programs_that_it_has_not_seen(tmp_path):
    assert pairs_right("cpu", DATASETS / "bundled", "cpu-avx2", tmp_path) > 0.65


@pytest.mark.parametrize("platform", ["k80", "v100"])
def test_the_gpu_model_orders_logged_programs_that_it_has_not_seen(tmp_path, platform):
    records = SHARED / "data" / "gpu-records"
    if not records.is_dir():
        pytest.skip("the public GPU logs are absent: no ../shared/data/gpu-records")
    assert pairs_right("gpu", records, platform, tmp_path) > 0.65


def test_a_file_of_the_same_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert checkpoint_file(Path("cpu")) == boxed_checkpoints()["cpu"]
    Path("cpu").write_text("mine")
    assert checkpoint_file(Path("cpu")) == Path("cpu")
    with pytest.raises(DataError, match="not a Pruner checkpoint"):
        ranker_of(Path("cpu"))


def test_an_unknown_name_is_told_the_known_ones():
    with pytest.raises(DataError, match=r"npu does not exist.* or give cpu or gpu, which come"):
        ranker_of(Path("npu"))
