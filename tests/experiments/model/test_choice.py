"""The rule by which changes are chosen, with numbers worked out by hand."""

import numpy as np
import pytest

from experiments.model.ablation.choice import best, compared, helping
from pruner.errors import PrunerError


def row(model, seed, top1, pairwise, *, setting="k80", platform=None):
    return {
        "setting": setting,
        "platform": platform or setting,
        "model": model,
        "seed": str(seed),
        "top1_task_mean": top1,
        "pairwise_accuracy": pairwise,
    }


BASIS = [row("pacm", 0, 0.90, 0.74), row("pacm", 1, 0.88, 0.76)]


def test_a_change_is_compared_in_pairs():
    rows = [*BASIS, row("x", 0, 0.92, 0.75), row("x", 1, 0.92, 0.76), row("x", 2, 0.1, 0.1)]
    found = compared(rows, "x", "pacm")  # seed 2 has no partner
    # (0.02 + 0.01) / 2 = 0.015 and (0.04 + 0) / 2 = 0.02; their deviation is 0.005 / sqrt(2)
    assert found.pairs == 2
    assert found.gain == pytest.approx(0.0175)
    assert found.error == pytest.approx(0.005 / np.sqrt(2) / np.sqrt(2))
    assert found.numbers == pytest.approx({"top1_task_mean": 0.03, "pairwise_accuracy": 0.005})
    assert found.helps


def test_a_gain_within_its_error_or_of_one_pair_does_not_help():
    rows = [*BASIS, row("x", 0, 1.0, 0.74), row("x", 1, 0.80, 0.76)]  # +0.05 and -0.04
    found = compared(rows, "x", "pacm")
    assert found.gain == pytest.approx(0.005)
    assert found.error == pytest.approx(0.045)
    assert not found.helps
    found = compared([BASIS[0], row("x", 0, 1.0, 1.0)], "x", "pacm")
    assert found.error == float("inf")
    assert not found.helps


def test_pairs_of_a_seed_are_not_counted_as_if_they_were_independent():
    gains = {0: 0.03, 1: 0.0, 2: 0.0}  # all of the gain is one draw of workloads
    names = ("k80", "v100", "mi50", "all")
    basis = [row("pacm", s, 0.9, 0.7, setting=n) for n in names for s in gains]
    more = [row("x", s, 0.9 + g, 0.7 + g, setting=n) for n in names for s, g in gains.items()]
    found = compared([*basis, *more], "x", "pacm")
    assert found.pairs == 12
    assert found.gain == pytest.approx(0.01)
    # of three means 0.03, 0, 0: deviation sqrt(3) / 100, over the root of three
    assert found.error == pytest.approx(0.01)
    assert found.error > np.std([0.03] * 4 + [0.0] * 8, ddof=1) / np.sqrt(12)


def test_the_best_mean_is_chosen_and_the_unchanged_one_where_nothing_gains():
    rows = [*BASIS]
    for name, shift in (("a", 0.01), ("b", 0.03), ("c", -0.02)):
        rows += [row(name, s, 0.9 + shift - 0.02 * s, 0.74 + shift + 0.02 * s) for s in (0, 1)]
    assert [one.model for one in helping(rows, ["a", "b", "c"], "pacm")] == ["b", "a", "c"]
    assert best(rows, ["a", "b"], "pacm") == "b"
    assert best(rows, ["c"], "pacm") == "pacm"
    assert best(rows, [], "pacm") == "pacm"
    with pytest.raises(PrunerError, match="in common"):
        compared(rows, "d", "pacm")
