"""CPU symbols against hand arithmetic on a matrix product, and identities between them."""

import numpy as np
import pytest

from pruner.features.symbols.cpu import cpu_symbols
from pruner.program.dag.operators import dag_for_workload
from pruner.program.device import CpuDevice, load_device
from pruner.program.te.apply import apply
from pruner.program.te.lower import lower
from pruner.program.te.skeleton import group_programs
from tests.features.matmul_skeleton import in_type, matmul_dag
from tests.paths import CONF

PLATFORMS = CONF / "platform"
LINE = 64


def device(name="cpu-avx2") -> CpuDevice:
    loaded = load_device(PLATFORMS / f"{name}.yaml")
    assert isinstance(loaded, CpuDevice)
    return loaded


def tiled_steps(n, rows, columns, inner, *, unroll=64, vector=True):
    """C = A B, all n by n: i0 j0 (parallel) i1 j1 k0 i2 j2 k1 i3 j3 (vector)."""
    steps = [
        ["SP", 2, 0, n, list(rows), 1],
        ["SP", 2, 4, n, list(columns), 1],
        ["SP", 2, 8, n, [inner], 1],
        ["RE", 2, [0, 4, 1, 5, 8, 2, 6, 9, 3, 7]],
        ["FU", 2, [0, 1]],
        ["AN", 2, 0, 3],
        ["PR", 2, 0, f"auto_unroll_max_step${unroll}"],
    ]
    return [*steps, ["AN", 2, 8, 2]] if vector else steps


def symbols_of(steps, n, name="cpu-avx2", dtype="float32"):
    group = group_programs([steps])[0][0]
    nests = in_type(lower(apply(matmul_dag(n, n, n), group.skeleton, group.decisions)), dtype)
    symbols = cpu_symbols(nests, device(name))
    return {c.name: float(symbols[c.name][-1, 0]) for c in symbols.columns}


def test_a_tiled_matrix_product():
    n = 128  # i: 4 x 4 x 1 x 8, j: 4 x 1 x 2 x 16, k: 32 x 4
    s = symbols_of(tiled_steps(n, (4, 1, 8), (1, 2, 16), 4), n)
    assert s["comp_count"] == 2 * n**3
    assert s["iterations"] == n**3
    assert s["parallel"] == 4 * 4
    assert s["balance"] == 1.0
    assert s["regions"] == 1
    assert s["lanes"] == 8  # 16 columns in two registers of 8 floats
    assert s["automatic"] == 0
    assert s["tile"] == 8 * 16 / 8
    assert s["accumulators"] == 8 * 16 / 8
    assert s["steps"] == 4  # k1; outside of it comes j2
    assert s["written"] == 4  # k1: the pragma writes out i3, k1 and j2
    assert s["body"] == 8 * 4 * 2  # i3 k1 j2, a vector counts once
    assert s["vector_loads"] == n**3 / 8 / 8  # B: a vector serves the 8 rows of the tile
    assert s["scalar_loads"] == n**3 / 16  # A: an element serves the 16 columns
    assert s["vector_stores"] == n**3 / 8
    assert s["unique"] == 3 * n * n * 4


def test_unmarked_loops_run_in_vectors_where_a_compiler_finds_them():
    n = 128
    columns = symbols_of(tiled_steps(n, (4, 1, 8), (1, 2, 16), 4, vector=False), n)
    assert columns["automatic"] == 1
    assert columns["lanes"] == 8
    rows = symbols_of(tiled_steps(n, (1, 1, 64), (1, 128, 1), 4, unroll=0, vector=False), n)
    assert rows["lanes"] == 1  # the innermost loop strides from row to row
    assert rows["vector_loads"] == 0


def test_lanes_are_neighbours_in_the_tile_and_in_its_operands():
    n = 128
    # 8 of the 16 columns stand outside of k1: its steps have vectors of two
    outside = tiled_steps(n, (4, 1, 1), (1, 8, 2), 4, unroll=512, vector=False)
    assert symbols_of(outside, n)["lanes"] == 2
    # two rows of four columns are neighbours in C, and not in B
    steps = [
        ["SP", 2, 0, n, [2], 1],
        ["RE", 2, [0, 3, 1, 2]],
        ["PR", 2, 0, "auto_unroll_max_step$64"],
    ]
    group = group_programs([steps])[0][0]
    nests = lower(apply(matmul_dag(n, n, 4), group.skeleton, group.decisions))
    assert cpu_symbols(nests, device())["lanes"][-1, 0] == 4


def test_a_reduction_loop_of_one_step_bounds_no_tile():
    n = 128
    s = symbols_of(tiled_steps(n, (4, 1, 8), (1, 2, 16), 1), n)
    assert s["tile"] == 2 * 8 * 16 / 8  # j2 i3 j3, inside k0
    assert s["steps"] == 128


