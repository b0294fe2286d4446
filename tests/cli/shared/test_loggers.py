"""An offline W&B run, read back from its file, has all that the run folder has."""

import json

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

pytest.importorskip("wandb")

from tests.cli.wandb_file import contents

SMALL = ("trainer.max_epochs=2", "batches.programs=8", "num_threads=1", "trainer.accelerator=cpu")


@pytest.fixture
def logged(command, toy_root, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))

    def run(*arguments):
        code, result, err = command(
            "train", f"data.root={toy_root}", "platform=v100", "logger=wandb", *SMALL, *arguments
        )
        assert code == 0, err
        found = sorted((tmp_path / result["run_dir"]).glob("**/*.wandb"))
        return result, [(path, contents(path)) for path in found]

    return run


def test_config_curves_summary_table_and_checkpoint_are_in_the_run(logged):
    result, [(path, run)] = logged("model=tensetmlp", "run_id=mine", "+logger.tags=[tried]")
    assert run["run"].display_name == "mine"
    assert list(run["run"].tags) == ["v100", "TenSetMLP", "LambdaRank", "by_task", "tried"]
    assert run["config"]["trainer"]["max_epochs"] == 2
    assert run["config"]["model"] == {"_target_": "pruner.models.networks.mlp.TenSetMLP"}
    epochs = [row for row in run["history"] if "valid/top1" in row]
    assert [row["epoch"] for row in epochs] == [0, 1]
    assert sum("train/loss" in row for row in run["history"]) == 2
    assert run["summary"]["test/top1"] == result["top1"]
    assert run["summary"]["test/num_programs"] == result["num_programs"]
    file = next(row["test/tasks/path"] for row in run["history"] if "test/tasks/path" in row)
    table = json.loads((path.parent / "files" / file).read_text())
    assert table["columns"][:3] == ["task", "num_programs", "best_latency_s"]
    assert len(table["data"]) == result["num_tasks"]
    artifact = next(a for a in run["artifacts"] if a.type == "model")
    [entry] = artifact.manifest.contents
    assert entry.path == "best.pt"
    assert entry.local_path == str((path.parents[2] / "best.pt").resolve())


def test_trees_are_logged_too_and_parts_are_a_group(logged):
    result, runs = logged("model=xgboost", "seeds=[0,1]", "run_id=mine")
    names = sorted(run["run"].display_name for _, run in runs)
    assert names == ["mine/seed-0", "mine/seed-1"]
    assert {run["run"].run_group for _, run in runs} == {"mine"}
    logged_mean = sum(run["summary"]["test/top1"] for _, run in runs) / 2
    assert logged_mean == pytest.approx(result["top1"])


def test_the_example_of_a_wandb_sweep_names_options_of_train(repository):
    sweep = yaml.safe_load((repository / "docs/wandb-sweep.yaml").read_text())
    assert sweep["command"][2:4] == ["${program}", "logger=wandb"]
    first = [
        f"{name}={(given.get('values') or [given.get('value', given.get('min'))])[0]}"
        for name, given in sweep["parameters"].items()
    ]
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(repository / "conf"), version_base="1.3"):
        config = compose("train", [*first, "logger=wandb"])
    assert config.optimizer.lr == 0.0001
    assert (repository / sweep["program"]).is_file()
