"""The end of a run: programs timed again in turns, and the choice by energy or size."""

import json
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from itertools import accumulate, chain, count, repeat
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from pruner.errors import DataError, PrunerError
from pruner.files import read_table, write_table
from pruner.search.objectives import Objective
from pruner.tune import tune
from pruner.tune.deploy import kernels
from pruner.tune.deploy.kernels import deploy_kernels
from pruner.tune.measure.measurer import DeviceMeasurer, Outcome
from pruner.tune.phases import Phases
from pruner.tune.run import final_choice as module
from pruner.tune.run import finalists
from pruner.tune.run.database import Database
from pruner.tune.run.final_choice import FinalChoice, FinalProgram, marked, table_rows
from pruner.tune.run.finalists import Finalists, near_best, present, ranked, read_finalists, retime
from pruner.tune.run.journal import JOURNAL_FILE, read_trial, read_trials
from pruner.tune.run.tune_options import RunContext
from pruner.tune.tvm_import import load_tvm
from tests.tune.run.test_journal import trial
from tests.tune.run.test_journal import written as journal
from tests.tune.run.test_tuning import options


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """The runs here are short."""
    monkeypatch.setattr(finalists, "FEWEST_PROGRAMS", 2)


def test_programs_are_compared_inside_their_turns():
    # The second turn takes twice as long for both. In the third the first program is disturbed.
    costs_s = np.array([[1.0, 2.0, 3.0], [1.1, 2.2, 1.1]])
    assert np.median(costs_s, axis=1).tolist() == [2.0, 1.1]  # as if the second were faster
    np.testing.assert_allclose(finalists.paired_medians(costs_s), [1 / 1.05, 1.1 / 1.05])
    found = Finalists(tried=[7, 3, 5], trials=[3, 5], costs_s=costs_s.tolist(), checked=True)
    assert (found.trial, found.latency_s) == (3, 2.0)
    assert found.row() == {"trial": 3, "best_of_search": 7, "timed": 2}
    assert "trial 3 is the best of 2, timed in turns, not trial 7" in found.line()


def test_finalists_are_few_and_near_the_best():
    ran = {"record": "[]"}
    rows = [
        trial(1, [1.34], **ran), trial(2, [1.0], **ran), trial(3, [1.36], **ran),
        trial(4, [], error="run_crash"), trial(5, [1.02], **ran), trial(6, [0.5]),
        trial(7, [0.1], task="u", **ran),
    ]  # fmt: skip  # trial 6 has no record from which it could be built again
    found = ranked(rows, "t")
    assert [row.trial for row in found] == [2, 5, 1, 3]
    assert [row.trial for row in near_best(found, 4)] == [2, 5, 1]
    assert [row.trial for row in near_best(found, 2)] == [2, 5]
    assert near_best([], 4) == []


def test_a_task_of_few_programs_has_no_finalists(monkeypatch):
    monkeypatch.setattr(finalists, "FEWEST_PROGRAMS", 3)
    found = ranked([trial(n, [1.0], record="[]") for n in range(3)], "t")
    assert (len(near_best(found, 2)), near_best(found[:2], 2)) == (2, [])
    # a run that cannot have three programs of each task leaves no seconds to the turns
    assert finalists.search_s(1150.0, 100, 300) == pytest.approx(1000.0)
    assert finalists.search_s(1150.0, 100, 299) == 1150.0


def written(folder, **found):
    (folder / finalists.FINALISTS_FILE).write_text(json.dumps(found), encoding="utf-8")


PAIR = {"tried": [1, 2], "trials": [1, 2], "costs_s": [[2.0], [1.0]], "checked": True}


def test_after_a_better_program_the_search_decides(tmp_path):
    written(tmp_path, t=PAIR)
    rows = [trial(1, [1.0], record="[]"), trial(2, [1.01], record="[]")]
    assert present(tmp_path, rows)["t"].trial == 2
    better = trial(3, [0.9], record="[]")
    assert present(tmp_path, [*rows, better]) == {}
    assert present(tmp_path, rows[:1]) == {}  # the row of trial 2 is damaged
    assert read_finalists(tmp_path / "other") == {}
    assert present(tmp_path, [replace(row, task="u") for row in rows]) == {}


