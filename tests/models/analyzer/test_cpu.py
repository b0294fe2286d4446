"""The analyzer on CPUs and on loop nests: arithmetic, switches, calibration, errors."""

import dataclasses

import numpy as np
import pytest

from pruner.errors import DataError, PrunerError
from pruner.features.symbols.symbol_table import CPU_COLUMNS, Symbols, fill
from pruner.models.analyzer.analyzer import Analyzer, load_analyzer
from pruner.models.analyzer.constants import (
    CPU_TERMS,
    CpuRates,
    load_constants,
    save_constants,
    without,
)
from pruner.models.analyzer.estimates import WATTS_PER_UNIT, code_bytes, energy_model_j
from pruner.models.analyzer.quality import FREE, Sample, calibrate
from pruner.program import replay
from pruner.program.device import device_from_mapping
from pruner.program.te.apply import apply
from pruner.program.te.lower import lower
from pruner.program.te.skeleton import group_programs
from tests.features.matmul_skeleton import matmul_dag, matmul_steps
from tests.features.symbols.test_cpu import tiled_steps
from tests.paths import CONF

N = 256


def cpu(name="cpu-avx2", **options) -> Analyzer:
    return load_analyzer(CONF, name, **options)


def one(**values) -> Symbols:
    """One statement that does nothing but what `values` say; a plain loop over vectors of eight."""
    table = dict.fromkeys((c.name for c in CPU_COLUMNS), 0.0)
    table |= dict.fromkeys(("balance", "tile", "accumulators", "steps", "written", "body"), 1.0)
    table |= {"lanes": 8.0, **values}
    filled = fill(CPU_COLUMNS, [table], 1)
    return Symbols(values=filled, scopes=(0,), reductions=(False,), columns=CPU_COLUMNS)


def seconds(analyzer, **values):
    return float(analyzer.latency_s(one(**values))[0])


def test_arithmetic_and_bytes_that_miss_a_cache_by_hand():
    device = cpu().device
    assert seconds(cpu(), comp_count=1e9) == pytest.approx(1e9 / device.peak_flops_per_s)
    assert seconds(cpu(), comp_count=1e9, lanes=1) == pytest.approx(8e9 / device.peak_flops_per_s)
    assert seconds(cpu(), comp_count=1e9, balance=0.5) == pytest.approx(
        2e9 / device.peak_flops_per_s
    )
    device, rates = cpu().device, CpuRates()
    cores = device.clock_hz * device.num_cores
    assert seconds(cpu(), l1_traffic=1e6) == pytest.approx(1e6 / rates.l1_bytes / cores)
    assert seconds(cpu(), l2_traffic=1e6) == pytest.approx(1e6 / rates.l2_bytes / cores)
    assert seconds(cpu(), l3_traffic=1e6) == pytest.approx(
        1e6 / (device.dram_bytes_per_s * rates.dram)
    )


def test_the_front_end_and_spilled_results_by_hand():
    """Four instructions a cycle; a tile that fills the registers with its operands."""
    analyzer = cpu("cpu-avx2")
    cycles = 1 / analyzer.device.clock_hz / analyzer.device.num_cores
    # a million operations on vectors, each with the two instructions of its loop
    assert seconds(analyzer, iterations=8e6) == pytest.approx(3e6 / 4 * cycles)
    unrolled = seconds(analyzer, iterations=8e6, body=100.0)
    assert unrolled == pytest.approx(1.02e6 / 4 * cycles)
    assert analyzer.device.vector_registers == 16

    def reduction(**values):
        table = {"steps": 1e12, "vector_stores": 8e6, **values}
        symbols = dataclasses.replace(one(**table), reductions=(True,))
        return float(analyzer.latency_s(symbols)[0])

    # 14 results and two operands: half of the spilling, .75 of the results stored and loaded again
    again = 0.75 * 8e6
    both = (0.5**4 + 1 + (2 / 4) ** 4) ** (1 / 4)  # loads, stores, instructions
    assert reduction(accumulators=14.0) == pytest.approx(again * both * cycles, rel=1e-3)
    assert reduction(accumulators=6.0) < 0.01 * reduction(accumulators=28.0)
    # a tile of two steps loads and stores half as many results as it has operations
    halves = (2 * (2 / 4) ** 4 + 1) ** (1 / 4)  # loads, instructions, stores
    assert reduction(steps=2.0) == pytest.approx(4e6 * halves * cycles, rel=1e-3)
    # lanes that are written out with reduction steps, which the compiler finds in part
    busy = {"vector_stores": 0.0, "comp_count": 1e9, "automatic": 1.0}
    assert reduction(**busy, written=8.0) == pytest.approx((1 + 0.2 * 7 / 8) * reduction(**busy))
    # prefetchers work beside the arithmetic
    moved = {"vector_stores": 0.0, "comp_count": 32e6, "l1_traffic": 32e6}
    assert reduction(**moved) == pytest.approx(2 ** (1 / 4) * 1e6 * cycles)


def test_every_switch_changes_something():
    rng = np.random.default_rng(0)
    steps = tilings(rng, 40)
    analyzer = cpu()
    assert without(CPU_TERMS, "c") == {"register_m", "cache_m"}
    every = analyzer.score_steps(matmul_dag(N, N, N), steps)
    for group in ("c", "m"):
        less = cpu(without=group).score_steps(matmul_dag(N, N, N), steps)
        assert (less != every).any()
    assert without(CPU_TERMS, "m") == set(CPU_TERMS) - {"register_m", "cache_m"}


def tilings(rng, count):
    return [
        tiled_steps(
            N,
            tuple(int(x) for x in rng.choice([1, 2, 4], 3)),
            tuple(int(x) for x in rng.choice([1, 2, 4, 8], 3)),
            int(rng.choice([1, 4, 16])),
            unroll=int(rng.choice([0, 16, 64, 512])),
        )
        for _ in range(count)
    ]


