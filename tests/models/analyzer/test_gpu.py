"""The analyzer: the release to the digit, the paper's form by hand, calibration, bad input."""

import dataclasses
from dataclasses import replace

import numpy as np
import pytest

from pruner.errors import PrunerError
from pruner.features.batch import FeatureSpec, featurize
from pruner.features.symbols.gpu import gpu_symbols
from pruner.features.symbols.symbol_table import OFFICIAL_COLUMNS, Symbols
from pruner.models.analyzer.analyzer import load_analyzer
from pruner.models.analyzer.columns import DRAFT_COLUMNS, NUM_DRAFT_COLUMNS, SCORE, draft_columns
from pruner.models.analyzer.constants import (
    CPU_TERMS,
    HARDWARE_TERMS,
    OFFICIAL_TERMS,
    GpuRates,
    load_constants,
    without,
)
from pruner.models.analyzer.hardware import hardware_latency_s
from pruner.models.analyzer.paper import official_latency_ms, paper_latency_s
from pruner.models.analyzer.quality import (
    Sample,
    TaskSymbols,
    calibrate,
    cross_calibrated,
    sample_programs,
)
from pruner.paths import conf_folder
from pruner.program.dag.dag import ComputeDAG
from pruner.program.device import GpuDevice, load_device
from pruner.program.nests import SHARED
from pruner.program.replay import replay
from pruner.program.te.apply import apply
from pruner.program.te.lower import lower
from pruner.program.te.skeleton import group_programs
from tests.features.matmul_skeleton import in_type, matmul_dag, matmul_steps
from tests.paths import CONF

EXAMPLES = [  # docs/paper.md 2.6: platform, shape m n k, rows, columns, reduce, milliseconds
    ("a100_40", (128, 128, 128), (1, 8, 2, 2), (1, 8, 2, 2), (4, 2), 3.58184e-3),
    ("a100_40", (1024, 1024, 1024), (2, 8, 2, 2), (2, 8, 2, 2), (4, 4), 0.188110),
    ("titanv", (1024, 960, 1024), (1, 8, 4, 4), (1, 6, 2, 5), (8, 4), 0.388813),
]


def gpu(platform: str) -> GpuDevice:
    device = load_device(CONF / "platform" / f"{platform}.yaml")
    assert isinstance(device, GpuDevice)
    return device


@pytest.mark.parametrize(
    ("platform", "shape", "rows", "columns", "reduce", "expected_ms"), EXAMPLES
)
def test_worked_examples_to_the_digit(platform, shape, rows, columns, reduce, expected_ms):
    m, n, k = shape
    steps = matmul_steps(m, k, n, rows, columns, reduce)
    batch = featurize(matmul_dag(m, k, n), [steps], FeatureSpec(psa=True))
    latency_ms = official_latency_ms(batch.psa[None], gpu(platform))
    assert latency_ms[0] == pytest.approx(expected_ms, rel=5e-6)


def test_official_switches_and_failed_programs():
    m, n, k = EXAMPLES[2][1]
    batch = featurize(
        matmul_dag(m, k, n),
        [matmul_steps(m, k, n, *EXAMPLES[2][2:5])],
        FeatureSpec(psa=True),
    )
    whole = official_latency_ms(batch.psa[None], gpu("titanv"))[0]
    # Without the register term the arithmetic is 186 / 128 faster: 0.351967 ms less that share.
    lean = official_latency_ms(
        batch.psa[None], gpu("titanv"), without(OFFICIAL_TERMS, "registers")
    )[0]
    assert whole - lean == pytest.approx(0.351967 * (1 - 128 / 186), rel=1e-5)
    assert official_latency_ms(np.zeros((1, 4, len(OFFICIAL_COLUMNS))), gpu("titanv"))[0] == np.inf


