"""Where the error lies: shares add up, and small cases are counted by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from experiments.model.ablation.diagnosis import (
    by_gap,
    by_group,
    by_heart,
    gap_rows,
    operator_of,
    rows_of,
    size_of,
    twins_of,
    worst,
)
from pruner.models.judging import metrics
from pruner.models.judging.metrics import ScoredTask
from tests.models import synthetic


def task(name, latency_s, score):
    return ScoredTask(name=name, latency_s=np.array(latency_s, float), score=np.array(score, float))


def test_pairs_by_how_far_apart_they_are_by_hand():
    # 1.00 and 1.01 differ by 1 %, both from 2.00 by about all of it: 98 % and 100 %
    tasks = [task("a/x_1", [1.0, 1.01, 2.0], [0.5, 0.9, 0.5])]
    pairs, wrong = by_gap(tasks, edges=(0.05, 0.99))
    assert (pairs.tolist(), wrong.tolist()) == ([1, 1, 1], [1.0, 0.0, 0.5])
    rows = gap_rows(tasks, edges=(0.05, 0.99))
    assert [row["right"] for row in rows] == [0.0, 1.0, 0.5]
    assert [row["share of pairs"] for row in rows] == pytest.approx([1 / 3] * 3)
    assert [row["share of errors"] for row in rows] == pytest.approx([2 / 3, 0, 1 / 3])
    equal = [task("a/x_1", [1.0, 1.0, 1.0], [1, 2, 3])]
    assert by_gap(equal, edges=())[0].tolist() == [0]
    assert gap_rows(equal, edges=())[0]["right"] == 1.0


def test_all_pairs_together_are_the_pairwise_accuracy():
    rng = np.random.default_rng(0)
    tasks = [task(f"a/x_{n}", rng.lognormal(size=n), rng.permutation(n)) for n in (3000, 40, 7)]
    pairs, wrong = map(sum, by_gap(tasks[:1]))
    assert pairs == 3000 * 2999 / 2
    assert 1 - wrong / pairs == pytest.approx(metrics.pairwise_accuracy(tasks[:1]))
    assert sum(by_gap(tasks)[0]) == pairs + 40 * 39 / 2 + 21


def test_groups_share_the_regret_and_a_task_of_two_seeds_counts_twice():
    tasks = [
        task("v100/conv2d_add_relu_1_3_SAME", [1.0, 2.0], [0, 1]),  # chosen: 2, regret 1/2
        task("v100/conv2d_add_relu_2_3_SAME", [1.0, 2.0], [1, 0]),  # right
        task("k80/pool_max_1_64", [3.0, 4.0], [0, 1]),  # regret 1/4
    ]
    assert [operator_of(one) for one in tasks] == ["conv2d_add_relu", "conv2d_add_relu", "pool_max"]
    first, second = by_group(tasks, operator_of)
    assert (first["group"], first["tasks"]) == ("conv2d_add_relu", 2)
    assert first["share of regret"] == pytest.approx(0.5 / 0.75)
    assert first["top1_task_mean"] == pytest.approx((0.5 + 1) / 2)
    assert first["chance_top1"] == pytest.approx((1 + 0.5) / 2)
    assert second["share of regret"] == pytest.approx(0.25 / 0.75)
    by_rows = by_group(tasks, rows_of({one.name: "conv" in one.name for one in tasks}))
    assert [row["group"] for row in by_rows] == ["with dataflow rows", "without"]
    assert {size_of(one) for one in tasks} == {"below 200 programs"}
    (hardest,) = worst(tasks, 1)
    assert (hardest["task"], hardest["top1"], hardest["faster programs"]) == (tasks[0].name, 0.5, 1)
    tasks = [
        task("k80/pool_max_1_64", [1.0, 2.0], [0, 1]),  # of one seed: regret 1/2
        task("k80/pool_max_1_64", [1.0, 2.0], [1, 0]),  # of another: right
        task("k80/matmul_8", [3.0, 4.0], [0, 1]),  # regret 1/4
    ]
    pool, product = by_group(tasks, operator_of)
    assert (pool["group"], pool["tasks"]) == ("pool_max", 2)
    assert pool["share of regret"] == pytest.approx(0.5 / 0.75)
    assert product["share of regret"] == pytest.approx(0.25 / 0.75)


def test_twins_bound_what_features_can_tell():
    store = synthetic.store(sizes=(4,), max_statements=1)
    index = torch.arange(4)
    assert twins_of(store, index) == (4, 4, 1.0)
    rows, dataflow, draft = store.rows.clone(), store.dataflow.clone(), store.draft.clone()
    for values in (rows, dataflow, draft):
        values[2] = values[0]
    twins = replace(store, rows=rows, dataflow=dataflow, draft=draft)
    # one pair of six is a guess
    assert twins_of(twins, index) == (4, 3, pytest.approx(1 - 0.5 / 6))
    # the analyzer tells them apart
    assert twins_of(replace(twins, draft=store.draft), index)[1] == 4


def test_what_is_learned_by_heart_is_the_difference_of_sides():
    def side(top1, pairwise):
        return {"top1_task_mean": top1, "pairwise_accuracy": pairwise}

    found = by_heart(
        [
            {"train": {"a": side(1.0, 0.9)}, "valid": {"a": side(0.8, 0.7), "b": side(0, 0)}},
            {"train": {"a": side(0.9, 0.8)}, "valid": {"a": side(0.9, 0.6)}},
        ]
    )
    assert found == pytest.approx({"top1_task_mean": 0.1, "pairwise_accuracy": 0.2})
