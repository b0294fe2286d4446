"""Compute DAGs from saved graphs: small ones made by hand, then all of TenSet's."""

import json
from pathlib import Path

import pytest

from pruner.errors import UnsupportedProgram
from pruner.program.dag.dag import AxisDef
from pruner.program.dag.expr import Axis, Binary, Call, Cast, Const, Load, Select
from pruner.program.dag.tenset import dag_from_json
from tests.program.dag.test_operators import check_steps
from tests.program.saved_graph import SavedGraph
from tests.program.tenset_tasks import golden_tasks, unique_tasks


def product_graph() -> tuple[SavedGraph, int, int, int]:
    """C[i] = sum over k of A[i, k] * B[k]; returns the graph and the three tensors."""
    g = SavedGraph()
    a, b = g.placeholder("A", 4, 6), g.placeholder("B", 6)
    i, k = g.axis("i", g.int_(4)), g.axis("k", g.int_(6), iter_type=2)
    source = g.binary("Mul", g.load(a, g.var_of(i), g.var_of(k)), g.load(b, g.var_of(k)))
    c = g.compute("C", [i], g.reduce("Add", source, (k,)), (k,))
    return g, a, b, c


def test_a_matrix_vector_product() -> None:
    g, a, b, c = product_graph()
    dag = dag_from_json(g.text(a, b, c))
    assert [stage.name for stage in dag.stages] == ["A", "B", "C"]
    out = dag.stages[2]
    assert out.axes == (AxisDef(name="i", extent=4),)
    assert out.reduce_axes == (AxisDef(name="k", extent=6),)
    assert (out.combiner, out.identity) == ("add", 0.0)
    assert out.body == Binary(
        "mul",
        Load(0, (Axis(0), Axis(1)), "float32"),
        Load(1, (Axis(1),), "float32"),
        "float32",
    )
    assert dag.outputs == (2,)


def test_stages_follow_the_expression_and_not_the_list_of_tensors() -> None:
    g, a, b, c = product_graph()
    assert dag_from_json(g.text(c, b, a)) == dag_from_json(g.text(a, b, c))


def test_maximum_with_its_identity_and_a_call() -> None:
    g = SavedGraph()
    a = g.placeholder("A", 8)
    k = g.axis("k", g.int_(8), iter_type=2)
    source = g.call("exp", g.load(a, g.var_of(k)))
    top = g.compute("top", [], g.reduce("Max", source, (k,), -3.0e38), (k,))
    stage = dag_from_json(g.text(a, top)).stages[1]
    assert (stage.shape, stage.combiner, stage.identity) == ((), "max", -3.0e38)
    assert stage.body == Call("exp", (Load(0, (Axis(0),), "float32"),), "float32", pure=True)


def test_a_size_left_unfolded_counts_when_it_is_the_same_everywhere() -> None:
    """(i + 1) * 7 - i * 7 iterations: the window of adaptive pooling."""
    g = SavedGraph()
    a = g.placeholder("A", 21)
    i = g.axis("i", g.int_(3))
    one_more = g.binary("Add", g.var_of(i), g.int_(1), "int32")
    end = g.binary("Mul", one_more, g.int_(7), "int32")
    start = g.binary("Mul", g.var_of(i), g.int_(7), "int32")
    k = g.axis("k", g.binary("Sub", end, start, "int32"), iter_type=2)
    index = g.binary("Add", start, g.var_of(k), "int32")
    c = g.compute("C", [i], g.reduce("Add", g.load(a, index), (k,)), (k,))
    assert dag_from_json(g.text(a, c)).stages[1].reduce_axes == (AxisDef(name="k", extent=7),)


def refused(text: str) -> str:
    with pytest.raises(UnsupportedProgram) as caught:
        dag_from_json(text)
    return caught.value.reason


def test_a_size_that_varies_is_refused() -> None:
    g = SavedGraph()
    a = g.placeholder("A", 9)
    i = g.axis("i", g.int_(3))
    k = g.axis("k", g.binary("Add", g.var_of(i), g.int_(1), "int32"), iter_type=2)
    c = g.compute("C", [i], g.reduce("Add", g.load(a, g.var_of(k)), (k,)), (k,))
    assert refused(g.text(a, c)) == "dynamic-shape"


def test_unknown_calls_and_expressions_are_refused() -> None:
    g = SavedGraph()
    i = g.axis("i", g.int_(3))
    assert refused(g.text(g.compute("C", [i], g.call("launch_missiles")))) == "unknown-call"
    body = g.add("tir.Let", dtype="float32")
    assert refused(g.text(g.compute("C", [i], body))) == "unsupported-expression"
    body = g.binary("Add", g.var("free"), g.int_(1))
    assert refused(g.text(g.compute("C", [i], body))) == "unsupported-expression"