@pytest.mark.parametrize(
    "damage",
    [
        {"tried": [1]}, {"trials": [1]}, {"trials": [1, 7]}, {"costs_s": []}, {"costs_s": [[], []]},
        {"costs_s": [[2.0], [1.0, 1.0]]}, {"costs_s": [[2.0], ["1"]]}, {"costs_s": [[0.0], [1.0]]},
        {"trials": [], "costs_s": []}, {"costs_s": [1.0, 2.0]}, {"more": 1},
    ],
)  # fmt: skip
def test_damaged_finalists_are_refused_before_any_work(tmp_path, damage):
    written(tmp_path, t={**PAIR, **damage})
    with pytest.raises(DataError, match=f"{finalists.FINALISTS_FILE}: damaged"):
        read_finalists(tmp_path)
    with pytest.raises(DataError, match=f"{finalists.FINALISTS_FILE}: damaged"):
        tune([], Mock(work_dir=None), tmp_path)


def test_the_least_energy_counts_until_a_faster_program_is_found(tmp_path):
    rows = [trial(n, [s], record="[]") for n, s in [(1, 1.0), (2, 1.1), (3, 1.3)]]
    table = [{"task": "t", "trial": n, "chosen": int(n == 2)} for n in (1, 2)]
    write_table(tmp_path / finalists.ENERGY_FILE, table)
    (chosen,) = finalists.chosen_trials(tmp_path, rows).values()
    assert (chosen.trial, chosen.best_s) == (rows[1], 0.0)
    assert finalists.chosen_trials(tmp_path, [*rows, trial(4, [0.9], record="[]")]) == {}
    write_table(tmp_path / finalists.ENERGY_FILE, [{"task": "t", "trial": 1}])
    with pytest.raises(DataError, match=finalists.ENERGY_FILE):
        finalists.chosen_trials(tmp_path, rows)


def test_an_interrupted_task_has_no_entry(tmp_path):
    """The turns of the first task end with an interruption: the next start times both tasks."""
    rows = [trial(n, [1.0], record="[]", task="tu"[n > 2]) for n in (1, 2, 3, 4)]
    journal(tmp_path / JOURNAL_FILE, *rows)
    asked = []

    def in_turns(modules, *_):
        asked.append(modules)
        return [SimpleNamespace(error=None, costs_s=[1.0], checked=True)] * 2

    names = [field.name for field in fields(RunContext)]
    context = Mock(spec=names, folder=tmp_path, log=print, interrupted=lambda: bool(asked))
    context.measurer = Mock(spec=DeviceMeasurer, in_turns=in_turns)
    context.phases = Phases()
    context.is_over = lambda _: context.interrupted()
    tasks = [live(name, 1.0) for name in "tu"]
    retime(tasks, context, 2)
    assert len(asked) == 1
    assert not (tmp_path / finalists.FINALISTS_FILE).exists()
    context.interrupted = lambda: False
    retime(tasks, context, 2)
    assert read_finalists(tmp_path).keys() == {"t", "u"}


def live(name, best_s, weight=1.0):
    """A task of a run; its programs do not matter."""
    known = {"unscheduled": None, "current_best_s": best_s, "weight": weight, "flops": 1.0}
    names = ["name", "workload", "arguments", "find_check", *known]
    task = Mock(spec=names, workload=SimpleNamespace(name=name, module=None), **known)
    task.name = name
    return task


class Clock:
    """Turns that take a second each; the programs' seconds are in the reverse order."""

    def __init__(self, folder, elapsed_s):
        self.elapsed_s, self.asked, self.told, self.phases = elapsed_s, [], [], []
        kept = {"platform": Mock(), "database": Mock(), "folder": folder, "log": self.told.append}
        self.context = RunContext(measurer=self, phases=self, **kept)

    @contextmanager
    def time(self, phase):
        self.phases.append(phase)
        yield

    def in_turns(self, modules, _arguments, _check, turns, _stopped, is_late, fewest):
        assert fewest == finalists.FEWEST_TURNS
        costs_s = []
        while len(costs_s) < turns and not is_late():
            self.elapsed_s += 1.0
            costs_s.append([2.0 - 0.1 * n for n in range(len(modules))])
        self.asked.append(len(costs_s))
        return [Outcome(costs_s=tuple(one)) for one in zip(*costs_s, strict=True)]


