"""Programs that TVM's own settings cannot compile: halves into float32 sums, sums over threads."""

import numpy as np
import pytest

from pruner.tune.compiling import compiled, pass_context, written_out
from pruner.tune.deploy import build
from pruner.tune.spaces.batched.space import BatchedSpace
from pruner.tune.spaces.design import design_spaces
from pruner.tune.tvm_import import load_tvm
from pruner.tune.workloads import from_operator

pytestmark = pytest.mark.tvm


def halves(te):
    """Halves whose products are added up as float32 and kept as halves."""
    a, b = te.placeholder((64, 64), "float16", "a"), te.placeholder((64, 64), "float16", "b")
    k = te.reduce_axis((0, 64), "k")
    c = te.compute(
        (64, 64),
        lambda i, j: te.sum(a[i, k].astype("float32") * b[k, j].astype("float32"), axis=k),
    )
    return [a, b, te.compute((64, 64), lambda i, j: c[i, j].astype("float16"))]


def mean(te):
    x = te.placeholder((32, 49), "float32", "x")
    k = te.reduce_axis((0, 49), "k")
    total = te.compute((32,), lambda i: te.sum(x[i, k], axis=k))
    return [x, te.compute((32,), lambda i: total[i] / 49.0)]


@pytest.mark.parametrize(("operator", "programs"), [(halves, 1), (mean, 4)])
def test_what_the_draft_may_choose_is_written_as_cuda(operator, programs):
    import tvm.te as te

    tvm = load_tvm().tvm
    module = tvm.IRModule({"main": te.create_prim_func(operator(te))})
    target = tvm.target.Target("nvidia/nvidia-a100")
    refused = written = 0
    for design in design_spaces(module, target):
        if any(inst.kind.name == "ReadAt" for inst in design.trace.insts):
            continue  # mma: its results are not staged in shared memory
        rows = BatchedSpace(design).sample(programs, np.random.default_rng(0))
        for schedule in (design.replay(row, 1) for row in rows):
            if schedule is None:
                continue
            built = compiled(schedule.mod, target)
            assert "__global__" in built.mod.imports[0].inspect_source()
            written += 1
            try:
                tvm.compile(schedule.mod, target=target)
            except Exception:
                refused += 1
    assert written >= programs
    assert refused  # else TVM is mended, and the setting may go


def product(te):
    a, b = te.placeholder((64, 64), "float32", "a"), te.placeholder((64, 64), "float32", "b")
    k = te.reduce_axis((0, 64), "k")
    return [a, b, te.compute((64, 64), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k))]


def unrolled():
    """The target, and schedules of the product that are unrolled as far as can be."""
    import tvm.te as te

    tvm = load_tvm().tvm
    module = tvm.IRModule({"main": te.create_prim_func(product(te))})
    target = tvm.target.Target("nvidia/nvidia-a100")
    design = design_spaces(module, target)[0]
    rows = BatchedSpace(design).sample(60, np.random.default_rng(0))
    chosen = rows[rows[:, -1] == rows[:, -1].max()][:6]
    return target, [design.replay(row, 1) for row in chosen]


def test_a_loop_that_is_unrolled_has_its_shared_memory_once():
    target, schedules = unrolled()
    multiplied = 0
    for schedule in schedules:
        source = compiled(schedule.mod, target).mod.imports[0].inspect_source()
        assert source.count("__shared__") == 2
        with target, pass_context(schedule.mod, target):
            alone = load_tvm().tvm.compile(schedule.mod, target=target)
        multiplied += alone.mod.imports[0].inspect_source().count("__shared__") > 2
    assert multiplied  # else TVM is mended


def test_an_inner_loop_that_is_unrolled_alone_has_its_shared_memory_once():
    """Of two loops around a copy the outer one has too many steps, the inner one four turns."""
    import tvm.te as te

    tvm, target = load_tvm().tvm, load_tvm().tvm.target.Target("nvidia/nvidia-a100")
    a = te.placeholder((1000, 4, 32), "float32", "a")
    r, k = te.reduce_axis((0, 1000), "r"), te.reduce_axis((0, 4), "k")
    total = te.compute((32,), lambda i: te.sum(a[r, k, i], axis=[r, k]), "total")
    schedule = load_tvm().s_tir.Schedule(te.create_prim_func([a, total]))
    block = schedule.get_sblock("total")
    lane, outer, inner = schedule.get_loops(block)
    schedule.bind(lane, "threadIdx.x")
    copy = schedule.cache_read(block, 0, "shared")
    schedule.compute_at(copy, inner)
    schedule.bind(schedule.get_loops(copy)[-1], "threadIdx.x")
    schedule.annotate(outer, "pragma_auto_unroll_max_step", 64)
    schedule.annotate(outer, "pragma_unroll_explicit", 1)
    source = compiled(schedule.mod, target).mod.imports[0].inspect_source()
    assert source.count("__shared__") == 1
    with target, pass_context(schedule.mod, target):
        alone = tvm.compile(schedule.mod, target=target)
    assert alone.mod.imports[0].inspect_source().count("__shared__") == 4


