"""`tune` from Python, with real workers: two tasks of equal shapes, kernels, what is told."""

import json
import threading
from collections import Counter
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock, PropertyMock

import numpy as np
import pytest

from pruner.cli.tuning.measured_run import _log_verdicts
from pruner.errors import PrunerError
from pruner.files import unsealed
from pruner.search.objectives import Objective
from pruner.search.policy import RandomDraws
from pruner.tune import operator, this_cpu, tune, tuned_module
from pruner.tune.deploy.kernels import deploy_kernels
from pruner.tune.measure.jobs import Timing
from pruner.tune.measure.measurer import DeviceMeasurer, MeasureSettings, Outcome, never, wait_for
from pruner.tune.phases import Phases
from pruner.tune.rivals.ansor import Ansor
from pruner.tune.run import setup
from pruner.tune.run.budget import TuneBudget
from pruner.tune.run.database import Database
from pruner.tune.run.final_choice import FinalChoice, FinalProgram, _modelled
from pruner.tune.run.journal import JOURNAL_FILE, read_trials
from pruner.tune.run.result import TaskOutcome, Tuned
from pruner.tune.run.tuning import _by_ansor
from pruner.tune.tvm_import import load_tvm
from pruner.tune.workloads import arguments, from_file, load_workloads
from tests.paths import REPOSITORY
from tests.tune.held import held_elsewhere
from tests.tune.run.test_journal import trial, written
from tests.tune.targets import target_of

pytestmark = pytest.mark.tvm
EXAMPLE = REPOSITORY / "docs" / "examples" / "programs.py"


def options(**changes):
    quick = MeasureSettings(timing=Timing(repeats=1, min_repeat_ms=1), builders=1)
    values = {"policy": RandomDraws(draws=8), "make_model": None, "measure": quick, **changes}
    return this_cpu(**values)


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """A run of the example file: its folder, what came of it and what was told."""
    folder, told = tmp_path_factory.mktemp("run"), []
    workloads = load_workloads({"operator": "file", "path": str(EXAMPLE)})
    return folder, tune(workloads, options(trials=4), folder, log=told.append), told, workloads


def test_tasks_of_equal_shapes_are_checked_against_their_own_reference(example):
    folder, tuned, _, _ = example
    rows = read_trials(folder / JOURNAL_FILE)
    assert Counter((row.task, row.error) for row in rows) == {
        ("programs_product", None): 2, ("programs_product_transposed", None): 2,
    }  # fmt: skip
    metrics = tuned.metrics()
    assert (metrics["trials"], metrics["failed"], metrics["all_failed"]) == (4, 0, [])
    assert (metrics["checked"], metrics["unsuccessful"]) == (True, [])
    for task in tuned.tasks:
        assert min((row for row in rows if row.task == task.name), key=latency_of).checked
        assert 0 < task.best_s < 1
        assert 0 < task.untuned_s < 1
        assert "times as fast" in task.verdict()


def test_the_best_program_has_a_forecast_beside_its_latency(example):
    pytest.importorskip("lightgbm")
    _, tuned, _, _ = example
    for task in tuned.tasks:
        low_s, median_s, high_s = task.row()["forecast_s"]
        assert low_s < median_s < high_s
        assert 1 / 30 < median_s / task.best_s < 30
        assert f"forecast {1e3 * median_s:.3g} ms" in task.verdict()


def test_the_kernel_of_a_run_can_be_called(example):
    folder, tuned, _, _ = example
    tensor = load_tvm().tvm.runtime.tensor
    a, b = np.random.default_rng(0).random((2, 128, 128), dtype=np.float32)
    expected = {"programs_product": a @ b, "programs_product_transposed": a @ b.T}
    for task in tuned.tasks:
        c = tensor(np.zeros_like(a))
        tuned_module(folder, task.name)["main"](tensor(a), tensor(b), c)
        np.testing.assert_allclose(c.numpy(), expected[task.name], rtol=1e-4)
        assert task.kernel == folder / "kernels" / f"{task.name}.so"
    with pytest.raises(PrunerError, match="no kernel None; it holds programs_product, prog"):
        tuned_module(folder)


