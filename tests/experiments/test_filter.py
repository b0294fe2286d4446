"""experiments/filter: the example space, and the numbers of its tables."""

from itertools import islice

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from experiments.filter import run, space
from experiments.filter.run import CALIBRATED, FIRST, FLOPS, FORECAST, judged, latencies_s


def test_networks_of_the_space_follow_their_choices():
    choices = space.Choices(resolution=64, width=0.5, stages=((2, 3, 6), *((1, 5, 3),) * 4))
    network, image = space.subnet(choices)
    assert choices.name == "r64-w0.5-236-153-153-153-153"
    with torch.no_grad():
        assert network(image).shape == (1, space.CLASSES)
    blocks = [part for part in network.features if isinstance(part, nn.Sequential | space.Added)]
    depthwise = [
        part for part in network.modules() if isinstance(part, nn.Conv2d) and part.groups > 1
    ]
    assert len(blocks) == len(depthwise) == 6
    assert [part.kernel_size[0] for part in depthwise] == [3, 3, 5, 5, 5, 5]
    # stem 8; expanded by 6 to 48, then 16 channels (24 / 2 is 12, rounded up) by 6
    assert [part.groups for part in depthwise[:2]] == [48, 96]
    added = [isinstance(block, space.Added) for block in blocks]
    assert added == [False, True, False, False, False, False]
    # stem, three of each block, two of each of two excitations, the last
    convolutions = [part for part in network.modules() if isinstance(part, nn.Conv2d)]
    assert len(convolutions) == 1 + 3 * 6 + 2 * 2 + 1


def test_a_seed_gives_a_sequence_of_different_networks():
    first, again = (list(islice(space.sequence(), 40)) for _ in range(2))
    assert first == again
    assert len({one.name for one in first}) == 40
    network, image = space.number_7()
    wanted, _ = space.subnet(first[7])
    assert image.shape[-1] == first[7].resolution
    assert [p.shape for p in network.parameters()] == [p.shape for p in wanted.parameters()]
    with pytest.raises(AttributeError):
        space.number_x  # noqa: B018


def test_a_library_has_the_median_of_its_own_calls(monkeypatch):
    """On a clock that the networks move; the first call of a turn takes 100 times as long."""
    now, calls = [0.0], list[float]()

    class Network:
        inputs = (torch.empty(2, 3),)

        def __init__(self, path):
            self.seconds = float(path)

        def __call__(self, given):
            assert given.shape == (2, 3)
            first = calls[-1:] != [self.seconds]
            calls.append(self.seconds)
            now[0] += self.seconds * (100 if first else 1)

    monkeypatch.setattr(run.pruner, "load", Network)
    monkeypatch.setattr(run.time, "perf_counter", lambda: now[0])
    assert latencies_s([0.003, 0.001, 0.002]) == pytest.approx([0.003, 0.001, 0.002])
    orders = [tuple(calls[i : i + 63 : 21]) for i in range(0, len(calls), 63)]
    assert len(orders) == 10
    assert {*map(frozenset, orders)} == {frozenset((0.001, 0.002, 0.003))}
    assert len({*orders}) > 1


@pytest.fixture
def four():
    return pd.DataFrame(
        {
            "latency_s": [1e-3, 2e-3, 3e-3, 4e-3],
            "predicted_s": [2e-3, 8e-3, 6e-3, 8.5e-3],
            "low_s": [1e-3, 4e-3, 3e-3, 2e-3],
            "high_s": [4e-3, 16e-3, 12e-3, 9e-3],
            "flops": [4.0, 3.0, 2.0, 1.0],
        }
    )


def test_a_limit_is_judged_on_both_sides(four):
    """The limit is 2.5 ms. The second interval is too high by far."""
    rows = {row["method"]: row for row in judged(four)}
    assert set(rows) == {FORECAST, FLOPS}  # no network is left to judge a calibration
    found = rows[FORECAST]
    assert found["limit_ms"] == pytest.approx(2.5)
    assert found["good_thrown_away"] == 1 / 2
    assert found["bad_thrown_away"] == 1 / 2
    assert found["inside"] == 3 / 4
    assert found["ratio"] == pytest.approx((2 + 2.125) / 2)
    # ranks 1 3 2 4 against 1 2 3 4: 1 - 6 (1 + 1) / (4 (16 - 1))
    assert found["spearman"] == pytest.approx(0.8)
    assert rows[FLOPS]["spearman"] == pytest.approx(-1.0)


def test_a_network_without_a_forecast_is_kept_and_not_judged(four):
    """A fifth, of 2.5 ms: the limit stays, and three networks are not above it."""
    wanted = judged(four)[0]
    fifth = pd.DataFrame({"latency_s": [2.5e-3], "flops": [2.5]})
    found = judged(pd.concat([four, fifth], ignore_index=True))[0]
    assert found["networks"] == 5
    assert found["good_thrown_away"] == pytest.approx(1 / 3)
    for name in ("limit_ms", "bad_thrown_away", "inside", "ratio", "spearman"):
        assert found[name] == pytest.approx(wanted[name])


def test_a_calibration_is_judged_on_the_other_networks():
    """Forecasts of half the latency, within a tenth: the filter then throws nearly all bad away."""
    rng = np.random.default_rng(0)
    latency_s = np.linspace(1e-3, 3e-3, FIRST + 10)[rng.permutation(FIRST + 10)]
    predicted_s = latency_s / 2 * rng.uniform(0.95, 1.05, FIRST + 10)
    table = pd.DataFrame(
        {
            "latency_s": latency_s, "predicted_s": predicted_s, "low_s": predicted_s / 3,
            "high_s": predicted_s * 3, "flops": predicted_s,
        }
    )  # fmt: skip
    rows = {row["method"]: row for row in judged(table)}
    assert rows[CALIBRATED]["networks"] == 10
    assert rows[FORECAST]["bad_thrown_away"] < 0.1 < 0.5 < rows[CALIBRATED]["bad_thrown_away"]
    assert rows[FORECAST]["good_thrown_away"] == 0
