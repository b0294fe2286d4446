"""Tensor-core spaces in batches against the programs that TVM makes of the same decisions."""

import numpy as np
import pytest

from pruner.features import DATAFLOW_COLUMNS
from pruner.features.batch import FeatureSpec
from pruner.features.symbols.gpu import gpu_symbols
from pruner.models.analyzer.analyzer import load_analyzer
from pruner.models.analyzer.paper import paper_latency_s
from pruner.program.nests import Scope
from pruner.program.tir.apply_trace import apply
from pruner.program.tir.lower import lower
from pruner.program.tir.shared import shared_bytes
from pruner.program.tir.verify import stages_cover
from pruner.tune.spaces.batched.space import BatchedSpace
from pruner.tune.spaces.design import design_spaces
from tests.paths import CONF
from tests.tune import tir_truth as truth
from tests.tune.designs import designs_of, kind_of
from tests.tune.some_slow import some_slow
from tests.tune.targets import A100, device_of, target_of

pytestmark = pytest.mark.tvm

CONV = {"n": 1, "ci": 64, "h": 28, "w": 28, "co": 64, "stride": 1}
OPERATORS = {
    "matmul": {"operator": "matmul", "m": 256, "n": 384, "k": 512, "epilogue": ["relu"]},
    "padded": {"operator": "matmul", "m": 197, "n": 100, "k": 100, "epilogue": ["bias"]},
    "batch": {"operator": "batch_matmul", "batch": 4, "m": 128, "n": 128, "k": 64},
    "conv": {"operator": "conv2d", **CONV, "kh": 3, "kw": 3, "padding": 1, "epilogue": ["relu"]},
}
PROGRAMS = 2


def spaces(spec):
    found = designs_of({**spec, "dtype": "float16"}, A100)
    return [(design, BatchedSpace(design)) for design in found if kind_of(design) == "wmma"]


def spaces_of(tvm, tensors):
    """The same of tensors of TVM, none of which may be laid out anew."""
    function = tvm.tvm.te.create_prim_func(tensors).without_attr("layout_free_buffers")
    found = design_spaces(tvm.tvm.IRModule({"main": function}), target_of(A100))
    return [(design, BatchedSpace(design)) for design in found if kind_of(design) == "wmma"]


@some_slow("operator", ["padded", "conv"], ["matmul", "batch"])
def test_loops_buffers_and_verdicts_are_those_of_tvm(tvm, operator):
    rng, compared = np.random.default_rng(3), 0
    for design, space in spaces(OPERATORS[operator]):
        draws = np.concatenate([space.sample_any(PROGRAMS, rng), space.sample(PROGRAMS, rng)])
        compared += truth.assert_programs_are_tvms(tvm, design, space, draws)
    assert compared == 4 * PROGRAMS


@some_slow("num", [3], [16])
def test_verdicts_of_fetches_whose_guard_is_an_equality(tvm, num):
    """The dilated input of a transposed convolution is zero but where ``row mod stride == 0``."""
    te, topi = tvm.tvm.te, tvm.tvm.topi
    image = te.placeholder((1, 64, 8, 8), "float16", name="image")
    weight = te.placeholder((64, 64, 4, 4), "float16", name="weight")
    out = topi.nn.conv2d_transpose_nchw(image, weight, (2, 2), (1, 1), "float16", (0, 0))
    rng, ours, theirs = np.random.default_rng(0), [], []
    for design, space in spaces_of(tvm, [image, weight, out]):
        draws = np.concatenate([space.sample_any(num, rng), space.sample(num, rng)])
        theirs += [truth.replayed(tvm, design, row)[1] for row in draws]
        ours += space.legal(draws).tolist()
    assert 0 < sum(theirs) < len(theirs)
    # where lanes lie inside quotients of the window's indices a few differ
    assert np.mean(np.equal(ours, theirs)) > 0.95