def test_what_happens_before_the_first_batch_is_told(example):
    told = "\n".join(example[2])
    sizes = "programs_product: main([128, 128] float32, [128, 128] float32, [128, 128] float32)"
    assert f"{sizes}, 0.004194 GFLOP" in told
    first = "programs_product_transposed: choosing its first 2 programs"
    for line in ("starting the processes", "programs_product: untuned ", first):
        assert line in told


def test_a_finished_run_takes_more_trials(example):
    folder, tuned, _, workloads = example
    before = read_trials(folder / JOURNAL_FILE)
    more = tune(workloads, options(trials=6), folder)
    rows = read_trials(folder / JOURNAL_FILE)
    assert rows[:4] == before
    assert more.metrics()["trials"] == len(rows) == 6
    assert more.best_latency_s <= tuned.best_latency_s
    assert [task.untuned_s for task in more.tasks] == [task.untuned_s for task in tuned.tasks]


def test_what_is_only_compiled_leaves_its_candidates(tmp_path):
    told = []
    half = operator("matmul", m=32, n=32, k=32, dtype="float16")
    found = tune(half, options(trials=3, compile_only=True), tmp_path, log=told.append)
    rows = read_trials(tmp_path / JOURNAL_FILE)
    assert len(rows) == 3
    assert all(row.compiled_only and row.decisions for row in rows)
    assert {row.latency_s for row in rows} == {float("inf")}
    assert found.metrics()["compiled"] == sum(row.error is None for row in rows) == 3
    assert found.metrics()["best_latency_s"] is None
    (read,) = from_file(tmp_path / "candidates" / "1.py")
    assert arguments(read.module) == arguments(half.module)
    (tmp_path / "candidates" / "1.py").write_text("raise SystemExit('data was executed')")
    ((library, *sources),) = deploy_kernels(tmp_path, [half], options().platform.target).values()
    assert library.is_file()
    assert [path.suffix for path in sources] == [".ll", ".s"]
    assert not list(tmp_path.glob("database*"))  # nothing was measured
    assert any("m=32 n=32 k=32 dtype=float16" in line for line in told)
    assert not any("float32" in line for line in told)


@pytest.mark.parametrize("interrupted", [True, False])
def test_compiling_ends_when_asked_or_when_its_time_is_spent(tmp_path, interrupted, small):
    budget = TuneBudget(trials=64, seconds=None if interrupted else 1e-3)
    given = options(compile_only=True, budget=budget)
    found = tune(small, given, tmp_path, interrupted=lambda: interrupted)
    assert found.metrics()["compiled"] == 0


def test_compiling_goes_on_with_what_is_left_of_the_same_programs(tmp_path, small):
    given = options(trials=3, compile_only=True)
    tune(small, given, tmp_path)
    journal, whole = tmp_path / JOURNAL_FILE, read_trials(tmp_path / JOURNAL_FILE)
    first, *_ = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(first)
    told = []
    found = tune(small, given, tmp_path, log=told.append)
    rows = read_trials(journal)
    assert [row.trial for row in rows] == [1, 2, 3]
    assert [row.decisions for row in rows] == [row.decisions for row in whole]
    assert found.metrics()["compiled"] == 3
    assert f"{small.name}: 2 of 2 programs compile" in told
    other = json.loads(unsealed(first.rstrip())) | {"decisions": [7]}
    journal.write_text(json.dumps(other) + "\n")
    with pytest.raises(PrunerError, match="an earlier start chose other programs"):
        tune(small, given, tmp_path)


