"""The choice at the end of a run: hand-made trials, then a run with sizes and one with energies."""

import json
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest

from pruner.errors import PrunerError
from pruner.files import read_table, write_table
from pruner.search.objectives import Objective
from pruner.tune import tune
from pruner.tune.deploy import kernels
from pruner.tune.measure.measurer import DeviceMeasurer
from pruner.tune.run import final_choice as module
from pruner.tune.run.database import Database
from pruner.tune.run.final_choice import (
    FinalChoice,
    FinalProgram,
    lines,
    marked,
    run_meter,
    table_rows,
)
from pruner.tune.run.journal import JOURNAL_FILE, read_trial, read_trials
from pruner.tune.tvm_import import load_tvm
from tests.tune.run.test_journal import trial, written
from tests.tune.run.test_tuning import options

pytestmark = pytest.mark.tvm
SIZED = [(1, 1e-3, 9000, 1000), (2, 2e-3, 4000, 0), (3, 3e-3, 4500, 500), (4, 4e-3, 1000, 500)]


def programs():
    return [
        FinalProgram(trial=trial(n, [s], extra={"code_bytes": code, "scratch_bytes": scratch}))
        for n, s, code, scratch in SIZED
    ]


def test_the_front_is_what_no_other_beats_in_both():
    pytest.importorskip("pymoo")
    objective = Objective.of(["latency", "size"])
    found = marked(programs(), objective)
    assert [one.chosen for one in found] == [True, True, False, True]
    rows = table_rows({"t": found}, objective, counted=False)
    assert [row["size_bytes"] for row in rows] == [10000, 4000, 5000, 1500]
    assert [row["on_front"] for row in rows] == [1, 1, 0, 1]
    assert lines({"t": found}, objective, "")[:2] == [
        "t: 3 of 4 programs are on the front",
        "  trial 1: 1 ms, 9.766 KiB",
    ]


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


def test_latency_alone_adds_nothing():
    assert FinalChoice(objective=Objective()).metrics() == {}
    assert FinalChoice(objective=Objective()).lines() == []


def test_sizes_are_read_from_journals_that_have_them(tmp_path):
    rows = read_trials(written(tmp_path / "trials.jsonl", programs()[0].trial, trial(9, [1.0])))
    assert [row.size_bytes for row in rows] == [10000, None]
    old = {name: value for name, value in asdict(rows[1]).items() if name != "extra"}
    assert read_trial(json.dumps(old).encode()).size_bytes is None


def test_a_machine_without_counter_and_description_has_no_energy(monkeypatch):
    monkeypatch.setattr(module, "energy_meter", lambda device: None)
    given = SimpleNamespace(
        objective=Objective.of("energy"),
        platform=SimpleNamespace(device="cpu", address=None),
        analyzer=None,
    )
    with pytest.raises(PrunerError, match="nothing counts joules here"):
        run_meter(given)
    given.analyzer, given.replay_only = options().analyzer, True
    with pytest.raises(PrunerError, match="leave spaces=replay out"):
        run_meter(given)
    given.replay_only = False
    assert run_meter(given) is None
    given.objective = Objective()
    assert run_meter(given) is None


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


class Counter:
    """A meter whose device uses 10 W at rest and 30 W in every window of two seconds."""

    name = "powercap"

    def __init__(self):
        self.reads, self.used_j = 0, 0.0

    def read(self):
        self.reads += 1
        self.used_j += 2.0 * (10.0 if self.reads <= 2 else 30.0)
        return 2.0 * self.reads, self.used_j

    def temperature_c(self):
        return None


@pytest.mark.parametrize("counter", [None, Counter])
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
    (record,) = [
        row.record
        for row in read_trials(tmp_path / JOURNAL_FILE)
        if row.trial == int(rows[-1]["trial"])
    ]
    wanted = Database(None).scheduled(small.module, record, more.platform.target)
    assert [load_tvm().ffi.structural_equal(one, wanted) for one in built] == [True, True]
