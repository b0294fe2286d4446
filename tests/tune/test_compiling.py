"""Programs that TVM alone cannot compile, or badly: halves, sums over threads, vectors."""

import numpy as np
import pytest
from scipy import special

from pruner.tune.compiling import compiled, even_vectors, pass_context, written_out
from pruner.tune.deploy import build
from pruner.tune.spaces.batched.space import BatchedSpace
from pruner.tune.spaces.design import design_spaces
from pruner.tune.tvm_import import load_tvm
from tests.tune.designs import designs_of
from tests.tune.targets import A100, module_of, target_of

pytestmark = pytest.mark.tvm


@pytest.fixture(scope="module")
def target(tvm):
    return target_of(A100)


def source_of(built):
    return built.mod.imports[0].inspect_source()


def from_text(text):
    tvm = load_tvm().tvm
    return tvm.IRModule({"main": tvm.script.from_source(text)})


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
def test_what_the_draft_may_choose_is_written_as_cuda(tvm, target, operator, programs):
    refused = written = 0
    for design in design_spaces(module_of(operator(tvm.tvm.te)), target):
        if any(inst.kind.name == "ReadAt" for inst in design.trace.insts):
            continue  # mma: its results are not staged in shared memory
        rows = BatchedSpace(design).sample(programs, np.random.default_rng(0))
        for schedule in (design.replay(row, 1) for row in rows):
            if schedule is None:
                continue
            assert "__global__" in source_of(compiled(schedule.mod, target))
            written += 1
            try:
                tvm.tvm.compile(schedule.mod, target=target)
            except Exception:
                refused += 1
    assert written >= programs
    assert refused  # else TVM is mended, and the setting may go


@pytest.fixture(scope="module")
def unrolled(tvm):
    """Schedules of a product that are unrolled as far as can be."""
    design = designs_of({"operator": "matmul", "m": 64, "n": 64, "k": 64}, A100)[0]
    rows = BatchedSpace(design).sample(60, np.random.default_rng(0))
    chosen = rows[rows[:, -1] == rows[:, -1].max()][:6]
    return [design.replay(row, 1) for row in chosen]


def compiled_alone(tvm, module, target):
    """The source that TVM writes with our settings, but without our passes."""
    with target, pass_context(module, target):
        return source_of(tvm.tvm.compile(module, target=target))


def test_a_loop_that_is_unrolled_has_its_shared_memory_once(tvm, target, unrolled):
    multiplied = 0
    for schedule in unrolled:
        assert source_of(compiled(schedule.mod, target)).count("__shared__") == 2
        multiplied += compiled_alone(tvm, schedule.mod, target).count("__shared__") > 2
    assert multiplied  # else TVM is mended


def test_an_inner_loop_that_is_unrolled_alone_has_its_shared_memory_once(tvm, target):
    """Of two loops around a copy the outer one has too many steps, the inner one four turns."""
    te = tvm.tvm.te
    a = te.placeholder((1000, 4, 32), "float32", "a")
    r, k = te.reduce_axis((0, 1000), "r"), te.reduce_axis((0, 4), "k")
    total = te.compute((32,), lambda i: te.sum(a[r, k, i], axis=[r, k]), "total")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([a, total]))
    block = schedule.get_sblock("total")
    lane, outer, inner = schedule.get_loops(block)
    schedule.bind(lane, "threadIdx.x")
    copy = schedule.cache_read(block, 0, "shared")
    schedule.compute_at(copy, inner)
    schedule.bind(schedule.get_loops(copy)[-1], "threadIdx.x")
    schedule.annotate(outer, "pragma_auto_unroll_max_step", 64)
    schedule.annotate(outer, "pragma_unroll_explicit", 1)
    assert source_of(compiled(schedule.mod, target)).count("__shared__") == 1
    assert compiled_alone(tvm, schedule.mod, target).count("__shared__") == 4


