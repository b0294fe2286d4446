"""Runs that know something before they measure: earlier runs, and drafts of all tasks."""

import json

import pytest

from pruner.errors import DataError, PrunerError
from pruner.files import read_json
from pruner.tune.networks.draft_network import FOLDER, SUMMARY
from pruner.tune.run.database import NEVER_MEASURED_S, RECORDS, Database, best_s, measured_s
from pruner.tune.run.journal import JOURNAL_FILE, read_trials
from pruner.tune.run.setup import keep, read_known
from pruner.tune.tvm_import import load_tvm
from pruner.tune.workloads import from_operator
from tests.tune.run.test_loop import OTHER, SIZES, FakeMeasurer, Killed, finished, measured, run

pytestmark = pytest.mark.tvm


def test_a_run_begins_with_what_another_measured(tmp_path, platform):
    finished(tmp_path / "first", platform, trials=12)
    rows = read_trials(tmp_path / "first" / JOURNAL_FILE)
    fastest_s = min(row.latency_s for row in rows)

    options = {"specs": (OTHER, SIZES), "trials": 16, "warm_start": [tmp_path / "first"]}
    second = run(tmp_path / "second", platform, FakeMeasurer(), **options)
    cold, warm = second.tasks
    assert warm.current_best_s <= fastest_s
    assert cold.trials >= 4
    ran = {(row[3], *row[4]) for row in measured(tmp_path / "first") if row[6] is None}
    again = {(r[3], *r[4]) for r in measured(tmp_path / "second") if r[0] == "matmul_64_64_64"}
    assert again  # both have the same decisions to choose from ...
    assert not ran & again  # ... and what ran is not measured twice
    assert warm.search.history.latency_s[0].min() == pytest.approx(fastest_s)
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
    assert len(known) == len(rows)
    assert best_s(known) == min(rows)


def test_a_better_program_is_taken_into_a_database_that_knows_the_task(tmp_path, platform):
    finished(tmp_path, platform, trials=6)
    workload = from_operator(SIZES)
    known = read_known([tmp_path], [workload], platform.target)
    records, fastest_s = known[workload.name], best_s(known[workload.name])
    for name, factor, added in (("worse", 2, 1), ("better", 0.5, 0)):
        (tmp_path / name).mkdir()
        own = Database(tmp_path / name)
        with_costs(own, records[0], fastest_s * factor)
        keep(known, [workload], own, platform.target)
        keep(known, [workload], own, platform.target)
        costs_s = {measured_s(record) for record in own.tvm_database.get_all_tuning_records()}
        assert costs_s == {fastest_s * factor, *[fastest_s] * added}
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


TASKS = {"matmul_64_64_64", "matmul_32_64_64"}


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    """What comes of a task does not depend on the processes that draft it (test_drafted)."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})


def draft_first(folder, platform, measurer=None, **changes):
    options = {"specs": (SIZES, OTHER), "trials": 16, "draft_all": True, **changes}
    return run(folder, platform, measurer or FakeMeasurer(), **options)


def drafted(folder):
    """Names of tasks in the order of their drafts, and the drafted traces."""
    lines = (folder / FOLDER / RECORDS).read_text().splitlines()
    names = [row["task"] for row in read_json(folder / FOLDER / SUMMARY)]
    return names, [json.loads(line)[1][0] for line in lines]


def drafts_told(told):
    return [line for line in told if line.startswith("drafted")]


@pytest.fixture(scope="module")
def whole(platform, tmp_path_factory):
    folder, told = tmp_path_factory.mktemp("whole"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.sched_getaffinity", lambda _: {0})
        tuned = draft_first(folder, platform, log=told.append)
    return folder, tuned, told


def test_every_task_measures_first_what_was_drafted(whole):
    folder, tuned, told = whole
    names, traces = drafted(folder)
    assert set(names) == TASKS
    assert len(drafts_told(told)) == len(traces) == 2
    first = {}
    for trial in read_trials(folder / JOURNAL_FILE):
        first.setdefault(trial.task, trial)
    records = [trial.record for trial in first.values() if trial.error is None]
    assert records  # which those that fail have not
    assert all(json.loads(record)[0] in traces for record in records)
    rows = [(row[0], row[3], *row[4]) for row in measured(folder)]
    assert len(set(rows)) == len(rows) == 16  # nothing twice
    assert tuned._phases.seconds()["draft"] > 0


def test_a_killed_run_goes_on_and_drafts_nothing_again(tmp_path, platform, whole):
    """Killed inside the first task's first batch, when the other is not begun, and later."""
    for dies_at in (1, 3, 9):
        with pytest.raises(Killed):
            draft_first(tmp_path, platform, FakeMeasurer(dies_at=dies_at))
    told = []
    draft_first(tmp_path, platform, log=told.append)
    assert drafts_told(told) == []
    assert measured(tmp_path) == measured(whole[0])


