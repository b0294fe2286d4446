"""DAG text against what the original prints."""

from pathlib import Path

import pytest

from pruner.program.dag.dag import AxisDef, ComputeDAG, Stage, dag_text, shortened
from pruner.program.dag.expr import Axis, Binary, Call, Cast, Const, Expr, Load, Not, Select
from pruner.program.dag.operators import dag_for_workload
from pruner.program.dag.tenset import dag_from_json
from tests.program.tenset_tasks import golden_tasks, unique_tasks


def test_a_matrix_product() -> None:
    assert dag_text(dag_for_workload('["matmul_layer", 2, 3, 4]')) == (
        "A = PLACEHOLDER [2, 3]\nB = PLACEHOLDER [3, 4]\ncompute(x, y) += (A[x, k]*B[k, y])\n"
    )


def test_a_padded_convolution_with_epilogue() -> None:
    key = '["conv2d_layer", 1, 2, 5, 5, 4, 3, 3, 2, "SAME"]'
    assert dag_text(dag_for_workload(key, ("add", "relu"))) == (
        "input0 = PLACEHOLDER [1, 2, 5, 5]\n"
        "pad_temp(i0, i1, i2, i3) = tir.if_then_else(((((i2 >= 1) && (i2 < 6)) && (i3 >= 1)) && "
        "(i3 < 6)), input0[i0, i1, (i2 - 1), (i3 - 1)], 0f)\n"
        "input1 = PLACEHOLDER [4, 2, 3, 3]\n"
        "compute(nn, ff, yy, xx) += (pad_temp[nn, rc, ((yy*2) + ry), ((xx*2) + rx)]*"
        "input1[ff, rc, ry, rx])\n"
        "input2 = PLACEHOLDER [1, 4, 3, 3]\n"
        "T_add(ax0, ax1, ax2, ax3) = (compute[ax0, ax1, ax2, ax3] + input2[ax0, ax1, ax2, ax3])\n"
        "compute(i0, i1, i2, i3) = max(T_add[i0, i1, i2, i3], 0f)\n"
    )


def test_maximum_pooling() -> None:
    text = dag_text(dag_for_workload('["pool_layer", "max", 1, 2, 5, 5, 3, 3, 2, "SAME"]'))
    assert "tensor(ax0, ax1, ax2, ax3) max= pad_temp[" in text
    assert text.count("-3.40282e+38f") == 1


X, Y = Axis(0), Axis(1)


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (Binary("floordiv", X, Const(3), "int32"), "floordiv(i, 3)"),
        (Binary("floormod", X, Y, "int32"), "floormod(i, j)"),
        (Binary("mod", X, Y, "int32"), "(i % j)"),
        (Binary("or", Binary("eq", X, Y, "bool"), Not(Const(0, "bool")), "bool"), None),
        (Cast(X, "float32"), "float32(i)"),
        (Select(Const(1, "bool"), X, Y, "int32"), "select((bool)1, i, j)"),
        (Call("tanh", (Const(2.5, "float32"),), "float32"), "tir.tanh(2.5f)"),
        (Const(1 / 3, "float32"), "0.333333f"),
        (Const(0.1, "float64"), "0.1"),
        (Const(7, "int64"), "(int64)7"),
        (Load(0, (Y, X), "float32"), "A[j, i]"),
    ],
)
def test_forms_of_expressions(expr: Expr, expected: str | None) -> None:
    axes = (AxisDef(name="i", extent=2), AxisDef(name="j", extent=2))
    source = Stage(name="A", shape=(2, 2), dtype="float32")
    stage = Stage(name="B", shape=(2, 2), dtype="float32", axes=axes, body=expr)
    dag = ComputeDAG(stages=(source, stage), outputs=(1,))
    assert dag_text(dag).splitlines()[1] == f"B(i, j) = {expected or '((i == j) || !(bool)0)'}"


def test_long_lines_lose_their_middle() -> None:
    line = "a" * 128 + "b" * 9 + "c" * 128
    assert shortened(line) == "a" * 128 + " ..(OMITTED).. " + "c" * 128
    assert shortened(line[:256]) == line[:256]


def test_every_printed_dag_of_the_original(network_info: Path, shared: Path) -> None:
    tasks = unique_tasks(network_info)
    for golden in golden_tasks(shared):
        dag = dag_from_json(tasks[golden.target, golden.workload_key].compute_dag)
        assert dag_text(dag) == golden.dag_text, golden.name
