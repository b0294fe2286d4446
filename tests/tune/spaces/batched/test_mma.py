"""Spaces of ``mma`` instructions, which copy ahead of their use, against what TVM makes of them.

In fragments: m = m0 .. m4 of 16 rows, n = n0 .. n4 of 8 columns, k = k0 k1 k2 of 8; a warp has
m3 m4 by n3 n4 of results.
"""

from dataclasses import replace

import numpy as np
import pytest

from pruner.features import DATAFLOW_COLUMNS
from pruner.features.symbols.gpu import gpu_symbols
from pruner.models.analyzer.tensor import tensor_latency_s
from pruner.program.nests import Scope
from pruner.program.tir.apply_trace import apply
from pruner.program.tir.lower import lower
from pruner.program.tir.shared import shared_bytes
from pruner.tune.compiling import compiled
from pruner.tune.spaces.batched import space as batched
from pruner.tune.spaces.batched.space import BatchedSpace
from tests.tune import tir_truth as truth
from tests.tune.designs import designs_of, kind_of
from tests.tune.some_slow import some_slow
from tests.tune.targets import device_of

pytestmark = pytest.mark.tvm

OPERATORS = {
    "relu": {"operator": "matmul", "m": 256, "n": 384, "k": 512, "epilogue": ["relu"]},
    "padded": {"operator": "matmul", "m": 256, "n": 512, "k": 61},
}
SHARED_BYTES = 166912
GPU = {"kind": "cuda", "thread_warp_size": 32, "registers_per_block": 65536}
GPU |= {"max_shared_memory_per_block": SHARED_BYTES, "max_threads_per_block": 1024}


def designs(spec, *, dtype="float16", architecture="sm_80"):
    return designs_of({**spec, "dtype": dtype}, GPU | {"arch": architecture})


def mma_space(tvm, spec):
    (design,) = [one for one in designs(spec) if kind_of(one) == "mma"]
    return design, BatchedSpace(design)


def test_spaces_are_the_union_of_instructions_and_lanes(tvm):
    matmul = [kind_of(one) for one in designs(OPERATORS["relu"])]
    assert matmul[:3] == ["wmma", "wmma", "mma"]
    assert set(matmul[3:]) == {"lanes"}
    turing = designs(OPERATORS["relu"], architecture="sm_75")  # has no asynchronous copies
    assert {kind_of(one) for one in turing} == {"wmma", "lanes"}
    assert "mma" in {kind_of(one) for one in designs(OPERATORS["relu"], architecture="sm_90a")}
    lanes = designs(OPERATORS["relu"], architecture="sm_70")
    assert {kind_of(one) for one in lanes} == {"lanes"}
    assert {kind_of(one) for one in designs(OPERATORS["relu"], dtype="float32")} == {"lanes"}
    batch = {"operator": "batch_matmul", "batch": 4, "m": 128, "n": 128, "k": 64}
    assert {kind_of(one) for one in designs(batch)} == {"wmma", "lanes"}
    for m, more in (
        (256, {"epilogue": ["bias"]}),  # multiple buffer read
        (250, {}),  # a guard of loops that stand inside it
        (208, {}),  # 13 fragments of rows, which are loaded two at a time
    ):
        unfinished = designs({"operator": "matmul", "m": m, "n": 512, "k": 64, **more})
        assert {kind_of(one) for one in unfinished} == {"wmma", "lanes"}


def test_pipelines_that_copy_ahead_are_compiled_with_asynchronous_copies(tvm):
    """Of mma and of two of three spaces on lanes, whose pipelines would else be for nothing."""
    found = []
    for design in designs({"operator": "matmul", "m": 64, "n": 64, "k": 64}, dtype="float32"):
        schedule = next(s for seed in range(1, 40) if (s := design.replay(None, seed)))
        source = compiled(schedule.mod, design.target).mod.imports[0].inspect_source()
        found.append("cp.async.ca.shared" in source or "cp.async.cg.shared" in source)
        assert ("commit_group" in source) == found[-1]
    assert found == [False, True, True]