def test_penalties_of_the_paper_form_by_hand_on_a_small_grid():
    """E1 on an A100: 16 blocks of 2 warps for 108 multiprocessors of 4 schedulers."""
    m, n, k = 128, 128, 128
    symbols = symbols_of(matmul_dag(m, k, n), [matmul_steps(m, k, n, *EXAMPLES[0][2:5])])
    analyzer = load_analyzer(CONF, "a100_40", form="paper")
    device = analyzer.device
    # a thread does 4,096 operations on 16 results and 2 x 4 x 128 operands
    reuse = 1 / (1 + 1 / (1 + 4096 / 1040))
    assert reuse == pytest.approx(0.8316, abs=1e-4)
    compute = reuse * (64 / 64) * (2 / 4) * (16 / 108)
    compute_s = 2 * 128**3 / (device.peak_flops_per_s * compute)
    # as the release has it, to the digit (docs/paper.md 2.6: t_c)
    assert compute_s == pytest.approx(3.49353e-6, rel=5e-6)
    a_s = 65536 * 4 / (device.dram_bytes_per_s * 8 / 32)  # 24 registers and 512 elements fit
    b_s = 65536 * 4 / device.dram_bytes_per_s
    write_s = 16384 * 4 / device.dram_bytes_per_s
    assert analyzer.latency_s(symbols)[0] == pytest.approx(compute_s + a_s + b_s + write_s)


def test_penalties_of_the_paper_form_by_hand_where_registers_spill():
    """E3 on a TITAN V: 48 threads fill 3 / 4 of two warps, 186 of 128 registers, 128 blocks on 80.

    The spilled registers slow the loads of the product, not the write of its result.
    """
    m, n, k = 1024, 960, 1024
    symbols = symbols_of(matmul_dag(m, k, n), [matmul_steps(m, k, n, *EXAMPLES[2][2:5])])
    analyzer = load_analyzer(CONF, "titanv", form="paper")
    device = analyzer.device
    reuse = 1 / (1 + 1 / (1 + 327680 / (160 + 26 * 1024)))
    compute = reuse * 48 / 64 * 128 / 160  # more blocks than multiprocessors: schedulers are busy
    compute_s = 2 * m * n * k / (device.peak_flops_per_s * compute)
    spilled = device.dram_bytes_per_s * 128 / 186
    a_s = 16 * m * k * 4 / spilled  # rows of k1 k2 = 32 elements are whole transactions
    b_s = 8 * n * k * 4 / (spilled * 60 / 64)  # 60 elements in two
    write_s = m * n * 4 / (device.dram_bytes_per_s * 60 / 64)
    assert analyzer.latency_s(symbols)[0] == pytest.approx(compute_s + a_s + b_s + write_s)


def only(name):
    return {name} - {None}


