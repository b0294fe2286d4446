"""Run folders: the newest checkpoint."""

import json
import os
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from pruner.cli.shared import runs
from pruner.cli.shared.options import build
from pruner.cli.shared.runs import last_checkpoint, save_config
from pruner.cli.tune import resumed
from pruner.errors import DataError, PrunerError
from pruner.files import LOCK_FILE
from pruner.tune.run.journal import JOURNAL_FILE
from tests.cli.outcome import composed, give_words


def finished(outputs, command, run, when, **metrics):
    folder = outputs / command / run
    folder.mkdir(parents=True)
    (folder / "best.pt").touch()
    path = folder / "metrics.json"
    path.write_text(json.dumps({"checkpoint": str(folder / "best.pt")} | metrics))
    os.utime(path, (when, when))
    return folder / "best.pt"


def test_the_last_checkpoint_is_of_the_newest_finished_training(tmp_path):
    with pytest.raises(PrunerError, match="no finished run"):
        last_checkpoint(tmp_path)
    finished(tmp_path, "train", "a", 1_000)
    newest = finished(tmp_path, "import_checkpoint", "b", 3_000)
    finished(tmp_path, "train", "gone", 4_000, checkpoint=str(tmp_path / "no.pt"))
    finished(tmp_path, "evaluate", "c", 5_000)  # has one, but did not make it
    (tmp_path / "train" / "unfinished").mkdir()
    finished(tmp_path, "train", "number", 6_000, checkpoint=5)  # no path
    assert last_checkpoint(tmp_path) == newest


def test_evaluate_takes_the_last_run(command, toy_root):
    data = (f"data.root={toy_root}", "platform=v100")
    tiny = ("model=xgboost", "run_id=mine")
    trained, err = command("train", *data, *tiny).done
    result, err = command("evaluate", *data, "checkpoint=last", "tasks=all").done
    assert result["checkpoint"] == trained["checkpoint"]
    err = command("adapt", f"resume={trained['run_dir']}").refusal
    assert "a run of another command or an older version" in err
    err = command("train", *data, *tiny[:1], "model._target_=pruner.models.Moved").refusal
    assert err.endswith("error: Error locating target 'pruner.models.Moved'; was it moved?\n")


def test_a_resumed_run_takes_only_what_its_command_lets_change(tmp_path, monkeypatch):
    def given(*words):
        give_words(monkeypatch, *words)
        return OmegaConf.from_dotlist([*words])

    save_config(tmp_path, OmegaConf.create({"budget": {"trials": 8}, "stop_after": 1}))
    again = given("budget.trials=16")
    with pytest.raises(PrunerError, match=r"leave out budget\.trials=16"):
        runs.resumed_config(tmp_path, again)
    found = runs.resumed_config(tmp_path, again, more=["budget.trials"])
    assert (found.budget.trials, found.stop_after) == (16, None)
    save_config(tmp_path, found)  # a later start without the option goes on to sixteen
    assert runs.resumed_config(tmp_path, given()).budget.trials == 16
    # a run from before the option, which has no influence on results
    assert runs.resumed_config(tmp_path, given("cache=here")).cache == "here"


def test_a_configuration_that_was_changed_or_cut_is_refused(tmp_path, monkeypatch):
    give_words(monkeypatch)
    config = OmegaConf.create({"budget": {"trials": 8}, "stop_after": None, "lr": 1e-3})
    save_config(tmp_path, config)
    path = tmp_path / runs.CONFIG_FILE
    whole = path.read_text()
    assert runs.resumed_config(tmp_path, config) == config
    for text in (whole.replace("trials: 8", "trials: 9"), whole[:-4], whole + "more: 1\n"):
        path.write_text(text)
        with pytest.raises(PrunerError, match="not as the run wrote it"):
            runs.resumed_config(tmp_path, config)
    for text in ("budget: [", "- 1", "7"):
        path.write_text(text)
        with pytest.raises(PrunerError, match="no configuration"):
            runs.resumed_config(tmp_path, config)
    path.write_text(whole[whole.index("budget") :])  # of an older version
    assert runs.resumed_config(tmp_path, config) == config


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ({"_target_": "pruner.search.adatune.AdaTuneSettings", "epsilon": 0.05}, {}),
        (
            {"verify_only_draft": True, "epsilon": 0.1},
            {"epsilon": 0.1, "verify": {**runs._VERIFY, "generations": 0}},
        ),
        (
            {"verify_only_draft": False, "verify": {"generations": 1}},
            {"verify": {"generations": 1}},
        ),
    ],
)
def test_policies_of_earlier_versions_are_read(written, read):
    target = {"_target_": "pruner.search.policy.RoundSettings"}
    config = OmegaConf.create({"policy": {**target, **written}})
    runs.rename_options(config)
    assert config.policy == {"_target_": written.get("_target_", target["_target_"]), **read}


def test_the_command_that_began_a_run_stays_in_its_configuration(tmp_path, monkeypatch):
    def written(*words):
        asked = SimpleNamespace(
            help=SimpleNamespace(app_name="tune.py"), overrides=SimpleNamespace(task=words)
        )
        hydra = SimpleNamespace(initialized=lambda: True, get=lambda: asked)
        monkeypatch.setattr(runs, "HydraConfig", hydra)
        save_config(tmp_path, OmegaConf.create({"words": list(words)}))
        text = (tmp_path / "config.yaml").read_text(encoding="utf-8")
        return text.splitlines()[0], list(runs.read_config(tmp_path / "config.yaml").words)

    assert written("network=dcgan") == ("# tune.py network=dcgan", ["network=dcgan"])
    assert written("resume=RUN") == ("# tune.py network=dcgan", ["resume=RUN"])


