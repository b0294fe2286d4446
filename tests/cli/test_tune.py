"""``python tune.py``: the last line, several policies, a time that is over."""

import shutil
from pathlib import Path

import pytest

from tests.commands import python, ran
from tests.tune.unhurried import UNHURRIED

pytestmark = [pytest.mark.tvm, pytest.mark.slow]
SMALL = ["workload.m=64", "workload.n=64", "workload.k=64", "measure.min_repeat_ms=1"]
SMALL += UNHURRIED
QUICK = [*SMALL, "measure.repeats=2", "policy=pruner_live", "budget.batch=6", "model=xgboost"]


def tuned(outputs, *options):
    return ran("tune.py", f"outputs={outputs}", *options)[0]


def test_a_budget_that_the_start_of_the_workers_uses_up_is_told(tmp_path):
    done = python("tune.py", f"outputs={tmp_path}", *QUICK, "budget.seconds=0.5", "run_id=short")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    line, folder = done.stderr.splitlines()[-1], tmp_path / "tune" / "short"
    assert line.startswith("error: no program was measured within")
    assert line.endswith(f"tune.py resume={folder} budget.seconds=... continues")
    resumed = (f"resume={folder}", "budget.seconds=600", "budget.trials=2")
    assert ran("tune.py", *resumed)[0]["trials"] == 2


@pytest.mark.parametrize("policy", ["random", "metaschedule", "pruner_live"])
def test_the_last_line_of_every_policy(tmp_path, policy):
    result = tuned(tmp_path, *QUICK[:-3], f"policy={policy}", "budget.trials=8", "run_id=one")
    assert 0 < result["best_latency_s"] < 1
    assert (result["trials"], result["failed"]) == (8, 0)
    assert {"sample", "draft", "verify", "build", "run", "train", "idle"} <= set(result["seconds"])
    folder = Path(result["run_dir"])
    for name in ("database_workload.json", "trials.jsonl", "metrics.json", "curves.png"):
        assert (folder / name).stat().st_size > 0


def test_cuda_programs_compile_for_a_device_that_is_not_there(tmp_path):
    if shutil.which("nvcc") is None:
        pytest.skip("no CUDA compiler (nvcc) on this machine")
    result = tuned(
        tmp_path, "platform=h100", *SMALL, "verify=false", "compile_only=true", "budget.trials=2"
    )
    assert (result["compiled"], result["failed"], result["trials"]) == (2, 0, 0)


def test_one_command_draws_several_runs(tmp_path):
    for seed in (0, 1):
        own = ("policy=random", "budget.trials=4", f"seed={seed}", f"run_id=r{seed}")
        tuned(tmp_path, *QUICK[:-3], *own)
    runs = ",".join(str(tmp_path / "tune" / f"r{seed}") for seed in (0, 1))
    result = tuned(tmp_path, f"plot=[{runs}]", "run_id=both")
    assert set(result["runs"]) == {"r0", "r1"}
    assert all(Path(path).stat().st_size > 0 for path in result["plots"])
