"""The best programs of a search, timed again in turns: the choice by hand, and what follows it."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from pruner.errors import DataError
from pruner.files import write_table
from pruner.tune import tune
from pruner.tune.deploy.kernels import deploy_kernels
from pruner.tune.measure.measurer import DeviceMeasurer, Outcome
from pruner.tune.run import finalists
from pruner.tune.run.database import Database
from pruner.tune.run.finalists import (
    ENERGY_FILE,
    FINALISTS_FILE,
    Finalists,
    chosen_trials,
    near_best,
    paired_medians,
    present,
    ranked,
    read_finalists,
    retime,
)
from pruner.tune.run.journal import JOURNAL_FILE, read_trials
from pruner.tune.tvm_import import load_tvm
from tests.tune.run.test_journal import trial
from tests.tune.run.test_journal import written as journal
from tests.tune.run.test_tuning import options


def test_programs_are_compared_inside_their_turns():
    # The second turn takes twice as long for both. In the third the first program is disturbed.
    costs_s = np.array([[1.0, 2.0, 3.0], [1.1, 2.2, 1.1]])
    assert np.median(costs_s, axis=1).tolist() == [2.0, 1.1]  # as if the second were faster
    np.testing.assert_allclose(paired_medians(costs_s), [1 / 1.05, 1.1 / 1.05])
    found = Finalists(tried=[7, 3, 5], trials=[3, 5], costs_s=costs_s.tolist(), checked=True)
    assert (found.trial, found.latency_s) == (3, 2.0)
    assert found.row() == {"trial": 3, "best_of_search": 7, "timed": 2}
    assert "trial 3 is the best of 2, timed in turns, not trial 7" in found.line()


def test_finalists_are_few_and_near_the_best():
    ran = {"record": "[]"}
    rows = [
        trial(1, [1.04], **ran), trial(2, [1.0], **ran), trial(3, [1.06], **ran),
        trial(4, [], error="run_crash"), trial(5, [1.02], **ran), trial(6, [0.5]),
        trial(7, [0.1], task="u", **ran),
    ]  # fmt: skip  # trial 6 has no record from which it could be built again
    found = ranked(rows, "t")
    assert [row.trial for row in found] == [2, 5, 1, 3]
    assert [row.trial for row in near_best(found, 4)] == [2, 5, 1]
    assert [row.trial for row in near_best(found, 2)] == [2, 5]
    assert near_best([], 4) == []


def written(folder, **finalists):
    (folder / FINALISTS_FILE).write_text(json.dumps(finalists), encoding="utf-8")


def test_after_a_better_program_the_search_decides(tmp_path):
    one = {"tried": [1, 2], "trials": [1, 2], "costs_s": [[2.0], [1.0]], "checked": True}
    written(tmp_path, t=one)
    rows = [trial(1, [1.0], record="[]"), trial(2, [1.01], record="[]")]
    assert present(tmp_path, rows)["t"].trial == 2
    better = trial(3, [0.9], record="[]")
    assert present(tmp_path, [*rows, better]) == {}
    assert read_finalists(tmp_path / "other") == {}
    written(tmp_path, t={"trials": [1]})
    with pytest.raises(DataError, match=FINALISTS_FILE):
        read_finalists(tmp_path)


def test_the_least_energy_counts_until_a_faster_program_is_found(tmp_path):
    rows = [trial(n, [s], record="[]") for n, s in [(1, 1.0), (2, 1.1), (3, 1.3)]]
    table = [{"task": "t", "trial": n, "chosen": int(n == 2)} for n in (1, 2)]
    write_table(tmp_path / ENERGY_FILE, table)
    (chosen,) = chosen_trials(tmp_path, rows).values()
    assert (chosen.trial, chosen.best_s) == (rows[1], 0.0)
    assert chosen_trials(tmp_path, [*rows, trial(4, [0.9], record="[]")]) == {}
    write_table(tmp_path / ENERGY_FILE, [{"task": "t", "trial": 1}])
    with pytest.raises(DataError, match=ENERGY_FILE):
        chosen_trials(tmp_path, rows)


def test_an_interrupted_task_has_no_entry(tmp_path):
    """The turns of the first task end with an interruption: the next start times both tasks."""
    rows = [trial(n, [1.0], record="[]", task="tu"[n > 2]) for n in (1, 2, 3, 4)]
    journal(tmp_path / JOURNAL_FILE, *rows)
    asked = []

    def in_turns(modules, *_):
        asked.append(modules)
        return [SimpleNamespace(error=None, costs_s=[1.0], checked=True)] * 2

    context = SimpleNamespace(
        folder=tmp_path,
        log=print,
        interrupted=lambda: bool(asked),
        platform=SimpleNamespace(target=None),
        database=SimpleNamespace(scheduled=lambda *_: None),
        measurer=SimpleNamespace(in_turns=in_turns),
    )
    tasks = [
        SimpleNamespace(
            workload=SimpleNamespace(name=name, module=None),
            unscheduled=None,
            current_best_s=1.0,
            arguments=(),
            find_check=lambda: None,
        )
        for name in "tu"
    ]
    retime(tasks, context, 2)
    assert len(asked) == 1
    assert not (tmp_path / FINALISTS_FILE).exists()
    context.interrupted = lambda: False
    retime(tasks, context, 2)
    assert read_finalists(tmp_path).keys() == {"t", "u"}


@pytest.mark.tvm
def test_the_winner_of_the_turns_becomes_the_kernel(tmp_path, monkeypatch, small):
    """The turns here say the reverse of the search."""
    asked, built = [], []

    def in_turns(_self, modules, _arguments, check, turns, _stopped):
        asked.append((len(modules), check is not None, turns))
        costs = [(1.0 - 0.1 * n,) * turns for n in range(len(modules))]
        return [Outcome(costs_s=one, checked=True) for one in costs]

    def export(_self, module, _path):
        built.append(module)

    monkeypatch.setattr(finalists, "NEAR", 1e9)  # every program is near
    monkeypatch.setattr(DeviceMeasurer, "in_turns", in_turns)
    monkeypatch.setattr(DeviceMeasurer, "export", export)
    monkeypatch.setattr(DeviceMeasurer, "untuned_s", lambda *_: 1.0)
    told = []
    quick = options().measure

    def tuned(trials, number):
        given = options(trials=trials, measure=replace(quick, finalists=number))
        return tune(small, given, tmp_path, log=told.append)

    found = tuned(4, 3)
    rows = sorted(read_trials(tmp_path / JOURNAL_FILE), key=lambda row: row.latency_s)
    (row,) = found.metrics()["tasks"].values()
    assert row["finalists"] == {
        "trial": rows[2].trial, "best_of_search": rows[0].trial, "timed": 3,
    }  # fmt: skip
    assert row["best_latency_s"] == pytest.approx(0.8)
    assert row["checked"]
    assert "the best of 3 timed in turns" in found.tasks[0].verdict()
    assert asked == [(3, True, finalists.TURNS)]
    same = load_tvm().ffi.structural_equal
    database, target = Database.read(tmp_path), options().platform.target
    wanted = database.scheduled(small.module, rows[2].record, target)
    assert same(built[0], wanted)
    assert not same(built[0], database.best(small.module, target))
    kernels = []
    monkeypatch.setattr(
        "pruner.tune.deploy.kernels._exported", lambda *what: kernels.append(what[2])
    )
    deploy_kernels(tmp_path, [small], target)
    assert same(kernels[0], wanted)
    # the same programs are not timed again; without the option the choice stays
    assert tuned(4, 3).metrics()["tasks"][small.name]["finalists"] == row["finalists"]
    assert tuned(4, 0).metrics()["tasks"][small.name]["finalists"] == row["finalists"]
    assert len(asked) == 1
    tuned(8, 3)
    best = sorted(read_trials(tmp_path / JOURNAL_FILE), key=lambda row: row.latency_s)[:3]
    changed = [row.trial for row in best] != [row.trial for row in rows[:3]]
    assert len(asked) == 1 + changed
    assert any("its 3 best programs are timed again, in turns" in line for line in told)
