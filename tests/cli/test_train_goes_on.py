"""``train.py checkpoint=``: a trained model goes on with other records."""

import numpy as np
import pytest
import torch

from pruner import features
from pruner.models.checkpoint.checkpoint import CheckpointInfo, load_checkpoint, save_checkpoint
from pruner.models.networks.pacm import PaCM
from pruner.models.programs.scaler import ColumnScaler
from pruner.models.ranker import NeuralRanker
from pruner.models.registry import ModelSpec
from tests.cli import toy_records
from tests.models.synthetic import exactly


@pytest.fixture
def train(command, toy_root):
    def run(platform, *arguments):
        given = (f"data.root={toy_root}", f"platform={platform}", *toy_records.QUICK, *arguments)
        return command("train", *given)

    return run


@pytest.fixture
def first(trained):
    return trained("model=pacm_narrow", "split=by_task")[0]


def test_a_chain_of_runs_adds_up_what_was_seen(first, train, command, toy_root):
    second, err = train("k80", f"checkpoint={first['run_dir']}").done
    seen = {name: len(tasks) for name, tasks in _info(first).seen_tasks.items()}
    assert f"going on from a PaCM that has seen tasks: {seen['v100']} of v100" in err
    info = _info(second)
    assert set(info.seen_tasks) == {"k80", "v100"}
    assert info.model.arguments["width"] == 64  # the checkpoint's, not model=pacm's
    assert [one["says_seen"] for one in second["went_on_from"]] == [True]
    assert second["run_dir"].endswith("k80-pacm-goes-on")
    # frozen splits hold the same work out everywhere: what judges was never seen
    assert second["num_tasks"] == first["num_tasks"]
    again = command(
        "evaluate", f"checkpoint={second['checkpoint']}", f"data.root={toy_root}", "platform=v100"
    )
    assert again[1]["num_tasks"] == first["num_tasks"]


def test_an_evaluation_tells_of_work_seen_elsewhere(first, command, toy_root):
    given = (f"checkpoint={first['checkpoint']}", f"data.root={toy_root}")
    result, err = command("evaluate", *given, "platform=k80").done
    seen = len(_info(first).seen_tasks["v100"])
    assert result["num_tasks"] == 6 > seen
    assert f"the workloads of {seen} evaluated tasks on another platform" in err
    # the same work with another name is not judged on its own platform either
    name = _info(first).seen_tasks["v100"][0]
    path = toy_root / "measure_records/v100" / f"{name}.json"
    path.with_name(path.name.replace("matmul", "matmul_relu")).write_bytes(path.read_bytes())
    result, err = command("evaluate", *given, "platform=v100").done
    assert result["num_tasks"] == first["num_tasks"]
    assert f"{seen + 1} of 7 tasks left out" in err
    assert "on another platform" not in err


def test_without_an_epoch_a_model_judges_as_before(first, train):
    same, err = train("v100", f"checkpoint={first['run_dir']}", "trainer.max_epochs=0").done
    assert "the training improved nothing" in err
    for name in ("top1", "pairwise_accuracy", "ndcg"):
        assert same[name] == first[name]
    exactly(*(load_checkpoint(_path(run))[0].state_dict() for run in (first, same)))


def test_a_training_whose_best_epoch_is_the_start_is_told_as_such(first, train):
    """With steps of nothing no epoch is better than the start; with good steps one is."""
    going_on = ("v100", f"checkpoint={first['run_dir']}", "trainer.max_epochs=4")
    for rate in ("1e-30", "1e-2"):
        result, err = train(*going_on, f"optimizer.lr={rate}").done
        unchanged = result["parts"]["run"]["best_epoch"] == -1
        assert unchanged == (rate == "1e-30")
        assert ("best.safetensors holds that model unchanged" in err) == unchanged


def test_an_imported_model_keeps_its_rows_and_maxima(train, tmp_path):
    torch.manual_seed(0)
    arguments = {"num_dataflow_rows": 8, "width": 16}
    scaler = ColumnScaler()
    scaler.statement_scale.fill_(3.0)
    info = CheckpointInfo(
        model=ModelSpec(name="PaCM", arguments=arguments),
        feature_version="toy-1",
        dataflow="official",
    )
    given = tmp_path / "given" / "best.safetensors"
    save_checkpoint(given, NeuralRanker(PaCM(**arguments), scaler), info)
    result, err = train("v100", f"checkpoint={tmp_path / 'given'}").done
    assert "has seen more than it says (nothing)" in err
    ranker, found = load_checkpoint(_path(result))
    assert (found.dataflow, found.model.arguments) == ("official", arguments)
    assert not found.says_seen
    assert not ranker.relative
    np.testing.assert_array_equal(ranker.scaler.statement_scale, scaler.statement_scale)


def test_what_is_said_of_a_checkpoint_is_refused_without_one(train):
    """paper_finetuning learned from random weights by plain SGD, and scaler=renew did nothing."""
    for arguments in (["experiment=paper_finetuning"], ["scaler=renew"]):
        err = train("v100", *arguments).refusal
        assert "needs a model to continue from; add checkpoint=RUN" in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["model=tensetmlp"], "leave out model=tensetmlp"),
        (["inputs=official"], "leave out inputs=official"),
        (["features=official"], "leave out features=official"),
        (["split.seed=3"], "has seen the work of all"),
        (["scaler=new"], "scaler=new: it must be keep, renew or null"),
    ],
)
def test_what_the_weights_decide_cannot_be_chosen(first, train, arguments, told):
    assert told in train("k80", f"checkpoint={first['run_dir']}", *arguments).refusal


def test_records_whose_work_was_seen_do_not_judge(trained, train, tmp_path):
    """The same workloads as a training of all but one, under another split."""
    first, _ = trained("model=pacm_narrow", "split=within_task")
    err = train("k80", f"checkpoint={first['run_dir']}").refusal
    assert "the checkpoint has seen the work of all" in err.splitlines()[-1]
    other = toy_records.write(tmp_path / "other", shapes=[(48, 48, n) for n in (3, 5, 7, 9, 11)])
    result, err = train("k80", f"checkpoint={first['run_dir']}", f"data.root={other}").done
    assert "do not judge" not in err
    assert result["num_tasks"] >= 1


def _path(result):
    from pathlib import Path

    return Path(result["checkpoint"])


def _info(result):
    return load_checkpoint(_path(result), feature_version=features.FEATURE_SET_VERSION)[1]