@pytest.mark.parametrize(("warps", "fragments", "accepted"), [(4, 2, False), (2, 4, True)])
def test_stores_of_eight_channels_step_where_tvm_divides(tvm, warps, fragments, accepted):
    """A store of NCHW results whose lanes are channels: 784 elements apart, so 32 bytes of indices.

    ``(f0 step + 256 f1 + 8 f2 + lane) // 256``: with four warps of two fragments TVM divides it,
    and refuses the vector; with two of four it does not see that the lanes step evenly.
    """
    conv = {"n": 1, "ci": 64, "h": 56, "w": 56, "co": 128, "stride": 2, "kh": 3, "kw": 3}
    spec = {"operator": "conv2d", **conv, "padding": 1, "epilogue": ["bias", "relu"]}
    row = np.array([[7, 7, 1, 1, 1, 1, 1, warps, 1, fragments, 12, 1, 3, 3, 0, 2, 5]])
    design, space = spaces(spec)[0]
    assert truth.replayed(tvm, design, row[0])[1] == accepted
    assert space.legal(row).tolist() == [accepted]


def test_fetches_of_weights_step_where_chunks_of_depth_are_as_long_as_a_row(tvm):
    """Weights of a 2 x 2 window with 64 channels, read 64 apart: 8 lanes are 32 bytes of indices.

    ``(step x + f mod step) // 128`` has the lanes inside ``f``, which fills the step.
    """
    te, topi = tvm.tvm.te, tvm.tvm.topi
    image = te.placeholder((1, 8, 8, 64), "float16", name="image")
    weight = te.placeholder((2, 2, 64, 64), "float16", name="weight")
    out = topi.nn.conv2d_nhwc(image, weight, 1, 1, 1, "float32")
    # lanes of four and eight elements: of images, and of weights
    depths = [(4, 2, 2), (2, 2, 4)]
    rows = [[1, 1, 1, 6, 1, 1, 1, 1, 1, 4, *k, 0, 2, x, 0] for k in depths for x in (2, 3)]
    answers = []
    for design, space in spaces_of(tvm, [image, weight, out]):
        theirs = [truth.replayed(tvm, design, np.array(row))[1] for row in rows]
        assert space.legal(np.array(rows)).tolist() == theirs
        answers.append(theirs)
    assert [True, False, True, False] in answers  # of operands that are turned


@some_slow("epilogue", [["bias"]], [[]])
def test_padded_rows_that_one_loop_runs_over_stop_tvm(tvm, epilogue):
    """196 of 208 rows: the guard of 13 warps of one fragment each is ``f // 16 < 196``, a quotient
    that indices of the image divide again. It is none where another loop moves the rows, or the
    store's loop runs over columns of several fragments; without an epilogue nobody reads results.
    """
    conv = {"n": 1, "ci": 64, "h": 14, "w": 14, "co": 48, "stride": 1, "kh": 1, "kw": 1}
    spec = {"operator": "conv2d", **conv, "padding": 0, "epilogue": epilogue}
    one = [1, 1, 13, 1, 1]
    tiles = [(one, [1, 3, 1, 1, 1]), (one, [3, 1, 1, 1, 1]), (one, [1, 1, 1, 1, 3])]
    tiles += [([13, 1, 1, 1, 1], [1, 3, 1, 1, 1]), ([1, 1, 1, 13, 1], [1, 3, 1, 1, 1])]
    rows = np.array([[*m, *n, 4, 1, 1, 1, 2, 3, 2] for m, n in tiles])
    for design, space in spaces(spec):
        made = [truth.replayed(tvm, design, row)[0] is not None for row in rows]
        assert made == ([False, False, True, True, True] if epilogue else [True] * 5)
        tree = apply(space.program, rows)
        assert stages_cover(tree).tolist() == made
        assert not (space.legal(rows) & ~np.array(made)).any()


