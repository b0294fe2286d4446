"""The library of a network has the programs that are the fastest of the turns."""

import json
from collections import defaultdict
from dataclasses import replace

import pytest

from pruner.tune import tune
from pruner.tune.deploy import build, network
from pruner.tune.deploy.apply_records import keys_of
from pruner.tune.measure.measurer import Outcome
from pruner.tune.networks.request import read_lowered
from pruner.tune.run import finalists, tuning
from pruner.tune.run.budget import TuneBudget
from pruner.tune.run.database import Database
from pruner.tune.run.finalists import read_finalists
from pruner.tune.run.journal import JOURNAL_FILE, read_trials
from pruner.tune.tvm_import import load_tvm
from tests.tune.deploy.test_build import prepared
from tests.tune.run.test_tuning import options
from tests.tune.targets import platform_of

pytestmark = pytest.mark.tvm
TRIALS, SEARCH_S, SECONDS = 16, 3434.0, 3450.0  # 8 s more a task


class Machine:
    """Program n of a batch takes 1 + n / 20 ms; the first 1.5 ms, its first timing says 0.9.

    It runs nothing and takes the place of `DeviceMeasurer`.
    """

    exclusive, lag = True, 0

    def __init__(self):
        self.true_s, self.turns, self.limits_s = {}, [], []

    def __call__(self, *_):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def begin(self, candidates, *_):
        return candidates

    def cancel(self, _):
        pass

    def results(self, batch, *_):
        for n, candidate in enumerate(batch):
            true_s = 1e-3 * (1 + n / 20 if n else 1.5)
            self.true_s[key(candidate.schedule.mod)] = true_s
            yield n, Outcome(costs_s=(true_s if n else 0.9e-3,))

    def in_turns(self, modules, _arguments, _check, turns, *_):
        self.turns.append(len(modules))
        return [Outcome(costs_s=(self.true_s[key(one)],) * turns) for one in modules]


def key(module):
    return load_tvm().ffi.structural_hash(module)


@pytest.fixture
def machine(monkeypatch):
    found, retime = Machine(), tuning.retime

    def noted(tasks, context, most, limit_s):
        found.limits_s.append(limit_s)
        retime(tasks, context, most, limit_s)

    class Search(tuning.TuningRun):
        def run(self):
            assert self._budget.seconds == self._prepared.limit_s
            found.limits_s.append(self._prepared.limit_s)
            super().run()

    monkeypatch.setattr(finalists, "FEWEST_PROGRAMS", 2)
    monkeypatch.setattr(tuning, "DeviceMeasurer", found)
    monkeypatch.setattr(tuning, "retime", noted)
    monkeypatch.setattr(tuning, "TuningRun", Search)
    return found


@pytest.fixture
def applied(monkeypatch):
    """Scheduled networks and the counts of their schedules."""
    found, apply = [], build.apply_records

    def kept(*given, **how):
        found.append(apply(*given, **how))
        return found[-1]

    monkeypatch.setattr(build, "apply_records", kept)
    return found


@pytest.mark.usefixtures("in_process", "runs_here")
def test_the_truly_fastest_programs_are_built(tmp_path, machine, applied):
    """The search takes the program of a lucky timing; a second start compares nothing again."""
    platform, told = platform_of("cpu-sse4"), []
    tasks = [task for task in prepared("faint", platform, tmp_path) if task.tuned]
    assert len(tasks) == 2
    given = options(budget=TuneBudget(trials=TRIALS, batch=4, seconds=SECONDS))
    quick = replace(given.measure, check=False, baseline=False, finalists=6)
    given = replace(given, platform=platform, kernels=False, measure=quick)

    def tuned():
        return tune([task.workload for task in tasks], given, tmp_path, log=told.append)

    result, rows = tuned(), defaultdict(list)
    for row in read_trials(tmp_path / JOURNAL_FILE):
        rows[row.task].append(row)
    found = read_finalists(tmp_path)
    assert set(found) == set(rows) == {task.name for task in tasks}
    for name, one in found.items():
        best = min(rows[name], key=lambda row: row.latency_s)
        chosen = next(row for row in rows[name] if row.trial == one.trial)
        assert (best.position, best.latency_s) == (0, 0.9e-3)
        assert chosen.position == 1
        assert (one.latency_s, one.best_of_search_s) == pytest.approx((1.05e-3, 1.5e-3))
    # the results are those of the turns
    weights = {task.name: task.weight for task in tasks}
    total_s = sum(1.05e-3 * weight for weight in weights.values())
    assert result.estimate.latency_s == result.best_latency_s == pytest.approx(total_s)
    best_s = [row["best_latency_s"] for row in result.metrics()["tasks"].values()]
    assert best_s == pytest.approx([1.05e-3] * 2)
    assert "2 of 2 tasks were timed again" in " ".join(told)
    again = tuned()
    assert again.metrics()["tasks"] == result.metrics()["tasks"]
    assert (len(machine.turns), machine.limits_s) == (2, [pytest.approx(SEARCH_S), SECONDS] * 2)
    assert sum(len(some) for some in rows.values()) == len(read_trials(tmp_path / JOURNAL_FILE))

    deployed = network.deploy_network(tmp_path, platform, None)
    module, counts = applied.pop()
    assert counts.by_source[network.CHOSEN] == deployed.applied == 2
    assert deployed.relative_error < 1e-5
    names = {of: name for name, of in keys_of(read_lowered(tmp_path)).items()}
    same, database = load_tvm().ffi.structural_equal, Database.read(tmp_path)
    for task in tasks:
        records = {row.trial: row.record for row in rows[task.name]}
        built, one = module[names[task.key]].body, found[task.name]
        chosen, lucky = (
            database.scheduled(task.module, records[trial], platform.target)["main"].body
            for trial in (one.trial, one.tried[0])
        )
        assert same(built, chosen)
        assert not same(built, lucky)
    # of one task another run, whose database this is, too, has a faster program
    trace, _, *rest = json.loads(records[found[task.name].tried[0]])
    Database(tmp_path).commit_json(task.module, [trace, [0.8e-3], *rest])
    network.deploy_network(tmp_path, platform, None)
    module, counts = applied.pop()
    assert counts.by_source == {network.CHOSEN: 1, network.MEASURED: 1, network.DRAFTED: 0}
    assert same(module[names[task.key]].body, lucky)