@pytest.mark.parametrize("place", ["folder", "work_dir"])
def test_a_folder_of_another_process_is_refused_untouched(tmp_path, place, small):
    taken, built = tmp_path / "taken", tmp_path / "taken" / "builds" / "1.so"
    built.parent.mkdir(parents=True)
    built.touch()
    changes, folder = ({}, taken) if place == "folder" else ({"work_dir": taken}, tmp_path / "own")
    told = rf"{taken}: process \d+ on .* works in it"
    with held_elsewhere(taken) as other, pytest.raises(PrunerError, match=told) as refused:
        tune(small, options(trials=2, **changes), folder)
    assert f"process {other.pid} on" in str(refused.value)
    assert built.is_file()


def test_a_shared_database_of_another_target_is_refused(tmp_path, small):
    """TVM's own question for the best program does not look at the target."""
    schedule = load_tvm().s_tir.Schedule(small.module)
    schedule.annotate(schedule.get_sblock("root"), "mark", "a trace must not be empty")
    (tmp_path / "shared").mkdir()
    Database(tmp_path / "shared").commit(small.module, schedule, (1.0,), target_of(7))
    with pytest.raises(PrunerError, match=r"holds records of another target, .*its own folder"):
        tune(small, options(trials=2, work_dir=tmp_path / "shared"), tmp_path / "own")


def test_no_joules_are_modelled_for_a_task_without_programs():
    """Its spaces are not opened: they may be refused."""
    task = Mock()
    type(task).search = PropertyMock(side_effect=PrunerError("refused"))
    assert _modelled(task, []) == []


def latency_of(row):
    return row.latency_s


def outcome(failures, best_s=float("inf"), trials=4, **more):
    return TaskOutcome(
        name="t", weight=1.0, flops=1e9, best_s=best_s, trials=trials, failures=Counter(failures),
        **more,
    )  # fmt: skip


def tuned_of(*tasks, **more):
    return Tuned(tasks=list(tasks), seconds={}, folder=Path(), work_dir=Path(), **more)


def test_a_task_of_which_nothing_is_right_says_so(capsys):
    wrong = outcome({"wrong_result": 3, "build_timeout": 1})
    assert wrong.all_wrong
    assert wrong.verdict() == (
        "t: NO CORRECT PROGRAM among 4 that were tried (3 wrong_result, 1 build_timeout)"
    )
    crashed = outcome({"run_error": 4}, message="undefined symbol: f")
    assert (crashed.all_failed, crashed.all_wrong) == (True, False)
    assert crashed.verdict() == (
        "t: NO PROGRAM THAT RUNS among 4 that were tried (4 run_error): undefined symbol: f"
    )
    assert not outcome({"wrong_result": 3}, best_s=1e-3).all_failed
    untried = outcome({}, trials=0)
    assert untried.verdict() == "t: not tuned, the run ended before"
    untried = outcome({}, trials=0, exhausted=True)  # a line of the run said why
    assert untried.verdict() == "t: not tuned, no program of it could be tried"
    every = outcome({}, best_s=1e-3, exhausted=True).verdict()
    assert every == "t: 1 ms, the search has no other program after 4"
    row = tuned_of(wrong).metrics()
    assert (row["all_failed"], row["all_wrong"]) == (["t"], ["t"])
    assert row["tasks"]["t"]["failures"] == {"wrong_result": 3, "build_timeout": 1}
    uncompiled = tuned_of(outcome({"build_error": 3}, trials=0), untried, compile_only=True)
    assert uncompiled.metrics()["unsuccessful"] == ["t"]
    with pytest.raises(PrunerError, match="nothing was tuned: t: NO CORRECT PROGRAM"):
        _log_verdicts(tuned_of(wrong))
    assert "NO CORRECT PROGRAM among 4" in capsys.readouterr().err


