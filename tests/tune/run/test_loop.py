"""The loop with a measurer that answers at once: resumed runs equal uninterrupted ones exactly."""

import shutil
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pruner.errors import PrunerError
from pruner.models.adaptation.base import Setting
from pruner.models.adaptation.warm import Continue
from pruner.models.analyzer.analyzer import load_analyzer
from pruner.models.networks.pacm import PaCM
from pruner.search.explorer import ExplorerSettings
from pruner.search.policy import RoundSettings
from pruner.tune import workloads
from pruner.tune.measure.measurer import MeasureSettings, Outcome
from pruner.tune.networks import draft_task
from pruner.tune.phases import Phases
from pruner.tune.run import setup
from pruner.tune.run.budget import TuneBudget
from pruner.tune.run.database import RECORDS, Database
from pruner.tune.run.journal import JOURNAL_FILE, read_trials
from pruner.tune.run.learning import AdaptedModel, TreeModel
from pruner.tune.run.loop import TuningRun
from pruner.tune.run.result import TaskOutcome, Tuned
from pruner.tune.run.tune_options import RunContext, TuneOptions
from pruner.tune.spaces import opening
from pruner.tune.tvm_import import load_tvm
from pruner.tune.workloads import arguments, from_operator
from tests.paths import CONF
from tests.tune.some_slow import some_slow

pytestmark = pytest.mark.tvm

SIZES = {"operator": "matmul", "m": 64, "n": 64, "k": 64}
OTHER = {"operator": "matmul", "m": 32, "n": 64, "k": 64}


class Killed(BaseException):
    """What a kill -9 does to a run in a test: nothing after it happens."""


class Built(list):
    """A batch, and what is known when its programs run."""


class FakeMeasurer:
    """Latencies made of decisions; dies before answering measurement number ``dies_at``.

    ``done``: builds (their first decisions) and answers ("measured"), in the order of time.
    """

    def __init__(self, lag=0, dies_at=None, exclusive=False):
        self.lag, self.dies_at, self.asked = lag, dies_at, 0
        self.exclusive, self.done = exclusive, []
        self.known_s = []  # of every answer: the best latency that was known when it ran

    def begin(self, candidates, arguments, known_s):
        self.done.append("built")
        batch = Built(candidates)
        batch.known_s = known_s
        return batch

    def cancel(self, batch):
        self.done.append("cancelled")

    def results(self, batch, accept, check, stopped):
        for position, candidate in enumerate(batch):
            if stopped():
                return
            self.asked += 1
            if not position:
                self.done.append("measured")
            if self.asked == self.dies_at:
                raise Killed
            turned = candidate.decisions + 0.1 * np.arange(len(candidate.decisions))  # no ties
            value = 1e-3 * (1 + float(np.abs(np.sin(turned)).sum()))
            failed = int(candidate.decisions.sum()) % 11 == 0
            self.known_s.append(batch.known_s())
            yield position, Outcome(error="run_crash") if failed else Outcome(costs_s=(value,))