@pytest.mark.parametrize(
    ("term", "compute", "loads", "loads_b", "write"),
    [
        (None, 1, 1, 1, 1),
        ("reuse_c", 1 / (1 + 1 / (1 + 327680 / 26784)), 1, 1, 1),  # 160 + 26 * 1024 moved
        ("warp_c", 48 / 64, 1, 1, 1),
        ("wave_c", 128 / 160, 1, 1, 1),
        ("registers_m", 1, 128 / 186, 128 / 186, 1),  # min(m_l0 / S1, 1)
        ("shared_m", 1, 1 / 2, 1 / 2, 1),  # min(m_l1 / S3, 1): 6,016 elements, half fits
        ("transaction_m", 1, 1, 60 / 64, 60 / 64),  # S7 = 32 and 60 elements of 32
    ],
)
def test_every_penalty_of_the_paper_alone_by_hand(term, compute, loads, loads_b, write):
    """docs/paper.md 2.3, on E3: Eq. 1's sum with the peak and the bandwidth times one factor."""
    m, n, k = EXAMPLES[2][1]
    symbols = symbols_of(matmul_dag(m, k, n), [matmul_steps(m, k, n, *EXAMPLES[2][2:5])])
    device = dataclasses.replace(gpu("titanv"), shared_bytes_per_block=6016 * 4 // 2)
    bandwidth = device.dram_bytes_per_s
    expected_s = 2 * m * n * k / (device.peak_flops_per_s * compute)
    expected_s += 16 * m * k * 4 / (bandwidth * loads) + 8 * n * k * 4 / (bandwidth * loads_b)
    expected_s += m * n * 4 / (bandwidth * write)
    assert paper_latency_s(symbols, device, only(term))[0] == pytest.approx(expected_s)


def test_paper_form_by_hand_in_half_precision():
    """E1 again: half the bytes, twice the elements in a transaction, the peak of float16."""
    m, n, k = 128, 128, 128
    steps = [matmul_steps(m, k, n, *EXAMPLES[0][2:5])]
    symbols = symbols_of(matmul_dag(m, k, n), steps, "float16")
    analyzer = load_analyzer(CONF, "a100_40", form="paper", without="c")
    device = analyzer.device
    compute_s = 2 * 128**3 / (4 * device.peak_flops_per_s)  # [ampere]: 78 of 19.5 TFLOPS
    a_s = 65536 * 2 / (device.dram_bytes_per_s * 8 / 64)  # runs of 8 of 64 elements
    b_s = 65536 * 2 / (device.dram_bytes_per_s * 32 / 64)
    write_s = 16384 * 2 / (device.dram_bytes_per_s * 32 / 64)
    assert analyzer.latency_s(symbols)[0] == pytest.approx(
        compute_s + a_s + b_s + write_s, rel=1e-4
    )


def test_limits_count_the_bytes_of_a_type():
    """Two tiles of 128 x 64: 64 KiB of float32 are over the limit, 32 KiB of float16 are not."""
    steps = [matmul_steps(256, 256, 256, (1, 16, 4, 2), (1, 16, 4, 2), (8, 8))]
    analyzer, dag = load_analyzer(CONF, "a100"), matmul_dag(256, 256, 256)
    for dtype, fits in (("float32", False), ("float16", True)):
        symbols = symbols_of(dag, steps, dtype)
        assert symbols["l1_mem_alloc"].sum() == 2 * 128 * 64
        assert analyzer.fits_limits(symbols).tolist() == [fits]


def symbols_of(dag: ComputeDAG, steps: list, dtype: str = "float32") -> Symbols:
    (group,) = group_programs(steps)[0]
    return gpu_symbols(in_type(lower(apply(dag, group.skeleton, group.decisions)), dtype))


def steps_of(rng: np.random.Generator, count: int) -> list:
    out = []
    for _ in range(count):
        rows, columns = (tuple(int(2**e) for e in rng.integers(0, 3, 4)) for _ in range(2))
        reduce = tuple(int(2**e) for e in rng.integers(0, 4, 2))
        unroll = int(rng.choice([0, 64, 512]))
        out.append(matmul_steps(256, 256, 256, rows, columns, reduce, unroll=unroll))
    return out


def test_spills_and_rolled_tiles_cost_time():
    dag = matmul_dag(1024, 1024, 1024)
    fits = matmul_steps(1024, 1024, 1024, (2, 8, 2, 2), (2, 8, 2, 2), (4, 4))
    spills = matmul_steps(1024, 1024, 1024, (1, 16, 4, 4), (1, 16, 4, 8), (4, 4))
    rolled = matmul_steps(1024, 1024, 1024, (2, 8, 4, 1), (2, 8, 4, 1), (1, 128), unroll=0)
    scores = load_analyzer(CONF, "v100").score_steps(dag, [fits, spills, rolled])
    assert scores[0] > scores[1]
    assert scores[0] > scores[2]


def test_registers_are_those_of_the_block_or_of_the_largest_one():
    """64 threads with a tile of 64 + 16 registers: V100 gives a thread 255, MI50 64."""
    dag = matmul_dag(1024, 1024, 1024)
    steps = matmul_steps(1024, 1024, 1024, (1, 8, 4, 2), (1, 8, 4, 2), (4, 4))
    symbols = symbols_of(dag, [steps])
    assert symbols["l0_mem_alloc"].max() == 64 + 8 + 8
    cost = {}
    for platform in ("v100", "mi50"):
        analyzer = load_analyzer(CONF, platform)
        seconds = [
            hardware_latency_s(symbols, analyzer.device, analyzer.constants, on)[0]
            for on in (HARDWARE_TERMS, without(HARDWARE_TERMS, "spill_m"))
        ]
        cost[platform] = seconds[0] / seconds[1]
    assert cost["v100"] == 1
    assert cost["mi50"] > 2


def test_calibration_recovers_the_order_of_another_device():
    rng = np.random.default_rng(0)
    analyzer = load_analyzer(CONF, "v100")
    symbols = symbols_of(matmul_dag(256, 256, 256), steps_of(rng, 120))
    changed = load_constants(CONF / "draft", "v100", GpuRates)

    rates = dataclasses.replace(changed.rates, shared_load=10.0, stage=40.0, step_cycles=2000.0)
    truth = dataclasses.replace(analyzer, constants=dataclasses.replace(changed, rates=rates))
    sample = Sample(symbols=(symbols,), latency_s=truth.latency_s(symbols))
    fit = calibrate([sample], analyzer, ridge=0.01)
    assert fit.num_programs == 120
    assert fit.error_after < 0.2 * fit.error_before
    assert fit.constants.rates.shared_load > analyzer.constants.rates.shared_load


def test_only_the_free_rates_are_fitted():
    rng = np.random.default_rng(0)
    analyzer = load_analyzer(CONF, "v100").uncalibrated()
    symbols = symbols_of(matmul_dag(256, 256, 256), steps_of(rng, 40))
    truth = with_rates(stage=40.0, spill=30.0)
    sample = Sample(symbols=(symbols,), latency_s=truth.latency_s(symbols))
    fit = calibrate([sample], analyzer, ridge=0.01, free=("stage", "spill"))
    before, after = (dataclasses.asdict(one.rates) for one in (analyzer.constants, fit.constants))
    assert {name for name in before if before[name] != after[name]} <= {"stage", "spill"}
    assert after["stage"] == pytest.approx(40.0, rel=0.1)
    still = calibrate([sample], analyzer, max_steps=0)
    assert still.error_after == still.error_before > 0


def test_programs_of_every_task_are_drawn_if_wanted():
    rng = np.random.default_rng(0)
    analyzer = load_analyzer(CONF, "v100").uncalibrated()
    tasks = []
    for number in range(25):  # more than are calibrated to, and too small for it
        symbols = symbols_of(matmul_dag(256, 256, 256), steps_of(rng, 4))
        known = {"name": f"task-{number}", "identity": "", "latency_s": np.ones(4)}
        tasks.append(TaskSymbols(**known, groups=((np.arange(4), symbols),)))
    assert sample_programs(tasks, analyzer, 75, rng) == []
    drawn = sample_programs(tasks, analyzer, 75, rng, every_task=True)
    assert {one.task for one in drawn} == {task.name for task in tasks}
    assert [len(one.latency_s) for one in drawn] == [3] * 25


def test_a_calibration_to_nothing_is_refused():
    with pytest.raises(PrunerError, match="measure 50"):
        calibrate([], load_analyzer(CONF, "v100"))


def test_committed_rates_say_what_they_were_fitted_to():
    files = sorted((CONF / "draft").glob("*.yaml"))
    assert files
    for path in files:
        constants = load_analyzer(CONF, path.stem).constants
        assert "measured programs of" in constants.origin, path


def test_rates_that_score_a_task_never_saw_its_half():
    rng = np.random.default_rng(0)
    analyzer = load_analyzer(CONF, "v100")
    tasks = []
    for number in range(6):
        symbols = symbols_of(matmul_dag(256, 256, 256), steps_of(rng, 40))
        latency_s = analyzer.latency_s(symbols) * np.exp(rng.normal(0, 0.1, 40))
        groups = ((np.arange(40), symbols),)
        name = f"task-{number}"
        known = {"name": name, "identity": name, "latency_s": latency_s, "groups": groups}
        tasks.append(TaskSymbols(**known, timed_s=np.stack([latency_s, latency_s], axis=1)))
    assert {task.fold for task in tasks} == {0, 1}
    _, fits = cross_calibrated(tasks, analyzer, 100, rng)
    for fold, fit in fits.items():
        named = {task.name for task in tasks if task.name in fit.constants.origin}
        assert named == {task.name for task in tasks if task.fold != fold}


def with_rates(**rates):
    analyzer = load_analyzer(CONF, "v100").uncalibrated()
    constants = dataclasses.replace(analyzer.constants, rates=GpuRates(**rates))
    return dataclasses.replace(analyzer, constants=constants)


def staged_product():
    """E2 on a V100: 256 blocks for 80 multiprocessors, all resident at once."""
    m, n, k = EXAMPLES[1][1]
    return symbols_of(matmul_dag(m, k, n), [matmul_steps(m, k, n, *EXAMPLES[1][2:5])])


def test_whole_waves_of_resident_blocks_by_hand():
    """3.2 blocks a multiprocessor run in one wave, so their steps are waited for once.

    No instruction costs anything here, so that the time on chip is latency alone. Without the term
    it is four rounds of a 3.2th of a block's.
    """
    symbols = staged_product()
    free = {
        "multiply_add": 0.0, "shared_load": 0.0, "bank_conflict": 0.0, "loop": 0.0, "stage": 0.0,
        "write": 0.0, "traffic": 0.0, "fetch_cycles": 0.0,
    }  # fmt: skip
    staging = [row for row, scope in enumerate(symbols.scopes) if scope == SHARED]
    steps = 1024 / 16  # of the outer reduction
    assert symbols["passes"][staging].max() == steps
    assert symbols["l2_para_info"][-1, 0] == 256
    for share, waves in ((0.0, 4 / 3.2), (1.0, 1.0), (0.5, (4 / 3.2 + 1) / 2)):
        analyzer = with_rates(**free, whole_waves=share)
        on_chip_s = analyzer.latency_s(symbols)[0] - 2e-6  # less the launch
        expected = waves * steps * 250.0 / analyzer.device.clock_hz
        assert on_chip_s == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("blocks", "threads", "last", "cycles"),
    [(4, 128, 256, 150), (1, 512, 256, 512), (80, 128, 256, 0), (256, 512, 256, 0), (4, 128, 4, 0)],
)
def test_row_sums_in_a_grid_of_few_blocks_by_hand(blocks, threads, last, cycles):
    """768 loads of a thread, one after another; a V100 has 80 multiprocessors. Each lane loads from
    a row of its own, so 512 threads take 512 cycles a load."""
    symbols, analyzer = staged_product(), with_rates()
    values, place = symbols.values.copy(), [c.name for c in symbols.columns].index
    for name, value in (("l2_para_info", blocks), ("l1_para_info", threads), ("global_loads", 768)):
        values[0, place(name)] = value
    values[-1, place("l2_para_info")] = last  # of the product: the grid of a statement of its own
    without_loads = values.copy()
    without_loads[0, place("global_loads")] = 0
    seconds, before = (
        analyzer.latency_s(replace(symbols, values=one))[0] for one in (values, without_loads)
    )
    assert analyzer.device.num_sms == 80
    assert (seconds - before) * analyzer.device.clock_hz == pytest.approx(768 * cycles, abs=1e-3)