def test_a_run_says_how_much_of_its_arithmetic_tvm_replays():
    tasks = [
        replace(outcome({}, best_s=1e-3), name=name, weight=weight, replayed=replayed)
        for name, weight, replayed in (("a", 3.0, 0), ("b", 1.0, 2), ("never begun", 9.0, None))
    ]
    tuned = tuned_of(*tasks)
    assert tuned.metrics()["replayed_share"] == 0.25  # 1 of 3 + 1 calls of equal tasks
    assert tuned.replayed.tasks == ["b"]
    assert tuned.metrics()["tasks"]["b"]["replayed"] == 2


def test_a_run_whose_spaces_tvm_replays_tells_it(tmp_path, small):
    told, given = [], options(trials=2, replay_only=True, make_model=None, compile_only=True)
    found = tune(small, given, tmp_path, log=told.append)
    assert found.metrics()["replayed_share"] == 1.0
    assert told[-1] == (
        "100.0% of the arithmetic is in a task with at least one design space that only TVM can "
        f"replay: {small.name}"
    )


def test_a_kernel_of_least_energy_names_its_trial(capsys):
    chosen = FinalProgram(trial=trial(7, [2.0]), joules=1.0, chosen=True)
    final = FinalChoice(objective=Objective.of("energy"), programs={"t": [chosen]})
    tuned = tuned_of(outcome({}, best_s=1.0, kernel=Path("t.so")))
    _log_verdicts(replace(tuned, final=final))
    assert "kernel (trial 7, least energy): t.so" in capsys.readouterr().err
    _log_verdicts(tuned)
    assert "kernel: t.so" in capsys.readouterr().err


def test_what_is_not_checked_is_said_and_is_no_success(small):
    name = small.name
    rows = [trial(1, [3.0], checked=True, task=name), trial(2, [2.0], task=name)]

    def judged(rows, **known):
        found = TaskOutcome.of(small, rows, **known)
        whole = tuned_of(found).metrics()
        assert whole["tasks"][name]["checked"] is whole["checked"]
        return found.verdict(), whole["checked"], whole["unsuccessful"]

    verdict, checked, names = judged(rows)
    assert verdict.endswith(", NOT CHECKED")
    assert (checked, names) == (False, [name])
    verdict, checked, names = judged(rows[:1])
    assert "CHECKED" not in verdict
    assert (checked, names) == (True, [])
    verdict, checked, names = judged(rows, check=False)
    assert verdict.endswith(", not checked (measure.check=false)")
    assert (checked, names) == (False, [])
    assert judged(rows, known_s=1.0)[1:] == (None, [])  # an earlier run has the best
    wrong = trial(3, [], error="wrong_result", task=name)
    assert judged([wrong])[1:] == (None, [name])
    assert judged([])[1:] == (None, [])  # it had no turn


def test_a_run_without_reference_says_so_once_and_is_not_checked(tmp_path, monkeypatch, small):
    told, asked = [], []

    def slow(*given):
        asked.append(given)
        return "timeout: stopped after 30 s"

    monkeypatch.setattr(DeviceMeasurer, "_reference", slow)
    found = tune(small, options(trials=4), tmp_path, log=told.append)
    assert not any(row.checked for row in read_trials(tmp_path / JOURNAL_FILE))
    assert found.metrics()["unsuccessful"] == [small.name]
    assert len(asked) == 1
    (line,) = (line for line in told if "NOT CHECKED" in line)
    assert "no reference (timeout: stopped after 30 s)" in line


def test_a_run_that_is_asked_to_end_waits_for_no_reference(tmp_path, monkeypatch, small):
    looks, release = [], threading.Event()

    def endless(*_):
        release.wait(60)

    def waits(reference, stopped):
        def look():
            looks.append(stopped())
            return looks[-1]

        wait_for(reference, look)

    monkeypatch.setattr(DeviceMeasurer, "_reference", endless)
    monkeypatch.setattr(setup, "wait_for", waits)
    quick = options(trials=4).measure
    given = options(trials=4, measure=replace(quick, exclusive=False, lag=0, baseline=False))
    try:
        tune(small, given, tmp_path, interrupted=lambda: bool(looks))
    finally:
        release.set()
    assert looks[:2] == [False, True]  # the first batch waited for its reference
    assert not read_trials(tmp_path / JOURNAL_FILE)


