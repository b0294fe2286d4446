"""Programs on tensor cores as records: their traces have index maps, which TVM's `as_json` refuses.

No GPU is needed: a measurer that answers at once takes the place of one.
"""

import json

import pytest

from pruner.tune.measure.machine import platform_analyzer
from pruner.tune.networks.draft_network import draft_tasks
from pruner.tune.run.database import Database, record_json
from pruner.tune.run.journal import JOURNAL_FILE, read_trials
from pruner.tune.run.result import TaskOutcome
from pruner.tune.spaces.design import design_spaces
from pruner.tune.tvm_import import load_tvm
from pruner.tune.workloads import from_operator, operator
from tests.tune.designs import kind_of
from tests.tune.run.test_journal import trial
from tests.tune.run.test_loop import FakeMeasurer, run
from tests.tune.targets import platform_of

pytestmark = pytest.mark.tvm
HALF = {"operator": "matmul", "m": 128, "n": 128, "k": 128, "dtype": "float16"}


@pytest.fixture(scope="module")
def platform():
    return platform_of("h200")


def test_a_record_of_every_kind_of_space_is_the_program_again(tmp_path, platform):
    module, tvm = from_operator(HALF).module, load_tvm().tvm
    designs = {kind_of(one): one for one in design_spaces(module, platform.target)}
    assert designs.keys() == {"wmma", "mma", "lanes"}
    for kind, design in designs.items():
        schedule = next(s for seed in range(1, 60) if (s := design.replay(None, seed)))
        record = record_json(module, schedule, (2.0, 4.0), platform.target)
        # as the journal and another process have it
        (tmp_path / kind).mkdir()
        Database(tmp_path / kind).commit_json(module, json.loads(json.dumps(record)))
        found = Database(tmp_path / kind)  # from the file
        (kept,) = found.tvm_database.get_all_tuning_records()
        assert [float(cost) for cost in kept.run_secs] == [2.0, 4.0]
        again = found.best(module, platform.target)
        tvm.ir.assert_structural_equal(again, schedule.mod)


def test_a_run_on_tensor_cores_is_kept_and_goes_on(tmp_path, platform):
    options = {"specs": (HALF,), "draft": False, "batch_size": 3}
    run(tmp_path, platform, FakeMeasurer(), trials=3, **options)
    run(tmp_path, platform, FakeMeasurer(), trials=6, **options)
    rows = read_trials(tmp_path / JOURNAL_FILE)
    assert len(rows) == 6
    records = Database(tmp_path).tvm_database.get_all_tuning_records()
    assert len(records) == sum(row.error is None for row in rows) > 0


def test_a_task_on_tensor_cores_is_drafted(tmp_path, platform):
    task = from_operator(HALF)
    found = draft_tasks([task], platform, platform_analyzer(platform), tmp_path)
    (draft,) = found.drafts
    if draft.how == "none" and "nvcc" in (draft.reason or ""):
        pytest.skip("no CUDA compiler (nvcc) on this machine")
    assert draft.how == "drafted", draft
    assert Database(tmp_path).best(task.module, platform.target) is not None


@pytest.mark.parametrize(
    ("dtype", "latency_s", "peak_flops_per_s", "shown"),
    [("float16", 9.658e-6, 989.4e12, "22.5"), ("float32", 1.41277e-3, 66.9e12, "2.27")],
)
def test_the_peak_is_that_of_the_operands(platform, dtype, latency_s, peak_flops_per_s, shown):
    task = operator("matmul", m=1024, n=1024, k=1024, dtype=dtype)
    found = TaskOutcome.of(task, [trial(1, [latency_s], task=task.name)], platform=platform)
    assert found.peak_share == pytest.approx(2 * 1024**3 / latency_s / peak_flops_per_s)
    assert f"{shown} % of peak" in found.verdict()
