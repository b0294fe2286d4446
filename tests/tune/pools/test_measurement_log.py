"""What a ledger says of a pool, and that a kill loses one line at most."""

import numpy as np
import pytest

from pruner.errors import DataError
from pruner.processes import Reply
from pruner.tune.measure.measurer import Outcome
from pruner.tune.pools.measurement_log import RANDOM, MeasurementLog, Pass, Program
from pruner.tune.pools.records import FAILED_COST_S, about_pool, error_number, record


def program(*latencies, error=None, number=0):
    passes = [
        Pass(at=100.0 * n, costs_s=(one, one * 1.01, one * 0.99), seconds=0.5)
        for n, one in enumerate(latencies)
    ]
    return Program(number=number, row=[1, 4, 8, 0], origin=RANDOM, error=error, passes=passes)


def test_the_two_timings_that_agree_best_count():
    assert [p.latency_s for p in program(2.0, 1.0, 1.05).closest] == [1.0, 1.05]
    assert [p.latency_s for p in program(1.05, 3.0, 1.0).closest] == [1.05, 1.0]  # as taken
    assert program(2.0, 1.0, 1.05).disagreement == pytest.approx(0.05)
    assert program(1.0, 2.0).disagreement == pytest.approx(1.0)
    assert program(1.0).disagreement == float("inf")


def test_a_record_has_every_timing_and_costs_those_that_agree():
    found = record(program(2.0, 1.0, 1.05), ["aa", "bb"], [3, 2], ["key", "target", []])
    assert found["i"] == [["key", "target", []], [[], [["MS", "bb", [4, 8]]]]]
    assert found["r"][0] == [1.0, 1.05]
    assert found["r"][1:3] == [0, 1.5]
    assert [at for at, _ in found["timings"]] == [0.0, 100.0, 200.0]
    assert found["timings"][0][1] == [2.0, 2.02, 1.98]
    assert "checked" not in found  # a ledger of before says nothing of checks


def test_failures_are_records_with_ansors_numbers():
    found = record(program(error="run_timeout"), ["aa", "bb"], [3, 3], ["key", "target", []])
    assert found["r"][:2] == [[FAILED_COST_S], 7]
    assert [error_number(e) for e in ("build_timeout", "build_error", "wrong_result")] == [6, 2, 5]
    assert error_number("check_error") == 8


def test_the_spread_is_of_the_first_two_timings(tmp_path):
    """Those that agree best are chosen for it: they would say less noise than there is."""
    measurement_log = MeasurementLog(tmp_path / "pool.jsonl")
    measurement_log.draw(np.array([[0, 1], [0, 2]]), RANDOM)
    for cost_s in (2.0, 1.0, 1.01):
        measurement_log.timed(0, Outcome(costs_s=(cost_s,)))
    measurement_log.refused(1)
    about = about_pool(measurement_log, {"task": "a"})
    assert about["spread_median"] == pytest.approx(0.5)
    assert (about["task"], about["valid"], about["failed"], about["timings"]) == ("a", 1, 0, 3)


def test_what_was_not_checked_is_said_by_the_ledger_the_counts_and_the_record(tmp_path):
    measurement_log = MeasurementLog(tmp_path / "pool.jsonl")
    measurement_log.draw(np.array([[0, 1], [0, 2], [0, 3], [0, 4]]), RANDOM)
    measurement_log.timed(0, Outcome(costs_s=(1.0,), checked=True))
    measurement_log.timed(1, Outcome(costs_s=(1.0,)))
    measurement_log.timed(2, Outcome(error="wrong_result"))
    for number in (0, 1):
        measurement_log.timed(number, Outcome(costs_s=(1.0,)))  # again: nothing is compared then
    again = MeasurementLog(measurement_log.path)
    assert [one.checked for one in again.programs] == [True, False, None, None]
    assert about_pool(again, {})["unchecked"] == 1
    found = [record(one, ["aa"], [1], []) for one in again.programs[:3]]
    assert [one.get("checked") for one in found] == [True, False, None]


def test_what_was_written_is_read_again(tmp_path):
    measurement_log = MeasurementLog(tmp_path / "x" / "pool.jsonl")
    measurement_log.open_spaces(["aa"])
    measurement_log.draw(np.array([[0, 1], [0, 2], [0, 3]]), RANDOM)
    measurement_log.built(0, Reply(seconds=0.25))
    measurement_log.built(1, Reply(error="timeout", message="too slow"))
    measurement_log.timed(0, Outcome(costs_s=(1.0, 2.0, 4.0), run_s=0.5))
    measurement_log.note({"at": 1.0, "load_1min": 0.5})
    measurement_log.end(RANDOM, "no more")
    with measurement_log.path.open("ab") as file:
        file.write(b'{"program": 2, "costs_s": [1.0')  # killed here
    again = MeasurementLog(measurement_log.path)
    assert again.spaces == ["aa"]
    assert [p.row for p in again.programs] == [[0, 1], [0, 2], [0, 3]]
    first, second, third = again.programs
    assert (first.built, first.build_s, first.valid, first.tries) == (True, 0.25, True, 1)
    assert first.passes[0].latency_s == 2.0
    assert (second.failed, second.error) == (True, "build_timeout")
    assert not third.valid
    assert not third.failed
    assert again.conditions == [{"at": 1.0, "load_1min": 0.5}]
    assert again.ended == {RANDOM: "no more"}
    again.timed(2, Outcome(costs_s=(1.0,)))
    assert MeasurementLog(measurement_log.path).programs[2].valid


def test_a_ledger_that_was_changed_is_refused(tmp_path):
    """What a line says of a program, by number, depends on those before it."""
    measurement_log = MeasurementLog(tmp_path / "pool.jsonl")
    measurement_log.draw(np.array([[0, 1], [0, 2]]), RANDOM)
    measurement_log.timed(1, Outcome(costs_s=(2.0,)))
    whole = measurement_log.path.read_bytes()
    for place in (n for n, byte in enumerate(whole) if byte not in b"crc32\n"):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        measurement_log.path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"pool.jsonl: damaged .*delete it"):
            MeasurementLog(measurement_log.path)
    older = b'{"program": 7, "costs_s": [1.0]}\n'  # without checksum
    measurement_log.path.write_bytes(older)
    with pytest.raises(DataError, match="line 1"):
        MeasurementLog(measurement_log.path)
