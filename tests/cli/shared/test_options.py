"""Values that would be misread or refused late are refused at once, in one line."""

import pytest
from omegaconf import OmegaConf

from pruner.cli.shared.known import read_words
from pruner.cli.shared.options import check_options, several
from pruner.errors import PrunerError


def nested(name, value):
    for part in reversed(name.split(".")):
        value = {part: value}
    return OmegaConf.create(value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", -1), ("seeds", []), ("seeds", [0, "x"]), ("seeds", [0, 0]), ("train_share", 1.5),
        ("num_threads", -1), ("stop_after", 0), ("trainer.max_epochs", True), ("optimizer.lr", -1),
        ("inputs.scale", "foo"), ("measure.cv_limit", "a"), ("run_id", "../x"), ("run_id", ".."),
        ("budget.trials", 100.0), ("verify", "no"), ("verify", None), ("measure.exclusive", "no"),
        ("policy.prior", float("inf")), ("policy.prior", None), ("model.width", 0),
        ("data.root", 3), ("checkpoint", 3), ("budget.labels", ["a"]), ("models.own", 3),
        ("split.held_out", "conv2d"), ("leave_out", "v100"), ("measure.lag", 9),
        ("measure.lag", True), ("networks", [3]), ("workload.padding", "FULL"),
        ("runner.kind", "ssh"), ("refit", None), ("energy", None), ("program_timeout_s", None),
        ("workload.weight", float("nan")), ("workload.weight", 0),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named(name, value):
    """One or two of each kind of rule; tests/attack/test_options.py tries every option."""
    with pytest.raises(PrunerError, match=name.replace(".", r"\.")):
        check_options(nested(name, value))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seeds", None), ("seeds", [0, 1]), ("num_threads", None), ("optimizer.lr", 7e-4),
        ("inputs.scale", "max"), ("run_id", None), ("run_id", "a-1"), ("budget.seconds", 0.5),
        ("measure.exclusive", None), ("measure.exclusive", True), ("measure.min_repeat_ms", 0),
        ("policy.prior", 0), ("measure.lag", 0), ("workload.padding", "SAME"),
        ("workload.padding", 0), ("energy", 0.5), ("program_timeout_s", 1.5),
    ],
)  # fmt: skip
def test_a_right_value_passes(name, value):
    check_options(nested(name, value))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model.width=abc"], r"model\.width=abc: it must be a whole number from 1 to"),
        (
            ["model=tensetmlp", "model.num_residual=-3"],
            r"model\.num_residual=-3: it must be a whole number",
        ),
        (["model.use_statement=3"], r"model\.use_statement=3: it must be true or false"),
        (["model=tensetmlp", "model.num_residual=null"], r"num_residual=None: it must be a whole"),
        (["platform.num_cores=few"], r"platform\.num_cores=few: it must be a whole number"),
        (["model=xgboost", "model.learning_rate=slow"], r"learning_rate=slow: it must be a number"),
    ],
)
def test_an_argument_stays_of_its_kind(words, message):
    with pytest.raises(PrunerError, match=message):
        read_words("train", words)


@pytest.mark.parametrize(
    ("command", "word", "message"),
    [
        ("tune", "budget=small", r"^budget=small: it must be given by its .* as budget\.trials=$"),
        ("tune", "measure=null", r"^measure=None: it must be given by its own options"),
        ("adapt", "data=DIR", r"^data=DIR: .* such as data\.root=$"),
        ("draft_report", "plot=null", r"^plot=null: it must be text"),
        ("draft_report", "out=null", r"^out=null: it must be"),
        ("collect", "programs=null", r"^programs=None: it must be a whole number"),
        ("results_table", "shares=null", r"^shares=null: it must be a list"),
    ],
)
def test_a_section_is_no_value_and_most_options_are_not_null(command, word, message):
    with pytest.raises(PrunerError, match=message):
        read_words(command, [word, "platform=cpu-avx2"] if command == "tune" else [word])


def test_a_rule_comes_before_the_kind_of_the_default():
    words = ["platform=cpu-avx2", "workload=conv2d", "workload.padding=SAME"]
    assert read_words("tune", words).config.workload.padding == "SAME"
    read_words("deploy", ["run=there", "energy=0.5"])
    read_words("collect", ["program_timeout_s=1.5"])


def test_options_that_say_so_may_be_null():
    read_words("train", ["data.cache=null", "num_threads=null", "trainer.accelerator=null"])
    read_words("train", ["batches=by_task", "batches.per_task=null"])
    read_words("train", ["loss=top_tenth", "loss.beside=null"])
    read_words("tune", ["platform=cpu-avx2", "cache=null", "workload.epilogue=null"])
    read_words("predict", ["drafts=null"])
    read_words("leaderboard", ["data.root=null"])


def test_mistakes_end_in_one_line(command, toy_root, tmp_path):
    blocked = tmp_path / "file"
    blocked.touch()
    for arguments, message in (
        (["trainer.max_epochs=0"], "a new model learns nothing"),
        (["trainer.precision=64-true"], "trainer.precision=64-true: it must be one of 32-true"),
        (["model=random"], "nothing to train"),
        (["experiment=paper_tuning"], "is of another command: it chooses policy=, which this one"),
        (["model=null"], "model=null: choose one of attention,"),
        ([f"outputs={blocked}"], str(blocked)),
    ):
        err = command("train", f"data.root={toy_root}", "platform=v100", *arguments).refusal
        assert message in err


def test_one_name_is_a_list_of_one():
    """compare=RUN without brackets is one run, not one for each letter."""
    given = OmegaConf.create({"one": "RUN", "many": ["a", "b"], "none": None})
    assert several(given.one) == ["RUN"]
    assert several(given.many) == ["a", "b"]
    assert several(given.none) == []