def run(
    folder, platform, measurer, *, specs=(SIZES,), trials=24, model="trees", draft=True, prior=0.0,
    interrupted=lambda: False, rows=None, warm_start=(), log=lambda _: None, batch_size=6,
    draft_all=False,
    **budget,
):  # fmt: skip
    small = ExplorerSettings(population=48, generations=1, keep=32)
    folder.mkdir(exist_ok=True)
    options = TuneOptions(
        platform=platform,
        budget=TuneBudget(trials=trials, batch=batch_size, **budget),
        measure=MeasureSettings(check=False, baseline=False),
        policy=RoundSettings(
            draft=small if draft else None, verify=small, random_sample=32, prior=prior
        ),
        analyzer=load_analyzer(CONF, "cpu-avx2") if draft else None,
        make_model=lambda: made_model(model),
        draft_all=draft_all,
        warm_start=warm_start,
        seed=3,
    )
    context = RunContext(
        platform=platform, measurer=measurer, phases=Phases(), database=Database(folder),
        folder=folder, log=log, interrupted=interrupted,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for module in (setup, draft_task):
            patch.setattr(module, "design_spaces", two_of(module.design_spaces))
        tasks = [workloads.from_operator(spec) for spec in specs]
        prepared = setup.Prepared(tasks, options, context)
        report = (lambda _: None) if rows is None else rows.append
        tuning = TuningRun(prepared, options, context, report)
        tuning.run()
    return tuning


def two_of(design_spaces):
    """Two spaces of three or more: the seconds of a run are those of its spaces."""
    return lambda *given: design_spaces(*given)[1:3] or design_spaces(*given)


_FINISHED = {}


def finished(folder, platform, **options):
    """A run of these options that nothing interrupted; from the second call on a copy of it."""
    key = str(sorted(options.items()))
    if key not in _FINISHED:
        made = Path(tempfile.mkdtemp(dir=folder.parent)) / "run"
        run(made, platform, FakeMeasurer(), **options)
        _FINISHED[key] = made
    shutil.copytree(_FINISHED[key], folder, dirs_exist_ok=True)


def made_model(kind):
    if not isinstance(kind, str):
        return kind()
    if kind == "trees":
        pytest.importorskip("xgboost")
        return TreeModel(seed=0, num_rounds=5)
    network = partial(PaCM, width=16, dataflow_hidden=8, dataflow_width=16)
    return AdaptedModel(Continue(Setting(make_network=network)))


def measured(folder):
    rows = read_trials(folder / JOURNAL_FILE)
    return [(r.task, r.batch, r.position, r.space, r.decisions, r.costs_s, r.error) for r in rows]


@some_slow(("model", "lag", "prior"), [("pacm", 1, 0.0)], [("trees", 0, 16.0), ("trees", 3, 0.0)])
def test_a_killed_run_goes_on_as_if_nothing_had_happened(tmp_path, platform, model, lag, prior):
    options = {"model": model, "prior": prior}
    run(tmp_path / "whole", platform, FakeMeasurer(lag), **options)
    for dies_at in (3, 9):  # inside the first batch, then three measurements into the second
        with pytest.raises(Killed):
            run(tmp_path / "killed", platform, FakeMeasurer(lag, dies_at), **options)
    last = run(tmp_path / "killed", platform, FakeMeasurer(lag), **options)
    assert measured(tmp_path / "killed") == measured(tmp_path / "whole")
    assert last.trials == 24
    assert len({(*row[4], row[3]) for row in measured(tmp_path / "whole")}) == 24


def test_a_task_gets_no_second_batch_before_the_results_of_its_first(tmp_path, platform):
    """The third batch is chosen while the second task's first is measured."""
    run(tmp_path, platform, FakeMeasurer(lag=1), specs=(SIZES, OTHER), trials=18)
    tasks = {row[1]: row[0] for row in measured(tmp_path)}
    first, second = "matmul_64_64_64", "matmul_32_64_64"
    assert [tasks[n] for n in (1, 2, 3)] == [first, second, first]


@some_slow("lag", [1], [3])
def test_a_device_builds_what_is_chosen_while_a_batch_is_measured(tmp_path, platform, lag):
    """So a slow build holds up its own batch alone; a CPU builds nothing while it times."""
    device, cpu = FakeMeasurer(lag), FakeMeasurer(lag, exclusive=True)
    run(tmp_path / "device", platform, device, trials=30)
    run(tmp_path / "cpu", platform, cpu, trials=30)
    assert measured(tmp_path / "device") == measured(tmp_path / "cpu")  # the same choices
    assert cpu.done == ["built", "measured"] * 5
    assert device.done == ["built"] * lag + ["built", "measured"] * (5 - lag) + ["measured"] * lag


@some_slow(("lag", "exclusive"), [(0, True), (1, False)], [(1, True)])
def test_what_is_known_when_a_program_runs_survives_a_resume(tmp_path, platform, lag, exclusive):
    """On a separate device only batches count that had ended when a batch was chosen."""
    whole, known_s = FakeMeasurer(lag, exclusive=exclusive), []
    run(tmp_path / "whole", platform, whole)
    for dies_at in (4, 7, 9, None):
        fake = FakeMeasurer(lag, dies_at, exclusive)
        with suppress(Killed):
            run(tmp_path / "killed", platform, fake)
        known_s += fake.known_s
    assert known_s == whole.known_s
    rows, batch = measured(tmp_path / "whole"), 6
    costs = [float("inf") if error else costs_s[0] for *_, costs_s, error in rows]
    best_s = np.minimum.accumulate([float("inf"), *costs])  # before every trial
    if exclusive:
        assert known_s == best_s[:-1].tolist()
    else:  # the third batch was chosen after the first had ended
        ends = [float("inf")] * 2 + [best_s[batch], best_s[2 * batch]]
        assert known_s == [end for end in ends for _ in range(batch)]
    assert min(known_s) < float("inf")


def test_a_stopped_run_cancels_the_batches_that_were_built_ahead(tmp_path, platform):
    """Else the builders would finish them before the final kernels."""
    fake = FakeMeasurer(lag=3)
    run(tmp_path, platform, fake, trials=30, interrupted=lambda: fake.asked >= 3)
    assert fake.done == ["built"] * 4 + ["measured"] + ["cancelled"] * 4


def test_a_run_that_is_late_before_its_measurements_cancels_the_open_batch(tmp_path, platform):
    """The end comes while the next batch is chosen: the builds of the first have begun."""
    fake = FakeMeasurer(lag=1, exclusive=True)
    run(tmp_path, platform, fake, trials=30, interrupted=lambda: "built" in fake.done)
    assert fake.done == ["built", "cancelled"]


class Falling(FakeMeasurer):
    """The first six programs of a run take 10 s, all others 5 s."""

    def results(self, batch, accept, check, stopped):
        for position in range(len(batch)):
            self.asked += 1
            if self.asked == self.dies_at:
                raise Killed
            yield position, Outcome(costs_s=(10.0 if self.asked <= 6 else 5.0,))


@some_slow("measured_before", [7], [8])
def test_a_run_that_stands_still_resumes_exactly(tmp_path, platform, measured_before):
    """All batches are chosen before the third is measured, so no later choice saves the state."""
    options = {"trials": 16, "batch_size": 2, "patience": 1, "tolerance": 0.01}
    whole = run(tmp_path / "whole", platform, Falling(3), **options)
    with pytest.raises(Killed):
        run(tmp_path / "killed", platform, Falling(3, measured_before + 1), **options)
    rest = Falling(3)
    rest.asked = measured_before
    last = run(tmp_path / "killed", platform, rest, **options)
    assert last.trials == whole.trials
    assert measured(tmp_path / "killed") == measured(tmp_path / "whole")


def test_a_task_ends_when_all_its_programs_are_measured(tmp_path, platform):
    tiny = {"operator": "matmul", "m": 1, "n": 1, "k": 1}
    (task,) = run(tmp_path, platform, FakeMeasurer(), specs=(tiny,), trials=40).tasks
    assert task.exhausted
    assert 4 <= task.trials <= 12  # at most three spaces of four unroll depths
    found = TaskOutcome.of(task.workload, read_trials(tmp_path / JOURNAL_FILE), exhausted=True)
    whole = Tuned(tasks=[found], seconds={}, folder=tmp_path, work_dir=tmp_path).metrics()
    told = whole["tasks"][task.workload.name]
    assert (told["exhausted"], told["trials"]) == (True, task.trials)


class Unplugged(FakeMeasurer):
    """The device is there for the first ``turns`` measurements only."""

    def __init__(self, lag, turns, error="run_no_device"):
        super().__init__(lag)
        self.turns, self.error = turns, error

    def results(self, batch, accept, check, stopped):
        for position, outcome in super().results(batch, accept, check, stopped):
            gone = Outcome(error=self.error, message="no tracker")
            yield position, outcome if self.asked <= self.turns else gone


@some_slow(("lag", "error"), [(0, "build_no_worker")], [(1, "run_no_device")])
def test_a_run_without_a_device_stops_and_goes_on_later(tmp_path, platform, lag, error):
    run(tmp_path / "whole", platform, FakeMeasurer(lag))
    folder = tmp_path / "stopped"
    for _ in range(2):
        wanted = rf"\({error}: no tracker\).*resume={folder} continues"
        with pytest.raises(PrunerError, match=wanted):
            run(folder, platform, Unplugged(lag, turns=0, error=error))
        assert measured(folder) == []
    with pytest.raises(PrunerError, match="resume="):
        run(folder, platform, Unplugged(lag, turns=6, error=error))
    assert measured(folder) == measured(tmp_path / "whole")[:6]
    run(folder, platform, FakeMeasurer(lag))
    assert measured(folder) == measured(tmp_path / "whole")


def test_single_programs_without_a_turn_are_trials(tmp_path, platform):
    class Hiccup(Unplugged):
        def results(self, batch, accept, check, stopped):
            for position, outcome in super().results(batch, accept, check, stopped):
                self.turns = 0 if self.asked % 6 in (5, 0) else 1000  # the first and the last
                yield position, outcome

    run(tmp_path, platform, Hiccup(0, turns=0), trials=12)
    rows = read_trials(tmp_path / JOURNAL_FILE)
    assert [row.position for row in rows] == [*range(6), *range(6)]
    assert [row.error == "run_no_device" for row in rows] == ([True] + [False] * 4 + [True]) * 2


def test_tvm_applies_the_database(tmp_path, platform):
    """TVM's own way back: compile_tir finds the best schedule of the run."""
    finished(tmp_path / "run", platform)
    rows = read_trials(tmp_path / "run" / JOURNAL_FILE)
    database = Database(tmp_path / "run").tvm_database
    assert len(database) == sum(row.error is None for row in rows) > 0
    module = from_operator(SIZES).module
    tir = load_tvm().meta_schedule.tir_integration
    schedule = tir.compile_tir(database, module, platform.target)
    best = database.query_tuning_record(module, platform.target, "main")
    assert float(best.run_secs[0]) == min(row.latency_s for row in rows)
    assert "T.parallel" in schedule.mod.script()  # scheduled, and it computes the same
    tvm = load_tvm().tvm
    values = np.random.default_rng(0).random((2, 64, 64), dtype=np.float32)
    arrays = [tvm.runtime.tensor(value) for value in [*values, np.zeros((64, 64), np.float32)]]
    tvm.compile(schedule.mod, target=platform.target)["main"](*arrays)
    np.testing.assert_allclose(arrays[2].numpy(), values[0] @ values[1], rtol=1e-4)


def test_a_torn_database_line_is_cut(tmp_path, platform):
    finished(tmp_path / "run", platform, trials=6)
    size = len(Database(tmp_path / "run").tvm_database)
    with (tmp_path / "run" / RECORDS).open("ab") as file:
        file.write(b'[0, [[[["GetSBlock"')
    torn = (tmp_path / "run" / RECORDS).read_bytes()
    assert len(Database.read(tmp_path / "run").tvm_database) == size
    assert (tmp_path / "run" / RECORDS).read_bytes() == torn  # its run may be writing it
    assert len(Database(tmp_path / "run").tvm_database) == size


def test_tasks_are_made_ready_when_they_are_chosen(tmp_path, platform, monkeypatch):
    """Of three tasks two fit into the budget; a resumed run makes ready what it had."""
    made = []
    real = opening.BatchedSpace
    monkeypatch.setattr(opening, "BatchedSpace", lambda d, **_: made.append(d) or real(d))
    specs = (SIZES, OTHER, {"operator": "matmul", "m": 16, "n": 64, "k": 64})
    tuning = run(tmp_path, platform, FakeMeasurer(), specs=specs, trials=2)
    begun = [task.made is not None for task in tuning.tasks]
    assert (sum(begun), tuning.trials) == (2, 2)  # the first rounds are small: one program each
    assert len({id(design.module) for design in made}) == 2
    made.clear()
    again = run(tmp_path, platform, FakeMeasurer(), specs=specs, trials=2)
    assert [task.made is not None for task in again.tasks] == begun
    assert len({id(design.module) for design in made}) == 2


def test_a_task_without_programs_costs_only_itself(tmp_path, platform, monkeypatch):
    real = setup.design_spaces

    def none_for_the_second(module, target):
        return real(module, target) if arguments(module)[0][0][0] == SIZES["m"] else []

    monkeypatch.setattr(setup, "design_spaces", none_for_the_second)
    tuning = run(tmp_path / "two", platform, FakeMeasurer(), specs=(SIZES, OTHER), trials=12)
    assert [task.trials for task in tuning.tasks] == [12, 0]
    assert tuning.tasks[1].exhausted
    with pytest.raises(PrunerError, match="no design space"):
        run(tmp_path / "one", platform, FakeMeasurer(), specs=(OTHER,), trials=12)
    with pytest.raises(PrunerError, match="no task has a program"):
        run(tmp_path / "none", platform, FakeMeasurer(), trials=6,
            specs=(OTHER, {"operator": "matmul", "m": 16, "n": 64, "k": 64}))  # fmt: skip


def test_a_run_that_is_asked_to_end_keeps_what_it_has_and_goes_on_exactly(tmp_path, platform):
    options = {"specs": (SIZES, OTHER), "trials": 18, "model": "pacm"}
    run(tmp_path / "whole", platform, FakeMeasurer(1), **options)
    fake = FakeMeasurer(1)
    first = run(tmp_path / "ended", platform, fake, interrupted=lambda: fake.asked >= 10, **options)
    assert first.trials == 10  # in the middle of a batch
    run(tmp_path / "ended", platform, FakeMeasurer(1), **options)
    assert measured(tmp_path / "ended") == measured(tmp_path / "whole")


class Slow(FakeMeasurer):
    """Every measurement takes an eighth of a second of a clock that nothing else moves."""

    now_s = 0.0

    def results(self, batch, accept, check, stopped):
        for answer in super().results(batch, accept, check, stopped):
            self.now_s += 0.125
            yield answer


def test_a_budget_of_seconds_ends_in_time(tmp_path, platform, monkeypatch):
    """After 40 programs: the last batch has the four of six that there is time for."""
    slow = Slow()
    clock = SimpleNamespace(perf_counter=lambda: slow.now_s)
    monkeypatch.setattr("pruner.tune.phases.time", clock)
    tuning = run(tmp_path, platform, slow, trials=1000, seconds=5.0)
    rows = read_trials(tmp_path / JOURNAL_FILE)
    assert tuning.trials == len(rows) == 40
    assert rows[-1].elapsed_s == 5.0


def test_a_run_ends_once_all_tasks_together_stand_still(tmp_path, platform):
    rows = []
    options = {"specs": (SIZES, OTHER), "trials": 400, "rows": rows}
    tuning = run(tmp_path, platform, FakeMeasurer(), patience=3, tolerance=0.05, **options)
    assert tuning.trials < 200
    estimates = [row["estimate_s"] for row in rows]
    assert [row["measured_share"] for row in rows[:2]] == [pytest.approx(2 / 3), 1.0]
    assert estimates[-1] > 0.95 * estimates[-4]
    assert all(a - b >= 0.05 * a for a, b in zip(estimates[1:-4], estimates[4:-1], strict=True))


@pytest.mark.slow
def test_a_settled_run_that_is_resumed_is_settled(tmp_path, platform):
    options, told = {"trials": 400, "patience": 2, "tolerance": 0.5}, []
    first = run(tmp_path, platform, FakeMeasurer(), log=told.append, **options)
    assert first.trials < 60
    assert f"the run ends after {first.trials} of 400 trials" in told[-1]
    again = run(tmp_path, platform, FakeMeasurer(), **options)
    assert again.trials == first.trials


SEEN = []


class Listening:
    """A model that writes down what it is given."""

    ranker, dataflow, reads_draft = None, "paper", False

    def set_reference_population(self, key, population):
        SEEN.append(("meet", key.task))

    def learn(self, store):
        SEEN.append(("learn", tuple(key.task for key in store.keys), store.num_programs))

    def state(self):
        return {}


def test_the_first_programs_of_a_task_are_judged_by_what_others_taught(tmp_path, platform):
    """The model has learned from the first task before the second is asked for programs."""
    SEEN.clear()
    options = {"specs": (SIZES, OTHER), "trials": 14, "model": Listening}
    run(tmp_path, platform, FakeMeasurer(), **options)
    first, second = "matmul_64_64_64", "matmul_32_64_64"
    assert SEEN[:3] == [("meet", first), ("meet", second), ("learn", (first,), 4)]
    assert SEEN[3] == ("learn", (first, second), 8)
    assert len(SEEN) == 4  # the last batch needs no fit