@pytest.mark.parametrize(
    ("elapsed_s", "limit_s", "turns"),
    [
        (20.0, None, [6, 4]),  # ten seconds, more than 15 % of these 20
        (100.0, None, [6, 6, 3]),  # 15 %
        (1000.0, None, [6, 6, 6]),
        (1000.0, 1017.0, [6, 6, 5]),  # budget.seconds= ends first
        (1000.0, 1010.0, [6, 4]),
        (1000.0, 1000.0, []),
    ],
)
def test_finalists_have_a_share_of_the_time_of_the_run(tmp_path, elapsed_s, limit_s, turns):
    """By hand; u has the most time of the network, then v, then t."""
    weights = {"t": 1.0, "u": 6.0, "v": 3.0}
    rows = [trial(n, [1 + n / 100], record="[]", task="tuv"[n % 3]) for n in range(9)]
    journal(tmp_path / JOURNAL_FILE, *rows)
    tasks = [live(name, 1 + n / 100, weights[name]) for n, name in enumerate("tuv")]
    clock = Clock(tmp_path, elapsed_s)
    retime(tasks, clock.context, 6, limit_s)
    assert clock.asked == turns
    assert clock.phases == ["instantiate"] * len(turns)
    found, few = read_finalists(tmp_path), [n for n in turns if n < 5]
    assert list(found) == list("uvt")[: len(turns) - len(few)]
    assert all(one.trial == one.tried[2] for one in found.values())
    assert [line for line in clock.told if "too few" in line] == [
        f"{name}: {turns} turns are too few; the best of the search stays"
        for name, turns in zip("uvt"[len(found) :], few, strict=False)
    ]
    # of the winners 1.8 s each, the search's own take 2 s
    best_s = {"t": 1.0, "u": 1.01, "v": 1.02}
    after, own, before = (
        1e3 * sum(w * (s if s and name in found else best_s[name]) for name, w in weights.items())
        for s in (1.8, 2.0, None)
    )
    last = (
        f"All tasks together: {after:.4g} ms; with the best programs of the search {own:.4g} ms, "
        f"which were {before:.4g} ms in the search"
    )
    count = f"{len(found)} of 3 tasks were timed again, in {sum(turns)} s; {len(found)} of"
    assert [line for line in clock.told if "together" in line] == (
        [f"{count} them get another program. {last}"] if found else []
    )


def test_the_wait_for_a_reference_ends_with_the_turns(tmp_path):
    """It takes longer than they may: the results are not compared."""
    journal(tmp_path / JOURNAL_FILE, *(trial(n, [1.0], record="[]") for n in (1, 2)))
    clock, task, waited = Clock(tmp_path, 100.0), live("t", 1.0), []

    def find_check(is_over):
        while not is_over():
            clock.elapsed_s += 1.0
        waited.append(clock.elapsed_s)

    task.find_check = find_check
    retime([task], clock.context, 2)
    assert waited == [115.0]


@pytest.mark.parametrize(
    ("limit_s", "tasks", "begun_s", "search_s"),
    [
        (1150.0, 100, 0.0, 1000.0),  # 15 % of the search's seconds
        (1150.0, 5, 0.0, 1110.0),  # 8 s a task
        (1150.0, 100, 500.0, 1000.0),  # an interrupted run decides as it would have
        (1150.0, 100, 1090.0, 1120.0),  # of what is left, half
        (600.0, 5, 600.0, 600.0),
        (600.0, 5, 700.0, 600.0),
    ],
)
def test_the_search_leaves_seconds_to_the_turns(limit_s, tasks, begun_s, search_s):
    assert finalists.search_s(limit_s, tasks, 2 * tasks, begun_s) == pytest.approx(search_s)


@pytest.mark.tvm
def test_programs_of_one_turn_are_timed_on_one_device():
    given = options()
    two = replace(given.platform, environments=({}, {}))
    assert replace(given, platform=two).measure.finalists == 0
    with pytest.raises(PrunerError, match=r"measure.finalists=2: one device .* measure.devices=1"):
        replace(given, platform=two, measure=replace(given.measure, finalists=2))


def test_a_task_whose_best_program_is_of_another_run_has_no_finalists(tmp_path):
    rows = [trial(n, [1.0 + n / 100], record="[]", task="tu"[n % 2]) for n in range(4)]
    journal(tmp_path / JOURNAL_FILE, *rows)
    clock = Clock(tmp_path, 1000.0)
    retime([live("t", 1.0), live("u", 1.0)], clock.context, 3)
    assert list(read_finalists(tmp_path)) == ["t"]
    retime([live("t", 0.9), live("u", 1.0)], clock.context, 3)
    assert read_finalists(tmp_path) == {}


