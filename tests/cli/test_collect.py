import json
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from pruner.cli.collect import plan_from, run
from pruner.data.workload import fused_from_name
from pruner.errors import PrunerError
from pruner.places import conf_folder
from pruner.tune.collect.tasks import ANSOR_TASKS, select_tasks
from pruner.tune.rivals.ansor_environment import MissingAnsor, interpreter


def config(**changes):
    values = OmegaConf.load(conf_folder() / "collect.yaml")
    for key in ("hydra", "defaults"):
        values.pop(key)
    return OmegaConf.merge(values, changes)


def test_a_missing_environment_is_one_line_that_names_the_fix(tmp_path):
    with pytest.raises(MissingAnsor, match=r"run: python collect\.py setup=true") as caught:
        run(config(environment=str(tmp_path / "none"), platform="cpu-sse4"))
    assert "\n" not in str(caught.value)


def test_an_environment_without_ansor_is_refused(tmp_path):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to("/bin/false")
    with pytest.raises(MissingAnsor, match="crashed"):
        interpreter(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"platform": "v100"}, "use all or one of cpu-sse4"),
        ({"workload": "matmul_1"}, "no task of the Ansor set is called"),
        ({"workload": ["winograd_layer", 1]}, "'winograd_layer'; known: matmul_layer"),
        ({"workload": ["layer_norm_layer", 8, 8]}, "'layer_norm_layer' has no compute DAG"),
        ({"workload": ["matmul_layer", 8, 8]}, "bad-arguments"),
        ({"workload": ["relu_layer", 8], "fused": ["gelu"]}, "'gelu'; known: bias, add, relu"),
        ({"programs": 1}, "2 or more"),
    ],
)
def test_wrong_options_say_what_to_use(changes, message):
    with pytest.raises(PrunerError, match=message):
        plan_from(config(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backend": "other"}, "known: ansor, tvm"),
        ({"backend": "tvm"}, "workloads=FILE.yaml or network=NAME: give one"),
        ({"backend": "tvm", "workloads": "tiny"}, "workloads=tiny: no such file; lists.*small"),
        ({"backend": "tvm", "workloads": "small", "tasks": ["x"]}, "tasks=x is unknown; known: "),
        ({"backend": "tvm", "workloads": "small", "platform": "h300"}, "known platforms: a100"),
        ({"backend": "tvm", "workloads": "small", "programs": 1}, "programs=1; use a whole number"),
        ({"backend": "tvm", "workloads": "small", "pool": {"most": 1}}, "most 2 or more"),
    ],
)
def test_wrong_options_of_pools_say_what_to_use(changes, message):
    pytest.importorskip("tvm", reason="TVM 0.27 is not installed")
    with pytest.raises(PrunerError, match=message):
        run(config(runner={"kind": "local"}, **changes))


def test_the_door_prints_one_line_and_leaves_with_2(repository, tmp_path):
    command = [sys.executable, "collect.py", "platform=cpu-sse4", f"environment={tmp_path}/none"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=repository, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1


def test_names_carry_the_fused_operators_back():
    for task in ANSOR_TASKS:
        assert fused_from_name(task.name) == task.fused
    [own] = select_tasks(["conv2d_layer", 1, 8, 8, 8, 8, 3, 3, 1, "SAME"], ("add",))
    assert own.name == "conv2d_add_1_8_8_8_8_3_3_1_SAME"


@pytest.mark.slow
def test_real_ansor_measures_a_tiny_matmul(repository, tmp_path):
    environment = repository / ".venv-ansor"
    if not environment.is_dir():
        pytest.skip("Ansor is not installed; run: python collect.py setup=true")
    options = ["platform=cpu-sse4", "workload=[matmul_layer,16,16,16]", "programs=4"]
    command = [sys.executable, "collect.py", *options, f"out={tmp_path}", "measure.min_repeat_ms=1"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=repository, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["records"], result["failed"]) == (4, 0)
    origins = Path(tmp_path, "origin/cpu-sse4/matmul_16_16_16.json").read_text()
    assert json.loads(origins) == ["random", "random", "evolved", "evolved"]
