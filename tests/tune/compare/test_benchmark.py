"""Contenders take turns, failures cost their own contender, outputs are compared."""

import threading
import time
from dataclasses import replace
from itertools import accumulate, count, cycle
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pruner.processes import Worker
from pruner.tune.compare import benchmark
from pruner.tune.compare.baselines import Baseline
from pruner.tune.compare.benchmark import BenchmarkSettings, run_interleaved, worst_output
from pruner.tune.compare.runners import rest, timed_turn
from tests.attack.faults import forked_from
from tests.tune.compare import fakes
from tests.tune.compare.fakes import fake

SETTINGS = BenchmarkSettings(rounds=4, turn_s=0.1, most_s=100.0, prepare_s=60.0)
NOTHING = "output y is nothing but NaN: give inputs with numbers as outputs"


@pytest.fixture(scope="module", autouse=True)
def _server_of_contenders():
    """Contenders are forked; a fresh interpreter for each runs the library of test_build."""
    forked = lambda jobs, *, environment, **_: Worker(jobs, environment=environment)  # noqa: E731
    with pytest.MonkeyPatch.context() as patch, forked_from([fakes.__name__]):
        patch.setattr(benchmark, "Worker", forked)
        yield


@pytest.fixture
def diary(tmp_path):
    return tmp_path / "diary"


def test_turns_alternate_and_all_runs_after_the_warm_up_count(tmp_path, diary):
    both = [fake("a", [1.0, 3.0], diary), fake("b", [2.0], diary)]
    a, b = run_interleaved(both, tmp_path / "race", SETTINGS)
    assert diary.read_text() == "ab" + "abababab"
    assert (a.median_s, b.median_s) == (2.0, 2.0)  # 1, 3, 1, 3 ... and 2, 2 ...
    row = a.row()
    assert (row["min_s"], row["low_s"], row["high_s"], row["runs"]) == (1.0, 1.0, 3.0, 8)
    assert a.facts == {"version": "a"}


def test_a_slow_one_gets_three_turns_and_no_more_than_its_time(tmp_path, diary):
    both = [fake("s", [40.0], diary), fake("f", [1.0], diary)]
    run_interleaved(both, tmp_path, replace(SETTINGS, most_s=50.0, rounds=5))
    assert diary.read_text() == "sf" + "sfsfsfff"


def test_whoever_fails_is_left_out_with_the_reason(tmp_path, diary):
    told = []
    missing = Baseline(name="m", label="m", missing="x not installed; run: pip install x")
    fails = (("s", {"fails": "start"}), ("a", {}), ("r", {"fails": "run"}))
    entries = [*(fake(name, [1.0], diary, **how) for name, how in fails), missing]
    found = {row.name: row for row in run_interleaved(entries, tmp_path, SETTINGS, log=told.append)}
    assert found["a"].error is None
    assert found["s"].error == "exit status 1: no such library"
    assert found["r"].error == "ValueError: no memory"
    assert found["m"].error == missing.missing
    assert diary.read_text() == "aaaaa"
    assert found["r"].row() == {"name": "r", "label": "r", "error": "ValueError: no memory"}
    assert "m: left out, x not installed; run: pip install x" in told


def meter():
    """One contender uses 3 J a turn of 2 s, the next 5 J."""
    reads = zip(count(2.0, 2.0), accumulate(cycle((0, 3, 0, 5))), strict=False)
    return SimpleNamespace(name="toy", read=lambda: next(reads))


def test_energy_is_counted_in_turns_of_its_own_after_the_others(tmp_path, diary):
    both = [fake("a", [1.0, 3.0], diary), fake("b", [2.0], diary)]
    settings = replace(SETTINGS, rounds=1, energy_s=2.0, energy_turns=2)
    a, b = run_interleaved(both, tmp_path, settings, meter=meter())
    assert diary.read_text() == "ab" + "ab" + "abab"
    assert Path(f"{diary}.rests").read_text() == diary.read_text()  # after every turn
    assert a.latencies_s == [1.0, 3.0]
    assert (a.watts, b.watts) == ([1.5, 1.5], [2.5, 2.5])
    assert (a.row()["watts"], a.row()["joules"]) == (1.5, 3.0)  # at its median of 2 s
    alone = run_interleaved(both, tmp_path, replace(settings, energy_s=0.0), meter=meter())
    assert "watts" not in alone[0].row()


def test_a_turn_is_over_once_no_thread_spins():
    until = time.monotonic() + 0.3

    def spin():
        while time.monotonic() < until:
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    rest(0.1)
    assert time.monotonic() < until
    rest(5.0)
    assert until <= time.monotonic() < until + 2.0
    thread.join()


def test_several_get_ready_at_a_time_but_who_tunes_itself_is_alone(tmp_path, diary):
    """a and b each wait for the other to have begun; t finds whoever is at work, and nobody is."""
    other = {"a": "b", "b": "a", "t": ""}
    entries = [
        replace(fake(n, [1.0], diary, here=str(tmp_path), meets=other[n]), tunes=n == "t")
        for n in "atb"
    ]
    a, t, b = entries
    settings = replace(SETTINGS, rounds=1, num_parallel=2)
    found = run_interleaved([a, b, t], tmp_path / "race", settings)
    assert [row.error for row in found] == [None] * 3
    assert diary.read_text() == "abt" * 2
    names = [[one.name for one in group] for group in benchmark._groups([a, t, b, a, b], 2)]
    assert names == [["a"], ["t"], ["b", "a"], ["b"]]
    (tmp_path / "b").unlink()
    alone = run_interleaved([a], tmp_path / "race", replace(settings, prepare_s=0.2))
    assert alone[0].error == "stopped after 0.2 s"  # it does wait


