import pytest
import pandas as pd


def test_a_random_ranker_needs_no_checkpoint(command, toy_root):
    result, _ = command(
        "evaluate", "model=random", "platform=v100", f"data.root={toy_root}"
    ).done
    assert result["num_tasks"] == 6
    assert result["num_programs"] == 6 * 15
    assert {"best1_at_512", "best1_at_eighth", "best1_at_2pct"} <= result["best_k"].keys()
    assert result["best_k"].keys() == result["random"]["best_k"].keys()
    assert 0 < result["random"]["top1"] < result["random"]["top5"] <= 1
    for name in ("top1", "top5", "pairwise_accuracy", "seconds"):
        assert name in result


def test_all_tasks_include_those_of_the_training(command, trained, toy_root):
    given, _ = trained("model=tensetmlp")
    options = [f"checkpoint={given['run_dir']}", f"data.root={toy_root}", "platform=v100"]
    unseen, everything = (
        command("evaluate", *options)[1],
        command("evaluate", *options, "tasks=all")[1],
    )
    assert unseen["num_tasks"] == given["num_tasks"] < everything["num_tasks"] == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either checkpoint=FILE"),
        (["model=random", "checkpoint=x"], "give either"),
        (["checkpoint=nowhere.pt"], "does not exist"),
        (["model=pacm"], "train it with train.py"),
        (["model=random", "platform=orin"], "no records for platform=orin"),
        (["model=random", "tasks=some"], "known: unseen, all"),
        (["model=symbolic", "checkpoint=x"], "give either"),
        (["model=symbolic", "platform=t4"], "no records for platform=t4"),
        (["model=symbolic", "model.form=best"], "known: official, paper, hardware"),
        (["model=symbolic", "model.without=x"], "known: c, m"),
        (["model=symbolic", "model.form=paper", "model.calibrate=9"], "use model.form=hardware"),
        (["model=symbolic", "platform=v100", "platform.num_sms=0"], "num_sms must be a positive"),
    ],
)
def test_mistakes_are_one_line_and_code_2(command, toy_root, arguments, message):
    assert message in command("evaluate", f"data.root={toy_root}", *arguments).refusal


def test_a_folder_of_several_fits_asks_for_one(command, toy_root, tmp_path):
    for seed in (0, 1):
        (tmp_path / "run" / f"seed-{seed}").mkdir(parents=True)
        (tmp_path / "run" / f"seed-{seed}" / "best.pt").touch()
    err = command("evaluate", f"data.root={toy_root}", f"checkpoint={tmp_path / 'run'}").refusal
    assert "holds 2 models" in err
    assert "seed-0" in err


def test_every_record_line_has_a_row(command, trained, toy_root, tmp_path):
    data = (f"data.root={toy_root}", "platform=v100")
    checkpoint = f"checkpoint={trained('model=tensetmlp')[0]['run_dir']}"
    result, err = command("predict", checkpoint, *data, "out=s.csv").done
    table = pd.read_csv(tmp_path / "s.csv")
    columns = ["platform", "task", "line", "score", "rank", "latency_s"]
    assert list(table) == [*columns, "low_s", "predicted_s", "high_s"]
    assert table.eval("0 < low_s <= predicted_s <= high_s").all()
    assert len(table) == result["num_programs"] == 6 * 16  # the failed ones, too
    assert table.groupby("task")["rank"].min().eq(1).all()
    assert command("predict", checkpoint, *data, "seconds=false", "out=t.csv")[0] == 0
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "t.csv"), table[columns])
    assert command("predict", *data)[0] == 2  # no checkpoint
    assert "models.own=a.B: " in command("predict", checkpoint, *data, "models.own=[a.B]").refusal
