"""Operator definitions against hand-made cases and against the steps of recorded programs."""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pruner.data.workload import ARGUMENTS, FUSABLE, pad_amounts, parse_workload
from pruner.errors import PrunerError, UnsupportedProgram
from pruner.program.dag import operators
from pruner.program.dag.dag import ComputeDAG
from pruner.program.dag.expr import Binary, Call, Const, Load, walk
from pruner.program.dag.operators import dag_for_workload
from pruner.program.dag.operators.epilogue import EPILOGUES
from pruner.program.dag.operators.task_options import checked, key_of, name_of, tuned_operators
from tests.paths import CONF


def key(*parts: Any) -> str:
    return json.dumps(parts)


def kinds(dag: ComputeDAG) -> list[str]:
    return ["p" if stage.body is None else "c" for stage in dag.stages]


def test_matmul_reads_rows_of_a_and_columns_of_b() -> None:
    dag = dag_for_workload(key("matmul_layer", 3, 5, 7))
    assert [s.shape for s in dag.stages] == [(3, 5), (5, 7), (3, 7)]
    out = dag.stages[2]
    assert [(a.name, a.extent) for a in out.axes + out.reduce_axes] == [
        ("x", 3),
        ("y", 7),
        ("k", 5),
    ]
    assert out.reads == (0, 1)
    assert out.combiner == "add"
    assert dag.outputs == (2,)


def test_batch_matmul_multiplies_batch_and_heads() -> None:
    dag = dag_for_workload(key("batch_matmul_layer", 2, 3, 4, 5, 6))
    assert [s.shape for s in dag.stages] == [(6, 4, 5), (6, 5, 6), (6, 4, 6)]


def test_unpadded_conv2d_keeps_a_plain_copy_stage() -> None:
    dag = dag_for_workload(key("conv2d_layer", 1, 8, 14, 14, 16, 1, 1, 2, "SAME"))
    assert kinds(dag) == ["p", "c", "p", "c"]
    assert isinstance(dag.stages[1].body, Load)
    assert dag.stages[3].shape == (1, 16, 7, 7)