@pytest.mark.parametrize(
    ("columns", "marked", "automatic"),
    [(8, 8, 8), (4, 4, 4), (12, 12 / 2, 12 / 2), (14, 14 / 2, 14 / 3)],  # 14 = 8 + 4 + 2
)
def test_lanes_of_odd_vectors(columns, marked, automatic):
    n = columns * 16
    for vector, expected in ((True, marked), (False, automatic)):
        steps = tiled_steps(n, (1, 1, 1), (1, 1, columns), 1, unroll=0, vector=vector)
        assert symbols_of(steps, n)["lanes"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("dtype", "lanes", "bytes_"), [("float16", 8, 2), ("float64", 4, 8), ("int8", 32, 1)]
)
def test_lanes_and_bytes_of_other_types(dtype, lanes, bytes_):
    """AVX2 has 32 bytes; it has no arithmetic on float16, which compilers widen to float32."""
    n = 128
    s = symbols_of(tiled_steps(n, (4, 1, 1), (1, 1, 64), 4), n, dtype=dtype)
    assert s["lanes"] == lanes
    assert s["unique"] == 3 * n * n * bytes_
    assert s["comp_count"] == 2 * n**3


@pytest.mark.parametrize(("innermost", "shared"), [(1, 8), (2, 1), (3, 14 / 3)])
def test_padding_is_decided_once_for_a_tile_that_its_condition_lacks(innermost, shared):
    """The condition of a 3x3 convolution has rows and columns, and no output channel."""
    dag = dag_for_workload('["conv2d_layer", 1, 8, 14, 14, 8, 3, 3, 1, "SAME"]', ())
    outer = [axis for axis in (0, 1, 2, 3) if axis != innermost]
    steps = [["CI", 1], ["RE", 3, [*outer, 4, 5, 6, innermost]]]
    group = group_programs([steps])[0][0]
    s = cpu_symbols(lower(apply(dag, group.skeleton, group.decisions)), device())
    iterations = 14 * 14 * 8 * 8 * 9
    assert s["iterations"][-1, 0] == iterations
    # 14 columns are decided as three vectors: 8, 4 and 2
    assert s["choices"][-1, 0] == pytest.approx(iterations / shared)


def test_traffic_of_a_plain_matrix_product():
    n = 1024  # i (parallel) j k, nothing tiled
    s = symbols_of(
        [["RE", 2, [0, 1, 2]], ["AN", 2, 0, 3], ["PR", 2, 0, "auto_unroll_max_step$0"]], n
    )
    row, column, whole = n * 4, n * LINE, n * n * 4
    # L1 (48 KiB): one j needs a column of B in lines, 64 KiB, so nothing but single k fit
    one_j = LINE + row + column
    assert one_j > device().l1_bytes_per_core
    assert s["l1_footprint"] == 3 * LINE
    assert s["l1_traffic"] == one_j * n * n
    # L2 (2 MiB): one j fits, one i does not (B is 4 MiB): rows of C and A and all of B for each i
    assert s["l2_footprint"] == one_j
    assert s["l2_traffic"] == (row + row + whole) * n
    # L3 holds everything, and repeated runs find it there
    assert s["l3_footprint"] == s["unique"] == 3 * whole
    assert s["l3_traffic"] == 0


def test_identities_of_random_tilings():
    rng, n = np.random.default_rng(0), 256
    steps = [
        tiled_steps(
            n,
            tuple(int(x) for x in rng.choice([1, 2, 4, 8], 3)),
            tuple(int(x) for x in rng.choice([1, 2, 4, 8], 3)),
            int(rng.choice([1, 4, 16])),
            unroll=int(rng.choice([0, 16, 64, 512])),
        )
        for _ in range(60)
    ]
    for group in group_programs(steps)[0]:
        nests = lower(apply(matmul_dag(n, n, n), group.skeleton, group.decisions))
        s = cpu_symbols(nests, device())
        assert (s["comp_count"] == 2 * n**3).all()
        assert (s["unique"] == 3 * n * n * 4).all()
        assert (s["l1_traffic"] >= s["l2_traffic"]).all()
        assert (s["l2_traffic"] >= s["l3_traffic"]).all()
        assert (s["l1_footprint"] <= s["l2_footprint"]).all()
        assert ((s["lanes"] >= 1) & (s["lanes"] <= 8)).all()
        assert (s["accumulators"] <= s["tile"] + 1e-9).all()
        assert (s["written"] <= s["body"]).all()
        assert ((s["balance"] > 0) & (s["balance"] <= 1)).all()


def test_a_reduction_of_one_step_has_the_tile_of_its_body():
    steps = [["RE", 2, [0, 1, 2]], ["AN", 2, 0, 3], ["PR", 2, 0, "auto_unroll_max_step$64"]]
    group = group_programs([steps])[0][0]
    nests = lower(apply(matmul_dag(64, 1, 64), group.skeleton, group.decisions))
    s = cpu_symbols(nests, device())
    assert s["tile"][-1, 0] * s["lanes"][-1, 0] == 64  # a row; the rows are parallel
