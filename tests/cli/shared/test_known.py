"""An option is known by the files and constructors of its command, or refused with a near name."""

import re
from dataclasses import dataclass, field

import pytest
from omegaconf import MISSING, OmegaConf

from pruner.cli.shared import known
from pruner.cli.shared.door import run_door
from pruner.cli.shared.help import help_text
from pruner.cli.shared.known import (
    CHOOSERS,
    NETWORK_POLICY,
    POSITIONAL,
    command_file,
    full_words,
    groups_of,
    read_fields,
    read_words,
)
from pruner.cli.shared.runs import read_config
from pruner.errors import PrunerError
from pruner.paths import conf_folder
from pruner.tune.measure import targets


@pytest.mark.parametrize(
    ("command", "word", "near"),
    [
        ("train", "epochs=5", "trainer.max_epochs"),
        ("train", "+epochs=5", "trainer.max_epochs"),
        ("train", "model.widht=32", "model.width"),
        ("train", "modle=pacm", "model"),
        ("train", "lr=0.1", "optimizer.lr"),
        ("tune", "trials=5", "budget.trials"),
        ("tune", "policy.draft.populaton=5", "policy.draft.population"),
        ("import_logs", "platfrm=v100", "platform"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_name(command, word, near):
    name = word.lstrip("+").split("=")[0]
    with pytest.raises(PrunerError, match=rf"^{name} is unknown; did you mean {near}\?$"):
        read_words(command, [word])


@pytest.mark.parametrize("word", ["+x=1", "xyzzy=1"])
def test_a_name_like_no_other_is_refused_too(word):
    with pytest.raises(PrunerError, match="is unknown; see --help"):
        read_words("train", [word])


def test_names_in_a_mapping_are_options_like_any_other():
    for word, told in (
        ("measure={repeatz: 3}", "measure.repeatz is unknown; did you mean measure.repeats?"),
        ("budget={trialz: 3}", "budget.trialz is unknown; did you mean budget.trials?"),
        ("measure={alone: true}", "measure.alone is now called measure.exclusive"),
    ):
        with pytest.raises(PrunerError, match=f"^{re.escape(told)}$"):
            read_words("tune", [word])
    for word in ("measure={repeats: 3}", "target={kind: llvm}", "sizes={batch: 2}"):
        read_words("tune", [word])


def test_choices_are_those_of_the_command():
    with pytest.raises(PrunerError, match="workload is unknown"):
        read_words("train", ["workload=matmul"])
    assert read_words("import_logs", ["platform=my-gpu", "out=data"]).config.platform == "my-gpu"


@pytest.mark.parametrize(
    ("command", "words", "path", "value"),
    [
        ("train", ["model.width=32"], "model.width", 32),
        ("train", ["+model.width=32"], "model.width", 32),
        ("train", ["model.width=32", "model=tensetmlp"], "model.width", 32),
        ("train", ["trainer.check_val_every_n_epoch=4"], "trainer.check_val_every_n_epoch", 4),
        ("train", ["logger=wandb", "logger.project=mine"], "logger.project", "mine"),
        ("train", ["split=by_operator", "split.workloads=all"], "split.workloads", "all"),
        ("tune", ["workload=list", "workload.tasks.0.m=64"], "workload.tasks.0.m", 64),
        ("tune", ["workload.weight=2"], "workload.weight", 2),
        ("tune", ["policy.epsilon=0.5"], "policy.epsilon", 0.5),
        ("evaluate", ["platform=v100", "platform.num_sms=1"], "platform.num_sms", 1),
    ],
)
def test_an_option_needs_no_plus(command, words, path, value):
    config = read_words(command, words).config
    assert OmegaConf.select(config, path) == value


def test_a_path_may_have_characters_of_the_grammar(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("net (1).onnx", "a,b's {2}.pt2", "été"):
        (tmp_path / name).touch()
        assert read_words("tune", ["platform=a100", f"network={name}"]).config.network == name


def test_a_sweep_over_choices_knows_the_options_of_each():
    words = ["-m", "model=tlp,pacm", "model.dataflow_width=8,16"]
    assert read_words("train", words).words[-1] == "++model.dataflow_width=8,16"
    with pytest.raises(PrunerError):
        read_words("train", ["-m", "model=tlp,tensetmlp", "model.dataflow_width=8"])
    for word in ("seed=0,1", "model=tlp,pacm"):
        with pytest.raises(PrunerError, match=rf"^{word}: several values are a sweep, add -m"):
            read_words("train", [word])
    read_words("train", ["experiment=ablation_losses", "model=tlp,pacm"])  # it is a sweep itself


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("train", "platform=4090"),
        ("train", "split=0"),
        ("train", "platform=[v100,mi50]"),  # the last one would be taken
        ("tune", "effort=1"),
        ("tune", "+policy=true"),
        ("adapt", "budget=100"),
        ("train", "model=null"),
    ],
)
def test_a_choice_is_the_name_of_a_file(command, word):
    for words in ([word], ["-m", word, "seed=0,1"]):
        with pytest.raises(PrunerError, match=rf"^{re.escape(word)}: choose one of \w"):
            read_words(command, words)


def test_a_command_line_is_composed_once(monkeypatch, tmp_path):
    """Equal choices once a process; everybody has an own copy, with the folder of the moment."""
    known._composed.cache_clear()
    done = []
    compose = known.compose
    monkeypatch.setattr(known, "compose", lambda *a, **k: done.append(a) or compose(*a, **k))
    taken = []
    run_door("train", ["model=tensetmlp", "seed=3", "-h"])
    run_door("train", ["model=tensetmlp", "seed=3"], lambda config: taken.append(config) or {})
    assert len(done) == 1
    assert taken[0].seed == 3
    taken[0].model.width = 7
    monkeypatch.chdir(tmp_path)
    again = read_words("train", ["model=tensetmlp"])
    assert (len(done), again.config.seed) == (1, 0)
    assert again.config.model.get("width") != 7
    assert again.hydra.hydra.runtime.cwd == str(tmp_path)


@dataclass(kw_only=True)
class Options:
    run: str = MISSING
    count: int = 1
    parts: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class Nested:
    of: Options = field(default_factory=Options)


def test_an_option_without_default_can_be_given_and_must_be():
    assert read_fields(Options, ["run=here", "count=2"]) == Options(run="here", count=2)
    with pytest.raises(PrunerError, match="give run=, it has no default"):
        read_fields(Options, [])
    with pytest.raises(PrunerError, match=r"rum is unknown; did you mean run\?"):
        read_fields(Options, ["rum=here"])
    with pytest.raises(PrunerError, match=r"parts: a list; write parts=\[a,b\]"):
        read_fields(Options, ["run=here", "parts=a"])
    with pytest.raises(PrunerError, match="count: Value 'two'"):
        read_fields(Options, ["run=here", "count=two"])
    with pytest.raises(PrunerError, match="-m is unknown; see"):
        read_fields(Options, ["run=here", "-m"])
    with pytest.raises(PrunerError, match=r"give of\.run="):
        read_fields(Nested, [])


@pytest.mark.parametrize(
    ("command", "word", "now"),
    [
        ("deploy", "beside=[eager]", "baselines"),
        ("tune", "measure.alone=false", "measure.exclusive"),
    ],
)
def test_an_option_of_before_is_refused_with_its_new_name(command, word, now):
    words = ["run=x"] if command == "deploy" else ["workload=matmul", "platform=cpu-avx2"]
    with pytest.raises(PrunerError, match=rf"is now called {now}$"):
        read_words(command, [*words, word])


@pytest.mark.parametrize("value", ["null", "true"])
def test_an_old_run_folder_is_read_with_the_new_names(tmp_path, value):
    path = tmp_path / "config.yaml"
    path.write_text(f"measure:\n  alone: {value}\n  lag: null\n", encoding="utf-8")
    assert read_config(path).measure == {
        "exclusive": {"null": None, "true": True}[value],
        "lag": None,
    }


@pytest.mark.parametrize(
    ("words", "implied"),
    [
        (["network=resnet18"], True),
        (["seed=1", "network=a,b", "-m"], True),
        (["network=resnet18", "policy=random"], False),
        (["network=resnet18", "experiment=paper_tuning"], False),
        (["network=null"], False),
        (["workload=matmul"], False),
        (["workload=matmul", "variants=true"], True),
        (["workload=matmul", "variants=True"], True),
        (["network=resnet18", "variants=true,false", "-m"], True),
        (["workload=matmul", "variants=true,false", "policy=random", "-m"], False),
        (["workload=matmul", "variants=false"], False),
        (["resume=outputs/tune/x", "network=resnet18"], False),
    ],
)
def test_a_network_has_its_policy_unless_another_is_chosen(words, implied):
    found = full_words("tune", ["platform=a100", *words])
    assert found == [NETWORK_POLICY] * implied + ["platform=a100", *words]


def test_one_sweep_has_no_two_policies_by_itself():
    with pytest.raises(PrunerError, match=r"variants=true,false: .*; name one policy= for all"):
        full_words("tune", ["platform=a100", "workload=matmul", "variants=true,false", "-m"])


def test_the_shape_of_the_only_input_is_a_size():
    words = ["network=net.onnx", "platform=a100", "input=1x3x8x8", "sizes.other=3"]
    assert "sizes.input=1x3x8x8" in full_words("tune", words)
    found = read_words("tune", words).config.sizes
    assert (found.input, found.other, found.batch) == ("1x3x8x8", 3, None)


@pytest.mark.parametrize(
    ("words", "more"),
    [
        (["seed=1"], ["platform=cpu-sse4", "target=host"]),
        (["platform=cpu"], ["platform=cpu-sse4", "target=host"]),
        (["target={kind:llvm}"], ["platform=cpu-sse4"]),
        (["plot=RUN"], []),
        (["resume=RUN"], []),
        (["resume=RUN", "platform=cpu"], ["platform=cpu-sse4", "target=host"]),
        (["--help"], []),
        (["platform=a100"], []),
    ],
)
def test_this_machine_is_tuned_for_unless_another_platform_is_named(monkeypatch, words, more):
    monkeypatch.setattr(targets, "local_platform", lambda: "cpu-sse4")
    rest = [word for word in words if word != "platform=cpu"]
    assert full_words("tune", words) == [*rest, *more]


def test_a_machine_that_no_platform_describes_is_told(monkeypatch):
    monkeypatch.setattr(targets, "missing_flags", lambda *_: ["avx"])
    with pytest.raises(PrunerError, match=r"none of .*; name a platform="):
        read_words("tune", ["workload=matmul"])


@pytest.mark.parametrize(
    ("command", "given", "full"),
    [
        ("compare", ["a", "b", "options=false"], ["options=false", "runs=['a','b']"]),
        ("compare", ["it's"], ["runs=['it\\'s']"]),
        ("import_checkpoint", ["a.pkl", "run_id=x"], ["run_id=x", "file='a.pkl'"]),
        ("import_checkpoint", ["file=a.pkl"], ["file=a.pkl"]),
        ("import_checkpoint", ["--help"], ["--help"]),
        ("train", ["network=resnet18"], ["network=resnet18"]),
    ],
)
def test_a_path_needs_no_name(command, given, full):
    assert full_words(command, given) == full


def test_help_shows_what_a_run_would_take():
    shown = {
        given: help_text("tune", read_words("tune", [given, "--help"]))
        for given in ("network=resnet18", "seed=0")
    }
    assert "now pruner_network)" in shown["network=resnet18"]
    assert "now pruner_live)" in shown["seed=0"]
    assert "\n  policy.draft.population=512" in shown["network=resnet18"]


def test_what_is_implied_is_in_conf_and_said_there():
    group, choice = NETWORK_POLICY.split("=")
    assert {"network", *CHOOSERS} <= {*command_file("tune"), *groups_of("tune")}
    assert (conf_folder() / group / f"{choice}.yaml").is_file()
    assert choice in (conf_folder() / "tune.yaml").read_text(encoding="utf-8")
    assert all(option in command_file(command) for command, option in POSITIONAL.items())