def test_a_network_has_the_programs_that_were_measured(monkeypatch):
    """What TVM is given of a network's functions is what it is given of each alone."""
    import tvm_ffi

    monkeypatch.setattr(build, "provide_compiler", lambda: True)
    monkeypatch.setattr("tvm.relax.build", lambda module, target, relax_pipeline: module)
    target, schedules = unrolled()
    other = 0
    for schedule in schedules:
        given, alone = build.compiled(schedule.mod, target), written_out(schedule.mod, target)
        assert tvm_ffi.structural_equal(given, alone)
        other += not tvm_ffi.structural_equal(given, schedule.mod)
    assert other


HALF = """
@T.prim_func(s_tir=True)
def main(a: T.Buffer((960,), "{dtype}"), b: T.Buffer((960,), "{dtype}")):
    for block in T.thread_binding({blocks}, thread="blockIdx.x"):
        for thread in T.thread_binding(32, thread="threadIdx.x"):
            for lane in T.vectorized({lanes}):
                with T.sblock("b"):
                    i = T.axis.spatial(960, block * (32 * {lanes}) + thread * {lanes} + lane)
                    T.reads(a[i])
                    T.writes(b[i])
                    b[i] = a[i] * T.{dtype}(2)
"""


@pytest.mark.parametrize(
    ("dtype", "lanes", "taken"),
    [
        ("float16", 3, False), ("bfloat16", 3, False), ("float32", 3, True), ("float16", 2, True),
        ("float16", 1, True),
    ],
)  # fmt: skip
def test_odd_vectors_of_halves_become_loops(dtype, lanes, taken):
    import tvm_ffi

    tvm = load_tvm().tvm
    text = HALF.format(dtype=dtype, lanes=lanes, blocks=30 // lanes)
    function = tvm.script.from_source(text)
    module = tvm.IRModule({"main": function})
    target = tvm.target.Target("nvidia/nvidia-a100")
    assert tvm_ffi.structural_equal(written_out(module, target), module) == taken
    assert "__global__" in compiled(module, target).mod.imports[0].inspect_source()
    if not taken:
        with pytest.raises(Exception, match="even"):
            tvm.compile(module, target=target)


def test_lanes_that_straddle_rows_become_loops_only_where_tvm_stops():
    """Rows of 14 and of 6 elements in vectors of 4: the compiler stops at the first and takes the
    second, of which it sees that they are neighbours in shared memory."""
    import tvm_ffi

    tvm = load_tvm().tvm
    spec = {"operator": "batch_matmul", "batch": 4, "m": 64, "n": 14, "k": 48}
    target = tvm.target.Target("nvidia/nvidia-a100")
    design = design_spaces(from_operator(spec).module, target)[0]
    stops = np.array([1, 1, 1, 1, 4, 1, 1, 8, 4, 2, 1, 2, 7, 1, 1, 8, 6, 1, 0, 3, 0])
    for row, taken in ((stops, False), (np.array([*stops[:18], 3, 0, 0]), True)):
        module = design.replay(row, 1).mod
        with target, pass_context(module, target):
            assert tvm_ffi.structural_equal(written_out(module, target), module) == taken
            if not taken:  # else TVM is mended
                with pytest.raises(Exception, match="eval_vec_"):
                    tvm.compile(module, target=target)
        assert "__global__" in compiled(module, target).mod.imports[0].inspect_source()


TURNED = """
@T.prim_func(s_tir=True)
def main(a: T.Buffer((64, 64), "{dtype}"), b: T.Buffer((64, 64), "{dtype}")):
    for block in T.thread_binding(4096 // (32 * {lanes}), thread="blockIdx.x"):
        for thread in T.thread_binding(32, thread="threadIdx.x"):
            for lane in T.vectorized({lanes}):
                with T.sblock("b"):
                    i = T.axis.spatial(64, (block * (32 * {lanes}) + thread * {lanes} + lane) // 64)
                    j = T.axis.spatial(64, (block * (32 * {lanes}) + thread * {lanes} + lane) % 64)
                    T.reads(a[{read}])
                    T.writes(b[i, j])
                    b[i, j] = a[{read}]
"""


@pytest.mark.parametrize(
    ("dtype", "lanes", "read", "taken"),
    [
        ("float16", 8, "j, i", False), ("bfloat16", 8, "j, i", False), ("float16", 8, "i, j", True),
        ("float16", 4, "j, i", True), ("float32", 4, "j, i", True),
        ("float16", 8, "j // 64 + i, j", True),
    ],
)  # fmt: skip
def test_eight_halves_that_are_no_neighbours_become_a_loop(dtype, lanes, read, taken):
    """TVM writes them as eight arguments of ``make_uint4``, which nvcc knows with four."""
    import tvm_ffi

    tvm = load_tvm().tvm
    text = TURNED.format(dtype=dtype, lanes=lanes, read=read)
    module = tvm.IRModule({"main": tvm.script.from_source(text)})
    target = tvm.target.Target("nvidia/nvidia-a100")
    written = written_out(module, target)
    assert tvm_ffi.structural_equal(written, module) == taken
    for given, whole in ((module, taken), (written, True)):
        source = tvm.compile(given, target=target).mod.imports[0].inspect_source()
        calls = [line.count(",") for line in source.splitlines() if "= make_uint4(" in line]
        assert all(commas <= 3 for commas in calls) == whole