def test_finalists_of_an_earlier_start_stay_while_they_have_the_best_program(tmp_path):
    """After more trials, in a start that has no time to compare anything."""
    rows = [trial(n, [1.0 + n / 100], record="[]", task="tuv"[n % 3]) for n in range(9)]
    journal(tmp_path / JOURNAL_FILE, *rows)
    tasks = [live(name, 1.02) for name in "tuv"]
    clock = Clock(tmp_path, 1000.0)
    retime(tasks, clock.context, 3)
    before = read_finalists(tmp_path)
    assert [list(before[name].tried) for name in "tuv"] == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
    # u has another second program, v another first
    more = [trial(9, [1.015], record="[]", task="u"), trial(10, [1.001], record="[]", task="v")]
    journal(tmp_path / JOURNAL_FILE, *more)
    asked = len(clock.asked)
    retime(tasks, clock.context, 3, clock.elapsed_s)
    found = read_finalists(tmp_path)
    assert found == {name: before[name] for name in "tu"}
    assert len(clock.asked) == asked
    retime(tasks, clock.context, 3)
    found = read_finalists(tmp_path)
    assert found["t"] == before["t"]
    assert [list(found[name].tried) for name in "uv"] == [[1, 9, 4], [10, 2, 5]]
    assert len(clock.asked) == asked + 2


@pytest.mark.tvm
def test_the_winner_of_the_turns_becomes_the_kernel(tmp_path, monkeypatch, small):
    """The turns here say the reverse of the search."""
    asked, built = [], []

    def in_turns(_self, modules, _arguments, check, turns, *_):
        asked.append((len(modules), check is not None, turns))
        costs = [(1.0 - 0.1 * n,) * turns for n in range(len(modules))]
        return [Outcome(costs_s=one, checked=True) for one in costs]

    monkeypatch.setattr(finalists, "NEAR", 1e9)  # every program is near
    monkeypatch.setattr(DeviceMeasurer, "in_turns", in_turns)
    monkeypatch.setattr(DeviceMeasurer, "export", lambda _, module, path: built.append(module))
    monkeypatch.setattr(DeviceMeasurer, "untuned_s", lambda *_: 1.0)
    told = []
    quick = options().measure

    def tuned(trials, number):
        given = options(trials=trials, measure=replace(quick, finalists=number))
        return tune(small, given, tmp_path, log=told.append)

    found = tuned(4, 3)
    rows = sorted(read_trials(tmp_path / JOURNAL_FILE), key=lambda row: row.latency_s)
    (row,) = found.metrics()["tasks"].values()
    chosen = {"trial": rows[2].trial, "best_of_search": rows[0].trial, "timed": 3}
    assert row["finalists"] == chosen
    assert row["best_latency_s"] == pytest.approx(0.8)
    assert row["checked"]
    assert "the best of 3 timed in turns" in found.tasks[0].verdict()
    assert asked == [(3, True, finalists.TURNS)]
    same = load_tvm().ffi.structural_equal
    database, target = Database.read(tmp_path), options().platform.target
    wanted = database.scheduled(small.module, rows[2].record, target)
    assert same(built[0], wanted)
    assert not same(built[0], database.best(small.module, target))
    exported = []
    monkeypatch.setattr(kernels, "_exported", lambda *what: exported.append(what[2]))
    deploy_kernels(tmp_path, [small], target)
    assert same(exported[0], wanted)
    # the same programs are not timed again; without the option the choice stays
    assert tuned(4, 3).metrics()["tasks"][small.name]["finalists"] == row["finalists"]
    assert tuned(4, 0).metrics()["tasks"][small.name]["finalists"] == row["finalists"]
    assert len(asked) == 1
    tuned(8, 3)
    best = sorted(read_trials(tmp_path / JOURNAL_FILE), key=lambda row: row.latency_s)[:3]
    changed = [row.trial for row in best] != [row.trial for row in rows[:3]]
    assert len(asked) == 1 + changed
    assert any("its 3 best programs are timed again, in turns" in line for line in told)


SIZED = [(1, 1e-3, 9000, 1000), (2, 2e-3, 4000, 0), (3, 3e-3, 4500, 500), (4, 4e-3, 1000, 500)]


