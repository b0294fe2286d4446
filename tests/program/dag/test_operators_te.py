"""Every operator's compute DAG against its TE expression: the same stages with the same values."""

import importlib
import json
from typing import Any

import numpy as np
import pytest

from pruner.data.workload import ARGUMENTS
from pruner.program.dag.operators import dag_for_workload, find_operator, te_tensors
from tests.program.dag_values import dag_values

pytestmark = pytest.mark.tvm

IMAGE = [
    (9, 7, 3, 3, 1, "SAME"),
    (9, 7, 3, 3, 2, "SAME"),
    (9, 7, 3, 3, 2, 1),
    (8, 8, 2, 2, 1, "SAME"),
    (8, 9, 2, 4, 2, "SAME"),
    (8, 8, 1, 1, 2, "VALID"),
    (8, 7, 1, 1, 1, "SAME"),
    (11, 9, 5, 3, 2, "VALID"),
    (9, 7, 3, 5, 3, [1, 2]),
    (6, 7, 3, 3, 1, [0, 1, 2, 1]),
]
CASES: dict[str, list[tuple[Any, ...]]] = {
    "matmul": [(3, 5, 7), (1, 1, 1), (8, 4, 2)],
    "batch_matmul": [(2, 3, 4, 5, 6), (1, 1, 2, 3, 1)],
    "conv2d": [(2, 3, h, w, 4, *rest) for h, w, *rest in IMAGE],
    "depthwise_conv2d": [(2, 3, h, w, *rest) for h, w, *rest in IMAGE],
    "pool": [(kind, 2, 3, h, w, *rest) for kind in ("max", "avg") for h, w, *rest in IMAGE],
    "softmax": [(5, 8), (1, 3), (4, 1)],
    "reduction": [
        ([4, 6], 1, False),
        ([2, 3, 4], [0, 2], True),
        ([2, 3, 4], None, False),
        ([2, 3, 4, 5], [-1, 1], False),
    ],
    "relu": [(7,), (3, 4), (2, 3, 4, 5)],
}
FUSED = [
    ("conv2d", (2, 3, 9, 7, 4, 3, 3, 1, "SAME"), ("relu",)),
    ("conv2d", (2, 3, 9, 7, 4, 3, 3, 1, "SAME"), ("add", "relu")),
    ("conv2d", (2, 3, 9, 7, 4, 3, 3, 1, "SAME"), ("bias", "add", "relu")),
    ("matmul", (3, 5, 7), ("bias",)),
    ("pool", ("avg", 2, 3, 9, 7, 3, 3, 1, 1), ("add",)),
]
# the same windows as of conv2d, which has them all
SLOW = {(name, str(args)) for name in ("depthwise_conv2d", "pool") for args in CASES[name][2:7]}
ALL = [
    *(
        pytest.param(name, args, (), marks=pytest.mark.slow if (name, str(args)) in SLOW else ())
        for name, found in CASES.items()
        for args in found
    ),
    *FUSED,
]
QUICK = {"kind": "llvm", "opt-level": 0}


def te_stages(tensor: Any, found: list[Any]) -> list[Any]:
    """Stages behind a tensor in the order in which Ansor numbers them: inputs before their user."""
    for source in tensor.op.input_tensors:
        te_stages(source, found)
    if not any(tensor.op.same_as(other.op) for other in found):
        found.append(tensor)
    return found


def te_values(te: Any, stages: list[Any], inputs: list[np.ndarray]) -> list[np.ndarray]:
    """The value of every stage, computed by a program that TVM compiles."""
    from pruner.tune.tvm_import import load_tvm

    tvm = load_tvm().tvm
    given = [stage for stage in stages if not stage.op.input_tensors]
    made = [stage for stage in stages if stage.op.input_tensors]
    module = tvm.IRModule({"main": te.create_prim_func([*given, *made])})
    shapes = [tuple(int(size) for size in stage.shape) for stage in made]
    out = [tvm.runtime.tensor(np.zeros(shape, "float32")) for shape in shapes]
    args = [tvm.runtime.tensor(value) for value in inputs]
    tvm.compile(module, target=tvm.target.Target(QUICK))["main"](*args, *out)
    values = iter(inputs), iter(out)
    return [
        next(values[1]).numpy() if stage.op.input_tensors else next(values[0]) for stage in stages
    ]


@pytest.mark.parametrize(("name", "args", "fused"), ALL, ids=str)
def test_dag_and_te_have_the_same_stages_and_values(
    name: str, args: tuple[Any, ...], fused: tuple[str, ...]
) -> None:
    te, topi = importlib.import_module("tvm.te"), importlib.import_module("tvm.topi")
    key = json.dumps([f"{name}_layer", *args])
    dag = dag_for_workload(key, fused)
    stages = te_stages(te_tensors(te, topi, key, fused)[-1], [])
    assert [tuple(int(size) for size in stage.shape) for stage in stages] == [
        stage.shape for stage in dag.stages
    ]
    assert [[int(a.dom.extent) for a in getattr(s.op, "reduce_axis", [])] for s in stages] == [
        [axis.extent for axis in stage.reduce_axes] for stage in dag.stages
    ]
    rng = np.random.default_rng(0)
    inputs = [
        rng.uniform(-1, 1, stage.shape).astype(np.float32)
        for stage in dag.stages
        if stage.body is None
    ]
    found = te_values(te, stages, inputs)
    for stage, ours, theirs in zip(dag.stages, dag_values(dag, inputs), found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6, err_msg=stage.name)


def test_every_operator_with_a_dag_is_compared() -> None:
    assert {name for name in ARGUMENTS if find_operator(name).dag} == set(CASES)
