"""An offline W&B run, read back from its file, has all that the run folder has."""

import json

import pytest
import yaml

pytest.importorskip("wandb")

from pruner.cli.shared import loggers
from pruner.cli.shared.options import build, check_options
from pruner.errors import PrunerError
from tests.cli import toy_records
from tests.cli.outcome import composed
from tests.cli.test_adapt import TINY
from tests.cli.test_book import ITEM
from tests.cli.wandb_file import contents


@pytest.fixture(autouse=True)
def _wandb_stays_here(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def logged(command, toy_root, tmp_path):
    def run(*arguments):
        result, _ = command(
            "train",
            f"data.root={toy_root}",
            "platform=v100",
            "logger=wandb",
            *toy_records.SMALL,
            *arguments,
        ).done
        found = sorted((tmp_path / result["run_dir"]).glob("**/*.wandb"))
        return result, [(path, contents(path)) for path in found]

    return run


def test_config_curves_summary_table_and_checkpoint_are_in_the_run(logged):
    result, [(path, run)] = logged("model=tensetmlp", "run_id=mine", "+logger.tags=tried")
    assert run["run"].display_name == "mine"
    assert list(run["run"].tags) == ["v100", "TenSetMLP", "LambdaRank", "by_task", "tried"]
    assert run["config"]["trainer"]["max_epochs"] == 2
    model = run["config"]["model"]
    assert model.pop("_target_") == "pruner.models.networks.mlp.TenSetMLP"
    assert model == {"width": 256, "num_residual": 2}
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
    assert entry.path == "best.safetensors"
    assert entry.local_path == str((path.parents[2] / "best.safetensors").resolve())


def test_trees_are_logged_too_and_parts_are_a_group(logged):
    result, runs = logged("model=xgboost", "seeds=[0,1]", "run_id=mine")
    names = sorted(run["run"].display_name for _, run in runs)
    assert names == ["mine/seed-0", "mine/seed-1"]
    assert {run["run"].run_group for _, run in runs} == {"mine"}
    logged_mean = sum(run["summary"]["test/top1"] for _, run in runs) / 2
    assert logged_mean == pytest.approx(result["top1"])


@pytest.mark.parametrize("name", ["foo", "config"])  # the latter is the run's
def test_an_argument_that_no_logger_takes_is_told(tmp_path, name):
    with pytest.raises(PrunerError, match=rf"logger\.{name} is unknown; wandb.init takes .*notes"):
        loggers.wandb(folder=tmp_path, name="run", **{name: {}})


@pytest.mark.parametrize("name", ["name", "folder", "about"])
def test_an_argument_that_the_run_gives_is_refused(command, toy_root, name):
    words = (f"data.root={toy_root}", "logger=csv", f"+logger.{name}=x")
    assert "it must be left out: the run gives it" in command("train", *words).refusal


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["logger=wandb", "logger.nottes=x"], "logger.nottes is unknown; wandb.init takes"),
        (["logger=wandb", "logger.offline=false"], "logger.offline=false: No API key configured"),
        (["logger=tensorboard"], "tensorboard is not installed; run: pip install 'pruner["),
    ],
)
@pytest.mark.parametrize("name", ["train", "evaluate"])
def test_a_logger_that_cannot_begin_is_told_before_any_work(
    command, monkeypatch, tmp_path, name, words, told
):
    import wandb

    def missing(*_, **__):
        raise ModuleNotFoundError

    monkeypatch.setattr(loggers, "TensorBoardLogger", missing)
    monkeypatch.setattr(loggers, "has_wandb_key", lambda: False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("WANDB_MODE")
    wandb.teardown()  # it has read the variables once
    assert told in command(name, "platform=v100", "data.root=absent", *words).refusal
    monkeypatch.undo()
    wandb.teardown()


def test_a_refusal_of_the_logger_is_one_line(tmp_path):
    with pytest.raises(PrunerError, match=r"^logger: .*log_model"):
        loggers.wandb(folder=tmp_path, name="run", offline=True, log_model=True)


def rows_of(path, run, name):
    file = next(row[f"{name}/path"] for row in run["history"] if f"{name}/path" in row)
    return json.loads((path.parent / "files" / file).read_text())


def only_run(folder):
    [path] = folder.glob("**/*.wandb")
    return path, contents(path)


def test_an_evaluation_is_a_run_with_chance_beside_it(command, toy_root, tmp_path):
    result, _ = command(
        "evaluate", f"data.root={toy_root}", "platform=v100", "model=random", "logger=wandb"
    ).done
    path, run = only_run(tmp_path / result["run_dir"])
    assert run["summary"]["judged/top1"] == result["top1"]
    assert run["summary"]["judged/random_top1"] == result["random"]["top1"]
    assert run["summary"]["judged/best1_at_512"] == result["best_k"]["best1_at_512"]
    assert list(run["run"].tags) == ["v100", "RandomRanker"]
    assert len(rows_of(path, run, "judged/tasks")["data"]) == result["num_tasks"]


def test_a_table_is_a_run_and_so_are_its_fits(command, toy_root, tmp_path):
    result, _ = command(
        "results_table", f"data.root={toy_root}", "platforms=[v100]", "models=[tensetmlp,random]",
        "seeds=[0]", "overrides=['trainer.max_epochs=1']", "logger=wandb", "run_id=mine",
    ).done  # fmt: skip
    runs = {}
    for path in (tmp_path / result["run_dir"]).glob("**/*.wandb"):
        run = contents(path)
        runs[run["run"].display_name] = (path, run)
    path, run = runs.pop("mine")
    assert run["summary"]["table/v100/random/top1"] == result["mean"]["v100/random"]["top1"]
    assert len(rows_of(path, run, "table/tasks")["data"]) == 2
    [(_, fit)] = runs.values()
    assert fit["summary"]["test/top1"] == pytest.approx(result["mean"]["v100/tensetmlp"]["top1"])
    assert fit["run"].run_group == run["run"].run_group == "mine"


def test_the_book_is_a_run_with_every_key_number(command, toy_root, tmp_path):
    item = tmp_path / "experiments" / "toy" / "item.yaml"
    item.parent.mkdir(parents=True)
    item.write_text(yaml.safe_dump(ITEM))
    result, _ = command(
        "book", f"data.root={toy_root}", "preset=small", "run_id=mine", "logger=wandb"
    ).done
    path, run = only_run(tmp_path / result["run_dir"])
    assert run["summary"]["book/toy/net"] == 0.25  # what its command writes
    table = rows_of(path, run, "book/tasks")
    assert table["columns"] == ["item", "number", "ours", "own", "chance", "paper", "inside"]
    # the range is 0.6 to 0.8; the other number needs rows that this preset does not make
    assert table["data"] == [["toy", "net", 0.25, None, None, 0.9, False]]
    assert list(run["run"].tags) == ["small"]


@pytest.mark.slow
def test_ways_to_adapt_are_a_run_beside_that_of_the_source(door, tmp_path):
    result, _ = door("adapt", f"outputs={tmp_path}", *TINY, "seeds=[0]", "logger=wandb").done
    runs = [(path, contents(path)) for path in (tmp_path / "adapt/tiny").glob("**/*.wandb")]
    by_name = {run["run"].display_name: (path, run) for path, run in runs}
    path, run = by_name.pop("tiny")
    moa = result["methods"]["moa"]
    assert run["summary"]["adapted/moa/area"] == moa["area"]["mean"]
    assert run["summary"]["adapted/moa/trials_to_target"] == moa["trials_to_target"]["mean"]
    table = rows_of(path, run, "adapted/tasks")
    named = [dict(zip(table["columns"], row, strict=True))["method"] for row in table["data"]]
    assert sorted(named) == ["moa", "random", "scratch"]
    assert list(run["run"].tags) == ["cpu-sse4", "cpu-avx2"]
    [(_, source)] = by_name.values()
    assert source["summary"]["test/top1"] == result["source_top1_before"]


SWEEPS = ["losses", "dataflow", "statement", "penalties"]
QUICK = ("dataflow", "penalties")  # of each command the one with the fewest cells


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(f"ablation_{name}", marks=() if name in QUICK else pytest.mark.slow)
        for name in SWEEPS
    ],
)
def test_every_choice_of_a_committed_sweep_composes(name):
    command = "evaluate" if name == "ablation_penalties" else "train"
    choices = composed(command, f"experiment={name}", whole=True).hydra.sweeper.params
    words = [f"{given}".split(",") for given in choices.values()]
    for number in range(max(map(len, words))):  # every choice is in a cell
        picked = [found[number % len(found)] for found in words]
        cell = [f"{option}={word}" for option, word in zip(choices, picked, strict=True)]
        config = composed(command, f"experiment={name}", *cell)
        check_options(config)
        build(config.model)


def test_the_example_of_a_wandb_sweep_names_options_of_train(repository):
    sweep = yaml.safe_load((repository / "docs/wandb-sweep.yaml").read_text())
    assert sweep["command"][2:4] == ["${program}", "logger=wandb"]
    first = [
        f"{name}={(given.get('values') or [given.get('value', given.get('min'))])[0]}"
        for name, given in sweep["parameters"].items()
    ]
    config = composed("train", *first, "logger=wandb")
    assert config.optimizer.lr == 0.0001
    assert (repository / sweep["program"]).is_file()