SHAPE = (1024, 960, 1024)
TILES = [
    ((1, 8, 4, 4), (1, 6, 2, 5), (8, 4)),
    ((2, 8, 2, 2), (2, 8, 2, 2), (4, 4)),
    ((1, 4, 2, 8), (1, 16, 1, 2), (16, 2)),
]
PLACE = {column.name: place for place, column in enumerate(DRAFT_COLUMNS)}


def dag():
    return matmul_dag(SHAPE[0], SHAPE[2], SHAPE[1])


def steps():
    return [matmul_steps(SHAPE[0], SHAPE[2], SHAPE[1], *tiles) for tiles in TILES]


@pytest.mark.parametrize("platform", ["v100", "k80"])
def test_scores_and_terms_are_those_of_the_analyzer_and_its_ablations(platform):
    found = featurize(dag(), steps(), FeatureSpec(extra=draft_columns(platform)))
    assert found.valid.all()
    assert found.extra.shape == (len(steps()), NUM_DRAFT_COLUMNS)
    analyzer = load_analyzer(conf_folder(), platform).uncalibrated()
    score = analyzer.score_steps(dag(), steps())
    np.testing.assert_allclose(found.extra[:, SCORE], score, rtol=1e-5)
    for name in HARDWARE_TERMS:
        ablated = replace(analyzer, without=name).score_steps(dag(), steps())
        np.testing.assert_allclose(found.extra[:, PLACE[name]], ablated - score, atol=1e-4)


