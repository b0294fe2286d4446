"""What a resumed run makes of its files: the journal is the truth, the others follow it."""

import json
import os
import pickle
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from pruner.errors import DataError, PrunerError
from pruner.files import METRICS_FILE, save_metrics
from pruner.tune import workloads
from pruner.tune.phases import IDLE, PHASES
from pruner.tune.run.database import RECORDS, WORKLOADS, Database, open_database
from pruner.tune.run.journal import JOURNAL_FILE, SNAPSHOT_FILE, read_trials
from pruner.tune.run.loop import OLD_FILE, load_state, save_state
from pruner.tune.workloads import from_operator, operator
from tests.tune.run.test_loop import OTHER, SIZES, FakeMeasurer, Killed, finished, measured, run
from tests.tune.run.test_snapshot import Touch
from tests.tune.some_slow import some_slow

pytestmark = pytest.mark.tvm


def recorded(folder):
    """Repeats of every record of the database."""
    records = Database.read(folder).tvm_database.get_all_tuning_records()
    return Counter(tuple(float(cost) for cost in record.run_secs) for record in records)


def ran(folder):
    rows = read_trials(folder / JOURNAL_FILE)
    return Counter(tuple(row.costs_s) for row in rows if row.error is None)


def test_a_kill_between_journal_and_database_costs_neither(tmp_path, platform, monkeypatch):
    finished(tmp_path / "whole", platform)
    commit, calls = Database.commit_json, []

    def dying(self, module, record):
        calls.append(record)
        if len(calls) in (3, 9):
            raise Killed
        commit(self, module, record)

    monkeypatch.setattr(Database, "commit_json", dying)
    for _ in range(2):
        with pytest.raises(Killed):
            run(tmp_path / "killed", platform, FakeMeasurer())
    run(tmp_path / "killed", platform, FakeMeasurer())
    assert measured(tmp_path / "killed") == measured(tmp_path / "whole")
    assert recorded(tmp_path / "killed") == ran(tmp_path / "whole") == ran(tmp_path / "killed")


def test_a_database_that_is_gone_or_damaged_is_made_anew(tmp_path, platform):
    finished(tmp_path, platform, specs=(SIZES, OTHER), trials=12)
    before, best = recorded(tmp_path), {}
    original = Database.read(tmp_path).best(workload(SIZES), platform.target)
    for name in (RECORDS, WORKLOADS):
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[:40] + b"#" + whole[41:])
        told = []
        with pytest.raises(PrunerError, match=r"TVM cannot read its database .* again, from its"):
            Database.read(tmp_path)
        with pytest.raises(PrunerError, match="TVM cannot read its database"):
            open_database(tmp_path, own=False, log=told.append)
        open_database(tmp_path, own=True, log=told.append)
        assert any("made again" in line for line in told)
        run(tmp_path, platform, FakeMeasurer(), specs=(SIZES, OTHER), trials=12)
        assert recorded(tmp_path) == before
        best[name] = Database.read(tmp_path).best(workload(SIZES), platform.target)
    assert str(best[RECORDS]) == str(best[WORKLOADS]) == str(original)
    assert "T.parallel" in str(original)  # scheduled


def workload(spec):
    return from_operator(spec).module


# test_snapshot cuts it everywhere
@some_slow(("damage", "model"), [("gone", "trees"), ("nonsense", "pacm")], [("cut", "trees")])
def test_a_state_that_is_gone_costs_nothing_that_was_measured(tmp_path, platform, damage, model):
    told = []
    options = {"specs": (SIZES, OTHER), "trials": 20, "model": model}
    with pytest.raises(Killed):
        run(tmp_path, platform, FakeMeasurer(dies_at=14), **options)
    state, before = tmp_path / SNAPSHOT_FILE, read_trials(tmp_path / JOURNAL_FILE)
    if damage == "cut":
        state.write_bytes(state.read_bytes()[:-100])
    elif damage == "gone":
        state.unlink()
    else:
        save_state(state, load_state(state) | {"tasks": [], "model": 3})
    run(tmp_path, platform, FakeMeasurer(), log=told.append, **options)
    rows = read_trials(tmp_path / JOURNAL_FILE)
    assert rows[:13] == before
    assert [row.trial for row in rows] == list(range(1, 21))
    assert len({(row.task, row.space, *row.decisions) for row in rows}) == 20
    assert len({(row.batch, row.position) for row in rows}) == 20
    assert any("the search starts again with the results of trials.jsonl" in line for line in told)


def test_a_state_that_is_older_than_the_journal_is_not_believed(tmp_path, platform):
    finished(tmp_path, platform, trials=6)
    old = (tmp_path / SNAPSHOT_FILE).read_bytes()
    run(tmp_path, platform, FakeMeasurer(), trials=18)
    (tmp_path / SNAPSHOT_FILE).write_bytes(old)
    told = []
    run(tmp_path, platform, FakeMeasurer(), trials=24, log=told.append)
    rows = read_trials(tmp_path / JOURNAL_FILE)
    assert len({(row.space, *row.decisions) for row in rows}) == len(rows) == 24
    assert any("older than the journal" in line for line in told)


