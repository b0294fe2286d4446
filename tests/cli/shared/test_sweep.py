"""``-m``: cells do not meet, a cell that fails is one line, and the last line has them all."""

import csv
import importlib
import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from tests.cli.outcome import composed
from tests.commands import ran
from tests.paths import REPOSITORY

TINY = ("trainer.max_epochs=1", "trainer.accelerator=cpu", "num_threads=1", "batches.programs=8")
BUNDLED = (f"data.root={REPOSITORY}/datasets/bundled", "data.platform=cpu-avx2", "split=bundled")


@pytest.fixture
def sweep(command, toy_root):
    def run(*arguments):
        return command("train", "-m", f"data.root={toy_root}", "platform=v100", *TINY, *arguments)

    return run


def test_every_cell_is_a_run_of_its_own(sweep, tmp_path):
    result, _ = sweep("model=lightgbm,xgboost", "seed=0,1", "run_id=mine").done
    assert [(c["cell"], c["overrides"][-3:]) for c in result["cells"]] == [
        (n, [f"model={model}", f"seed={seed}", "run_id=mine"])
        for n, (model, seed) in enumerate(
            [("lightgbm", 0), ("lightgbm", 1), ("xgboost", 0), ("xgboost", 1)]
        )
    ]
    folders = [tmp_path / cell["run_dir"] for cell in result["cells"]]
    assert [folder.name for folder in folders] == [f"mine-{n}" for n in range(4)]
    for cell, folder in zip(result["cells"], folders, strict=True):
        assert json.loads((folder / "metrics.json").read_text())["top1"] == cell["top1"]
    with (tmp_path / result["sweep_dir"] / "results.csv").open() as handle:
        rows = list(csv.DictReader(handle))
    assert [(row["model"], row["seed"]) for row in rows][:2] == [
        ("lightgbm", "0"),
        ("lightgbm", "1"),
    ]
    assert [float(row["top1"]) for row in rows] == [cell["top1"] for cell in result["cells"]]


def test_one_failing_cell_is_one_line_and_the_others_go_on(sweep):
    err = sweep("min_programs=1,1000", "model=tensetmlp").refusal
    assert "lower min_programs" in err
    assert "error: 1 of 2 cells failed" in err


@pytest.mark.parametrize(
    ("cell", "code"),
    [
        ({"unsuccessful": 1}, 3),
        ({"error": "no"}, 2),
        ({"error": "no", "overrides": ["~run_id", "+x=a=b"]}, 2),
        ({"overrides": 7}, 1),  # a bug here: Hydra would make it a warning
    ],
)
def test_what_came_to_nothing_in_a_cell_is_the_exit_code_of_the_sweep(tmp_path, capsys, cell, code):
    from pruner.cli.shared.sweep import Gather

    for number, more in enumerate(({}, cell)):
        (tmp_path / str(number)).mkdir()
        text = json.dumps({"cell": number, "overrides": [f"seed={number}"], **more})
        (tmp_path / str(number) / "metrics.json").write_text(text)
    config = OmegaConf.create({"hydra": {"sweep": {"dir": str(tmp_path)}}})
    with pytest.raises(SystemExit) as stop:
        Gather().on_multirun_end(config)
    assert stop.value.code == code
    assert ("Traceback" in capsys.readouterr().err) == (code == 1)


def test_an_unknown_choice_ends_the_sweep_before_any_work(sweep, tmp_path):
    assert "model=nonsense is unknown; known: " in sweep("model=tensetmlp,nonsense").refusal
    assert not list(tmp_path.glob("outputs/train/*-tensetmlp"))


def test_a_command_without_sweeps_says_so(command):
    assert "results_table has no sweeps" in command("results_table", "-m", "seeds=[0],[1]").refusal


def test_evaluations_sweep_too(command, toy_root):
    choices = ("model=random", "platform=k80,v100")
    result, _ = command("evaluate", "-m", f"data.root={toy_root}", *choices).done
    assert result["failed"] == 0
    alone = [
        command("evaluate", "model=random", f"data.root={toy_root}", f"platform={platform}")[1]
        for platform in ("k80", "v100")
    ]
    assert [cell["top1"] for cell in result["cells"]] == [one["top1"] for one in alone]


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        pytest.param("adapt", ["source=k80", "target=v100,mi50"], marks=pytest.mark.slow),
        pytest.param("tune", ["policy=random,metaschedule", "seed=7"], marks=pytest.mark.tvm),
    ],
)
def test_a_sweep_reaches_the_doors_that_take_long(command, monkeypatch, name, choices):
    module = importlib.import_module(f"pruner.cli.{name}")
    seen = []

    def run(config):
        seen.append(config)
        return {"run_dir": f"somewhere/{len(seen)}"}

    monkeypatch.setattr(module, name, run)
    result, _ = command(name, "-m", *choices).done
    assert [cell["run_dir"] for cell in result["cells"]] == ["somewhere/1", "somewhere/2"]
    assert Path(result["sweep_dir"]).parts[:2] == ("outputs", name)
    # Without platform= tune.py tunes for this machine's CPU, in a sweep as well.
    targets = {"adapt": ["v100", "mi50"], "tune": ["host", "host"]}
    assert [config.target for config in seen] == targets[name]


def test_the_example_experiment_is_six_cells_on_bundled_data():
    config = composed("train", "experiment=models_by_seed", whole=True)
    assert config.hydra.mode.name == "MULTIRUN"
    cells = [len(choices.split(",")) for choices in config.hydra.sweeper.params.values()]
    assert cells == [2, 3]
    assert config.data.root is None  # the bundled records


def two_cells(tmp_path, *options):
    words = ("train.py", "-m", *BUNDLED, *TINY, "model=tensetmlp", "seed=0,1", *options)
    result, _ = ran(*words, cwd=tmp_path)
    assert result["failed"] == 0
    return [(cell["run_dir"], cell["top1"]) for cell in result["cells"]]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return two_cells(tmp_path_factory.mktemp("alone"))


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["joblib", "submitit_local"])
def test_a_launcher_gives_the_same_numbers_as_one_process(launcher, alone, tmp_path):
    pytest.importorskip(f"hydra_plugins.hydra_{launcher.split('_')[0]}_launcher")
    apart = two_cells(tmp_path, "run_id=apart", f"hydra/launcher={launcher}")
    assert [value for _, value in apart] == [value for _, value in alone]
