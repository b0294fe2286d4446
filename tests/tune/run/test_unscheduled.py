"""A program that is slower than the function without schedule is not delivered."""

from collections import Counter

import numpy as np
import pytest

from pruner.search.policy import RandomDraws
from pruner.tune import operator, this_cpu, tune, tuned_module
from pruner.tune.measure.jobs import Timing
from pruner.tune.measure.measurer import DeviceMeasurer, MeasureSettings, Outcome
from pruner.tune.run.database import Database
from pruner.tune.run.result import TaskOutcome
from pruner.tune.tvm_import import load_tvm

pytestmark = pytest.mark.tvm


def test_a_function_that_no_program_beats_is_kept_as_it_is(tmp_path, monkeypatch):
    quick = MeasureSettings(timing=Timing(repeats=1, min_repeat_ms=1), builders=1)
    random = RandomDraws(draws=8)
    checks = []

    def unscheduled(_self, _module, _arguments, check):
        checks.append(check)
        return Outcome(costs_s=(1e-12,), checked=True)

    monkeypatch.setattr(DeviceMeasurer, "untuned_s", lambda *_: 1e-9)
    monkeypatch.setattr(DeviceMeasurer, "unscheduled", unscheduled)
    task, told = operator("matmul", m=4, n=8, k=16), []
    for trials in (2, 3):  # the second start continues the run, and times nothing again
        options = this_cpu(policy=random, make_model=None, measure=quick, trials=trials)
        tuned = tune(task, options, tmp_path, log=told.append)
        (row,) = tuned.metrics()["tasks"].values()
        assert row["best_latency_s"] == row["untuned_latency_s"] == 1e-12
        assert (row["checked"], row["trials"]) == (True, trials)
        assert "the function without schedule: no program is faster" in tuned.tasks[0].verdict()
    assert [check is not None for check in checks] == [True]
    assert f"{task.name}: no program is faster than the function without schedule" in told
    best = Database.read(tmp_path).best(task.module, options.platform.target)
    assert load_tvm().ffi.structural_equal(best, task.module)
    a, b = np.random.default_rng(0).random((4, 16)), np.random.default_rng(1).random((16, 8))
    tensor, c = load_tvm().tvm.runtime.tensor, np.zeros((4, 8), np.float32)
    arguments = [tensor(values.astype(np.float32)) for values in (a, b, c)]
    tuned_module(tmp_path)["main"](*arguments)
    np.testing.assert_allclose(arguments[2].numpy(), a @ b, rtol=1e-4)


def test_where_all_programs_fail_the_verdict_has_the_last_words_of_the_failure():
    failed = TaskOutcome(
        name="t", weight=1.0, flops=1.0, best_s=float("inf"), trials=2,
        failures=Counter(run_error=2), message="undefined symbol: f",
    )  # fmt: skip
    assert failed.verdict() == (
        "t: NO PROGRAM THAT RUNS among 2 that were tried (2 run_error): undefined symbol: f"
    )