@pytest.mark.parametrize(
    ("k", "dtype", "outer", "taken"),
    [(64, "float16", 1, False), (64, "float16", 2, True), (8, "float32", 2, True)],
)
def test_waits_are_judged_as_tvms_code_generator_does(tvm, monkeypatch, k, dtype, outer, taken):
    """mma reads in the second of three stages, lanes in the last of three or four."""
    spec = {"operator": "matmul", "m": 64, "n": 64, "k": k}
    found = [one for one in designs(spec, dtype=dtype) if kind_of(one) != "wmma"]
    design = found[0] if dtype == "float16" else found[-1]
    space = batched.BatchedSpace(design)
    draws = space.sample_any(2000, np.random.default_rng(0))
    draws = draws[draws[:, 10] == outer]  # steps of the outer reduction
    judged = space.legal(draws)
    monkeypatch.setattr(batched, "waits_are_numbers", lambda tree: np.bool_(True))
    otherwise = space.legal(draws)
    assert otherwise.sum() > 2
    assert (judged == (otherwise & taken)).all()
    for row in draws[otherwise][:2]:
        module = design.replay(row, 1).mod
        if taken:
            assert "__global__" in compiled(module, design.target).mod.imports[0].inspect_source()
        else:  # else TVM is mended
            with pytest.raises(Exception, match="must become compile-time constants"):
                compiled(module, design.target)


def test_static_shared_memory_is_judged_by_its_own_limit(tvm):
    """A target may state 163 KiB, which only dynamic buffers can have."""
    for one in designs(OPERATORS["relu"]):
        limit = int(one.target.attrs["max_shared_memory_per_block"])
        assert limit == (49152 if kind_of(one) == "lanes" else SHARED_BYTES)
    for one in designs(OPERATORS["relu"], dtype="float32"):
        assert int(one.target.attrs["max_shared_memory_per_block"]) == 49152


@some_slow("operator", ["relu"], ["padded"])
def test_loops_buffers_and_verdicts_are_those_of_tvm(tvm, operator):
    design, space = mma_space(tvm, OPERATORS[operator])
    rng = np.random.default_rng(3)
    draws = np.concatenate([space.sample_any(5, rng), space.sample(1, rng)])
    assert truth.assert_programs_are_tvms(tvm, design, space, draws) == 6
    assert 0 < space.legal(draws).sum() < len(draws)


def test_the_program_of_tvms_own_test(tvm):
    """4096^3 of test_meta_schedule_mma_tensorize.py: tiles of 128 x 128 x 32, 16 warps of 32 x 32.

    With one step a copy the products read it one iteration after it was made, so that two copies
    are kept; with two steps, two iterations, and three.
    """
    design, space = mma_space(tvm, {"operator": "matmul", "m": 4096, "n": 4096, "k": 4096})
    tiles = [2, 16, 4, 1, 2, 2, 16, 4, 1, 4]
    decisions = np.array([[*tiles, 128, 1, 4, 0], [*tiles, 64, 2, 4, 0]])
    tree = apply(space.program, decisions)
    loops = truth.our_loops(tree, 0)
    threads = [(16, "threadIdx.y"), (32, "threadIdx.x")]
    blocks = [(4, "blockIdx.y"), (256, "blockIdx.x"), (16, "threadIdx.y")]
    assert loops["C_o_update"][0] == [*blocks, (128, None), (4, None), (2, None), (4, None)]
    # 128 x 32 elements in vectors of 8 are one for each of 512 threads
    assert loops["A_reindex_shared.dyn"][0] == [
        *blocks, (128, None), *threads, (8, "vectorize"),
    ]  # fmt: skip
    assert loops["C_reindex_m16n8k8.matrixC_store"][0] == [*blocks, (4, None), (4, None)]
    # eight rows of 32 columns of each of 16 warps, by 512 threads
    assert loops["C_reindex_m16n8k8.matrixC"][0] == [*blocks, (4, None), (8, None), *threads]
    buffers = truth.our_buffers(tree, lower(tree), 0)
    assert buffers["A_reindex_shared.dyn"] == (128, 32)
    assert buffers["B_reindex_shared.dyn"] == (32, 128)
    assert buffers["A_reindex_shared.dyn_m16n8k8.matrixA"] == (32, 32)
    assert buffers["B_reindex_shared.dyn_m16n8k8.matrixB"] == (32, 32)
    assert buffers["C_reindex_m16n8k8.matrixC"] == (32, 32)
    assert buffers["C_reindex_m16n8k8.matrixC_shared.dyn"] == (16, 4, 8, 8)
    ((static, dynamic),) = shared_bytes(tree).values()
    assert (static + dynamic).tolist() == [2 * 2 * 2 * 128 * 32, 3 * 2 * 2 * 128 * 64]
    assert space.legal(decisions).all()
    assert all(design.replay(row, 1) is not None for row in decisions)


