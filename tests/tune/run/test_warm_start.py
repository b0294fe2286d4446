"""Two tiny runs: the second knows what the first measured, of equal programs and targets only."""

import pytest

from pruner.errors import PrunerError
from pruner.tune.run.database import NEVER_MEASURED_S, RECORDS, Database, measured_s
from pruner.tune.run.journal import JOURNAL_FILE, read_trials
from pruner.tune.run.setup import keep, read_known
from pruner.tune.tvm_import import load_tvm
from pruner.tune.workloads import from_operator
from tests.tune.run.test_loop import OTHER, SIZES, FakeMeasurer, finished, measured, run

pytestmark = pytest.mark.tvm


def test_a_run_begins_with_what_another_measured(tmp_path, platform):
    finished(tmp_path / "first", platform, trials=12)
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
    assert warm.search.history.latency_s[0].min() == pytest.approx(best_s)
    assert second.estimate.measured_share == 1.0


def test_what_is_known_is_in_the_new_database_and_is_not_a_trial(tmp_path, platform):
    finished(tmp_path / "first", platform, trials=6)
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


def with_costs(database, record, *costs_s):
    """The record's program with other costs, in a database."""
    made = load_tvm().meta_schedule.database.TuningRecord(
        record.trace, record.workload, list(costs_s), record.target, record.args_info
    )
    database.adopt(record.workload.mod, made)


def test_drafted_programs_and_failures_are_not_known(tmp_path, platform):
    finished(tmp_path, platform, trials=12)
    rows = [row.latency_s for row in read_trials(tmp_path / JOURNAL_FILE) if row.error is None]
    database, workload = Database(tmp_path), from_operator(SIZES)
    record = database.tvm_database.get_all_tuning_records()[0]
    with_costs(database, record, NEVER_MEASURED_S)
    with_costs(database, record, 1e10)  # as TVM records a failure
    with_costs(database, record)
    assert len(database.tvm_database) == len(rows) + 3
    known = read_known([tmp_path], [workload], platform.target)[workload.name]
    assert len(known.records) == len(rows)
    assert known.best_s == min(rows)


def test_a_better_program_is_taken_into_a_database_that_knows_the_task(tmp_path, platform):
    finished(tmp_path, platform, trials=6)
    workload = from_operator(SIZES)
    known = read_known([tmp_path], [workload], platform.target)
    best_s, records = known[workload.name].best_s, known[workload.name].records
    for name, factor, added in (("worse", 2, 1), ("better", 0.5, 0)):
        (tmp_path / name).mkdir()
        own = Database(tmp_path / name)
        with_costs(own, records[0], best_s * factor)
        keep(known, [workload], own, platform.target)
        keep(known, [workload], own, platform.target)
        costs_s = {measured_s(record) for record in own.tvm_database.get_all_tuning_records()}
        assert costs_s == {best_s * factor, *[best_s] * added}
        assert len(own.tvm_database) == 1 + added


def test_another_target_is_refused_with_the_reason(tmp_path, platform):
    finished(tmp_path / "first", platform, trials=6)
    path = tmp_path / "first" / RECORDS
    text = path.read_text()
    assert text.count('"num-cores":2') or text.count('"num-cores": 2')
    path.write_text(text.replace('"num-cores":2', '"num-cores":4').replace(
        '"num-cores": 2', '"num-cores": 4'))  # fmt: skip
    with pytest.raises(PrunerError, match=r"warm_start=.*first: measured on .*4.*this run is for"):
        run(tmp_path / "second", platform, FakeMeasurer(), warm_start=[tmp_path / "first"])
    with pytest.raises(PrunerError, match=r"no database_tuning_record\.json there"):
        run(tmp_path / "third", platform, FakeMeasurer(), warm_start=[tmp_path])
