"""Top-k of networks against arithmetic written out."""

from dataclasses import replace

import numpy as np
import pytest

from pruner.data.networks import RecordedNetwork
from pruner.data.tasks import TaskKey
from pruner.models.judging.judge import Report
from pruner.models.judging.metrics import ScoredTask


def ranked(name, latency_s, score, platform="k80"):
    key = TaskKey(platform=platform, task=name, workload_key=f'["{name}", 1]', target="cuda")
    return ScoredTask(
        name=f"{platform}/{name}",
        latency_s=np.array(latency_s, float),
        score=np.array(score, float),
        key=key,
    )


def network(name, **calls):
    return RecordedNetwork(
        name=name, calls={f'["{task}",1]': n for task, n in calls.items()}, kind="cuda"
    )


# The best is 1 s and 3 s, the one ranked first has 2 s and 4 s.
A = ranked("a", [2.0, 1.0], [1, 0])
B = ranked("b", [3.0, 4.0], [0, 1])
X = network("x@1", a=3, b=1)
Y = network("y@1", a=1, c=5)  # c has no records


def test_means_over_networks_by_hand():
    report = Report.of([A, B], [X, Y])
    of_x = (3 * 1 + 1 * 3) / (3 * 2 + 1 * 4)
    assert report.metrics["top1_network_mean"] == pytest.approx((of_x + 1 / 2) / 2)
    assert report.metrics["top5_network_mean"] == 1.0
    assert report.metrics["num_networks"] == 2
    # a random program of b has 3 or 4 seconds, of a 1 or 2
    random_x = np.mean([6 / (3 * a + b) for a in (1, 2) for b in (3, 4)])
    chance = report.metrics["random"]
    assert chance["top1_network_mean"] == pytest.approx((random_x + 3 / 4) / 2, abs=0.02)
    assert chance["top5_network_mean"] == 1.0


def test_a_row_says_how_much_of_the_network_was_judged():
    x, y = Report.of([A, B], [X, Y]).network_rows
    assert (x["network"], x["tasks"], x["tasks_of_network"]) == ("k80/x@1", 2, 2)
    assert (x["best_latency_s"], x["chosen_latency_s"], x["top1"]) == (6.0, 10.0, 0.6)
    assert (y["tasks"], y["tasks_of_network"], y["calls"], y["calls_of_network"]) == (1, 2, 1, 6)


def test_the_other_numbers_know_no_networks():
    plain, judged = Report.of([A, B]).metrics, Report.of([A, B], [X, Y]).metrics
    assert {"top1_network_mean", "num_networks"}.isdisjoint(plain)
    assert {name: judged[name] for name in plain if name != "random"} == {
        name: value for name, value in plain.items() if name != "random"
    }
    assert plain["random"].items() <= judged["random"].items()
    assert plain["top1"] == (1 + 3) / (2 + 4)


def test_platforms_are_judged_by_themselves():
    elsewhere = ranked("a", [5.0, 4.0], [0, 1], platform="t4")
    report = Report.of([A, B, elsewhere], [X])
    assert {row["network"]: row["top1"] for row in report.network_rows} == {
        "k80/x@1": 0.6,
        "t4/x@1": 1.0,
    }
    assert report.metrics["top1_network_mean"] == 0.8


def test_networks_of_other_tasks_or_targets_are_left_out():
    other = replace(X, kind="llvm")
    report = Report.of([A], [network("z@1", b=1), other])
    assert not report.networks
    assert "top1_network_mean" not in report.metrics