def test_symbols_are_sums_over_statements_and_those_of_the_other_kind_are_zero():
    found = featurize(dag(), steps(), FeatureSpec(extra=draft_columns("v100")))
    analyzer = load_analyzer(conf_folder(), "v100")
    for rows, nests in replay(dag(), steps(), lambda nests: nests).parts:
        total = analyzer.symbols(nests)["l2_comp_count"].sum(axis=0)
        expected = np.log2(1 + total)
        np.testing.assert_allclose(
            found.extra[rows, PLACE["gpu.l2_comp_count"]], expected, rtol=1e-5
        )
    of_cpus = [place for name, place in PLACE.items() if name.startswith("cpu.")]
    assert not found.extra[:, of_cpus].any()
    only_cpus = CPU_TERMS.keys() - HARDWARE_TERMS.keys()
    assert not found.extra[:, [PLACE[name] for name in only_cpus]].any()


def test_features_without_them_are_what_they_were():
    bare = featurize(dag(), steps())
    with_them = featurize(dag(), steps(), FeatureSpec(extra=draft_columns("v100")))
    assert bare.extra is None
    for name in ("statement", "dataflow", "row_start", "valid"):
        assert np.array_equal(getattr(bare, name), getattr(with_them, name)), name
    chosen = np.array([2, 0])
    assert np.array_equal(with_them.take(chosen).extra, with_them.extra[chosen])
