"""Odd functions: those without a program are named in a line, the others have spaces."""

import numpy as np
import pytest

from pruner.errors import PrunerError
from pruner.tune.phases import Phases
from pruner.tune.rivals.metaschedule import MetaSchedule
from pruner.tune.run.database import Database
from pruner.tune.spaces.design import design_spaces
from pruner.tune.workloads import from_file
from tests.tune.targets import open_designs, platform_of, target_of

pytestmark = pytest.mark.tvm


def workload_of(text, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("from tvm import te, topi\nfrom tvm.script import tirx as T\n" + text)
    (workload,) = from_file(path)
    return workload


def spaces(text, tmp_path):
    workload = workload_of(text, tmp_path)
    return open_designs(design_spaces(workload.module, target_of(2)))


SUM = (
    "a, b = te.placeholder((4, 0), name='a'), te.placeholder((0, 4), name='b')\n"
    "f = te.create_prim_func([a, b, topi.matmul(a, b)])\n"
)
FUNC = (
    "@T.prim_func(s_tir=True)\n"
    "def f(x: T.Buffer((8, 8), 'float32'), c: T.Buffer((8,), 'float32')):\n"
)
BOUND = (
    "    for i in T.thread_binding(8, thread='threadIdx.x'):\n"
    "        with T.sblock('b'):\n"
    "            v = T.axis.spatial(8, i)\n"
    "            c[v] = x[v, 0]\n"
)
UPDATE = (
    "    for i in range(8):\n"
    "        with T.sblock('b'):\n"
    "            v = T.axis.spatial(8, i)\n"
    "            c[v] = c[v] + x[v, 0]\n"
)
ACCUMULATE = (
    "    for i, j in T.grid(8, 8):\n"
    "        with T.sblock('b'):\n"
    "            v, k = T.axis.remap('SR', [i, j])\n"
    "            c[v] = c[v] + x[v, k]\n"
)

CALL = (
    "    with T.sblock('b'):\n"
    "        T.reads(x[0:8, 0:8])\n"
    "        T.writes(c[0:8])\n"
    "        T.evaluate(T.call_packed('f', T.tvm_stack_make_array(\n"
    "            c.data, T.tvm_stack_make_shape(8), 0, 1, T.float32(0), 0), 1))\n"
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (SUM, "its loop k has no steps"),
        (FUNC + BOUND, "its loop i is bound to threadIdx.x"),
        (FUNC + UPDATE, "in-place: block b updates c; let it write another buffer"),
        (FUNC + ACCUMULATE, "in-place: block b updates c"),
    ],
)
def test_a_function_without_a_program_is_told(text, told, tmp_path):
    with pytest.raises(PrunerError, match=told):
        spaces(text, tmp_path)


def test_a_function_that_one_rule_refuses_is_tuned_by_the_others(tmp_path):
    found = spaces(FUNC + CALL, tmp_path)
    assert len(found.instantiate(found.sample(2, np.random.default_rng(0)))) == 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (SUM, "its loop k has no steps"),
        (FUNC + BOUND, "its loop i is bound to threadIdx.x"),
        (FUNC + CALL, "schedule rules refuse this function: "),
    ],
)
def test_tvms_own_search_tells_it_in_a_line(text, told, tmp_path):
    policy, platform = MetaSchedule(), platform_of("cpu-avx2")
    how = {"shared": policy.shared(platform), "budget": (4, 4), "seed": 0, "phases": Phases()}
    with pytest.raises(PrunerError, match=told) as refused:
        policy.make(workload_of(text, tmp_path), platform, Database(None).tvm_database, **how)
    assert "\n" not in str(refused.value)


def test_shifts_and_bits_need_no_replay(tmp_path):
    """As in quantised products, whose sums are shifted and clipped to bytes."""
    text = (
        "x = te.placeholder((8, 16), 'int32', name='x')\n"
        "y = te.compute((8, 16), lambda i, j: ((x[i, j] >> 3) & 255) ^ (x[i, j] << 1) | 1)\n"
        "f = te.create_prim_func([x, y])\n"
    )
    found = spaces(text, tmp_path)
    assert not found.replayed
    assert found.features(found.sample(4, np.random.default_rng(0))).valid.all()
