"""Models that read the analyzer, programs that failed, averaged weights, in every command."""

import csv

import pytest


def test_what_is_trained_with_the_analyzer_is_judged_and_predicts_with_it(
    train, command, toy_root, tmp_path
):
    trained, err = train("model=pacm_narrow", "model.residual=true", "model.use_draft=true").done
    options = (f"checkpoint={trained['run_dir']}", f"data.root={toy_root}", "platform=v100")
    judged, err = command("evaluate", *options).done
    assert judged["pairwise_accuracy"] == pytest.approx(trained["pairwise_accuracy"])
    _, err = command("predict", *options, "out=s.csv").done
    with (tmp_path / "s.csv").open() as file:
        assert all(row["score"] for row in csv.DictReader(file))
    again, _ = train(f"checkpoint={trained['run_dir']}").done  # goes on, with what it reads
    assert again["went_on_from"]


def test_programs_that_failed_are_learnt_from_and_judge_nobody(train):
    _, plain, _ = train("model=tensetmlp")
    more, _ = train("model=tensetmlp", "train_failures=true", "loss=top_tenth").done
    assert more["num_programs"] == plain["num_programs"]
    assert more["data"]["num_measured"] == plain["data"]["num_measured"]


@pytest.mark.parametrize("schedule", ["averaged", pytest.param("soup", marks=pytest.mark.slow)])
def test_averaged_weights_are_one_model(train, schedule):
    result, _ = train("model=tensetmlp", f"schedule={schedule}", "schedule.soup_epochs=1").done
    assert result["finished"]
    assert result["checkpoint"].endswith("best.safetensors")


@pytest.mark.slow
def test_a_table_has_variants_that_read_other_things(command, toy_root):
    result, _ = command(
        "results_table",
        f"data.root={toy_root}",
        "platforms=[v100]",
        "models=[residual,failed,random]",
        "seeds=[0]",
        "+variants.residual=['model=pacm_narrow','+model.residual=true']",
        "+variants.failed=['model=tensetmlp','train_failures=true']",
        "overrides=['trainer.max_epochs=1','trainer.accelerator=cpu','num_threads=1']",
    ).done
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
    assert says in train(option).refusal