def test_a_register_tile_beats_a_plain_loop_and_a_tile_beyond_the_registers():
    tile = tiled_steps(N, (2, 8, 4), (2, 1, 16), 4)
    plain = tiled_steps(N, (2, 128, 1), (1, 1, 1), 1, vector=False)
    beyond = tiled_steps(N, (2, 1, 32), (2, 1, 64), 4, unroll=512)
    scores = cpu().score_steps(matmul_dag(N, N, N), [tile, plain, beyond])
    assert scores[0] > scores[2] > scores[1]


def test_a_damaged_record_costs_its_own_score_only(monkeypatch):
    """One that the engine stumbles over, and one that contradicts the loop it splits."""
    rng, dag = np.random.default_rng(0), matmul_dag(N, N, N)
    steps = tilings(rng, 20)
    whole = cpu().score_steps(dag, steps)
    worst, best = int(np.argmin(whole)), int(np.argmax(whole))
    split = next(step for step in steps[best] if step[0] == "SP")
    split[3] = N + 1

    def failing(schedule):
        symbols = cpu().symbols(lower(schedule))
        if np.isclose(-np.log(cpu().latency_s(symbols)), whole[worst]).any():
            raise AssertionError("the worst")
        return lower(schedule)

    monkeypatch.setattr(replay, "lower", failing)
    found = cpu().score_steps(dag, steps)
    bad = np.isin(np.arange(20), (best, worst))
    np.testing.assert_allclose(found, np.where(bad, -np.inf, whole))


@pytest.mark.parametrize("name", ["cpu-avx512", "v100"])
def test_nests_and_steps_have_the_same_scores(name):
    rng, analyzer = np.random.default_rng(0), cpu(name)
    dag = matmul_dag(N, N, N)
    steps = tilings(rng, 10) if name.startswith("cpu") else gpu_tilings(rng, 10)
    from_steps = analyzer.score_steps(dag, steps)
    for group in group_programs(steps)[0]:
        from_nests = analyzer.score_nests(lower(apply(dag, group.skeleton, group.decisions)))
        legal = np.isfinite(from_nests)
        assert legal.any()
        assert np.allclose(from_nests[legal], from_steps[group.rows][legal])


def gpu_tilings(rng, count):
    return [
        matmul_steps(N, N, N, (1, 4, 2, 2), (1, int(rng.choice([4, 8, 16])), 2, 2), (4, 2))
        for _ in range(count)
    ]


def test_too_many_threads_do_not_fit():
    dag = matmul_dag(N, N, N)
    steps = [matmul_steps(N, N, N, (1, t, 2, 2), (1, t, 2, 2), (4, 2)) for t in (8, 64)]
    group = group_programs(steps)[0][0]
    scores = cpu("v100").score_nests(lower(apply(dag, group.skeleton, group.decisions)))
    assert np.isfinite(scores[0])
    assert np.isneginf(scores[1])  # 4,096 threads


def test_calibration_recovers_the_rates_of_another_cpu(tmp_path):
    rng, analyzer = np.random.default_rng(0), cpu()
    dag, steps = matmul_dag(N, N, N), tilings(rng, 120)
    rates = CpuRates(load=3.0, store=6.0, l1_bytes=4.0)
    constants = dataclasses.replace(analyzer.constants, rates=rates)
    truth = dataclasses.replace(analyzer, constants=constants)
    groups = group_programs(steps)[0]
    parts = [analyzer.symbols(lower(apply(dag, g.skeleton, g.decisions))) for g in groups]
    latency_s = np.concatenate([truth.latency_s(symbols) for symbols in parts])
    fit = calibrate([Sample(symbols=tuple(parts), latency_s=latency_s)], analyzer, ridge=0.01)
    assert fit.num_programs == 120
    assert fit.error_after < 0.2 * fit.error_before
    assert set(FREE[CpuRates]) == set(dataclasses.asdict(rates))
    save_constants(tmp_path / "mine.yaml", fit.constants)
    assert load_constants(tmp_path, "mine", CpuRates) == fit.constants


def test_bad_input_is_one_line_that_names_the_fix(tmp_path):
    with pytest.raises(PrunerError, match=r"the paper form is for GPUs; use draft\.form=hardware"):
        cpu(form="paper")
    with pytest.raises(DataError, match="known platforms: a100"):
        cpu("cpu-none")
    values = dataclasses.asdict(cpu().device) | {"kind": "cpu"}
    del values["vector_registers"]
    with pytest.raises(DataError, match="missing vector_registers; add each with its source"):
        device_from_mapping(values)
    (tmp_path / "x.yaml").write_text("rates: {spills: 1}\n")
    with pytest.raises(DataError, match="unknown spills; known: load, store"):
        load_constants(tmp_path, "x", CpuRates)


def test_code_and_joules_by_hand():
    device = cpu().device

    def joules(latency_s=0.0, **values):
        return float(energy_model_j(one(**values), np.array([latency_s]), device)[0])

    assert joules(comp_count=1e12) == pytest.approx(0.85)
    assert joules(l3_traffic=8e9) == pytest.approx(1.3)
    watts = device.num_cores * WATTS_PER_UNIT["cpu"]
    assert joules(latency_s=2.0) == pytest.approx(2.0 * watts)
    assert joules(1.0, comp_count=1e12, l3_traffic=8e9) == pytest.approx(
        0.85 + 1.3 + device.num_cores * 3.125
    )
    rolled, unrolled = (float(code_bytes(one(body=body))[0]) for body in (1.0, 512.0))
    assert unrolled - rolled == pytest.approx(511 * 40.0)