def programs():
    return [
        FinalProgram(trial=trial(n, [s], extra={"code_bytes": code, "scratch_bytes": scratch}))
        for n, s, code, scratch in SIZED
    ]


@pytest.mark.tvm
def test_the_front_is_what_no_other_beats_in_both():
    pytest.importorskip("pymoo")
    objective = Objective.of(["latency", "size"])
    found = marked(programs(), objective)
    assert [one.chosen for one in found] == [True, True, False, True]
    rows = table_rows({"t": found}, objective, counted=False)
    assert [row["size_bytes"] for row in rows] == [10000, 4000, 5000, 1500]
    assert [row["on_front"] for row in rows] == [1, 1, 0, 1]
    assert FinalChoice(objective=objective, programs={"t": found}).lines()[:2] == [
        "t: 3 of 4 programs are on the front",
        "  trial 1: 1 ms, 9.766 KiB",
    ]


@pytest.mark.tvm
@pytest.mark.parametrize(("name", "chosen"), [("energy", 3), ("edp", 1)])
def test_least_energy_and_least_energy_times_delay(name, chosen):
    """Joules 5, 4 and 2 in 1, 2 and 3 ms: products 5, 8 and 6; no joules are never the least."""
    joules = [5.0, 4.0, 2.0, None]
    given = [replace(one, joules=j) for one, j in zip(programs(), joules, strict=True)]
    objective = Objective.of(name)
    found = marked(given, objective)
    assert [one.trial.trial for one in found if one.chosen] == [chosen]
    counted, modelled = (table_rows({"t": found}, objective, counted=one) for one in (True, False))
    assert counted[0]["joules"] == modelled[0]["energy_model_j"] == 5.0
    assert "joules" not in modelled[0]
    choice = FinalChoice(objective=objective, programs={"t": found})
    assert choice.best("t").trial.trial == chosen
    assert choice.metrics()["energy"] == "model"
    assert all("(a model)" in line for line in choice.lines())
    assert replace(choice, counter="nvml").metrics()["energy"] == "nvml"


@pytest.mark.tvm
@pytest.mark.parametrize("name", ["energy", ["latency", "energy"]])
def test_programs_without_joules_are_not_chosen(name):
    pytest.importorskip("pymoo")
    objective = Objective.of(name)
    found = {"t": marked(programs(), objective)}
    choice = FinalChoice(objective=objective, programs=found)
    assert not choice.has_chosen
    assert choice.lines() == [f"t: no program has all values of objective={objective}"]
    found["t"][2] = replace(found["t"][2], joules=2.0)
    known = replace(choice, programs={"t": marked(found["t"], objective)})
    assert known.has_chosen
    assert not any("inf" in line for line in known.lines())


@pytest.mark.tvm
def test_sizes_are_read_from_journals_that_have_them(tmp_path):
    rows = read_trials(journal(tmp_path / "trials.jsonl", programs()[0].trial, trial(9, [1.0])))
    assert [row.size_bytes for row in rows] == [10000, None]
    old = {name: value for name, value in asdict(rows[1]).items() if name != "extra"}
    assert read_trial(json.dumps(old).encode()).size_bytes is None


@pytest.mark.tvm
def test_a_machine_without_counter_and_description_has_no_energy(monkeypatch):
    monkeypatch.setattr(module, "energy_meter", lambda device: None)
    platform = SimpleNamespace(device="cpu", address=None)
    given = SimpleNamespace(objective=Objective.of("energy"), platform=platform, analyzer=None)
    with pytest.raises(PrunerError, match="nothing counts joules here"):
        module.run_meter(given)
    given.analyzer, given.replay_only = options().analyzer, True
    with pytest.raises(PrunerError, match="leave spaces=replay out"):
        module.run_meter(given)
    given.replay_only = False
    assert module.run_meter(given) is None
    given.objective = Objective()  # latency alone adds nothing
    assert module.run_meter(given) is None
    assert FinalChoice(objective=Objective()).metrics() == {}
    assert FinalChoice(objective=Objective()).lines() == []