def test_ctrl_c_ends_the_draft_and_another_start_drafts_the_rest(tmp_path, platform, whole):
    told = []
    asked = lambda: bool(drafts_told(told))  # noqa: E731
    tuned = draft_first(tmp_path, platform, log=told.append, interrupted=asked)
    assert tuned.trials == 0
    assert len(drafts_told(told)) == len(drafted(tmp_path)[0]) == 1
    assert not any("half of" in line for line in told)
    again = []
    draft_first(tmp_path, platform, log=again.append)
    assert len(drafts_told(again)) == 1
    assert drafted(tmp_path) == drafted(whole[0])
    assert measured(tmp_path) == measured(whole[0])


def test_the_draft_takes_half_of_a_runs_seconds_at_most(tmp_path, platform):
    told = []
    draft_first(tmp_path, platform, log=told.append, seconds=1e-3)
    assert told[-1] == "2 tasks begin without a draft: half of the search's 0.001 s is over"


def test_tasks_that_an_earlier_start_began_are_not_drafted(tmp_path, platform):
    """One of a version that did not draft first, killed inside the second task's first batch."""
    with pytest.raises(Killed):
        draft_first(tmp_path, platform, FakeMeasurer(dies_at=6), draft_all=False)
    assert {row[0] for row in measured(tmp_path)} == TASKS
    draft_first(tmp_path, platform)
    assert not (tmp_path / FOLDER).exists()


def test_seconds_of_earlier_starts_count(tmp_path, platform):
    """Half of the time was over before one of two tasks was begun: the other is not drafted."""
    with pytest.raises(Killed):
        draft_first(tmp_path, platform, FakeMeasurer(dies_at=3), draft_all=False)
    rows = read_trials(tmp_path / JOURNAL_FILE)
    assert len({row.task for row in rows}) == 1
    told = []
    draft_first(tmp_path, platform, log=told.append, seconds=2 * rows[-1].elapsed_s)
    assert drafts_told(told) == []
    assert any(line.startswith("1 tasks begin without a draft: half of") for line in told)


def test_a_run_that_cannot_go_on_is_refused_before_a_draft(tmp_path, platform):
    draft_first(tmp_path, platform, specs=(SIZES,), trials=4, draft_all=False)
    with pytest.raises(DataError, match="not a task of the run"):
        draft_first(tmp_path, platform, specs=(OTHER,))
    assert not (tmp_path / FOLDER).exists()


def test_what_earlier_runs_know_is_not_drafted(tmp_path, platform):
    finished(tmp_path / "first", platform, trials=6)
    draft_first(tmp_path / "second", platform, warm_start=[tmp_path / "first"])
    assert drafted(tmp_path / "second")[0] == ["matmul_32_64_64"]


@pytest.mark.parametrize("changes", [{"draft_all": False}, {"draft": False}])
def test_nothing_is_drafted_unless_it_is_wanted_and_can_be(tmp_path, platform, changes):
    draft_first(tmp_path, platform, trials=4, **changes)
    assert not (tmp_path / FOLDER).exists()
