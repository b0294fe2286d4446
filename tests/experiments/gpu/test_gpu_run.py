"""``python -m experiments.gpu.run``: its options; rehearsals on a CPU and without a device."""

import json
import re
import shutil
import sys
from dataclasses import replace
from itertools import product

import pandas as pd
import pytest

from experiments.gpu import options as sizes
from experiments.gpu import ready, run
from experiments.gpu.options import CampaignOptions
from experiments.gpu.ready import described_gpu
from experiments.gpu.stages import boxes
from experiments.gpu.state import State
from pruner.cli.shared.known import read_words
from pruner.cli.shared.script import run_script
from pruner.data.root import RecordRoot
from pruner.errors import PrunerError
from pruner.files import write_json
from pruner.program.device import load_device
from tests.cli.outcome import Outcome
from tests.commands import python
from tests.paths import CONF
from tests.tune.unhurried import UNHURRIED


@pytest.fixture
def campaign(monkeypatch, capsys):
    """Run the script in this process."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["run.py", *words])
        code = 0
        try:
            run_script(run.Options, run.run, run.__doc__)
        except SystemExit as stop:
            code = stop.code
        out, err = capsys.readouterr()
        return Outcome(code, json.loads(out.splitlines()[-1]) if code == 0 else None, err)

    return call


def test_a_users_mistake_is_one_line(campaign, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words, told in (
        (["device=tpu"], "device=tpu is unknown; known: cpu, cuda"),
        (["platform=h2000"], "platform=h2000 is unknown; known: a100"),
        (["device=cpu", "platform=h200"], "platform=h200 is not a cpu device; add device=cuda"),
        (["platform=cpu-avx2"], "platform=cpu-avx2 is not a cuda device; add device=cpu"),
        (["platform=h200", "out=''"], "out= is empty: name a folder"),
        (["platform=h200", "minutes=0"], "minutes=0: it must be a number above 0"),
        (["platform=h200", "trials=many"], "trials: Value 'many'"),
        (["platform=h200", "stages=[all]", "plan=true"], "stages=all is unknown; known: sanity"),
        (["platform=h200", "operators=[conv3d]"], "operators=conv3d is unknown; known: matmul"),
        (["platform=h200", "precisions=[int8]"], "precisions=int8 is unknown; known: float16"),
        (["platform=h200", "beside=[tensorrt]"], "beside=tensorrt is unknown; known: eager"),
        (["platform=h200", "checkpoint=last"], "checkpoint=last: no finished run with a"),
        (["platform=h200", "plan=true", "checkpoint=nothing.pt"], "nothing.pt"),
    ):
        named = [] if any(word.startswith("out=") for word in words) else [f"out={tmp_path}"]
        assert told in campaign(*named, *words).refusal


def test_without_a_gpu_it_says_what_can_be_done(campaign, tmp_path, monkeypatch):
    monkeypatch.setattr("experiments.gpu.run.about_gpus", list)
    err = campaign(f"out={tmp_path}", "plan=true").refusal
    assert "no NVIDIA GPU is visible: use device=cpu" in err


def test_the_plan_is_told_and_nothing_is_run(campaign, tmp_path):
    words = ["platform=h200", f"out={tmp_path / 'out'}", "more=['measure.builders=8']"]
    found, err = campaign(*words, "plan=true", "minutes=12.5").done
    assert found["steps"] > 20
    assert found["minutes"] > 25  # all of it takes longer than a start has
    assert "float16-metaschedule" in err
    assert "adaptation: left out" in err  # there is no checkpoint=
    assert not (tmp_path / "out").exists()


def test_the_summary_is_of_what_was_asked_in_the_folder(campaign, tmp_path):
    words = [f"out={tmp_path / 'out'}", "summary=true"]
    assert "no campaign was begun there" in campaign(*words).refusal
    (tmp_path / "out").mkdir()
    asked = {"device": "cuda", "platform": "h200", "small": True}
    (tmp_path / "out" / "device.json").write_text(json.dumps({"asked": asked}))
    found, _ = campaign(*words).done  # without a GPU
    assert found["operators"] == found["records"] == 0
    header = (tmp_path / "out" / "results" / "operators.csv").read_text()
    assert header == "table\n"


def test_a_summary_of_a_damaged_folder_is_one_line(campaign, tmp_path):
    words = [f"out={tmp_path}", "summary=true"]
    asked = {"platform": "h200", "small": True, "an_option_of_another_version": 3}
    about = json.dumps({"asked": asked})
    comparison = tmp_path / "kept" / "float32-beside.json"
    comparison.parent.mkdir()
    for text, kept, told in (
        ("", "", "device.json: damaged"),
        ("[1]", "", "device.json: damaged"),
        ('{"asked": "x"}', "", "no campaign was begun there"),
        (about, "{", "float32-beside.json: damaged"),
        (about, "{}", "float32-beside.json: damaged"),
    ):
        (tmp_path / "device.json").write_text(text)
        comparison.write_text(kept)
        assert told in campaign(*words).refusal
    comparison.unlink()
    cut = '{"step": "a", "load_1m{"step": "b", "load_1min": 3.0}\n'  # a kill, and a later start
    (tmp_path / "readings.jsonl").write_text(cut + '{"step": "b", "load_1min": 1.5}\n')
    assert campaign(*words).done
    written = json.loads((tmp_path / "results" / "device.json").read_text())
    assert written["readings"]["load_1min"]["number"] == 1


def test_a_folder_is_of_one_device_and_size_and_what_only_compiles_lies_apart(campaign, tmp_path):
    cpu, only = {"platform": "cpu-avx2", "small": True}, "compile_only=true"
    asked = {
        "ran": {**cpu, "compile_only": False},
        "built": {"platform": "h200", "compile_only": True},
    }
    for name, given in asked.items():
        (tmp_path / name).mkdir()
        write_json(tmp_path / name / "device.json", {"asked": given})
    State(tmp_path / "built", "cpu").begin(cpu)
    here = ["device=cpu", "platform=cpu-avx2"]
    for name, words, code in (
        ("ran", ["platform=h200"], 2),
        ("ran", ["platform=h200", "small=true"], 2),
        ("ran", here, 2),
        ("ran", [*here, "small=true"], 0),
        ("ran", ["platform=h200", only], 0),
        ("built", ["platform=h200", only], 0),  # whatever ran there since
        ("built", ["platform=a100", only], 2),
        ("built", [*here, "small=true"], 0),
        ("built", ["platform=h200"], 2),
    ):
        found, _, err = campaign(f"out={tmp_path / name}", *words, "plan=true")
        assert found == code, err
        assert (name, code) != ("ran", 2) or "begun with platform=cpu-avx2 small=true" in err


def rehearsed(out, *words):
    own = (f"out={out}", "small=true", f"more={UNHURRIED}")
    done = python("-m", "experiments.gpu.run", *own, *words)
    logs = "".join(path.read_text()[-2000:] for path in sorted((out / "logs").glob("*.log")))
    assert done.returncode == 0, done.stderr + logs
    return json.loads(done.stdout.splitlines()[-1]), done.stderr, logs


@pytest.mark.tvm
@pytest.mark.slow
def test_all_stages_on_this_cpu_in_small(tmp_path):
    words = ["device=cpu", "minutes=null"]
    found, err, logs = rehearsed(tmp_path, *words)
    assert found["undone"] == [], err + logs
    results = tmp_path / "results"
    operators = pd.read_csv(results / "operators.csv")
    assert set(operators.policy) == {"ours", "metaschedule", "random"}
    assert set(operators.trials) == {4}
    ours = operators[operators.policy == "ours"]
    assert (ours.over_torch > 0).all()
    beside = pd.read_csv(results / "beside.csv")
    assert beside.error.isna().all()
    assert (beside.relative_error.dropna() < 1e-3).all()
    networks = pd.read_csv(results / "networks.csv")
    assert set(networks.contender) == {"ours", "torch eager"}
    assert found["records"] == 2 * 3
    root = RecordRoot(results / "records")
    assert len(root.task_files()) == 2
    about = json.loads((results / "device.json").read_text())
    assert about["readings"]["load_1min"]["number"] > 10
    assert str(tmp_path) not in json.dumps(about)
    # nothing is left to do, so nothing is done
    again, err, _ = rehearsed(tmp_path, *words)
    assert again["seconds"] < 60
    assert not re.search(r": about [\d.]+ minutes", err)  # as every step that begins says


@pytest.mark.tvm
@pytest.mark.slow
def test_a_checkpoint_is_adapted(tmp_path):
    from tests.cli.test_tune_options import run_folder

    model = run_folder(tmp_path / "model", seen=("k80",))
    words = ["device=cpu", "minutes=null", "stages=[adaptation]", f"checkpoint={model}"]
    found, err, logs = rehearsed(tmp_path / "out", *words)
    assert found["undone"] == [], err + logs
    groups = pd.read_csv(tmp_path / "out" / "results" / "groups.csv")
    assert list(groups.policy) == ["scratch", "moa", "finetune", "distill"]


@pytest.mark.tvm
@pytest.mark.slow
def test_all_stages_of_a_gpu_that_is_not_there_are_compiled(tmp_path):
    if shutil.which("nvcc") is None:
        pytest.skip("no CUDA compiler (nvcc) on this machine")
    words = ["platform=h200", "compile_only=true", "minutes=null"]
    found, err, logs = rehearsed(tmp_path, *words)
    assert found["undone"] == [], err + logs
    groups = pd.read_csv(tmp_path / "results" / "groups.csv")
    assert set(groups.group) == {"sanity", "float32", "float16"}
    assert groups.compiled.sum() == groups.trials.sum()  # every program that was chosen builds
    networks = pd.read_csv(tmp_path / "results" / "networks.csv")
    assert found["compiled"] == groups.compiled.sum() + networks.compiled.sum()
    assert found["failed"] == 0
    libraries = sorted(path.parent.name for path in (tmp_path / "compiled").rglob("network.so"))
    assert libraries == ["bert_tiny-float16", "bert_tiny-float32"]
    assert len(list((tmp_path / "pools" / "pools" / "h200").rglob("*.so"))) == 2 * 3


@pytest.mark.tvm
@pytest.mark.slow
def test_two_minutes_are_two_minutes(tmp_path):
    found, err, _ = rehearsed(tmp_path, "device=cpu", "minutes=2")
    assert found["seconds"] < 120 + 60  # a command that is asked to end has half a minute
    assert found["operators"] >= 0
    assert "not done" in err or not found["undone"]


FAST = [("FULL", "cuda", "h200", True)]
ALL = product(("FULL", "SMALL"), (("cuda", "h200"), ("cpu", "cpu-avx512")), (False, True))
SLOW = [(size, *device, only) for size, device, only in ALL if (size, *device, only) not in FAST]


@pytest.mark.parametrize(
    ("size", "device", "platform", "compile_only"),
    [*FAST, *(pytest.param(*one, marks=pytest.mark.slow) for one in SLOW)],
)
def test_every_command_is_one_that_its_door_takes(tmp_path, size, device, platform, compile_only):
    """Composed and checked as the door does it, and not begun; the folder has an odd name."""
    options = CampaignOptions(
        out=tmp_path / "one, o'clock",
        platform=platform,
        device=device,
        compile_only=compile_only,
        size=getattr(sizes, size),
        checkpoint=tmp_path / "a model.pt",
    )
    for box in [*boxes(options), *boxes(replace(options, stages=["rivals", "paper"]))]:
        for step in box.steps():
            command, *words = step.within(37.5)
            config = read_words(command, words).config
            named = {"tune": "outputs", "collect": "out", "deploy": "run"}[command]
            assert config[named].startswith(str(options.out))
            if command == "tune":
                assert config.budget.seconds == 37
                assert config.compile_only == compile_only


def test_a_part_of_the_operators_and_precisions_is_chosen(campaign, tmp_path):
    words = ["platform=h200", "plan=true", "stages=[operators,networks]", "networks=[resnet18]"]
    chosen = ["operators=[conv2d]", "precisions=[float32]"]
    code, found, err = campaign(*words, *chosen, f"out={tmp_path}")
    assert code == 0
    assert found["steps"] == 6  # three tuners, the network, and two comparisons with torch
    assert "float32-ours" in err
    assert "resnet18-float32" in err
    assert "float16" not in err


DEVICES = [load_device(path) for path in sorted((CONF / "platform").glob("*.yaml"))]


@pytest.fixture
def options(tmp_path, monkeypatch):
    monkeypatch.setattr(ready, "cuda_environment", lambda: {"PATH": str(tmp_path)})
    monkeypatch.setattr(ready, "make_platform", lambda device: device.name)
    monkeypatch.setattr(ready, "missing_device", lambda _: None)
    nvcc = tmp_path / "nvcc"
    nvcc.touch()
    nvcc.chmod(0o755)
    return CampaignOptions(out=tmp_path, platform="h200")


def test_what_is_found_is_for_the_commands(options, tmp_path):
    assert ready.environment_of(options) == {"PATH": str(tmp_path)}
    assert ready.environment_of(replace(options, device="cpu")) == {}


def test_without_a_compiler_nothing_is_begun(options, tmp_path, monkeypatch):
    (tmp_path / "nvcc").unlink()
    monkeypatch.setattr(ready, "_has_nvrtc", lambda: True)
    assert ready.environment_of(options)
    with pytest.raises(PrunerError, match="no nvcc on the path: "):  # no driver, which NVRTC needs
        ready.environment_of(replace(options, compile_only=True))
    monkeypatch.setattr(ready, "_has_nvrtc", lambda: False)
    with pytest.raises(PrunerError, match="no nvcc on the path, nor cuda-bindings"):
        ready.environment_of(options)


def test_a_device_that_cannot_be_used_is_told_unless_none_is_needed(options, monkeypatch):
    monkeypatch.setattr(ready, "missing_device", lambda platform: f"{platform} is not there")
    with pytest.raises(PrunerError, match="platform=h200: h200 is not there"):
        ready.environment_of(options)
    assert ready.environment_of(replace(options, compile_only=True))


@pytest.mark.parametrize(
    ("name", "capability", "platform"),
    [
        ("NVIDIA H200", "9.0", "h200"),
        ("NVIDIA H100 80GB HBM3", "9.0", "h100"),
        ("NVIDIA A100-SXM4-80GB", "8.0", "a100"),
        ("NVIDIA A100-PCIE-40GB", "8.0", "a100_40"),
        ("NVIDIA GeForce RTX 4090", "8.9", "rtx4090"),
        ("Tesla V100-SXM2-16GB", "7.0", "v100"),
        ("Tesla T4", "7.5", "t4"),
        ("NVIDIA TITAN V", "7.0", "titanv"),
    ],
)
def test_names_as_drivers_tell_them(name, capability, platform):
    gpus = [{"name": name, "compute_cap": capability}, {"name": "other", "compute_cap": "1.0"}]
    assert described_gpu(gpus, DEVICES) == platform


def test_an_unknown_one_is_told_with_those_of_its_architecture():
    with pytest.raises(PrunerError, match=r"NVIDIA GH200 480GB .*: h100, h200"):
        described_gpu([{"name": "NVIDIA GH200 480GB", "compute_cap": "9.0"}], DEVICES)
    with pytest.raises(PrunerError, match=r"NVIDIA T400 4GB .*: t4"):
        described_gpu([{"name": "NVIDIA T400 4GB", "compute_cap": "7.5"}], DEVICES)
    for variant in ("NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D"):
        with pytest.raises(PrunerError, match=r"RTX 4090 .*: .*rtx4090"):
            described_gpu([{"name": variant, "compute_cap": "8.9"}], DEVICES)
    with pytest.raises(PrunerError, match=r"RTX 3080 Ti .*: .*rtx3080"):
        described_gpu([{"name": "NVIDIA GeForce RTX 3080 Ti", "compute_cap": "8.6"}], DEVICES)
    with pytest.raises(PrunerError, match=r"sm_123\) has no description"):
        described_gpu([{"name": "NVIDIA H200", "compute_cap": "12.3"}], DEVICES)
    with pytest.raises(PrunerError, match="no NVIDIA GPU is visible"):
        described_gpu([], DEVICES)