def test_padded_conv2d_guards_both_ends_of_both_dimensions() -> None:
    dag = dag_for_workload(key("conv2d_layer", 1, 8, 14, 14, 16, 3, 3, 2, 1))
    pad = dag.stages[1]
    assert pad.shape == (1, 8, 16, 16)
    assert isinstance(pad.body, Call)
    assert pad.body.name == "if_then_else"
    nodes = [node for node in walk(pad.body) if isinstance(node, Binary)]
    bounds = [(n.op, n.b.value) for n in nodes if isinstance(n.b, Const)]
    assert sorted(bounds) == [("ge", 1)] * 2 + [("lt", 15)] * 2 + [("sub", 1)] * 2
    assert dag.stages[3].shape == (1, 16, (14 + 2 - 3) // 2 + 1, (14 + 2 - 3) // 2 + 1)


def test_stride_one_needs_no_product_in_the_index() -> None:
    conv = dag_for_workload(key("conv2d_layer", 1, 8, 9, 9, 4, 3, 3, 1, 0)).stages[3]
    assert conv.body is not None
    ops = [n.op for n in walk(conv.body) if isinstance(n, Binary)]
    assert sorted(ops) == ["add", "add", "mul"]  # y + ry, x + rx, and the product of values


@pytest.mark.parametrize(
    ("fused", "expected"),
    [(("add",), "pcpcpc"), (("add", "relu"), "pcpcpcc"), (("add_relu",), "pcpcpcc"), ((), "pcpc")],
)
def test_fused_stages_follow_the_convolution(fused: tuple[str, ...], expected: str) -> None:
    dag = dag_for_workload(key("conv2d_layer", 1, 8, 9, 9, 4, 3, 3, 1, "SAME"), fused)
    assert "".join(kinds(dag)) == expected
    assert dag.outputs == (len(expected) - 1,)
    assert {s.shape for s in dag.stages[3:]} == {(1, 4, 9, 9)}


def test_mean_pooling_divides_by_the_whole_window() -> None:
    dag = dag_for_workload(key("pool_layer", "avg", 1, 2, 9, 9, 3, 3, 2, "SAME"))
    assert kinds(dag) == ["p", "c", "c", "c"]
    body = dag.stages[3].body
    assert isinstance(body, Binary)
    assert (body.op, body.b) == ("div", Const(9.0, "float32"))
    assert dag.stages[3].shape == (1, 2, 5, 5)


def test_unpadded_pooling_has_no_pad_stage() -> None:
    assert kinds(dag_for_workload(key("pool_layer", "max", 1, 2, 9, 9, 3, 3, 2, "VALID"))) == [
        "p",
        "c",
    ]


def test_maximum_starts_from_the_lowest_value_and_pads_with_it() -> None:
    dag = dag_for_workload(key("pool_layer", "max", 1, 2, 9, 9, 3, 3, 2, "SAME"))
    pad, pool = dag.stages[1:]
    assert isinstance(pad.body, Call)
    assert pad.body.args[2] == Const(pool.identity, "float32")
    assert (pool.combiner, pool.identity) == ("max", -3.4028234663852886e38)


def test_even_window_pads_in_front_only_and_checks_that_end_only() -> None:
    dag = dag_for_workload(key("pool_layer", "max", 1, 2, 8, 8, 2, 2, 1, "SAME"))
    body = dag.stages[1].body
    assert body is not None
    assert dag.stages[1].shape == (1, 2, 9, 9)
    assert [n.op for n in walk(body) if isinstance(n, Binary)] == ["ge", "ge", "and", "sub", "sub"]


@pytest.mark.parametrize(
    ("axis", "keepdims", "shape", "over"),
    [
        (2, False, (2, 3), [4]),
        (-1, False, (2, 3), [4]),
        ([1, 2], False, (2,), [3, 4]),
        ([0, 2], True, (1, 3, 1), [2, 4]),
        (None, False, (), [2, 3, 4]),
    ],
)
def test_reduction_shapes(
    axis: Any, keepdims: bool, shape: tuple[int, ...], over: list[int]
) -> None:
    stage = dag_for_workload(key("reduction_layer", [2, 3, 4], axis, keepdims)).stages[1]
    assert stage.shape == shape
    assert [a.extent for a in stage.reduce_axes] == over


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        ("not json", "bad-workload-key"),
        ("[]", "bad-workload-key"),
        ('["winograd_layer", 1]', "unknown-operator"),
        ('["matmul_layer", 1, 2]', "bad-arguments"),
        ('["matmul_layer", 0, 2, 3]', "bad-arguments"),
        ('["conv2d_layer", 1, 8, 2, 2, 4, 3, 3, 1, "VALID"]', "bad-arguments"),
        ('["conv2d_layer", 1, 8, 9, 9, 4, 3, 3, 1, "HALF"]', "bad-arguments"),
        ('["pool_layer", "min", 1, 8, 9, 9, 3, 3, 1, "SAME"]', "bad-arguments"),
        ('["reduction_layer", [4, 4], 5, false]', "bad-arguments"),
        ('["reduction_layer", 4, 0, false]', "bad-arguments"),
        ('["relu_layer"]', "bad-arguments"),
    ],
)
def test_refusals_name_a_reason(workload: str, reason: str) -> None:
    with pytest.raises(UnsupportedProgram) as caught:
        dag_for_workload(workload)
    assert caught.value.reason == reason


def test_a_bias_is_one_number_a_channel() -> None:
    image = dag_for_workload(key("conv2d_layer", 1, 8, 9, 9, 4, 3, 3, 1, "SAME"), ("bias", "relu"))
    assert [s.shape for s in image.stages[4:]] == [(4,), (1, 4, 9, 9), (1, 4, 9, 9)]
    product = dag_for_workload(key("matmul_layer", 3, 5, 7), ("bias",))
    assert [s.shape for s in product.stages[3:]] == [(7,), (3, 7)]