def test_the_program_of_tvms_own_test(tvm):
    """128^3 with relu of test_meta_schedule_schedule_rule_mlt_tc.py, of float16 results.

    In fragments of 16: m = 4 1 1 1 2, n = 2 2 2 1 1, k = 1 4 2, so that 4 x 2 and 1 x 2 blocks of
    1 x 2 warps hold 2 x 1 fragments of results each.
    """
    spec = {"operator": "matmul", "m": 128, "n": 128, "k": 128, "epilogue": ["relu"]}
    design, space = spaces(spec)[0]
    decision = np.array([[4, 1, 1, 1, 2, 2, 2, 2, 1, 1, 1, 4, 2, 0, 3, 1, 0]])
    tree = apply(space.program, decision)
    ours = truth.our_loops(tree, 0)
    assert ours["C_o_update"][0] == [
        (8, "blockIdx.y"), (2, "blockIdx.x"), (2, "threadIdx.y"), (4, None), (2, None), (2, None),
    ]  # fmt: skip
    buffers = truth.our_buffers(tree, lower(tree), 0)
    assert buffers["A_reindex_shared.dyn"] == (32, 128)
    assert buffers["B_reindex_shared.dyn"] == (32, 128)
    assert buffers["A_reindex_shared.dyn_wmma.matrix_a"] == (32, 32)
    assert buffers["B_reindex_shared.dyn_wmma.matrix_b"] == (16, 32)
    # of both warps, as long as their two loops are apart
    assert buffers["C_reindex_shared.dyn_wmma.accumulator"] == (1, 2, 2, 1, 16, 16)
    assert buffers["C_reindex_shared.dyn"] == (1, 2, 1, 1, 16, 16)
    # rows of 128 elements are 136 apart; the 512 results lie where the operands were
    ((static, dynamic),) = shared_bytes(tree).values()
    assert (static + dynamic).tolist() == [2 * 2 * 32 * 136]
    assert space.legal(decision).tolist() == [design.replay(decision[0], 1) is not None] == [True]


def test_a_padded_program_by_hand(tvm):
    """197 x 100 x 100 are 13 x 7 x 7 fragments: 208 x 112 x 112. 13 blocks of 7 warps, each warp a
    fragment of results; all of K at once, so that rows of 112 elements are 136 apart."""
    design, space = spaces(OPERATORS["padded"])[0]
    decision = np.array([[13, 1, 1, 1, 1, 1, 1, 7, 1, 1, 1, 7, 1, 1, 1, 1, 0]])
    tree = apply(space.program, decision)
    ours = truth.our_loops(tree, 0)
    blocks = [(13, "blockIdx.y"), (1, "blockIdx.x"), (7, "threadIdx.y")]
    assert ours["C_o_update"][0] == [*blocks, (7, None)]
    buffers = truth.our_buffers(tree, lower(tree), 0)
    a, b = (next(k for k in buffers if k.startswith(x) and k.endswith("shared.dyn")) for x in "AB")
    assert (buffers[a], buffers[b]) == ((16, 112), (112, 112))
    assert buffers[a + "_wmma.matrix_a"] == (16, 16)
    assert buffers[b + "_wmma.matrix_b"] == (16, 16)
    ((static, dynamic),) = shared_bytes(tree).values()
    assert (static + dynamic).tolist() == [2 * (16 + 112) * 136]
    assert space.legal(decision).tolist() == [design.replay(decision[0], 1) is not None]


def pad(width):
    """The least number from ``width`` on that is 8 modulo 32."""
    return width + (8 - width) % 32


def is_transposed(space):
    """Whether the second operand's tile has the reduction innermost."""
    draws = space.sample(8, np.random.default_rng(0))
    found = lower(apply(space.program, draws)).allocations.values()
    extents = {a.buffer.name: a.extents for a in found}
    return bool(np.all(extents["B_reindex_shared.dyn"][-1] == 16 * draws[:, 11] * draws[:, 12]))