def test_outputs_are_compared_with_those_of_the_reference(tmp_path, diary):
    entries = [
        fake("torch", [1.0], diary, output=[4.0, -8.0]),
        fake("near", [1.0], diary, output=[4.0, -8.5]),
        fake("other", [1.0], diary, output=[[4.0, -8.0]]),
    ]
    torch, near, other = run_interleaved(entries, tmp_path, SETTINGS, reference="torch")
    assert torch.relative_error is None
    assert near.relative_error == 0.0625  # 0.5 of 8
    assert other.relative_error == float("inf")  # another shape
    alone = run_interleaved(entries[1:2], tmp_path, SETTINGS, reference="torch")
    assert alone[0].relative_error is None


@pytest.mark.parametrize(
    ("found", "wanted", "rounds", "error", "where"),
    [
        ([1.0, np.inf], [1.0, np.inf], False, 0.0, ""),
        ([1.0, 2.0], [1.0, 4.0], False, 0.5, "output y at 1 is 2.0, not 4.0"),
        (np.int64([5, 7]), np.int64([5, 8]), False, np.inf, "output y at 1 is 7, not 8"),
        (np.int8([5, 79]), np.int8([5, 80]), True, 0.0, ""),
        (np.int8([5, 78]), np.int8([5, 80]), True, np.inf, "output y at 1 is 78, not 80"),
        (np.int8([6, 79]), np.int8([5, 80]), True, np.inf, "output y at 0 is 6, not 5"),
        (np.int8([5, 7]), np.int8([5, 8]), True, np.inf, "output y at 1 is 7, not 8"),
        ([0, 1, *[99] * 98], [1, 2, *[99] * 98], True, 0.0, ""),
        ([0, 1, *[98] * 98], [1, 2, *[99] * 98], True, np.inf, "output y at 0 is 0, not 1"),
        ([True, True], [True, False], True, np.inf, "output y at 1 is True, not False"),
        ([0.0, 1.0] * 9, [1.0, 0.0] * 9, True, 1.0, "output y at 0 is 0.0, not 1.0"),
        ([0, 2.5, 32.0] * 2, [0, 1, 32.0] * 2, True, 1.5 / 32, "output y at 1 is 2.5, not 1.0"),
        ([0.0, 0.0, 32.0, 0.0, 1.0, 32.0], [0.0, 1.0, 32.0] * 2, True, 0.0, ""),
        ([True, False], [1.0, 0.0], False, np.inf, "output y is bool 2, not float64 2"),
        (np.int32([1]), np.int64([1]), False, 0.0, ""),
        ([np.nan], [np.nan], False, np.inf, NOTHING),
        ([np.nan, 1.0], [np.nan, 1.0], False, 0.0, ""),
        (0.5, 1.0, False, 0.5, "output y is 0.5, not 1.0"),
        ([[1.0]], [1.0], False, np.inf, "output y is float64 1x1, not float64 1"),
    ],
)
def test_the_worst_output_is_named_with_its_place(found, wanted, rounds, error, where, tmp_path):
    np.savez(tmp_path / "a.npz", np.ones(1), again_0=np.array(found))
    np.savez(tmp_path / "b.npz", np.ones(1), again_0=np.array(wanted))
    found = worst_output(tmp_path / "a.npz", tmp_path / "b.npz", names=["y"], rounds=rounds)
    assert found == (error, where.replace("output y", "output y of the second call"))


@pytest.fixture
def worst(tmp_path):
    """Compares lists of outputs."""

    def found(ours, theirs, **how):
        np.savez(tmp_path / "ours.npz", *ours)
        np.savez(tmp_path / "torch.npz", *theirs)
        return worst_output(tmp_path / "ours.npz", tmp_path / "torch.npz", **how)

    return found


def test_rounding_of_the_numbers_that_an_output_sums_is_right_but_for_infinities(worst):
    both = [np.float32([3e-7, 1e-9])], [np.float32([-2e-9, 2e-9])]
    assert worst(*both, scales=[0.5]) == (0.0, "")  # 5e-7
    for how in ({}, {"scales": [0.1]}, {"scales": []}):
        assert worst(*both, **how)[0] == pytest.approx(151)
    both = [np.float32([3e-4, 1.0]), np.int64([5])], [np.float32([0.0, 1.0]), np.int64([6])]
    for scale in (1e9, np.inf):
        assert worst(*both, scales=[scale, 0.0])[0] == np.inf  # the integer
    assert worst(both[0][:1], both[1][:1], scales=[1e9])[0] == pytest.approx(3e-4)
    # sums of float64 round less
    doubles = [np.float64([1e-6])], [np.float64([2e-6])]
    assert worst(*doubles, scales=[10.0])[0] == pytest.approx(0.5)
    assert worst([np.ones(1)], [np.ones(1)] * 2) == (np.inf, "1 outputs, not 2")


def turn(run_s, seconds):
    """A turn on a clock that only runs move: so many seconds each, in order."""
    now, left = 0.0, list(run_s)

    def run():
        nonlocal now
        now += left.pop(0)

    return timed_turn(run, seconds, lambda: now)


def test_the_first_run_of_a_turn_warms_up_and_a_longer_run_is_the_turn():
    assert turn([0.25, 0.125, 0.125, 0.125, 9.0], 0.625) == [0.125, 0.125, 0.125]
    assert turn([0.75, 9.0], 0.5) == [0.75]