def test_softmax_has_four_stages_behind_its_data() -> None:
    dag = dag_for_workload(key("softmax_layer", 5, 8))
    assert [s.shape for s in dag.stages] == [(5, 8), (5,), (5, 8), (5,), (5, 8)]
    assert [s.combiner for s in dag.stages] == [None, "max", None, "add", None]


def test_an_operator_without_a_dag_says_so() -> None:
    with pytest.raises(UnsupportedProgram, match="'layer_norm_layer' has no compute DAG"):
        dag_for_workload(key("layer_norm_layer", 5, 8))


def test_names_of_logs_and_epilogues_are_the_same_words() -> None:
    assert tuple(EPILOGUES) == FUSABLE


def test_options_become_the_key_of_the_same_work() -> None:
    matmul = {"operator": "matmul", "m": 2, "n": 3, "k": 4}
    assert (key_of(matmul), name_of(matmul)) == (key("matmul_layer", 2, 4, 3), "matmul_2_3_4")
    many = {"operator": "batch_matmul", "batch": 6, "m": 2, "n": 3, "k": 4}
    assert key_of(many) == key("batch_matmul_layer", 6, 1, 2, 4, 3)
    assert name_of(many) == "batch_matmul_6_2_3_4"


TOY = """
'''Sums over windows along the last of two axes.'''
from pruner.data.workload import ARGUMENTS, pad_amounts
from pruner.program.dag.expr import axes, load
from pruner.program.dag.operators.builder import DagBuilder
from pruner.program.dag.operators.builder import Operator
from pruner.program.dag.operators.windows import window

def _dag(n, w, kw, padding):
    _, left, _, right = pad_amounts(padding, 1, kw)
    dag = DagBuilder()
    data = dag.placeholder("data", (n, w + left + right))
    i, j, r = axes(3)
    dims = [("i", n), ("j", w + left + right - kw + 1)]
    dag.reduce("sum", dims, [("k", kw)], load(data, i, window(j, 1, r)))
    return dag

def _te(te, topi, dtype, n, w, kw, padding):
    return [te, topi, dtype, n, w, kw, padding]

OPERATOR = Operator(dag=_dag, te=_te, options=ARGUMENTS["toy"])
"""


