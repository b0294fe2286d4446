"""Operators against torch, TVMScript files, and what a user can get wrong."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from pruner.errors import PrunerError
from pruner.program.dag.operators import task_options as operators
from pruner.tune.measure.numerics import inputs
from pruner.tune.spaces.design import design_spaces
from pruner.tune.tvm_import import load_tvm
from pruner.tune.workloads import arguments, flops, from_file, from_operator, load_workloads
from tests.tune.targets import target_of

IMAGE = {"n": 2, "h": 9, "w": 7, "kh": 3, "kw": 3, "stride": 2, "padding": 1}
SPECS = {
    "matmul": {"m": 8, "n": 6, "k": 5},
    "conv2d": {**IMAGE, "ci": 4, "co": 6},
    "depthwise_conv2d": {**IMAGE, "c": 4},
    "pool": {**IMAGE, "c": 4, "kind": "max"},
    "softmax": {"rows": 5, "columns": 8},
}


def spec(name, **more):
    return {"operator": name, **SPECS[name], **more}


@pytest.fixture
def write(tmp_path):
    """Write a file of functions; return its path."""

    def written(text):
        (tmp_path / "mine.py").write_text(text)
        return tmp_path / "mine.py"

    return written


def computed(workload):
    tvm = load_tvm().tvm
    values = inputs(arguments(workload.module))
    arrays = [tvm.runtime.tensor(value) for value in values]
    tvm.compile(workload.module, target="llvm")["main"](*arrays)
    return values[:-1], arrays[-1].numpy()


@pytest.mark.tvm
def test_epilogues_follow_in_order_and_bias_is_one_number_a_channel():
    workload = from_operator(spec("conv2d", epilogue=["bias", "add", "relu"]))
    (x, kernel, bias, other), found = computed(workload)
    conv = functional.conv2d(torch.from_numpy(x), torch.from_numpy(kernel), stride=2, padding=1)
    wanted = np.maximum(conv.numpy() + bias[None, :, None, None] + other, 0)
    assert bias.shape == (6,)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.tvm
def test_half_precision_is_half_precision_and_a_point_is_two_operations():
    workload = from_operator(spec("matmul", dtype="float16"))
    assert workload.name == "matmul_8_6_5_fp16"
    assert {dtype for _, dtype in arguments(workload.module)} == {"float16"}
    assert flops(from_operator(spec("matmul")).module) == 2 * 8 * 6 * 5


SCRIPT = """
from tvm.script import tirx as T
import tvm


@T.prim_func(s_tir=True)
def twice(a: T.Buffer((8, 8), "float32"), b: T.Buffer((8, 8), "float32")):
    for i, j in T.grid(8, 8):
        with T.sblock("twice"):
            vi, vj = T.axis.remap("SS", [i, j])
            b[vi, vj] = a[vi, vj] * T.float32(2)