def test_a_program_with_padded_depth_by_hand(tvm):
    """256 x 512 x 61 are 16 x 64 x 8 fragments: 16 x 4 blocks of two warps with 32 x 32 results.

    Tiles of 32 x 32 and 32 x 64 are 128 and 256 vectors of 8 for 64 threads. Two copies of both are
    kept, for a step of the outer reduction is one of the inner; results lie where they were.
    """
    design, space = mma_space(tvm, OPERATORS["padded"])
    decisions = np.array([[4, 2, 1, 1, 2, 4, 2, 2, 1, 4, 2, 1, 4, 0]])
    tree = apply(space.program, decisions)
    loops, buffers = truth.our_loops(tree, 0), truth.our_buffers(tree, lower(tree), 0)
    blocks = [(16, "blockIdx.y"), (4, "blockIdx.x"), (2, "threadIdx.y")]
    threads = [(2, "threadIdx.y"), (32, "threadIdx.x")]
    assert loops["C_o_update"][0] == [*blocks, (2, None), (4, None), (2, None), (4, None)]
    found = {name: buffers[name] for name in buffers if "C" not in name}
    assert sorted(found.values()) == [(32, 32), (32, 32), (32, 32), (32, 64)]
    a, b = (next(k for k in found if k[0] == x and k.endswith("shared.dyn")) for x in "AB")
    assert loops[a][0] == [*blocks, (2, None), (2, None), *threads, (8, "vectorize")]
    assert loops[b][0] == [*blocks, (2, None), (4, None), *threads, (8, "vectorize")]
    assert buffers["C_reindex_m16n8k8.matrixC"] == (32, 32)
    assert buffers["C_reindex_m16n8k8.matrixC_shared.dyn"] == (2, 4, 8, 8)
    assert loops["C_reindex_m16n8k8.matrixC_store"][0] == [*blocks, (4, None), (4, None)]
    # eight rows of 32 columns of two warps, by 64 threads
    assert loops["C_reindex_m16n8k8.matrixC"][0] == [*blocks, (4, None), (8, None), *threads]
    ((static, dynamic),) = shared_bytes(tree).values()
    assert (static + dynamic).tolist() == [2 * 2 * (32 * 32 + 32 * 64)]
    schedule, accepted = truth.replayed(tvm, design, decisions[0])
    expected = accepted and truth.permutes(tvm, schedule)
    assert space.legal(decisions).tolist() == [expected]


def test_symbols_are_those_of_the_tile_sizes(tvm):
    _, space = mma_space(tvm, OPERATORS["relu"])
    draws = space.sample(40, np.random.default_rng(4))
    m, n, k = draws[:, 0:5].T, draws[:, 5:10].T, draws[:, 10:13].T
    fm, fn, warps = m[3] * m[4], n[3] * n[4], m[2] * n[2]
    rows, columns, depth = (size * np.prod(x, axis=0) for size, x in ((16, m), (8, n), (8, k)))
    symbols = gpu_symbols(lower(apply(space.program, draws)))
    a, b, load_a, load_b, multiply, _, result = range(7)
    assert symbols.scopes[multiply] is Scope.MMA_C
    assert symbols.copies_ahead == 2
    # m16n8k8 of the PTX ISA: two registers of a 16 x 8, one of an 8 x 8, two of float16 results
    operands = (symbols["l0_mem_alloc"] * symbols["own_bytes"])[[load_a, load_b]].sum(axis=0)
    results = (symbols["accumulators"] * symbols["own_bytes"])[multiply]
    assert (operands / 4 == k[2] * (2 * fm + fn)).all()  # S1
    assert (results / 4 == 2 * fm * fn).all()
    assert (symbols["l0_comp_count"][multiply] * 32 == 2048 * fm * fn * k.prod(axis=0)).all()  # S2
    staged = (16 * m[2] * fm + 8 * n[2] * fn) * 8 * k[1] * k[2]
    copies = np.where(k[1] > 1, 3, 2)
    kept = 64 * warps * fn  # eight rows of every warp
    assert (symbols.block_bytes() >= 2 * np.maximum(copies * staged, kept)).all()  # S3
    assert (symbols.block_bytes() <= 2 * (copies * staged + kept)).all()
    assert (symbols["l1_para_info"] == 32 * warps).all()  # S4
    found = symbols["l2_mem_footprint"]
    moved = rows * depth * n[0] * n[1] + columns * depth * m[0] * m[1]
    assert (found[[a, b]].sum(axis=0) == moved).all()  # S5
    assert (found[result] == rows * columns).all()
    assert (symbols["l2_para_info"] == m[0] * n[0] * m[1] * n[1]).all()  # S6
    runs = symbols["l2_trans_dim"]  # S7: a row of a tile, all of it where rows are whole
    tile_m, tile_n, tile_k = 16 * m[2] * fm, 8 * n[2] * fn, 8 * k[1] * k[2]
    assert (runs[a] == tile_k * np.where(tile_k == depth, tile_m, 1)).all()
    assert (runs[b] == tile_n * np.where(tile_n == columns, tile_k, 1)).all()
    assert (symbols["l2_comp_count"][multiply] == 2 * rows * columns * depth).all()