def test_a_network_has_the_programs_that_were_measured(tvm, target, unrolled, monkeypatch):
    """What TVM is given of a network's functions is what it is given of each alone."""
    monkeypatch.setattr(build, "provide_compiler", lambda: True)
    monkeypatch.setattr("tvm.relax.build", lambda module, target, relax_pipeline: module)
    other = 0
    for schedule in unrolled:
        given, alone = build.compiled(schedule.mod, target), written_out(schedule.mod, target)
        assert tvm.ffi.structural_equal(given, alone)
        other += not tvm.ffi.structural_equal(given, schedule.mod)
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
def test_odd_vectors_of_halves_become_loops(tvm, target, dtype, lanes, taken):
    module = from_text(HALF.format(dtype=dtype, lanes=lanes, blocks=30 // lanes))
    assert tvm.ffi.structural_equal(written_out(module, target), module) == taken
    assert "__global__" in source_of(compiled(module, target))
    if not taken:
        with pytest.raises(Exception, match="even"):
            tvm.tvm.compile(module, target=target)


def test_lanes_that_straddle_rows_become_loops_only_where_tvm_stops(tvm, target):
    """Rows of 14 and of 6 elements in vectors of 4: the compiler stops at the first and takes the
    second, of which it sees that they are neighbours in shared memory."""
    spec = {"operator": "batch_matmul", "batch": 4, "m": 64, "n": 14, "k": 48}
    design = designs_of(spec, A100)[0]
    stops = np.array([1, 1, 1, 1, 4, 1, 1, 8, 4, 2, 1, 2, 7, 1, 1, 8, 6, 1, 0, 3, 0])
    for row, taken in ((stops, False), (np.array([*stops[:18], 3, 0, 0]), True)):
        module = design.replay(row, 1).mod
        with target, pass_context(module, target):
            assert tvm.ffi.structural_equal(written_out(module, target), module) == taken
            if not taken:  # else TVM is mended
                with pytest.raises(Exception, match="eval_vec_"):
                    tvm.tvm.compile(module, target=target)
        assert "__global__" in source_of(compiled(module, target))


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
def test_eight_halves_that_are_no_neighbours_become_a_loop(tvm, target, dtype, lanes, read, taken):
    """TVM writes them as eight arguments of ``make_uint4``, which nvcc knows with four."""
    module = from_text(TURNED.format(dtype=dtype, lanes=lanes, read=read))
    written = written_out(module, target)
    assert tvm.ffi.structural_equal(written, module) == taken
    for given, whole in ((module, taken), (written, True)):
        source = source_of(tvm.tvm.compile(given, target=target))
        calls = [line.count(",") for line in source.splitlines() if "= make_uint4(" in line]
        assert all(commas <= 3 for commas in calls) == whole


def scheduled(lanes):
    """A function that scales 3 x lanes numbers, a row as one vector."""
    te = load_tvm().tvm.te
    a = te.placeholder((3, lanes), name="a")
    b = te.compute((3, lanes), lambda i, j: a[i, j] * 2.0 + j, name="b")
    schedule = load_tvm().s_tir.Schedule(module_of([a, b]))
    schedule.vectorize(schedule.get_loops(schedule.get_sblock("b"))[1])
    return schedule.mod


@pytest.mark.parametrize(
    ("lanes", "divided"),
    [(40, "8)"), (24, "8)"), (48, "16)"), (32, None), (12, None), (34, None), (35, None)],
)
def test_only_long_vectors_of_odd_lanes_are_divided(tvm, lanes, divided):
    """Into those of registers; they compute the same."""
    module, target = scheduled(lanes), target_of(1)
    text = written_out(module, target)["main"].script()
    vector = f"T.vectorized({lanes})" if divided is None else f"T.vectorized({divided}"
    assert vector in text
    assert ("T.unroll(" in text) == (divided is not None)
    given = np.random.default_rng(0).standard_normal((3, lanes)).astype(np.float32)
    found = computed(compiled(module, target).jit()["main"], given)
    np.testing.assert_array_equal(found, given * 2 + np.arange(lanes, dtype=np.float32))


def test_loops_of_other_starts_steps_or_annotations_stay(tvm):
    tirx, loops = tvm.tirx, []
    note = (tirx.For, lambda one: loops.append(one) or one)
    tvm.ffi.structural_map(scheduled(40)["main"], note)
    (loop,) = (one for one in loops if int(one.kind) == 2)
    var, zero, extent, kind, body = loop.loop_var, loop.min, loop.extent, loop.kind, loop.body
    eight, two = (tirx.IntImm(extent.ty.dtype, number) for number in (8, 2))
    for start, more, divided in (
        (zero, {}, True),
        (eight, {}, False),
        (zero, {"step": two}, False),
        (zero, {"annotations": {"note": 1}}, False),
    ):
        function = tirx.PrimFunc([], tirx.For(var, start, extent, kind, body, **more))
        found = even_vectors(tvm.tvm.IRModule({"main": function}))["main"]
        assert (found.body.loop_var.name != var.name) == divided


EXACT = {"exp": np.exp, "erf": special.erf, "tanh": np.tanh, "sigmoid": special.expit}
ENDS = {
    "exp": (np.inf, 0.0, 1.0),
    "erf": (1.0, -1.0, 0.0),
    "tanh": (1.0, -1.0, 0.0),
    "sigmoid": (1.0, 0.0, 0.5),
}
DENORMAL = 1.2e-38


def executable(name, dtype="float32", kind="llvm"):
    from tvm import te, tirx

    tvm = load_tvm().tvm
    x = te.placeholder((64, 256), dtype, "x")
    y = te.compute((64, 256), lambda i, j: getattr(tirx, name)(x[i, j]), "y")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([x, y]))
    outer, inner = schedule.get_loops(schedule.get_sblock("y"))
    del outer
    schedule.vectorize(schedule.split(inner, [None, 16])[1])
    return compiled(schedule.mod, tvm.target.Target({"kind": kind, "num-cores": 1}))


def computed(library, x):
    tvm = load_tvm().tvm
    given, found = tvm.runtime.tensor(x), tvm.runtime.tensor(np.zeros_like(x))
    library(given, found)
    return found.numpy()


@pytest.mark.parametrize("name", EXACT)
def test_values_are_those_of_scipy_also_at_ends_and_no_library_is_called(name):
    library = executable(name)
    assembly = library.mod.inspect_source("asm")
    assert not any(f"{call}f" in assembly for call in ("exp", "erf", "tanh"))
    x = np.linspace(-100.0, 100.0, 64 * 256, dtype=np.float32).reshape(64, 256)
    for scale in (1.0, 0.05, 1e-5):
        given = x * np.float32(scale)
        with np.errstate(over="ignore", under="ignore"):
            exact = EXACT[name](given.astype(np.float64))
            kept = (np.abs(exact) > DENORMAL) & (exact < np.finfo(np.float32).max)
        error = np.abs(computed(library, given) - exact)[kept] / np.abs(exact)[kept]
        assert error.max() < 5e-7
    x[0, :5] = np.inf, -np.inf, 0.0, np.nan, -200.0
    found = computed(library, x)[0]
    high, low, middle = ENDS[name]
    assert found[0] == pytest.approx(high, abs=5e-7)
    assert found[1] == pytest.approx(low, abs=5e-7)
    assert found[2] == middle
    assert np.isnan(found[3])
    assert found[4] == pytest.approx(low, abs=5e-7)


def test_exp_reaches_both_ends_of_float32():
    x = np.zeros((64, 256), np.float32)
    x[0, :4] = 88.72, 88.73, -87.33, -87.34
    found = computed(executable("exp"), x)[0, :4].astype(np.float64)
    assert found[0] == pytest.approx(np.exp(np.float64(np.float32(88.72))), rel=5e-7)
    assert np.isinf(found[1])
    assert found[2] == pytest.approx(np.exp(np.float64(np.float32(-87.33))), rel=5e-7)
    assert found[3] == 0.0
    # other types are left alone
    x = np.linspace(-3.0, 3.0, 64 * 256).reshape(64, 256)
    found = computed(executable("exp", dtype="float64"), x)
    np.testing.assert_allclose(found, np.exp(x), rtol=1e-14)


LACKING = {
    **{"acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh, "atan": np.arctan},
    **{"cosh": np.cosh, "erf": special.erf, "log1p": np.log1p, "sinh": np.sinh},
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, "float16") for name in LACKING), ("cosh", "float32"), ("sinh", "float64")],
)
def test_functions_that_tvm_lacks_are_those_of_numpy(name, dtype):
    """Of float16, and hyperbolic functions of vectors."""
    near = np.finfo(dtype).eps * 4
    x = np.linspace(-9, 9, 64 * 256).astype(dtype).reshape(64, 256)
    with np.errstate(divide="ignore", invalid="ignore"):
        wanted = LACKING[name](x.astype(np.float64))
    np.testing.assert_allclose(computed(executable(name, dtype), x), wanted, near, near)
