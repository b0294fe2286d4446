"""On a real GPU: programs run and are right, torch beside them, energy, readings, many devices."""

import json
import os
import subprocess
import sys

import pytest

from experiments.common.comparison import started
from pruner.tune.measure.machine import visible_gpus
from pruner.tune.run.journal import JOURNAL_FILE, read_trials
from tests.paths import REPOSITORY
from tests.tune.cuda_programs import programs

# The simulated device (make gpu-sim) computes, but has no torch, no watts and no steady clock.
on_a_card = pytest.mark.skipif("SIM_NAME" in os.environ, reason="the CUDA device is simulated")

pytestmark = [pytest.mark.gpu, pytest.mark.tvm, pytest.mark.slow]

SHORT = ["measure.min_repeat_ms=5", "measure.repeats=3", "budget.trials=8", "verify=false"]
WORKLOADS = {
    "float32": ["workload=matmul", "workload.m=256", "workload.n=256", "workload.k=256"],
    "tensor cores": [
        "workload=matmul", "workload.m=256", "workload.n=256", "workload.k=256",
        "workload.dtype=float16",
    ],
    "convolution": ["workload=conv2d", "workload.h=14", "workload.w=14"],
    "softmax": ["workload=softmax"],
}  # fmt: skip


def run(script, *words, code=0):
    done = subprocess.run(
        started([script, *words], REPOSITORY),
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("policy", ["pruner_live", "metaschedule", "random"])
@pytest.mark.parametrize("what", WORKLOADS)
def test_programs_run_and_are_right(platform, tmp_path, what, policy):
    words = [f"platform={platform}", f"policy={policy}", f"outputs={tmp_path}"]
    if policy != "pruner_live":
        words += SHORT[:-1]
    else:
        words += SHORT
    found = run("tune.py", *words, *WORKLOADS[what])
    (task,) = found["tasks"].values()
    assert task["trials"] == 8
    assert not task["all_failed"]
    assert task["checked"]
    assert "wrong_result" not in task["failures"]


def test_two_devices_measure_at_the_same_time(platform, tmp_path):
    """The same programs in the same order as of one device, and right."""
    if len(visible_gpus()) < 2:
        pytest.skip("one CUDA device is visible; make gpu GPU=0,1 names two")
    tried = []
    for devices in (1, 2):
        words = [f"platform={platform}", "policy=random", f"measure.devices={devices}"]
        words += [*SHORT[:-1], f"outputs={tmp_path}", f"run_id={devices}"]
        (task,) = run("tune.py", *words, *WORKLOADS["float32"])["tasks"].values()
        assert task["checked"]
        assert "wrong_result" not in task["failures"]
        trials = read_trials(tmp_path / "tune" / str(devices) / JOURNAL_FILE)
        tried.append([(trial.decisions, trial.error) for trial in trials])
    assert tried[0] == tried[1]


@on_a_card
def test_a_kernel_beside_torch_and_its_energy(platform, tmp_path):
    words = [f"platform={platform}", f"outputs={tmp_path}", "run_id=one", *SHORT]
    run("tune.py", *words, *WORKLOADS["float32"])
    folder = tmp_path / "tune" / "one"
    run("deploy", f"run={folder}", "baselines=[eager,compile]", "energy=1")
    (rows,) = json.loads((folder / "kernels_beside.json").read_text())["tasks"].values()
    found = {row["name"]: row for row in rows}
    assert all(row["error"] is None for row in rows)
    # float32 on both sides, without TF32: sums of 256 products in another order
    assert found["ours"]["relative_error"] < 1e-4
    for row in rows:  # Volta and later tell energy; an idle card uses some tens of watts
        assert 10 < row["watts"] < 2000


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_network_is_built_and_runs_beside_torch(platform, tmp_path, precision):
    words = [f"platform={platform}", f"outputs={tmp_path}", "run_id=one", f"precision={precision}"]
    words += ["network=tests.tune.networks.small_networks:encoder", "budget.trials=8"]
    run("tune.py", *words)
    folder = tmp_path / "tune" / "one"
    beside = [] if "SIM_NAME" in os.environ else ["eager"]
    run("deploy", f"run={folder}", f"baselines=[{','.join(beside)}]")
    if beside:
        rows = json.loads((folder / "beside.json").read_text())["contenders"]
        assert {row["name"]: row["error"] for row in rows} == {"ours": None, "eager": None}
        bound = {"float32": 1e-3, "float16": 3e-2}  # halves have 11 bits, of three layers
        assert rows[-1]["relative_error"] < bound[precision]
    subprocess.run([sys.executable, folder / "run_network.py"], check=True)


@on_a_card
def test_the_card_tells_its_state(platform):
    from pruner.tune.measure.energy import energy_meter
    from pruner.tune.pools.conditions import Conditions

    found = Conditions("cuda").read()
    assert 0 < found["gpu_temperature.gpu"] < 110
    assert found["gpu_clocks.sm"] > 0
    meter = energy_meter("cuda")
    assert meter is not None
    assert meter.read()[1] > 0


@on_a_card
def test_the_timer_is_steady(platform, tmp_path):
    """Repeats of 20 ms: half of all programs differ by less than a twentieth."""
    from experiments.gpu.tables import GroupRun

    words = [f"platform={platform}", f"outputs={tmp_path}", "run_id=one", *SHORT]
    run("tune.py", *words, "measure.min_repeat_ms=20", *WORKLOADS["float32"])
    assert GroupRun(policy="ours", folder=tmp_path / "tune" / "one").noise < 0.05


def test_a_program_that_breaks_the_device_costs_itself(platform, tmp_path):
    """An illegal access ends the process that has the device; the next program finds it whole."""
    from types import SimpleNamespace

    import numpy as np

    from pruner.program.device import load_device
    from pruner.tune.measure.jobs import Timing
    from pruner.tune.measure.machine import make_platform
    from pruner.tune.measure.measurer import Candidate, DeviceMeasurer, MeasureSettings
    from pruner.tune.phases import Phases
    from pruner.tune.workloads import arguments, from_file
    from tests.paths import CONF

    path = tmp_path / "programs.py"
    # an index that is known at run time only: others are refused
    far = 'T.Cast("int32", a[i] + T.float32(1073741824))'
    path.write_text(programs(f"b[i + {far}] = a[i]"))
    good, bad = (from_file(path, name)[0].module for name in ("good", "bad"))
    described = load_device(CONF / "platform" / f"{platform}.yaml")
    settings = MeasureSettings(timing=Timing(repeats=2, min_repeat_ms=1))
    with DeviceMeasurer(make_platform(described), settings, Phases()) as measurer:
        chosen = [
            Candidate(space=0, decisions=np.zeros(0, np.int64), schedule=SimpleNamespace(mod=mod))
            for mod in (good, bad, good)
        ]
        batch = measurer.begin(chosen, arguments(good))
        errors = [o.error for _, o in measurer.results(batch, lambda *_: False, None)]
    assert errors[0] is errors[2] is None
    assert errors[1] in ("run_illegal_access", "run_error", "run_crash")