@some_slow("operator", ["batch"], ["matmul"])
def test_symbols_are_those_of_the_tile_sizes(tvm, operator):
    """S1 to S8 in field terms; m = m0 .. m4 fragments of 16, n alike, k = k0 k1 k2."""
    for _, space in spaces(OPERATORS[operator]):
        draws = space.sample(40, np.random.default_rng(4))
        batch = 4 if operator == "batch" else 1
        m, n, k = draws[:, 0:5].T, draws[:, 5:10].T, draws[:, 10:13].T
        fm, fn, warps = m[3] * m[4], n[3] * n[4], m[2] * n[2]
        rows, columns, depth = (16 * np.prod(x, axis=0) for x in (m, n, k))
        symbols = gpu_symbols(lower(apply(space.program, draws)))
        a, b, load_a, load_b, multiply, _, result = range(7)
        assert symbols.scopes[multiply] is Scope.ACCUMULATOR
        # operands of 16 bit, held by two lanes each: 8 registers a fragment, and 4 of results
        operands = (symbols["l0_mem_alloc"] * symbols["own_bytes"])[[load_a, load_b]].sum(axis=0)
        results = (symbols["accumulators"] * symbols["own_bytes"])[multiply]
        assert (operands / 4 == 8 * k[2] * (fm + fn)).all()  # S1
        assert (results / 4 == 4 * fm * fn).all()
        steps = k.prod(axis=0)
        assert (symbols["l0_comp_count"][multiply] * 32 == 8192 * fm * fn * steps).all()  # S2
        tile_m, tile_n, tile_k = 16 * m[2] * fm, 16 * n[2] * fn, 16 * k[1] * k[2]
        staged = tile_m * pad(tile_k)
        staged = staged + (tile_n * pad(tile_k) if is_transposed(space) else tile_k * pad(tile_n))
        kept = 256 * warps * fn
        assert (symbols.block_bytes() >= 2 * np.maximum(staged, kept)).all()  # S3
        assert (symbols.block_bytes() <= 2 * (staged + kept)).all()
        assert (symbols["l1_para_info"] == 32 * warps).all()  # S4
        found = symbols["l2_mem_footprint"]
        moved = rows * depth * n[0] * n[1] + columns * depth * m[0] * m[1]
        assert (found[[a, b]].sum(axis=0) == batch * moved).all()  # S5
        assert (found[result] == batch * rows * columns).all()
        assert (symbols["l2_para_info"] == batch * m[0] * n[0] * m[1] * n[1]).all()  # S6
        runs = symbols["l2_trans_dim"]  # S7: a row of a tile, all of it where rows are whole
        assert (runs[a] == tile_k * np.where(tile_k == depth, tile_m, 1)).all()
        if is_transposed(space):
            assert (runs[b] == tile_k * np.where(tile_k == depth, tile_n, 1)).all()
        else:
            assert (runs[b] == tile_n * np.where(tile_n == columns, tile_k, 1)).all()
        assert (runs[result] == tile_n * np.where(tile_n == columns, tile_m, 1)).all()
        assert (symbols["l2_comp_count"][multiply] == 2 * batch * rows * columns * depth).all()


def test_the_paper_form_has_the_peak_of_tensor_cores(tvm):
    """256 x 384 x 512 of float16 on an A100: 312e12 operations/s, and S5 elements of two bytes;
    with its penalty, whole waves of blocks on 108 multiprocessors."""
    device = device_of("a100")
    spec = {"operator": "matmul", "m": 256, "n": 384, "k": 512}
    for _, space in spaces(spec):
        draws = space.sample(20, np.random.default_rng(5))
        m, n = draws[:, 0:5].T, draws[:, 5:10].T
        symbols = gpu_symbols(lower(apply(space.program, draws)))
        elements = 256 * 512 * n[0] * n[1] + 384 * 512 * m[0] * m[1] + 256 * 384
        memory_s = 2 * elements / device.dram_bytes_per_s
        blocks = m[0] * m[1] * n[0] * n[1]
        for on, filled in (((), 1.0), (("wave_c",), blocks / (108 * np.ceil(blocks / 108)))):
            found = paper_latency_s(symbols, device, on)
            compute_s = 2 * 256 * 384 * 512 / (312e12 * filled)
            np.testing.assert_allclose(found, compute_s + memory_s, rtol=1e-9)