def test_a_new_operator_is_one_file_and_one_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recipe in CONTRIBUTING.md: the file, the row; conf/workload and the test are left."""
    (tmp_path / "toy.py").write_text(TOY)
    monkeypatch.setattr(operators, "__path__", [*operators.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "pruner.program.dag.operators.toy", raising=False)
    monkeypatch.setitem(ARGUMENTS, "toy", ("n", "w", "kw", "padding"))
    spec = {"operator": "toy", "n": 2, "w": 9, "kw": 3, "padding": "SAME"}
    assert "toy" in tuned_operators()
    assert (key_of(spec), name_of(spec)) == (key("toy_layer", 2, 9, 3, "SAME"), "toy_2_9_3_SAME")
    with pytest.raises(PrunerError, match=r"workload.w=0: toy needs a whole number, 1 or more"):
        checked({**spec, "w": 0})
    same, other = (parse_workload(key("toy_layer", 2, 9, 3, p)) for p in ("SAME", [0, 1]))
    assert same.identity == other.identity
    dag = dag_for_workload(key_of(spec), ("relu",))
    assert [s.shape for s in dag.stages] == [(2, 11), (2, 9), (2, 9)]
    found = operators.te_tensors("te", "topi", key_of(spec), dtype="float16")
    assert found == ["te", "topi", "float16", 2, 9, 3, "SAME"]


@pytest.mark.parametrize("name", ARGUMENTS)
def test_every_operator_of_the_table_has_its_file(name: str) -> None:
    operator = operators.find_operator(name)
    assert set(operator.options) | set(operator.fixed) in (set(), set(ARGUMENTS[name]))
    assert set(operator.choices) <= set(operator.options)
    yaml = CONF / "workload" / f"{name}.yaml"
    assert yaml.is_file() == bool(operator.options)


def test_unknown_epilogue_is_refused() -> None:
    with pytest.raises(UnsupportedProgram) as caught:
        dag_for_workload(key("matmul_layer", 2, 2, 2), ("gelu",))
    assert caught.value.reason == "unknown-epilogue"


@given(st.integers(1, 9), st.integers(1, 9))
def test_same_padding_keeps_the_size_at_stride_one(kernel_h: int, kernel_w: int) -> None:
    top, left, bottom, right = pad_amounts("SAME", kernel_h, kernel_w)
    assert (top + bottom, left + right) == (kernel_h - 1, kernel_w - 1)
    assert 0 <= top - bottom <= 1
    assert 0 <= left - right <= 1


def initial_extents(dag: ComputeDAG) -> list[list[int | None]]:
    return [[a.extent for a in s.axes + s.reduce_axes] for s in dag.stages]


def check_steps(dag: ComputeDAG, steps: list[list[Any]]) -> int:
    """Replay stage numbers and extents (None: not known); the number of extents compared."""
    loops = initial_extents(dag)
    spatial = [len(s.axes) for s in dag.stages]
    original: list[int | None] = list(range(len(dag.stages)))
    checked = 0
    for tag, stage, *rest in steps:
        match tag:
            case "SP":
                iterator, extent, lengths, _ = rest
                known = loops[stage][iterator]
                if known is not None:
                    assert known == extent, (tag, stage, rest)
                    checked += 1
                loops[stage][iterator : iterator + 1] = [None] * (len(lengths) + 1)
            case "FSP":
                loops[stage][rest[0] : rest[0] + 1] = [None] * (rest[2] + 1)
            case "FFSP":
                loops[stage][rest[0] : rest[0] + 1] = [None] * 2
            case "RE":
                assert sorted(rest[0]) == list(range(len(loops[stage]))), (tag, stage, rest)
                loops[stage] = [loops[stage][i] for i in rest[0]]
            case "FU":
                parts = [loops[stage][i] for i in rest[0]]
                product: int | None = 1
                for part in parts:
                    product = None if part is None or product is None else product * part
                loops[stage][rest[0][0] : rest[0][-1] + 1] = [product]
            case "CHW":
                loops.insert(stage, list(loops[stage]))
                source = original[stage]
                assert source is not None
                loops[stage + 1] = loops[stage][: spatial[source]]
                original.insert(stage, None)
            case "CHR":
                source = original[stage]
                assert source is not None
                shape = dag.stages[source].shape
                for reader in rest[1]:
                    number = original[reader]
                    if number is not None:
                        assert source in dag.stages[number].reads, (tag, stage, rest)
                loops.insert(stage + 1, [None] * len(shape))
                original.insert(stage + 1, None)
            case "CA":
                loops[stage] = [None] * len(loops[stage])
            case "CI":
                source = original[stage]
                assert source is not None
                assert dag.stages[source].body is not None
            case "RF":
                return checked
    return checked


def test_steps_of_every_recorded_task_fit_its_dag(shared: Path) -> None:
    root = shared / "data" / "gpu-records" / "measure_records"
    files = sorted(root.glob("*/*.json.gz"))
    if not files:
        pytest.skip(f"no records in {root}")
    for file in files:
        task = file.name.removesuffix(".json.gz")
        fused = next(
            (f for f in ("add_relu", "add", "relu") if task.startswith(f"conv2d_{f}_")), None
        )
        with gzip.open(file, "rt") as lines:
            record = json.loads(next(lines))
        dag = dag_for_workload(record["i"][0][0], (fused,) if fused else ())
        checked = check_steps(dag, record["i"][1][1])
        assert checked >= 1, file
