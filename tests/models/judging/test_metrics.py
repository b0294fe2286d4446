from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pruner.data.networks import RecordedNetwork
from pruner.data.tasks import TaskKey
from pruner.models.analyzer.quality import quality
from pruner.models.judging import metrics
from pruner.models.judging.judge import (
    Report,
    draft_sizes,
    expected_latency,
    expected_ratio,
    full_report,
    noise_ceiling,
    random_ratio,
    rank_probabilities,
)
from pruner.models.judging.metrics import ScoredTask, pairwise_accuracy
from tests.models import oracles


def scored(latency, score, **kwargs):
    return ScoredTask(
        name="t", latency_s=np.array(latency, float), score=np.array(score, float), **kwargs
    )


@st.composite
def tasks(draw, max_size=12):
    n = draw(st.integers(1, max_size))
    latency = draw(st.lists(st.sampled_from([1.0, 1.5, 2.0, 4.0, 9.0]), min_size=n, max_size=n))
    score = draw(st.permutations(list(range(n))))
    return scored(latency, score)


def test_top_k_best_k_and_pairs_by_hand():
    a = scored([5.0, 9.0, 7.0], [1, 3, 2], weight=2)  # best 5; top-1 is 9, top-2 min(9, 7)
    b = scored([8.0, 5.0], [2, 1])  # best 5; top-1 is 8
    assert metrics.top_k([a, b], 1) == pytest.approx((2 * 5 + 1 * 5) / (2 * 9 + 1 * 8))
    assert metrics.top_k([a, b], 2) == pytest.approx((2 * 5 + 1 * 5) / (2 * 7 + 1 * 5))
    assert metrics.top_k_task_mean([a, b], 1) == pytest.approx((5 / 9 + 5 / 8) / 2)
    a = scored([4.0, 1.0, 3.0, 2.0], [4, 1, 3, 2])  # the 3 best-drafted: 4, 3, 2 seconds
    b = scored([6.0, 3.0], [1, 2])  # kept: 3
    assert metrics.best_k([a, b], 1, [3, 1]) == pytest.approx((1 + 3) / (2 + 3))
    assert metrics.best_k([a, b], 2, [3, 2]) == pytest.approx((1 + 3) / (3 + 6))
    right = scored([1.0, 2.0, 3.0], [3, 2, 1])
    wrong = scored([1.0, 2.0], [1, 2])
    assert metrics.pairwise_accuracy([right, wrong]) == pytest.approx((3 * 1.0 + 2 * 0.0) / 5)


@given(tasks(), st.integers(1, 6), st.integers(1, 6))
def test_metrics_equal_the_slow_loops(task, k, size):
    latency, score = list(task.latency_s), list(task.score)
    assert metrics.top_k_latency(task, k) == oracles.top(latency, score, k)
    kept = min(size, len(latency))
    assert metrics.best_k_latency(task, min(k, kept), size) == oracles.kth_best_of_kept(
        latency, score, size, min(k, kept)
    )
    assert metrics.ndcg([task]) == pytest.approx(oracles.ndcg(latency, score))
    assert metrics.peak_score([task], k) == pytest.approx(oracles.peak_score(latency, score, k))
    if len(latency) > 1:
        order = metrics.ranking(np.zeros(len(latency)))  # latencies have ties
        slow = oracles.pairwise_accuracy(task.latency_s[order], task.score[order])
        assert metrics.pair_agreement(task) == pytest.approx(slow)


def test_pair_agreement_over_several_blocks(monkeypatch):
    rng = np.random.default_rng(0)
    task = scored(rng.choice([1.0, 2.0, 3.0], 50), rng.choice([0.0, 1.0, 2.0], 50))
    whole = metrics.pair_agreement(task)
    monkeypatch.setattr(metrics, "_BLOCK", 7)
    assert metrics.pair_agreement(task) == whole
    order = metrics.ranking(np.zeros(50))
    slow = oracles.pairwise_accuracy(task.latency_s[order], task.score[order])
    assert whole == pytest.approx(slow)


@given(tasks(max_size=8), st.integers(1, 8), st.integers(1, 8))
def test_expected_random_latency_is_the_mean_over_all_subsets(task, size, k):
    size = min(size, task.num_programs)
    k = min(k, size)
    slow = oracles.expected_kth_best(list(task.latency_s), size, k)
    assert expected_latency(task, size, k) == pytest.approx(slow)


@given(tasks(max_size=8), st.integers(1, 8))
def test_expected_random_ratio_is_the_mean_over_all_subsets(task, size):
    size = min(size, task.num_programs)
    every = [task.best_s / min(some) for some in combinations(task.latency_s.tolist(), size)]
    assert expected_ratio(task, size) == pytest.approx(np.mean(every))


def test_ranks_sizes_and_regret_by_hand():
    # 2 of 4 kept; the better is 1st with 3 pairs of 6, 2nd with 2, 3rd with 1.
    assert rank_probabilities(4, 2, 1) == pytest.approx([3 / 6, 2 / 6, 1 / 6, 0])
    task = scored(np.ones(1000), np.zeros(1000))
    assert draft_sizes([task]) == {"512": [512], "eighth": [125], "2pct": [20]}
    assert metrics.regret_against_random(0.9, 0.2) == pytest.approx(0.1 / 0.8)


def test_random_ratio_of_one_task_is_the_exact_mean():
    task = scored([1.0, 2.0, 4.0], [0, 0, 0])
    found = random_ratio([task], [1], rng=np.random.default_rng(0), repeats=200_000)
    assert found == pytest.approx((1 + 1 / 2 + 1 / 4) / 3, abs=2e-3)


