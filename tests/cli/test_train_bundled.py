"""``train.py platform=NAME`` without a folder of records: the bundled ones of the device's kind."""

from pathlib import Path

import pytest

from pruner.data import frozen
from pruner.data.frozen import BUNDLED, fitting_split
from pruner.models.adaptation.moa import MomentumAdaptation
from pruner.models.checkpoint.checkpoint import load_checkpoint
from pruner.models.networks.pacm import PaCM
from pruner.tune.run.verifier import verifier
from tests.cli import gpu_records, toy_records
from tests.paths import CONF, REPOSITORY
from tests.tune.unhurried import UNHURRIED

PLATFORMS = sorted(path.stem for path in (CONF / "platform").glob("*.yaml"))
ONE_EPOCH = ("trainer.max_epochs=1", "trainer.accelerator=cpu", "num_threads=1")


@pytest.fixture
def sets(monkeypatch, tmp_path):
    toy_records.write(tmp_path / "sets" / "bundled", platforms=("cpu-avx2", "cpu-sse4"))
    toy_records.write(tmp_path / "sets" / "opencl-pocl", platforms=("t4",))
    toy_records.write(tmp_path / "sets" / "h200", platforms=("h200",))
    monkeypatch.setattr(frozen, "datasets_folder", lambda: tmp_path / "sets")
    return tmp_path / "sets"


@pytest.mark.usefixtures("sets")
@pytest.mark.parametrize(
    ("platform", "teachers", "better", "following"),
    [
        ("orin", ["t4"], "timed on a CPU", "  # does not use the new model;"),
        (
            "cpu-epyc",
            ["cpu-avx2", "cpu-sse4"],
            "docs/pools.md",
            " checkpoint=last adaptation=finetune  #",
        ),
    ],
)
def test_a_device_learns_from_records_of_its_kind(command, platform, teachers, better, following):
    result, err = command("train", f"platform={platform}", *ONE_EPOCH).done
    lines = err.splitlines()
    assert lines[0].startswith(f"no records of {platform}: learning from the bundled ones of its")
    assert all(word in lines[0] for word in [", ".join(teachers), better, "data.root=DIR"])
    assert result["data"]["platforms"] == teachers
    assert result["num_tasks"] >= len(teachers)
    assert 0 < result["random"]["top1"] < 1  # chance stands beside
    _, info = load_checkpoint(Path(result["checkpoint"]))
    assert sorted(info.seen_tasks) == teachers
    assert lines[-2] == f"checkpoint: {result['checkpoint']}"
    assert lines[-1] == (
        f"next: python tune.py platform={platform} workload=matmul{following}"
        " without the device, add compile_only=true"
    )
    shown = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert platform != "orin" or lines[-1] in shown
    told = []
    model = verifier(  # what tune.py makes of such a command
        PaCM,
        MomentumAdaptation,
        checkpoint=Path(result["checkpoint"]),
        platform=platform,
        seed=0,
        log=told.append,
    )
    assert model() is not None
    [line] = told
    names = ", ".join(teachers)
    assert line.endswith(f"trained on {names}, never on {platform}, which is tuned now")
    code, judged, err = command("evaluate", "checkpoint=last")
    assert (code, judged and judged["num_tasks"]) == (0, result["num_tasks"]), err


@pytest.mark.parametrize("platform", [pytest.param("cpu-sse4", marks=pytest.mark.slow), "h200"])
def test_a_described_device_with_bundled_records_learns_from_its_own(command, sets, platform):
    result, err = command("train", f"platform={platform}", "model=tensetmlp", *ONE_EPOCH).done
    assert "no records" not in err
    assert result["data"]["platforms"] == [platform]
    # a folder that is named is taken at its word, the bundled one, too
    named = f"data.root={sets / 'bundled'}"
    err = command("train", "platform=orin", named, *ONE_EPOCH).refusal
    [line] = err.splitlines()
    assert "no records of orin, only of cpu-avx2, cpu-sse4, which are no gpus" in line


@pytest.mark.slow
def test_the_records_of_the_h200_train_and_test_by_their_own_split(door):
    result, err = door("train", "platform=h200", "model=tensetmlp", *ONE_EPOCH).done
    assert "trained on 9 tasks of h200; epoch chosen on 3; tested on 6 others" in err
    assert result["data"]["platforms"] == ["h200"]
    assert "# does not use the new model;" in err.splitlines()[-1]


def test_a_kind_without_bundled_records_is_one_line(command, sets):
    (sets / "opencl-pocl").rename(sets / "elsewhere")
    code, _, err = command("train", "platform=orin", *ONE_EPOCH)
    assert (code, len(err.splitlines())) == (2, 1)
    assert "give data.root=DIR" in err


def test_the_split_is_that_of_the_set(sets):
    for one in BUNDLED.values():
        assert fitting_split(one.folder) == one.name
    assert fitting_split(sets) == "by_task"


@pytest.fixture(scope="module")
def real_sets(tmp_path_factory):
    """The bundled sets; until there is one of GPU kind, a formula's records in its place."""
    if BUNDLED["gpu"].folder.is_dir():
        return frozen.datasets_folder()
    folder = tmp_path_factory.mktemp("sets")
    (folder / "bundled").symlink_to(BUNDLED["cpu"].folder)
    gpu_records.write(folder / BUNDLED["gpu"].name)
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.mark.slow
@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_described_platform_trains_one_epoch(door, real_sets, cache, monkeypatch, platform):
    monkeypatch.setattr(frozen, "datasets_folder", lambda: real_sets)
    words = (f"data.cache={cache}", "train_share=0.2", *ONE_EPOCH)
    result, err = door("train", f"platform={platform}", *words).done
    assert result["num_tasks"] >= 1
    assert Path(result["checkpoint"]).is_file()
    assert err.splitlines()[-1].startswith(f"next: python tune.py platform={platform} ")


@pytest.mark.slow
def test_the_checkpoint_of_a_gpu_is_taken_by_tuning(door, real_sets, cache, monkeypatch):
    monkeypatch.setattr(frozen, "datasets_folder", lambda: real_sets)
    words = (f"data.cache={cache}", "train_share=0.2", *ONE_EPOCH)
    assert door("train", "platform=orin", *words)[0] == 0
    small = [f"workload.{axis}=64" for axis in "mnk"]
    result, _ = door(
        "tune", "platform=orin", "checkpoint=last", "adaptation=moa", "compile_only=true",
        "budget.trials=2", *small, *UNHURRIED,
    ).done  # fmt: skip
    assert result["compiled"] == 2