def test_mutations_move_the_tiles_that_tvms_leave_alone(tvm):
    _, space = mma_space(tvm, OPERATORS["relu"])
    rng = np.random.default_rng(1)
    parents = space.sample(200, rng)
    children = space.mutate(parents, rng)
    for part, fragments, inner in ((slice(0, 5), 16, 2), (slice(5, 10), 48, 4)):
        assert (children[:, part].prod(axis=1) == fragments).all()
        assert (children[:, part][:, 3:].prod(axis=1) % inner == 0).all()
        assert (children[:, part] != parents[:, part]).any(axis=1).mean() > 0.2
    assert (children[:, 10:13].prod(axis=1) == 64).all()


def test_what_tvm_cannot_permute_is_refused_before_the_compiler(tvm):
    """Rows of 8 k1 k2 = 16 elements: all of TVM's checks pass, and then its compiler fails."""
    design, space = mma_space(tvm, OPERATORS["relu"])
    tiles = [4, 1, 2, 1, 2, 6, 1, 2, 1, 4]
    decisions = np.array([[*tiles, 32, 1, 2, 0], [*tiles, 16, 1, 4, 0]])
    schedules = [design.replay(row, 1) for row in decisions]
    assert None not in schedules
    assert [truth.permutes(tvm, one) for one in schedules] == [False, True]
    assert space.legal(decisions).tolist() == [False, True]
    # rows of 8 n2 n3 n4 elements, 96 and 64: as TVM writes the former, no nvcc takes them
    decisions = np.array(
        [[4, 1, 2, 1, 2, *n, 16, 1, 4, 0] for n in ((4, 1, 1, 12, 1), (6, 1, 1, 8, 1))]
    )
    schedules = [design.replay(row, 1) for row in decisions]
    assert [truth.permutes(tvm, one) for one in schedules] == [False, True]
    assert space.legal(decisions).tolist() == [False, True]
    texts = [compiled(one.mod, design.target).mod.imports[0].inspect_source() for one in schedules]
    assert ["make_longlong4(" in text for text in texts] == [True, False]


def test_copies_ahead_hide_behind_products(tvm):
    """The same programs without a pipeline take longer, but not their products and copies apart."""
    _, space = mma_space(tvm, OPERATORS["relu"])
    draws = space.sample(50, np.random.default_rng(2))
    symbols = gpu_symbols(lower(apply(space.program, draws)))
    device = device_of("a100")
    ahead = tensor_latency_s(symbols, device)
    apart = tensor_latency_s(replace(symbols, copies_ahead=0), device)
    assert (ahead < apart).mean() > 0.5
    assert np.isfinite(ahead).all()


@pytest.mark.parametrize("kind", ["wmma", "mma"])
def test_dataflow_rows_are_those_of_fragments(kind):
    design = next(one for one in designs(OPERATORS["relu"]) if kind_of(one) == kind)
    space = BatchedSpace(design)
    found = space.features(space.sample(5, np.random.default_rng(0)))
    assert found.valid.all()
    assert (np.abs(found.dataflow).sum(axis=2) > 0).all()
    places = [c.name for c in DATAFLOW_COLUMNS]
    where = [places.index(f"location.{name}") for name in ("global", "shared", "local")]
    names = np.array(["global", "shared", "local"])[found.dataflow[:, :, where].argmax(axis=2)]
    expected = ["local", *["global", "shared"] * 2, "local", "local", "local", "local", "global"]
    assert (names == np.array(expected)).all()
