"""``python tune.py``: last lines, policies, a time that is over; a network's tasks."""

import json
import shutil
from pathlib import Path

import pytest

from pruner.tune.deploy.forms import OTHER, forms
from pruner.tune.networks.extraction import TASKS, read_tasks
from pruner.tune.networks.variants.choosing import VariantReport
from pruner.tune.run.database import RECORDS
from pruner.tune.run.journal import JOURNAL_FILE, read_trials
from tests.commands import python, ran
from tests.tune.unhurried import UNHURRIED

pytestmark = pytest.mark.tvm
SMALL = ["workload.m=64", "workload.n=64", "workload.k=64", "measure.min_repeat_ms=1"]
SMALL += UNHURRIED
QUICK = [*SMALL, "measure.repeats=2", "policy=pruner_live", "budget.batch=6", "model=xgboost"]


def tuned(outputs, *options):
    return ran("tune.py", f"outputs={outputs}", *options)[0]


@pytest.mark.slow
def test_a_budget_that_the_start_of_the_workers_uses_up_is_told(tmp_path):
    done = python("tune.py", f"outputs={tmp_path}", *QUICK, "budget.seconds=0.5", "run_id=short")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    line, folder = done.stderr.splitlines()[-1], tmp_path / "tune" / "short"
    assert line.startswith("error: no program was measured within")
    assert line.endswith(f"tune.py resume={folder} budget.seconds=... continues")
    resumed = (f"resume={folder}", "budget.seconds=600", "budget.trials=2")
    assert ran("tune.py", *resumed)[0]["trials"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["random", "metaschedule", "pruner_live"])
def test_the_last_line_of_every_policy(tmp_path, policy):
    result = tuned(tmp_path, *QUICK[:-3], f"policy={policy}", "budget.trials=8", "run_id=one")
    assert 0 < result["best_latency_s"] < 1
    assert (result["trials"], result["failed"]) == (8, 0)
    assert {"sample", "draft", "verify", "build", "run", "train", "idle"} <= set(result["seconds"])
    folder = Path(result["run_dir"])
    for name in ("database_workload.json", "trials.jsonl", "metrics.json", "curves.png"):
        assert (folder / name).stat().st_size > 0


@pytest.mark.slow
def test_cuda_programs_compile_for_a_device_that_is_not_there(tmp_path):
    if shutil.which("nvcc") is None:
        pytest.skip("no CUDA compiler (nvcc) on this machine")
    result = tuned(
        tmp_path, "platform=h100", *SMALL, "verify=false", "compile_only=true", "budget.trials=2"
    )
    assert (result["compiled"], result["failed"], result["trials"]) == (2, 0, 0)


@pytest.mark.slow
def test_one_command_draws_several_runs(tmp_path):
    for seed in (0, 1):
        own = ("policy=random", "budget.trials=4", f"seed={seed}", f"run_id=r{seed}")
        tuned(tmp_path, *QUICK[:-3], *own)
    runs = ",".join(str(tmp_path / "tune" / f"r{seed}") for seed in (0, 1))
    result = tuned(tmp_path, f"plot=[{runs}]", "run_id=both")
    assert set(result["runs"]) == {"r0", "r1"}
    assert all(Path(path).stat().st_size > 0 for path in result["plots"])


NETWORK = "network=tests.tune.networks.small_networks:encoder"


def tune(out, *words):
    return ran("tune.py", f"outputs={out}", "run_id=net", *words)


@pytest.mark.slow
def test_tasks_are_listed(tmp_path):
    found, err = tune(tmp_path, NETWORK, "list=true")
    kept = read_tasks(tmp_path / "tune" / "net" / TASKS)
    assert list(found["tasks"]) == [task.name for task in kept]
    assert found["num_tuned"] == sum(task.tuned for task in kept)
    assert kept[0].name in err
    assert "NHWC float32" in err  # what layout=auto means on a CPU
    assert found["batched_share"] > 0.99
    assert all(
        task["batched"] == task["spaces"] for task in found["tasks"].values() if "spaces" in task
    )


