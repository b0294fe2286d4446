"""Predicted seconds: quantiles of a known distribution, the interval on unseen workloads, files."""

from dataclasses import replace

import numpy as np
import pytest

from experiments.forecast.fit import COVERED, fit_forecast, weighted_quantile
from pruner.errors import DataError
from pruner.models.analyzer.columns import DRAFT_COLUMNS, SCORE
from pruner.models.forecast import Forecast, LatencyForecast, forecast_of, forecast_path
from pruner.paths import conf_folder
from pruner.program.device import load_device

pytest.importorskip("lightgbm")
PER_TASK, TASKS = 60, 80
TERM = 3  # a column that decides the error
NAMES = [column.name for column in DRAFT_COLUMNS]


@pytest.fixture(scope="module")
def device():
    return load_device(conf_folder() / "platform" / "cpu-avx2.yaml")


def drawn(seed, spread=0.3):
    """Programs whose latency is the analyzer's, times e^TERM, times a factor of the workload."""
    rng = np.random.default_rng(seed)
    task = np.repeat(np.arange(TASKS), PER_TASK)
    columns = np.zeros((len(task), len(NAMES)), dtype=np.float32)
    columns[:, SCORE] = rng.uniform(3, 9, len(task))
    columns[:, TERM] = rng.integers(0, 2, len(task))
    error = columns[:, TERM] + spread * rng.standard_normal(len(task))
    error += spread * rng.standard_normal(TASKS)[task]  # what no column explains
    return columns, np.exp(error - columns[:, SCORE]), task


@pytest.fixture(scope="module")
def forecast():
    columns, latency_s, task = drawn(0)
    return fit_forecast(columns, latency_s, task, task, ["cpu-avx2"] * len(task))


def test_a_network_is_the_sum_of_its_calls(device):
    columns, _, _ = drawn(1)
    one, other = (forecast_of(columns[rows], [1.0], device) for rows in (slice(0, 1), slice(7, 8)))
    both = forecast_of(columns[[0, 7]], [3.0, 2.0], device)
    wanted = [3 * a + 2 * b for a, b in zip(one.seconds, other.seconds, strict=True)]
    assert both.seconds == pytest.approx(wanted)
    assert forecast_of([], [], device) is None
    a100, t4 = (load_device(conf_folder() / "platform" / f"{name}.yaml") for name in ("a100", "t4"))
    assert forecast_of(columns[:1], [1.0], a100) is not None
    assert forecast_of(columns[:1], [1.0], t4) is None  # no record of it, so no promise
    assert str(Forecast(low_s=1e-3, median_s=0.0123456, high_s=0.1)) == "12.3 ms (1 to 100)"


def test_the_median_follows_the_deciding_column_and_the_interval_holds(forecast, device):
    columns, latency_s, _ = drawn(1)
    low, median, high = forecast(columns, device).T
    factor = median * np.exp(columns[:, SCORE])
    for term in (0, 1):
        assert np.median(factor[columns[:, TERM] == term]) == pytest.approx(np.exp(term), rel=0.15)
    covered = np.mean((low <= latency_s) & (latency_s <= high))
    assert COVERED - 0.05 < covered < COVERED + 0.06
    # the exact interval of two normals of .3 each
    exact = np.exp(2 * 1.645 * 0.3 * np.sqrt(2))
    assert np.median(high / low) == pytest.approx(exact, rel=0.25)


def test_a_platform_without_programs_has_a_wider_interval(device):
    """Two platforms whose analyzers err by a factor of e apart: a third may err so, too."""
    columns, latency_s, task = drawn(0, spread=0.05)
    names = np.where(task % 2 == 0, "cpu-avx2", "cpu-sse4")
    latency_s = latency_s * np.where(task % 2 == 0, 1.0, np.e)
    forecast = fit_forecast(columns, latency_s, task, task // 2, names)
    strange = replace(device, name="another")
    width, wider = (np.log(h / low) for low, _, h in
                    (forecast(columns, one).T for one in (device, strange)))  # fmt: skip
    assert np.median(wider) > np.median(width) + 0.5


def test_nothing_is_faster_than_the_peak(forecast, device):
    columns, _, _ = drawn(2)
    operations = 1e12
    columns[:, NAMES.index("cpu.comp_count")] = np.log2(1 + operations)
    assert forecast(columns, device).min() >= operations / device.peak_flops_per_s * (1 - 1e-6)


def test_a_file_gives_the_same_numbers_and_a_damaged_file_is_refused(forecast, device, tmp_path):
    columns, _, _ = drawn(3)
    path = tmp_path / "forecast.safetensors"
    forecast.save(path)
    again = LatencyForecast.load(path)
    np.testing.assert_array_equal(again(columns, device), forecast(columns, device))
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="checksum"):
        LatencyForecast.load(path)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_the_bundled_forecasts_load(kind):
    LatencyForecast.load(forecast_path(kind))


def test_a_weighted_quantile_counts_weights():
    values, weight = np.array([3.0, 1.0, 2.0]), np.array([1.0, 6.0, 3.0])
    found = [weighted_quantile(values, weight, share) for share in (0.1, 0.6, 0.61, 0.9, 0.91, 1)]
    assert found == [1, 1, 2, 2, 3, 3]
