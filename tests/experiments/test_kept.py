"""What a draft keeps of pools and best tenths: by hand, and chance where it knows nothing."""

import numpy as np
import pytest

from experiments.draft_kept.run import DRAWS, Keeping, KeptPool, kept_rows, variants_of
from pruner.models.analyzer.analyzer import load_analyzer
from pruner.paths import conf_folder


def pool(name, latency_s, score, fold=0):
    latency_s = np.array(latency_s, float)
    return KeptPool(
        name=name,
        fold=fold,
        latency_s=latency_s,
        decisions=np.arange(len(latency_s))[:, None],
        scores={"hardware": np.array(score, float)},
    )


def rows_by(given, keepings, **where):
    found = list(kept_rows("k80", given, keepings))
    return [row for row in found if all(row[name] == value for name, value in where.items())]


def test_a_tenth_is_the_fastest_in_their_order():
    latency_s = [5.0, 1.0, 4.0, 2.0, *range(6, 22)]
    tenth = pool("a", latency_s, -np.arange(20.0)).best_tenth()
    assert tenth.latency_s.tolist() == [1.0, 2.0]
    assert tenth.scores["hardware"].tolist() == [-1.0, -3.0]
    assert tenth.decisions.tolist() == [[1], [3]]


def test_regret_against_chance_by_hand():
    # 16 programs, an eighth is 2: the draft keeps those of 2 and 4 seconds, the best is 1.
    latency_s = np.array([1.0, 2.0, 4.0, *[8.0] * 13])
    score = np.array([0.0, 2.0, 1.0, *[-1.0] * 13])
    (row,) = rows_by(
        [pool("a", latency_s, score)], [Keeping(name="score")], size="eighth", fold="both"
    )
    # two of 16: 1 s in 15 of 120 pairs, 2 s in 14, 4 s in 13, 8 s in 78
    chance_s = (15 * 1 + 14 * 2 + 13 * 4 + 78 * 8) / 120
    chance_mean = (15 / 1 + 14 / 2 + 13 / 4 + 78 / 8) / 120
    assert (row["pools"], row["best1"]) == ("all", 0.5)
    assert row["random"] == pytest.approx(1 / chance_s)
    assert row["regret_ratio"] == pytest.approx(0.5 / (1 - 1 / chance_s))
    assert row["task_mean_regret_ratio"] == pytest.approx(0.5 / (1 - chance_mean))


def test_folds_are_reported_apart_and_small_pools_judge_nobody():
    rng = np.random.default_rng(0)
    pools = [
        pool(str(n), rng.lognormal(size=200), rng.normal(size=200), fold=n % 2) for n in range(4)
    ]
    found = rows_by([*pools, pool("small", [1.0, 2.0], [0, 1])], [Keeping(name="score")])
    counts = {(row["pools"], row["fold"]): row["num_tasks"] for row in found}
    assert counts == {(name, fold): 4 if fold == "both" else 2
                      for name in ("all", "best tenth") for fold in ("both", 0, 1)}  # fmt: skip


def test_a_flat_score_is_chance_on_the_average():
    rng = np.random.default_rng(1)
    pools = [pool(str(n), rng.lognormal(size=160), np.zeros(160)) for n in range(60)]
    noisy = Keeping(name="noise", noise=0.1)
    assert (noisy.draws, Keeping(name="x", apart=1.0).draws) == (DRAWS, 1)
    (row,) = rows_by(pools, [noisy], size="eighth", fold="both", pools="all")
    assert row["task_mean_regret_ratio"] == pytest.approx(1.0, abs=0.05)


def test_forms_of_rates_that_a_device_lacks_are_left_out():
    forms = {"hardware": {}, "waves": {"whole_waves": 1.0}}
    gpu = variants_of(load_analyzer(conf_folder(), "v100").uncalibrated(), forms)
    assert {name: one.constants.rates.whole_waves for name, one in gpu.items()} == {
        "hardware": 0.0, "waves": 1.0,
    }  # fmt: skip
    cpu = variants_of(load_analyzer(conf_folder(), "cpu-avx2").uncalibrated(), forms)
    assert list(cpu) == ["hardware"]