"""


@pytest.mark.tvm
def test_a_file_gives_its_functions(write):
    given = {"operator": "file", "path": str(write(SCRIPT))}
    (workload,) = load_workloads({**given, "weight": 3.0})
    assert (workload.name, workload.weight) == ("mine_twice", 3.0)
    values, found = computed(workload)
    np.testing.assert_array_equal(found, 2 * values[0])
    with pytest.raises(PrunerError, match="no TIR function other; it holds: twice"):
        load_workloads({**given, "function": "other"})


OLD = "from tvm.script import tir as T\n\n@T.prim_func\ndef f():\n    with T.block('b'): pass\n"
TODAY = r"TVM 0.27 has tirx for tir, T.sblock for T.block, T.prim_func\(s_tir=True\) for"


@pytest.mark.tvm
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import nothing_of_this_name", "ModuleNotFoundError: No module named"),
        # which would end the command as if it were done
        ("raise SystemExit(0)", r"mine\.py: SystemExit: 0"),
        (OLD, f"ImportError: .*{TODAY}"),
        ("from tvm import relay", r"TVM 0\.27 has no relay"),
    ],
)
def test_a_file_that_does_not_run_is_one_line(write, text, told):
    """Scripts of an older TVM get the names of today."""
    with pytest.raises(PrunerError, match=told):
        from_file(write(text))


@pytest.mark.tvm
def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(PrunerError, match="no such file"):
        from_file(tmp_path / "absent.py")


@pytest.mark.tvm
def test_lists_keep_weights_and_refuse_one_task_twice():
    tasks = [spec("matmul", weight=2), spec("softmax")]
    assert [w.weight for w in load_workloads({"tasks": tasks})] == [2.0, 1.0]
    with pytest.raises(PrunerError, match="each once"):
        load_workloads({"tasks": [spec("matmul"), spec("matmul")]})


@pytest.mark.parametrize("weight", ["heavy", 0, -1, float("nan"), float("inf"), True, None])
def test_a_weight_is_a_number_above_0(weight):
    with pytest.raises(
        PrunerError, match=rf"^workload\.weight={weight}: it must be a number above"
    ):
        load_workloads({"tasks": [spec("matmul", weight=weight)]})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"operator": "matmool"}, "'matmool' is unknown; known: matmul"),
        (spec("matmul", k=0), "workload.k=0"),
        (spec("matmul", q=1), "unknown option q"),
        (spec("conv2d", padding="FULL"), "SAME, VALID"),
        (spec("matmul", dtype="int7"), "int7 is unknown"),
        (spec("matmul", epilogue=["gelu"]), "some of bias, add, relu"),
        (spec("matmul", epilogue="gelu"), "some of bias, add, relu"),
        (spec("matmul", epilogue=["relu", "bias"]), "in this order"),
        (spec("matmul", epilogue=["relu", "relu"]), "at most once"),
        (spec("conv2d", h=2, w=2, padding=0), "workload.h=2 with padding=0"),
        (spec("depthwise_conv2d", w=2, padding="VALID"), "workload.w=2 with padding=VALID"),
        (spec("pool", h=1, padding=0), "workload.kh=3"),
        (spec("pool", kind="min"), "max or avg"),
    ],
)
def test_wrong_options_are_told(options, told):
    with pytest.raises(PrunerError, match=told):
        operators.checked(options)


def test_the_smallest_images_with_an_output_and_a_single_epilogue_by_name_are_taken():
    for size, padding in ((3, 0), (3, "VALID"), (1, 1), (1, "SAME")):
        operators.checked(spec("conv2d", h=size, w=size, padding=padding))
    assert operators.checked(spec("matmul", epilogue="bias"))["epilogue"] == ["bias"]


HEAD = "from tvm.script import tirx as T\n\n@T.prim_func(s_tir=True)\ndef f({}):\n"
LOOP = """    for i in range(8):
        with T.sblock("b"):
            v = T.axis.spatial(8, i)
            b[v] = {}
"""
TENSORS = 'a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32")'


def script(value, arguments=TENSORS, before=""):
    return HEAD.format(arguments) + before + LOOP.format(value)


@pytest.mark.tvm
@pytest.mark.parametrize(
    ("text", "told"),
    [
        (script("a[v] * n", "n: T.float32, " + TENSORS), "its argument n is a number"),
        (
            script("a[v]", 'p: T.handle, b: T.Buffer((8,), "float32")',
                   '    n = T.int32()\n    a = T.match_buffer(p, (n,), "float32")\n'),
            r"its argument a has the open size \(n\)",
        ),
        (
            script("a[v, 0]", 'p: T.handle, b: T.Buffer((8,), "float32")',
                   '    a = T.match_buffer(p, (8, 2), "float32", strides=(4, 1))\n'),
            "its argument a has strides",
        ),
        (script("a[v + 1]"), r"index v \+ 1 with bounds \[1, 8\] is outside"),
        (script("T.float32(0)", TENSORS.replace("float32", "float8_e4m3fn", 1)), "draw no inputs"),
    ],
)  # fmt: skip
def test_a_function_that_cannot_be_called_with_tensors_alone_is_told(write, text, told, caplog):
    with pytest.raises(PrunerError, match=f"mine.py: f cannot be tuned: .*{told}"):
        from_file(write(text))
    found = from_file(write(text + script("a[v]").replace("def f", "def g")))
    assert [workload.name for workload in found] == ["mine_g"]
    assert "f cannot be tuned" in caplog.text
    assert "it is left out" in caplog.text


@pytest.mark.tvm
def test_an_access_that_a_condition_keeps_inside_is_taken(write):
    (workload,) = from_file(write(script("T.if_then_else(v < 7, a[v + 1], T.float32(0))")))
    (a,), found = computed(workload)
    np.testing.assert_array_equal(found, np.append(a[1:], np.float32(0)))


@pytest.mark.tvm
def test_weights_that_a_compiler_may_pack_keep_their_shape(write):
    text = (
        "from tvm import te, topi\n"
        "a, w = (te.placeholder((16, 16), t, name=t) for t in ('uint8', 'int8'))\n"
        "dense = te.create_prim_func([a, w, topi.nn.dense(a, w, None, 'int32')])\n"
    )
    (workload,) = from_file(write(text))
    made = [space.replay(None, 1) for space in design_spaces(workload.module, target_of(2))]
    assert len(made) == 3
    for schedule in made:
        assert arguments(schedule.mod) == arguments(workload.module)
