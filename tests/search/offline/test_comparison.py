"""Summaries of cells against hand arithmetic."""

import numpy as np
import pytest

from pruner.search.offline.adaptation_run import (
    MethodComparison,
    MethodRun,
    Quality,
    Reach,
    TuningCurve,
)


def cell(method, seed, relative, seconds=(10.0, 20.0, 30.0, 40.0), top1=0.5):
    curve = TuningCurve(
        trials=np.array([10, 20, 30, 40]),
        relative_latency=np.array(relative),
        elapsed_s=np.array(seconds),
    )
    quality = Quality(top1=top1, top5=0.9)
    return MethodRun(method=method, seed=seed, curve=curve, labels={"0": quality}, source=quality)


CELLS = [
    cell("scratch", 0, [2.0, 1.8, 1.4, 1.4]),
    cell("scratch", 1, [2.0, 1.6, 1.6, 1.2]),
    cell("moa", 0, [1.8, 1.3, 1.2, 1.2], (11.0, 22.0, 33.0, 44.0), top1=0.6),
    cell("moa", 1, [1.8, 1.5, 1.5, 1.3], (11.0, 22.0, 33.0, 44.0), top1=0.8),
]


def test_the_target_is_the_baselines_final_latency_of_the_same_seed():
    found = MethodComparison(CELLS, "scratch")
    reach = [found.reach(c, "trials") for c in found.cells("moa")]
    assert reach == [Reach(at=20.0, reached=True), Reach(at=40.0, reached=False)]
    assert found.reach(found.cells("scratch")[0], "seconds") == Reach(at=30.0, reached=True)


def test_censored_runs_count_up_to_the_longest_run():
    found = MethodComparison(CELLS, "scratch").summary("moa")
    assert found["trials_to_target"]["mean"] == pytest.approx((20 + 40) / 2)
    assert found["trials_to_target"]["reached"] == 1
    assert found["trials_to_target"]["speedup"] == pytest.approx(40 / 30)
    assert found["seconds_to_target"]["mean"] == pytest.approx((22 + 44) / 2)
    assert found["seconds_to_target"]["speedup"] == pytest.approx(40 / 33)
    assert found["trials_to_target"]["interval"] == pytest.approx([20, 40])


def test_areas_are_compared_in_pairs():
    found = MethodComparison(CELLS, "scratch")
    moa, scratch = found.summary("moa"), found.summary("scratch")
    assert moa["area"]["mean"] == pytest.approx(
        np.log(1.8 * 1.3 * 1.2 * 1.2 * 1.8 * 1.5 * 1.5 * 1.3) / 8
    )
    assert moa["p_better"] == {"scratch": 1 / 4}  # both seeds better: one of four sign patterns
    assert scratch["p_better"] == {"moa": 1.0}
    assert moa["top1_by_labels"]["0"]["mean"] == pytest.approx(0.7)
    assert moa["source_top1_after"]["interval"] == pytest.approx([0.6, 0.8])


def test_a_cell_survives_its_file():
    import json

    again = MethodRun.from_json(json.loads(json.dumps(CELLS[3].to_json())))
    assert again.labels == CELLS[3].labels
    assert again.source == CELLS[3].source
    assert again.curve.relative_latency.tolist() == CELLS[3].curve.relative_latency.tolist()