def test_seconds_after_the_search_of_an_earlier_start_count(tmp_path, platform):
    """The metrics of that start have them; those of an even earlier start have less."""
    finished(tmp_path, platform, trials=6)

    def seconds():
        found = run(tmp_path, platform, FakeMeasurer(), trials=6)._phases.seconds()
        return round(sum(found.values()), -2), round(found["run"], -2)

    assert seconds() == (0, 0)
    known = dict.fromkeys((*PHASES, IDLE), 0.0)
    save_metrics(tmp_path, {"seconds": known | {"run": 600.0, IDLE: 300.0}})
    assert seconds() == (900, 600)
    state = tmp_path / SNAPSHOT_FILE
    save_state(state, load_state(state) | {"seconds": known | {"build": 1000.0}})
    assert seconds() == (1000, 0)  # of a later start, which was killed
    state.unlink()
    assert seconds() == (900, 600)
    for damaged in ('{"run": 9}', '{"run": "9"}', "9", "[9]"):
        (tmp_path / METRICS_FILE).write_text(f'{{"seconds": {damaged}}}')
        with pytest.raises(DataError, match=f"{METRICS_FILE}: damaged"):
            seconds()


def test_a_damaged_row_costs_itself(tmp_path, platform):
    finished(tmp_path, platform, trials=12)
    path = tmp_path / JOURNAL_FILE
    lines = path.read_bytes().splitlines(keepends=True)
    lines[4] = lines[4].replace(b'"batch":1', b'"batch":7')
    path.write_bytes(b"".join(lines))
    told = []
    run(tmp_path, platform, FakeMeasurer(), trials=18, log=told.append)
    rows = read_trials(path)
    assert [row.trial for row in rows] == [1, 2, 3, 4, *range(6, 20)]
    assert f"{path}, line 5: it does not match its checksum" in "\n".join(told)


def test_a_run_of_other_programs_or_another_version_is_refused(tmp_path, platform, monkeypatch):
    finished(tmp_path / "a", platform, trials=6)
    real = workloads.from_operator
    larger = real(SIZES | {"m": 128}).module
    changed = replace(real(SIZES), module=larger)
    monkeypatch.setattr(workloads, "from_operator", lambda _: changed)
    for state in (True, False):  # then its database tells
        if not state:
            (tmp_path / "a" / SNAPSHOT_FILE).unlink()
        with pytest.raises(PrunerError, match="is not the program that this run was begun with"):
            run(tmp_path / "a", platform, FakeMeasurer(), trials=12)
    monkeypatch.undo()
    with pytest.raises(PrunerError, match="its journal has matmul_64_64_64, not a task of the run"):
        run(tmp_path / "a", platform, FakeMeasurer(), trials=12, specs=(OTHER,))
    touched = tmp_path / "touched"
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / OLD_FILE).write_bytes(pickle.dumps(Touch(touched)))
    with pytest.raises(PrunerError, match=r"warm_start=\[.*/b\] uses its measurements"):
        run(tmp_path / "b", platform, FakeMeasurer(), trials=6)
    assert not touched.exists()


def test_programs_are_the_same_in_every_process():
    """In one whose sets and dictionaries have another order, too."""
    code = (
        "import sys; sys.modules['torch'] = None; from pruner.tune.workloads import operator; "
        "print(operator('matmul', m=64, n=64, k=64).fingerprint)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONHASHSEED": "1", "PRUNER_TVM_CPUS_ONLY": "1"},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert found.strip() == str(operator("matmul", m=64, n=64, k=64).fingerprint)


def test_a_row_of_no_program_of_the_task_is_told_in_one_line(tmp_path, platform):
    """Of another version's design spaces, or damaged where a line has no checksum."""
    finished(tmp_path, platform, trials=6)
    (tmp_path / SNAPSHOT_FILE).unlink()
    path = tmp_path / JOURNAL_FILE
    first, *rest = path.read_bytes().splitlines(keepends=True)
    row = json.loads(first)
    del row["crc32"]
    for changes in ({"space": 99}, {"space": -1}, {"decisions": [1]}):
        path.write_bytes(json.dumps(row | changes).encode() + b"\n" + b"".join(rest))
        with pytest.raises(PrunerError, match="decisions does not belong to this task"):
            run(tmp_path, platform, FakeMeasurer(), trials=12)


def test_a_record_that_tvm_does_not_take_costs_itself(tmp_path, platform):
    finished(tmp_path, platform, trials=6)
    path = tmp_path / JOURNAL_FILE
    lines = path.read_bytes().splitlines()
    row = json.loads(lines[2])
    del row["crc32"]
    record = '[[[["NoSuch", [], [], []]], []], [1.0], {}, []]'
    lines[2] = json.dumps(row | {"record": record}).encode()
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    before = ran(tmp_path)
    (tmp_path / RECORDS).unlink()
    told = []
    run(tmp_path, platform, FakeMeasurer(), trials=12, log=told.append)
    left_out = f"the record of trial {row['trial']} of matmul_64_64_64 is left out"
    assert any(left_out in line for line in told)
    assert ran(tmp_path) - recorded(tmp_path) == Counter([tuple(row["costs_s"])])
    assert before - ran(tmp_path) == Counter()
