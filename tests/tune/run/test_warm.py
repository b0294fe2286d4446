"""Two tiny runs: the second knows what the first measured, of equal programs and targets only."""

import pytest

from pruner.errors import PrunerError
from pruner.tune.run.database import RECORDS
from pruner.tune.run.journal import JOURNAL_FILE, read_trials
from tests.tune.run.test_loop import OTHER, SIZES, FakeMeasurer, measured, run

pytestmark = pytest.mark.tvm


@pytest.fixture(scope="module")
def platform():
    from pruner.tune.measure.measurer import Platform
    from pruner.tune.tvm_import import load_tvm

    target = load_tvm().tvm.target.Target({"kind": "llvm", "num-cores": 2})
    return Platform(target=target, device="cpu", cores=2, name="cpu-avx2")


def test_a_run_begins_with_what_another_measured(tmp_path, platform):
    run(tmp_path / "first", platform, FakeMeasurer(), trials=12)
    rows = read_trials(tmp_path / "first" / JOURNAL_FILE)
    best_s = min(row.latency_s for row in rows)

    options = {"specs": (OTHER, SIZES), "trials": 16, "warm_start": [tmp_path / "first"]}
    second = run(tmp_path / "second", platform, FakeMeasurer(), **options)
    cold, warm = second.tasks
    assert warm.current_best_s <= best_s
    assert cold.trials >= 4
    ran = {(row[3], *row[4]) for row in measured(tmp_path / "first") if row[6] is None}
    again = {(r[3], *r[4]) for r in measured(tmp_path / "second") if r[0] == "matmul_64_64_64"}
    assert again  # both have the same decisions to choose from ...
    assert not ran & again  # ... and what ran is not measured twice
    assert warm.search._policy._history.latency_s[0].min() == pytest.approx(best_s)
    assert second.estimate.measured_share == 1.0


def test_what_is_known_is_in_the_new_database_and_is_not_a_trial(tmp_path, platform):
    from pruner.tune.run.database import Database
    from pruner.tune.workloads import from_operator

    run(tmp_path / "first", platform, FakeMeasurer(), trials=6)
    options = {"specs": (SIZES, OTHER), "trials": 4, "warm_start": [tmp_path / "first"]}
    second = run(tmp_path / "second", platform, FakeMeasurer(), **options)
    assert [task.trials for task in second.tasks] == [0, 4]  # what is known is begun already
    assert second.tasks[0].current_best_s < 1
    module = from_operator(SIZES).module
    assert Database(tmp_path / "second").best(module, platform.target) is not None
    run(tmp_path / "second", platform, FakeMeasurer(), **options)  # again: nothing is added
    records = (tmp_path / "second" / RECORDS).read_text().splitlines()
    ran = sum(row[6] is None for row in measured(tmp_path / "second"))
    assert len(records) == 1 + ran


def test_another_target_is_refused_with_the_reason(tmp_path, platform):
    run(tmp_path / "first", platform, FakeMeasurer(), trials=6)
    path = tmp_path / "first" / RECORDS
    text = path.read_text()
    assert text.count('"num-cores":2') or text.count('"num-cores": 2')
    path.write_text(text.replace('"num-cores":2', '"num-cores":4').replace(
        '"num-cores": 2', '"num-cores": 4'))  # fmt: skip
    with pytest.raises(PrunerError, match=r"warm_start=.*first: measured on .*4.*this run is for"):
        run(tmp_path / "second", platform, FakeMeasurer(), warm_start=[tmp_path / "first"])
    with pytest.raises(PrunerError, match=r"no database_tuning_record\.json there"):
        run(tmp_path / "third", platform, FakeMeasurer(), warm_start=[tmp_path])