def test_ties_do_not_follow_log_order():
    latency = np.linspace(2.0, 1.0, 1000)  # a log that gets better towards its end
    first = metrics.top_k_latency(scored(latency, np.zeros(1000)), 1)
    assert first not in (latency[0], latency[-1])
    for log in (latency, latency[::-1]):
        assert metrics.pair_agreement(scored(log, np.zeros(1000))) == pytest.approx(0.5, abs=0.1)


def test_perfect_and_reversed_ranking():
    latency = np.array([3.0, 1.0, 2.0])
    perfect, reverse = scored(latency, -latency), scored(latency, latency)
    report = full_report([perfect])
    assert report["top1"] == report["top5"] == report["pairwise_accuracy"] == report["ndcg"] == 1.0
    assert report["top1_regret"] == 0.0
    assert full_report([reverse])["pairwise_accuracy"] == 0.0


@pytest.mark.parametrize(
    ("latency", "score", "message"),
    [([], [], "no program"), ([1.0], [1, 2], "1 latencies, 2 scores"), ([0.0], [1], "positive")],
)
def test_bad_tasks_are_refused(latency, score, message):
    with pytest.raises(ValueError, match=message):
        scored(latency, score)


def test_tasks_of_one_name_are_told_apart_by_their_targets():
    def task(name, target):
        key = TaskKey(platform="a100", task=name, workload_key="[]", target=target)
        return replace(scored([1.0, 2.0], [2, 1], key=key), name=name)

    shown = [task("a", "cuda -arch=sm_80"), task("a", "cuda -arch=sm_75"), task("b", "cuda -x")]
    names = [row["task"] for row in Report.of([*shown, scored([1.0], [1])]).rows]
    assert names == ["a -arch=sm_80", "a -arch=sm_75", "b", "t"]


def task(timed_s, name="a", latency_s=None):
    timed_s = np.array(timed_s, float)
    latency_s = np.nanmean(timed_s, axis=1) if latency_s is None else np.array(latency_s, float)
    return ScoredTask(name=name, latency_s=latency_s, score=-latency_s, timed_s=timed_s)


def test_the_noise_ceiling_by_hand():
    # First timing: the first program is best (1 s); the second timing says the second one, which
    # took 2 s the first time. The other way round: best 1.5 s, chosen 3 s. Pairs: (0,1) differ,
    # (0,2) and (1,2) agree.
    found = noise_ceiling([task([[1.0, 3.0], [2.0, 1.5], [4.0, 6.0]])])
    assert found["top1"] == pytest.approx((1 / 2 + 1.5 / 3) / 2)
    assert found["top5"] == 1.0
    assert found["pairwise_accuracy"] == pytest.approx(2 / 3)
    assert found["spread"] == pytest.approx(0.5)  # of 2.0, 0.25 and 0.5
    assert (found["num_tasks"], found["num_programs"]) == (1, 3)
    found = noise_ceiling([task([[1.0, 1.0], [2.0, 2.0]]), task([[3.0, 3.0], [2.0, 2.0]], "b")])
    assert {found[n] for n in ("top1", "top1_task_mean", "pairwise_accuracy")} == {1.0}
    assert found["spread"] == 0.0


def test_programs_timed_once_are_left_out():
    once = [[1.0, np.nan], [2.0, np.nan]]
    assert noise_ceiling([task(once, latency_s=[1, 2])]) is None
    assert noise_ceiling([ScoredTask(name="x", latency_s=np.ones(2), score=np.ones(2))]) is None
    mixed = noise_ceiling([task([*once, [1.0, 2.0], [2.0, 1.0]], latency_s=[1, 2, 3, 4])])
    assert mixed["num_programs"] == 2
    assert mixed["pairwise_accuracy"] == 0.0


def test_more_noise_lowers_it_and_the_true_order_is_above_it_within_the_bound():
    rng = np.random.default_rng(0)
    true_s = np.exp(rng.normal(0, 0.5, (40, 64)))
    before = 1.0
    for noise in (0.02, 0.1, 0.4):
        timed = true_s[:, :, None] * np.exp(rng.normal(0, noise, (*true_s.shape, 2)))
        found = noise_ceiling([task(one, f"t{n}") for n, one in enumerate(timed)])
        again = found["pairwise_accuracy"]
        assert again < before
        before = again
        assert found["spread"] == pytest.approx(noise * np.sqrt(2) * 0.6745, rel=0.15)
        perfect = [
            ScoredTask(name="x", latency_s=one[:, 0], score=-true)
            for one, true in zip(timed, true_s, strict=True)
        ]
        assert again < pairwise_accuracy(perfect) < (1 + np.sqrt(2 * again - 1)) / 2


def test_reports_have_it_beside_chance_where_it_is_known():
    known = full_report([task([[1.0, 3.0], [2.0, 1.5], [4.0, 6.0]])])
    assert known["ceiling"]["pairwise_accuracy"] == pytest.approx(2 / 3)
    assert "random" in known
    unknown = full_report([ScoredTask(name="x", latency_s=np.ones(2), score=np.ones(2))])
    assert "ceiling" not in unknown


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


def test_means_and_rows_of_networks_by_hand():
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


def test_rank_correlation_is_that_of_scipy_and_zero_where_all_are_equal():
    latency_s, score = [1, 2, 2, 5, 4, 3], [3, 1, 1, -np.inf, -np.inf, 2]
    expected = stats.spearmanr(score, -np.array(latency_s)).statistic
    assert quality([scored(latency_s, score)])["rank_correlation"] == pytest.approx(expected)
    for one, other in ((latency_s, [0.5] * 6), (latency_s, [-np.inf] * 6), ([2] * 6, score)):
        assert quality([scored(one, other)])["rank_correlation"] == 0