def test_the_draft_tells_programs_apart_and_prefers_warps_with_more_fragments(tvm):
    """A fragment of results a warp loads two operands for a product, 2 x 2 of them one."""
    analyzer = load_analyzer(CONF, "a100")
    spec = {"operator": "matmul", "m": 1024, "n": 1024, "k": 1024}
    for _, space in spaces(spec):
        one = [16, 1, 4, 1, 1, 16, 1, 4, 1, 1, 32, 2, 1, 2, 3, 1, 3]
        four = [16, 1, 2, 2, 1, 16, 1, 2, 2, 1, 32, 2, 1, 2, 3, 1, 3]
        scores = space.draft_score(np.array([one, four]), analyzer)
        assert scores[1] > scores[0]
        draws = space.sample(200, np.random.default_rng(0))
        found = space.draft_score(draws, analyzer)
        assert np.isfinite(found).all()
        assert len(np.unique(found)) > 150


@pytest.mark.parametrize("operator", ["batch", "conv"])
def test_a_fetch_that_gathers_has_no_vectors(tvm, operator):
    """The depth of a 3 x 3 convolution has windows innermost: its neighbours are not in a row."""
    for _, space in spaces(OPERATORS[operator]):
        draws = space.sample(30, np.random.default_rng(6))
        a_lanes = np.array([1, 2, 4, 8])[draws[:, 14]]
        for rows, _, symbols in space.symbols(draws, load_analyzer(CONF, "a100")):
            found = symbols["vector"][0]
            assert (found == (a_lanes[rows] if operator == "batch" else 1)).all()
            if operator == "batch":
                b_lanes = np.array([1, 2, 4, 8])[draws[rows, 15]]
                wanted = 1 if is_transposed(space) else b_lanes  # its columns become rows
                assert (symbols["vector"][1] == wanted).all()
        assert (a_lanes > 1).any()


def test_loads_are_waited_for_less_where_they_are_wide_or_written_out(tvm):
    """Vectors of 2 and 8 elements of A, then written out: slots 14 and 16 of the decisions."""
    # unrolling also keeps fragments in registers: that term is left out
    analyzer = load_analyzer(CONF, "h100", without="rolled_c")
    for _, space in spaces({"operator": "matmul", "m": 512, "n": 512, "k": 512}):
        narrow = space.sample(300, np.random.default_rng(0))
        narrow[:, [14, 16]] = [1, 0]
        wide, written = narrow.copy(), narrow.copy()
        wide[:, 14], written[:, [14, 16]] = 3, [3, 4]
        kept = np.logical_and.reduce([space.legal(one) for one in (narrow, wide, written)])
        slow, fast, fastest = (
            space.draft_score(one[kept], analyzer) for one in (narrow, wide, written)
        )
        assert (slow < fast).mean() > 0.9  # not all: wide vectors may touch more lines
        assert (fast <= fastest).all()
        assert (fast < fastest).any()


def test_loads_of_fragments_have_four_rows_of_a_kind_of_their_own(tvm):
    """Shared memory and fragment of A, then of B; a fragment holds 16 Fm x 16 k2 of A, B alike."""
    columns = [c.name for c in DATAFLOW_COLUMNS]
    for _, space in spaces(OPERATORS["matmul"]):
        draws = space.sample(20, np.random.default_rng(0))
        ten = space.features(draws).dataflow
        rows = space.features(draws, FeatureSpec(dataflow="fragments")).dataflow
        assert rows.shape[1] == 14
        np.testing.assert_array_equal(np.delete(rows, slice(5, 9), axis=1), ten)
        loads = {name: rows[:, 5:9, place] for place, name in enumerate(columns)}
        assert (loads["location.shared"] == [1, 0, 1, 0]).all()
        assert (loads["location.local"] == [0, 1, 0, 1]).all()
        assert (loads["float_ops"] == 0).all()
        k2, fm, fn = draws[:, 12], draws[:, 3] * draws[:, 4], draws[:, 8] * draws[:, 9]
        found = 2 ** loads["alloc_size"].astype(float) - 1
        np.testing.assert_allclose(found[:, 1], 2 * 16 * fm * 16 * k2, rtol=1e-5)
        np.testing.assert_allclose(found[:, 3], 2 * 16 * fn * 16 * k2, rtol=1e-5)
