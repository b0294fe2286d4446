"""Models that read the analyzer, programs that failed, averaged weights, in every command."""

import csv

import pytest


def test_what_is_trained_with_the_analyzer_is_judged_and_predicts_with_it(
    train, command, toy_root, tmp_path
):
    code, trained, err = train("model=pacm_narrow", "model.residual=true", "model.use_draft=true")
    assert code == 0, err
    options = (f"checkpoint={trained['run_dir']}", f"data.root={toy_root}", "platform=v100")
    code, judged, err = command("evaluate", *options)
    assert code == 0, err
    assert judged["pairwise_accuracy"] == pytest.approx(trained["pairwise_accuracy"])
    code, _, err = command("predict", *options, "out=s.csv")
    assert code == 0, err
    with (tmp_path / "s.csv").open() as file:
        assert all(row["score"] for row in csv.DictReader(file))
    code, again, err = train(f"checkpoint={trained['run_dir']}")  # goes on, with what it reads
    assert code == 0, err
    assert again["went_on_from"]


def test_programs_that_failed_are_learnt_from_and_judge_nobody(train):
    _, plain, _ = train("model=tensetmlp")
    code, more, err = train("model=tensetmlp", "train_failures=true", "loss=top_tenth")
    assert code == 0, err
    assert more["num_programs"] == plain["num_programs"]
    assert more["data"]["num_measured"] == plain["data"]["num_measured"]


@pytest.mark.parametrize("schedule", ["averaged", pytest.param("soup", marks=pytest.mark.slow)])
def test_averaged_weights_are_one_model(train, schedule):
    code, result, err = train("model=tensetmlp", f"schedule={schedule}", "schedule.soup_epochs=1")
    assert code == 0, err
    assert result["finished"]
    assert result["checkpoint"].endswith("best.safetensors")


@pytest.mark.slow
def test_a_table_has_variants_that_read_other_things(command, toy_root):
    code, result, err = command(
        "results_table",
        f"data.root={toy_root}",
        "platforms=[v100]",
        "models=[residual,failed,random]",
        "seeds=[0]",
        "+variants.residual=['model=pacm_narrow','+model.residual=true']",
        "+variants.failed=['model=tensetmlp','train_failures=true']",
        "overrides=['trainer.max_epochs=1','trainer.accelerator=cpu','num_threads=1']",
    )
    assert code == 0, err
    assert set(result["mean"]) == {"v100/residual", "v100/failed", "v100/random"}


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("model.branch_dropout=1", "below 1"),
        ("schedule.soup_epochs=0", "1 or more"),
        ("train_failures=2", "true or false"),
        ("model.draft_width=0", "a whole number from 1"),
    ],
)
def test_mistakes_are_one_line(train, option, says):
    code, _, err = train(option)
    assert code == 2
    assert says in err
    assert "Traceback" not in err