@pytest.mark.tvm
def test_a_run_with_sizes_ends_with_checked_programs_of_the_front(tmp_path, small):
    pytest.importorskip("pymoo")
    given = options(trials=6, objective=Objective.of(["latency", "size"]))
    given = replace(given, measure=replace(given.measure, sizes=True, baseline=False))
    (tmp_path / "pareto").mkdir()
    (tmp_path / "pareto" / "earlier-1.so").touch()
    tuned = tune(small, given, tmp_path)
    rows = read_trials(tmp_path / JOURNAL_FILE)
    assert all(row.size_bytes > 1000 for row in rows)
    table = {int(row["trial"]): row for row in read_table(tmp_path / "pareto.csv")}
    assert {n: float(row["size_bytes"]) for n, row in table.items()} == {
        row.trial: row.size_bytes for row in rows
    }
    front = [n for n, row in table.items() if row["on_front"] == "1"]
    assert all(table[n]["checked"] == "1" for n in front)
    assert {path.stem for path in (tmp_path / "pareto").glob("*.so")} == {
        f"{small.name}-{n}" for n in front
    }
    assert [row["trial"] for row in tuned.metrics()["chosen"]] == sorted(
        front, key=lambda n: float(table[n]["latency_s"])
    )


@pytest.mark.tvm
def test_an_interrupted_continuation_keeps_no_front_of_an_earlier_start(tmp_path, small):
    """The earlier front is of fewer programs."""
    pytest.importorskip("pymoo")
    given = options(trials=6, objective=Objective.of(["latency", "size"]))
    given = replace(given, measure=replace(given.measure, sizes=True, baseline=False))
    files = ("pareto.csv", "pareto.png", "report.html", "pareto/earlier-1.so")
    (tmp_path / "pareto").mkdir()
    for name in files:
        (tmp_path / name).touch()
    (tmp_path / "mine.txt").touch()
    tuned = tune(small, given, tmp_path, interrupted=lambda: True)
    assert not tuned.final.programs
    assert not [name for name in (*files, "pareto") if (tmp_path / name).exists()]
    assert (tmp_path / "mine.txt").exists()


def meter():
    """Its device uses 10 W at rest and 30 W in every window of two seconds."""
    used_j = accumulate(chain((20.0, 20.0), repeat(60.0)))
    reads, unknown = zip(count(2.0, 2.0), used_j, strict=False), Mock(return_value=None)
    return SimpleNamespace(name="powercap", read=lambda: next(reads), temperature_c=unknown)


@pytest.mark.tvm
@pytest.mark.parametrize("counter", [None, meter])
def test_a_run_for_least_energy_keeps_the_chosen_program(tmp_path, small, counter, monkeypatch):
    monkeypatch.setattr(module, "energy_meter", lambda device: counter and counter())
    monkeypatch.setattr(module, "LEAST_WINDOW_S", 0.05)
    told = []
    tuned = tune(small, options(trials=4, objective=Objective.of("edp")), tmp_path, log=told.append)
    rows = read_table(tmp_path / "energy.csv")
    column = "energy_model_j" if counter is None else "joules"
    products = [float(row[column]) * float(row["latency_s"]) for row in rows]
    (chosen,) = [n for n, row in enumerate(rows) if row["chosen"] == "1"]
    assert products[chosen] == min(products)
    assert rows[chosen]["checked"] == "1"
    assert (tmp_path / "kernels" / f"{small.name}.so").is_file()
    assert not list(tmp_path.glob("final-*"))
    assert any("MODEL" in one for one in told) == (counter is None)
    metrics = tuned.metrics()
    assert metrics["energy"] == ("model" if counter is None else "powercap")
    assert "size_bytes" not in rows[0]
    assert min(products) > 0
    if counter is not None:
        assert all(float(row["watts"]) == pytest.approx(30.0) for row in rows)
    # from here on the slowest program is the choice: no other rule would take it
    write_table(tmp_path / "energy.csv", [row | {"chosen": int(row is rows[-1])} for row in rows])
    built = []
    monkeypatch.setattr(DeviceMeasurer, "export", lambda _, module, path: built.append(module))
    monkeypatch.setattr(kernels, "_exported", lambda *what: built.append(what[2]))
    more = options(trials=6, objective=Objective.of("edp"))
    tune(small, more, tmp_path, interrupted=lambda: True)
    kernels.deploy_kernels(tmp_path, [small], more.platform.target)
    trials = {row.trial: row.record for row in read_trials(tmp_path / JOURNAL_FILE)}
    record = trials[int(rows[-1]["trial"])]
    wanted = Database(None).scheduled(small.module, record, more.platform.target)
    assert [load_tvm().ffi.structural_equal(one, wanted) for one in built] == [True, True]