def test_a_result_with_unsuccessful_parts_has_an_exit_code_of_its_own(capsys):
    from pruner.cli.shared.door import run_door

    with pytest.raises(SystemExit) as stop:
        run_door("report", [], lambda _: {"unsuccessful": ["a task"], "best_latency_s": None})
    assert stop.value.code == 3
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["unsuccessful"] == ["a task"]
    run_door("report", [], lambda _: {"unsuccessful": []})


BOMB = "".join(["a0: &a0 [1]\n", *(f"a{i}: &a{i} [{f'*a{i - 1}, ' * 9}]\n" for i in range(1, 12))])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (BOMB, "parts that stand for others"),
        (f"x: {'[' * 1000}{']' * 1000}\n", "no configuration"),
        (f"x: {'1' * (1 << 19)}\n", "more than 262144 characters"),
        ("measure: {repeats: many}\n", "measure.repeats=many: it must be a whole number"),
        ("num_threads: 100000\n", "num_threads=100000: it must be"),
        ("seed: ${oc.env:HOME}\n", "seed=.*: it must be"),
        ("x: !!python/object/apply:os.getcwd []\n", "could not determine a constructor"),
    ],
    ids=["bomb", "deep", "long", "text", "number", "interpolation", "tag"],
)
def test_a_configuration_of_somebody_else_is_looked_at(tmp_path, text, told):
    """Written by hand, its SHA-256 left out."""
    path = tmp_path / runs.CONFIG_FILE
    path.write_text(text)
    with pytest.raises(DataError, match=told) as error:
        runs.read_config(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


def test_a_run_folder_with_links_out_of_it_is_not_gone_on_with(tmp_path, monkeypatch):
    give_words(monkeypatch)
    config, folder = OmegaConf.create({"stop_after": None}), tmp_path / "run"
    folder.mkdir()
    save_config(folder, config)
    (folder / "kernels").symlink_to(tmp_path)
    with pytest.raises(DataError, match="kernels: a link to"):
        runs.resumed_config(folder, config)
    assert not (folder / LOCK_FILE).exists()


@pytest.mark.parametrize(("given", "name"), [(5, "5"), (float("nan"), "nan"), ("a b", "a b")])
def test_a_run_id_that_reads_as_a_number_is_a_name(tmp_path, given, name):
    assert runs.new_run_folder(tmp_path, "tune", given, "label") == tmp_path / "tune" / name
    with pytest.raises(PrunerError, match="is never overwritten"):
        runs.new_run_folder(tmp_path, "tune", given, "label")


def test_a_label_with_separators_stays_in_the_folder(tmp_path):
    folder = runs.new_run_folder(tmp_path, "tune", None, "cpu-../../etc/passwd-policy")
    assert folder.parent == tmp_path / "tune"
    assert folder.name.endswith("-cpu-..-..-etc-passwd-policy")


@pytest.fixture
def go_on(tmp_path, monkeypatch):
    """Begin a run with some words, and go on with it with others; the trials a task of a network,
    and the configuration."""

    def given(words):
        give_words(monkeypatch, *words)
        return composed("tune", *words)

    def run(first, *words):
        save_config(tmp_path, given(["network=resnet18", *first]))
        found = resumed(tmp_path, given(words))
        return build(found.effort).trials_per_task, found

    return run


@pytest.mark.parametrize(
    ("words", "trials_per_task"),
    [
        ([], 0),  # as it was: drafts what is left
        (["effort=quick"], 8),
        (["effort=normal"], 20),  # whose file says nothing of trials: nothing of draft's stays
        pytest.param(["budget.trials=9"], 20, marks=pytest.mark.slow),
        (["budget.seconds=60"], 20),
        pytest.param(["budget.trials=9", "effort=thorough"], 60, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_drafted_run_is_tuned_once_it_is_given_a_budget(go_on, words, trials_per_task):
    found, config = go_on(["effort=draft", "seed=3"], *words)
    assert found == trials_per_task
    assert (config.network, config.seed) == ("resnet18", 3)
    assert config.budget.trials == (9 if "budget.trials=9" in words else None)


def test_a_budget_for_nothing_is_still_refused(go_on):
    _, config = go_on(["effort=draft"], "effort=draft", "budget.trials=9")
    with pytest.raises(PrunerError, match=r"leave budget\.trials= out"):
        build(config.effort).budget(config.budget, None)


def test_a_run_that_measured_takes_more_effort_and_not_none(go_on, tmp_path):
    (tmp_path / JOURNAL_FILE).touch()
    assert go_on(["effort=quick"], "effort=thorough")[0] == 60
    assert go_on(["effort=quick"], "budget.trials=50")[0] == 8
    with pytest.raises(PrunerError, match="this run has measured programs; leave effort= out"):
        go_on(["effort=quick"], "effort=draft")
    with pytest.raises(PrunerError, match=r"leave out seed=4"):
        go_on(["effort=quick"], "effort=thorough", "seed=4")


def test_a_run_goes_on_without_a_folder_that_it_began_with(go_on):
    for word, now in (("warm_start=null", None), ("warm_start=[there]", ["there"])):
        assert go_on(["warm_start=[gone]"], word)[1].warm_start == now