def test_after_the_search_the_wait_for_a_reference_has_another_end():
    """The time of the search is over, that of the turns is not."""
    ends, begun = iter([False, True]), Future()
    context = Mock(is_over=lambda limit_s: limit_s == 1.0, phases=Phases())
    prepared = Mock(_options=options(), _context=context, limit_s=1.0)
    reference = Mock(check=lambda wait: wait(begun))
    assert setup.Prepared._check(prepared, reference) is None  # at once
    assert setup.Prepared._check(prepared, reference, ends.__next__) is None
    assert list(ends) == []


def test_a_damaged_reference_of_an_earlier_start_is_computed_anew(tmp_path, small):
    told = []
    tune(small, options(trials=2), tmp_path)
    (path,) = tmp_path.glob("reference-*.npz")
    whole = path.read_bytes()
    path.write_bytes(whole[:-500])
    tune(small, options(trials=6), tmp_path, log=told.append)
    assert any("its reference is computed again" in line for line in told)
    assert len(path.read_bytes()) == len(whole)
    assert {row.error for row in read_trials(tmp_path / JOURNAL_FILE)} == {None}
    assert not (tmp_path / "builds").exists()


def test_a_function_that_no_program_beats_is_kept_as_it_is(tmp_path, monkeypatch):
    """A program that is slower than the function without schedule is not delivered."""
    checks = []

    def unscheduled(_self, _module, _arguments, check):
        checks.append(check)
        return Outcome(costs_s=(1e-12,), checked=True)

    monkeypatch.setattr(DeviceMeasurer, "untuned_s", lambda *_: 1e-9)
    monkeypatch.setattr(DeviceMeasurer, "unscheduled", unscheduled)
    task, told = operator("matmul", m=4, n=8, k=16), []
    for trials in (2, 3):  # the second start continues the run, and times nothing again
        tuned = tune(task, options(trials=trials), tmp_path, log=told.append)
        (row,) = tuned.metrics()["tasks"].values()
        assert row["best_latency_s"] == row["untuned_latency_s"] == 1e-12
        assert (row["checked"], row["trials"]) == (True, trials)
        assert "the function without schedule: no program is faster" in tuned.tasks[0].verdict()
    assert [check is not None for check in checks] == [True]
    assert f"{task.name}: no program is faster than the function without schedule" in told
    best = Database.read(tmp_path).best(task.module, options().platform.target)
    assert load_tvm().ffi.structural_equal(best, task.module)
    a, b = np.random.default_rng(0).random((4, 16)), np.random.default_rng(1).random((16, 8))
    tensor, c = load_tvm().tvm.runtime.tensor, np.zeros((4, 8), np.float32)
    tensors = [tensor(values.astype(np.float32)) for values in (a, b, c)]
    tuned_module(tmp_path)["main"](*tensors)
    np.testing.assert_allclose(tensors[2].numpy(), a @ b, rtol=1e-4)


def test_the_progress_of_ansor_has_failures_and_what_an_earlier_start_measured(tmp_path):
    class Replayed(Ansor):
        def run(self, *_, report, **__):
            for number, error in ((3, "build_error"), (4, None), (5, None), (6, "run_error")):
                report(trial(number, [] if error else [2.0 / number], error=error))
            return {}

    written(tmp_path / JOURNAL_FILE, trial(1, [0.45]), trial(2, [3.0]))
    given, rows = options(budget=TuneBudget(trials=6, batch=2)), []
    _by_ansor(Replayed(), [], given, tmp_path, rows.append, never)
    found = [(row["trials"], row["best_latency_s"], row["failed"]) for row in rows]
    assert found == [(4, 0.45, 1), (6, 0.4, 1)]