@pytest.mark.slow
def test_its_tasks_are_tuned_together(tmp_path):
    words = ["budget.trials=12", "budget.batch=2", "verify=false", "measure.repeats=1"]
    found, _ = tune(tmp_path, NETWORK, *words, *UNHURRIED)
    kept = read_tasks(tmp_path / "tune" / "net" / TASKS)
    assert set(found["tasks"]) == {task.name for task in kept if task.tuned}
    deployed = found["deployed"]
    assert 0 < deployed["applied"] <= deployed["tasks"] == len(kept)
    assert deployed["relative_error"] < 1e-5
    for name in ("network.so", "run_network.py", "report.html"):
        assert (tmp_path / "tune" / "net" / name).is_file()
    assert_drafts_come_first(tmp_path / "tune" / "net")


@pytest.mark.slow
def test_an_operator_is_tuned_with_variants_and_without(tmp_path):
    """A small product of long sums, of which the draft prefers the split form."""
    sizes = ["workload.m=16", "workload.n=16", "workload.k=65536", "variants=true"]
    # a described target, whose draft is the same on every machine
    words = ["platform=cpu-avx2", "budget.trials=8", "budget.batch=2", "verify=false"]
    found, _ = tune(tmp_path, "workload=matmul", *sizes, *words, *UNHURRIED)
    folder = tmp_path / "tune" / "net"
    report, places = VariantReport.read(folder), forms(folder)
    assert set(places) == set(report.latencies_s) == set(found["forms_estimated_s"])
    assert report.built == min(report.latencies_s, key=report.latencies_s.get)
    assert list(places.values()) == [folder, folder / OTHER]
    tuned = {task.name for one in places.values() for task in read_tasks(one / TASKS) if task.tuned}
    assert set(found["tasks"]) == tuned
    assert found["deployed"]["relative_error"] < 1e-5
    assert "timed in turns, the network takes" in (folder / "report.html").read_text()


def assert_drafts_come_first(folder):
    """The first program that a task measures is the one that was drafted of it."""
    lines = (folder / "drafted" / RECORDS).read_text().splitlines()
    drafted = [json.loads(line)[1][0] for line in lines]
    first = {}
    for trial in read_trials(folder / JOURNAL_FILE):
        first.setdefault(trial.task, trial)
    known = [json.loads(trial.record)[0] for trial in first.values() if trial.record]
    assert known
    assert all(trace in drafted for trace in known)


@pytest.mark.usefixtures("quick_networks")
def test_a_network_is_drafted_and_built_with_nothing_measured(door, tmp_path):
    network = "network=tests.tune.networks.small_networks:faint"
    words = [f"outputs={tmp_path}", "run_id=net", network, "effort=draft"]
    found, err = door("tune", *words).done
    deployed, kept = found["deployed"], read_tasks(tmp_path / "tune" / "net" / TASKS)
    assert (found["trials"], deployed["applied"]) == (0, 0)
    assert deployed["drafted"] == found["drafted"]["drafted"] + found["drafted"].get("by chance", 0)
    assert sum(found["drafted"].values()) == len(kept)
    assert deployed["relative_error"] < 1e-5
    assert "building the network" in err  # as it was lowered for its tasks
    assert "importing and building" not in err


@pytest.mark.slow
def test_a_drafted_network_is_tuned_with_more_budget(tmp_path):
    """It measures first what was drafted, drafts nothing again and builds the network anew."""
    tune(tmp_path, NETWORK, "effort=draft", "deploy=false", *UNHURRIED)
    folder = tmp_path / "tune" / "net"
    records = (folder / "drafted" / RECORDS).read_text()
    found, _ = tune(tmp_path, f"resume={folder}", "budget.trials=8", "deploy=true")
    assert found["trials"] == len(read_trials(folder / JOURNAL_FILE)) == 8
    assert found["deployed"]["applied"] > 0
    assert (folder / "drafted" / RECORDS).read_text() == records
    assert_drafts_come_first(folder)
    assert "With the first program of each" in (folder / "report.html").read_text(encoding="utf-8")
