"""Guards of vectors against every lane's own guard, and the CUDA text of a padded vector."""

import itertools

import numpy as np
import pytest

from pruner.tune.compiling import compiled, pass_context, written_out
from pruner.tune.lane_guards import guards_shared
from pruner.tune.tvm_import import inside, load_tvm
from tests.tune.targets import A100, target_of

pytestmark = pytest.mark.tvm

GUARDED = """
@T.prim_func(s_tir=True)
def main(x: T.Buffer((64,), "float16"), a: T.Buffer((1536,), "float16")):
    for block in T.thread_binding(1, thread="blockIdx.x"):
        for thread in T.thread_binding(16, thread="threadIdx.x"):
            for lane in T.vectorized({first}, {first} + {lanes}):
                with T.sblock("b"):
                    v = T.axis.spatial(1536, {place})
                    u = T.axis.spatial(16, thread)
                    T.where({where})
                    T.reads(x[v % 64])
                    T.writes(a[v])
                    a[v] = T.if_then_else({guard}, x[v % 64], T.float16(0))
"""
PLACE = "thread * 24 + lane"
# Rows of 96 elements, fetched as in a padded convolution, of which a row is cut in two halves.
PADDED = """
@T.prim_func(s_tir=True)
def main(x: T.Buffer((48, 48), "float16"), a: T.Buffer((48, 96), "float16")):
    for block in T.thread_binding(36, thread="blockIdx.x"):
        for thread in T.thread_binding(16, thread="threadIdx.x"):
            for lane in T.vectorized(8):
                with T.sblock("b"):
                    u = T.axis.spatial(48, (block * 128 + thread * 8 + lane) // 96)
                    w = T.axis.spatial(96, (block * 128 + thread * 8 + lane) % 96)
                    T.reads(x[u + w // 48 - 1, w % 48])
                    T.writes(a[u, w])
                    a[u, w] = T.if_then_else(
                        1 <= u + w // 48 and u + w // 48 < 49, x[u + w // 48 - 1, w % 48],
                        T.float16(0),
                    )
"""


def from_text(**parts):
    words = {"first": 0, "lanes": 8, "place": PLACE, "where": "thread < 16", **parts}
    return load_tvm().tvm.IRModule(
        {"main": load_tvm().tvm.script.from_source(GUARDED.format(**words))}
    )


def guards_of(module):
    """The condition of the vector's block, and of its value."""
    loops = inside(module["main"].body, load_tvm().tirx.For)
    realize = next(loop.body for loop in loops if loop.loop_var.name == "lane")
    choice = inside(realize.block.body, load_tvm().tvm.ir.Call)[0]
    return realize.predicate, choice.args[0]


def value_at(guard, **values):
    tvm = load_tvm()

    def number(var):
        return tvm.tirx.IntImm(var.ty.dtype, values[var.name])

    fixed = tvm.ffi.structural_map(guard, (tvm.tirx.Var, number))
    return bool(tvm.tvm.sym.Analyzer().simplify(fixed))


def has_lane(guard):
    return any(var.name == "lane" for var in inside(guard, load_tvm().tirx.Var))


def random_index(rng):
    index = rng.choice(["v", "v", "v + 3", "v + 8", "u * 8 + v", "v - u * 4"])
    for _ in range(rng.integers(1, 4)):
        index = f"({index}) {rng.choice(['//', '%', '+'])} {rng.choice([3, 8, 8, 16, 24, 64])}"
    return index


def random_guard(rng, first):
    """Indices against values that they have, so that lanes which differ are on both sides."""
    compared = []
    for index in (random_index(rng), random_index(rng)):
        u = int(rng.integers(16))
        value = eval(index, {"u": u, "v": u * 24 + first + 1})
        compared.append(f"{index} {rng.choice(['<', '<=', '>', '>=', '=='])} {value}")
    return rng.choice([compared[0], " and ".join(compared), " or ".join(compared)])


def test_a_shared_guard_is_the_guard_of_every_lane(tvm):
    rng, shared, kept = np.random.default_rng(0), 0, 0
    for _ in range(150):
        lanes, first = int(rng.choice([2, 4, 8])), int(rng.choice([0, 0, 8, 1]))
        guard = random_guard(rng, first)
        module = from_text(guard=guard, lanes=lanes, first=first)
        new = guards_shared(module)
        if tvm.ffi.structural_equal(new, module):
            kept += 1
            continue
        _, written = guards_of(new)
        assert not has_lane(written)
        shared += 1
        for thread in range(16):
            found = value_at(written, thread=thread)
            for lane in range(first, first + lanes):
                u, v = thread, thread * 24 + lane
                assert bool(eval(guard)) == found, (guard, written, u, v)
    assert shared > 10
    assert kept > 30


@pytest.mark.parametrize(
    ("guard", "shared"),
    [
        ("1 <= v // 64 + 3 and v % 768 // 64 < 5", True),
        ("v % 1152 // 12 < 5", False),  # 12 is no multiple of 8 lanes
        ("v < 700", False),  # the lanes of the row itself differ
        ("(v + 3) // 8 < 5", False),  # begins between two multiples
        ("v // 8 * 8 < 5", True),
    ],
)
def test_lanes_that_cross_no_multiple_have_one_guard(tvm, guard, shared):
    module = from_text(guard=guard)
    assert tvm.ffi.structural_equal(guards_shared(module), module) != shared


def test_the_condition_of_a_block_is_shared_too(tvm):
    where = "(thread * 96 + lane) % 256 // 64 < 3"
    new, _ = guards_of(guards_shared(from_text(guard="v < 700", where=where)))
    assert not has_lane(new)
    for thread, lane in itertools.product(range(16), range(8)):
        wanted = (thread * 96 + lane) % 256 // 64 < 3
        assert value_at(new, thread=thread) == wanted


def test_a_padded_vector_is_one_load_behind_one_guard(tvm):
    """TVM alone writes a loop of eight loads, each behind a guard."""
    target = target_of(A100)
    module = tvm.tvm.IRModule({"main": tvm.tvm.script.from_source(PADDED)})
    with target, pass_context(module, target):
        alone = tvm.tvm.compile(module, target=target).mod.imports[0].inspect_source()
    ours = compiled(module, target).mod.imports[0].inspect_source()
    assert "half condval" in alone  # else TVM is mended
    assert ours.count("half condval") == 0
    assert ours.count("condval = *(uint4*)") == 1
    assert not tvm.ffi.structural_equal(written_out(module, target), module)