def test_unusual_operations_are_refused() -> None:
    g = SavedGraph()
    assert refused(g.text(g.tensor(g.add("ScanOp", name="s")))) == "unsupported-operation"
    a = g.placeholder("A", 3)
    i = g.axis("i", g.int_(3), start=1)
    assert refused(g.text(g.compute("C", [i], g.load(a, g.var_of(i))))) == "axis-start"
    op = int(g.nodes[a]["attrs"]["op"])
    assert refused(g.text(g.tensor(op, value_index=1))) == "multi-output"


def test_odd_reductions_are_refused() -> None:
    g = SavedGraph()
    a = g.placeholder("A", 8)
    k = g.axis("k", g.int_(8), iter_type=2)
    load = g.load(a, g.var_of(k))
    by_division = g.compute("C", [], g.reduce("Div", load, (k,)), (k,))
    assert refused(g.text(by_division)) == "unsupported-reduction"
    conditional = g.reduce("Add", load, (k,))
    g.nodes[conditional]["attrs"]["condition"] = str(g.int_(0, "bool"))
    assert refused(g.text(g.compute("C", [], conditional, (k,)))) == "unsupported-reduction"
    one_sided = g.reduce("Add", load, (k,))
    result = g.nodes[int(g.nodes[one_sided]["attrs"]["combiner"])]["attrs"]["result"]
    addition = g.nodes[g.nodes[int(result)]["data"][0]]["attrs"]
    addition["b"] = addition["a"]
    assert refused(g.text(g.compute("C", [], one_sided, (k,)))) == "unsupported-reduction"
    assert refused(g.text(g.compute("C", [], load, (k,)))) == "unsupported-reduction"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"root": 7, "nodes": []}',
        '{"root": 0, "nodes": [{"type_key": "Array"}]}',
        '{"root": 0, "nodes": [{"type_key": "Array", "data": [0]}]}',
        '{"root": 0, "nodes": [{"type_key": "Array", "data": [1]}, {"type_key": "Tensor"}]}',
        '{"root": 0, "nodes": [{"type_key": "Array", "data": ["x"]}]}',
        '{"root": 0, "nodes": [3]}',
    ],
)
def test_damaged_graphs_are_refused(text: str) -> None:
    assert refused(text) == "damaged-graph"


def test_a_graph_that_contains_itself_is_refused() -> None:
    g = SavedGraph()
    i = g.axis("i", g.int_(3))
    loop = g.binary("Add", g.int_(1), g.int_(1))
    g.nodes[loop]["attrs"]["b"] = str(loop)
    assert refused(g.text(g.compute("C", [i], loop))) == "damaged-graph"


def test_a_stage_that_reads_itself_is_refused() -> None:
    g = SavedGraph()
    a = g.placeholder("A", 3)
    i = g.axis("i", g.int_(3))
    load = g.load(a, g.var_of(i))
    c = g.compute("C", [i], load)
    g.nodes[load]["attrs"]["producer"] = str(c)
    assert refused(g.text(c)) == "damaged-graph"


def test_a_load_with_a_missing_index_is_refused() -> None:
    g = SavedGraph()
    a = g.placeholder("A", 3, 4)
    i = g.axis("i", g.int_(3))
    assert refused(g.text(g.compute("C", [i], g.load(a, g.var_of(i))))) == "damaged-graph"


@pytest.mark.slow
def test_every_task_of_tenset_becomes_a_dag(network_info: Path) -> None:
    tasks = unique_tasks(network_info)
    assert len(tasks) == 653
    for task in tasks.values():
        dag = dag_from_json(task.compute_dag)
        assert all(source < i for i, s in enumerate(dag.stages) for source in s.reads)
        # the key of a TenSet task ends with the shapes of the tensors it was made from
        sizes = [size for size in json.loads(task.workload_key)[1:] if isinstance(size, int)]
        inputs = [stage.shape for stage in dag.stages if stage.body is None]
        assert set(sum(inputs, ())) <= set(sizes)


def test_steps_of_generated_programs_fit_their_dags(network_info: Path, shared: Path) -> None:
    tasks = unique_tasks(network_info)
    compared = 0
    for golden in golden_tasks(shared):
        dag = dag_from_json(tasks[golden.target, golden.workload_key].compute_dag)
        for steps in golden.steps:
            compared += check_steps(dag, steps)
    assert compared > 5000


def test_constants_keep_their_type() -> None:
    g = SavedGraph()
    i = g.axis("i", g.int_(3))
    cond = g.binary("LT", g.var_of(i), g.int_(2), "bool")
    body = g.add(
        "tir.Select",
        condition=g.binary("And", cond, g.int_(1, "bool"), "bool"),
        dtype="float32",
        false_value=g.float_(0.5),
        true_value=g.add("tir.Cast", dtype="float32", value=g.var_of(i)),
    )
    found = dag_from_json(g.text(g.compute("C", [i], body))).stages[0].body
    below = Binary("lt", Axis(0), Const(2, "int32"), "bool")
    both = Binary("and", below, Const(1, "bool"), "bool")
    assert found == Select(both, Cast(Axis(0), "float32"), Const(0.5, "float32"), "float32")
