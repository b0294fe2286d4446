"""Words that follow from others: in a run, in ``--help``, and in conf/."""

import pytest

from pruner.cli.shared.help import help_text
from pruner.cli.shared.known import (
    CHOOSERS,
    NETWORK_POLICY,
    POSITIONAL,
    command_file,
    full_words,
    groups_of,
    read_words,
)
from pruner.errors import PrunerError
from pruner.paths import conf_folder
from pruner.tune.measure import targets


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
    assert "\n  policy.draft.population=128" in shown["network=resnet18"]


def test_what_is_implied_is_in_conf_and_said_there():
    group, choice = NETWORK_POLICY.split("=")
    assert {"network", *CHOOSERS} <= {*command_file("tune"), *groups_of("tune")}
    assert (conf_folder() / group / f"{choice}.yaml").is_file()
    assert choice in (conf_folder() / "tune.yaml").read_text(encoding="utf-8")
    assert all(option in command_file(command) for command, option in POSITIONAL.items())
