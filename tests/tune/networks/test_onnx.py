"""ONNX files: each operator as ONNX's own test cases have it, and files as people have them."""

import importlib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from pruner.errors import PrunerError
from pruner.tune.deploy.build import compiled
from pruner.tune.networks.lowering import NetworkFormat, lower
from pruner.tune.networks.network_tasks import network_tasks
from pruner.tune.networks.onnx_import import from_onnx, onnx_inputs
from pruner.tune.networks.operators_onnx.indexing import weights
from pruner.tune.networks.sizes import NetworkOptions
from pruner.tune.networks.source import NetworkSource, import_network
from tests.tune.networks.lowered import QUICK, run
from tests.tune.networks.onnx_graphs import FLOAT, INT64, make, onnx, onnx_graph, written
from tests.tune.targets import target_of

pytest.importorskip("onnxscript")
reference = importlib.import_module("onnx.reference")
DOUBLE, HALF, UINT8 = (getattr(onnx.TensorProto, n) for n in ("DOUBLE", "FLOAT16", "UINT8"))

# Files of test cases in the package onnx; cases with these words are refused by name.
FAMILIES = {
    "elementwise": ("clip", "isinf", "pow", "celu", "max", "mean", "min", "mish", "swiglu"),
    "indexing": ("pad", "tile", "cumsum", "onehot", "eyelike", "spacetodepth", "topk"),
    "norms": ("lpnormalization", "rmsnormalization", "layernormalization"),
    "products": ("convtranspose", "einsum", "gemm"),
    "quantized": ("convinteger", "matmulinteger", "qlinearconv", "dynamicquantizelinear"),
    "recurrent": ("gru", "lstm", "rnn"),
    "resizing": ("resize", "upsample"),
}
REFUSED = ("antialias", "uint64", "_mask", "upsample")
# as quick cases are
SAME = ("u_defaults", "n_defaults", "seq_length", "u_reverse", "nn_reverse")
SAME += ("layer_normalization_4d",)
# of operators that other cases have, too: for the slow tests
VARIANTS = (
    *("normalization_3d", "rms_normalization_4d", "gru_batchwise", "simple_rnn_batchwise"),
    *("gru_with_initial_bias", "simple_rnn_with_initial_bias"),
    *("lstm_defaults", "lstm_reverse", "cumsum_1d_int32_exclusive", "cumsum_2d_axis_0"),
    *("tile_precomputed", "spacetodepth_example", "spacetodepth_dcr", "top_k_same_values_2d"),
    *("top_k_negative_axis", "max_int16", "min_int16", "max_uint16", "min_uint16", "max_uint32"),
    *("min_uint32", "2d_axis_negative_2", "2d_axis1", "convtranspose_kernel_shape"),
    *("gemm_default_single_elem", "gemm_default_scalar_bias", "convinteger_without_padding"),
)
OTHERWISE = ("scales_linear_align_corners", "scales_cubic_align_corners")  # as onnxruntime has it


def drawn(path, **sizes):
    return onnx_inputs(path, "net", NetworkOptions(**sizes), 0)


def computed(path, given, **sizes):
    """Compile a file and call it."""
    module = from_onnx(path, "net", NetworkOptions(**sizes))
    return run(lower(module, target_of(QUICK)), given, compiled)


def called(path, **sizes):
    """The only input, drawn, and the only output."""
    (given,) = drawn(path, **sizes)
    (found,) = computed(path, [given], **sizes)
    return given, found


@pytest.fixture
def net(tmp_path):
    return tmp_path / "net.onnx"


def node_cases(names):
    """Collect cases of the package onnx: model, inputs, outputs; all but the first constant."""
    collected = importlib.import_module("onnx.backend.test.case.node")
    before = len(collected._NodeTestCases)
    with np.errstate(all="ignore"):
        for name in names:
            importlib.import_module(f"onnx.backend.test.case.node.{name}")
    for case in collected._NodeTestCases[before:]:
        if any(word in case.name for word in ("_expanded", *REFUSED, *SAME, *OTHERWISE)):
            continue
        model, (inputs, outputs) = case.model, case.data_sets[0]
        graph = model.graph
        for value, info in list(zip(inputs, graph.input, strict=True))[1:]:
            graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), info.name))
            graph.input.remove(info)
        yield case.name, model, np.asarray(inputs[0]), [np.asarray(one) for one in outputs]


@pytest.mark.tvm
@pytest.mark.parametrize("every", [pytest.param(True, marks=pytest.mark.slow), False])
@pytest.mark.parametrize("family", FAMILIES)
def test_operators_are_those_of_onnx(family, every, tmp_path):
    """All cases of a family in one graph: a build each would take minutes."""
    wrong, per_version = [], {}
    for name, model, given, wanted in node_cases(FAMILIES[family]):
        if not every and any(word in name for word in VARIANTS):
            continue
        version = next(one.version for one in model.opset_import if not one.domain)
        per_version.setdefault(version, []).append((name, model, given, wanted))
    for version, cases in per_version.items():
        parts = make.make_graph([], "all", [], [])
        for name, model, _, _ in cases:
            renamed = onnx.compose.add_prefix_graph(model.graph, f"{name}_")
            for field in ("node", "input", "output", "initializer"):
                getattr(parts, field).extend(getattr(renamed, field))
        path = tmp_path / f"{version}.onnx"
        imports = [make.make_opsetid("", version)]
        onnx.save(make.make_model(parts, opset_imports=imports), path)
        found = iter(computed(path, [given for _, _, given, _ in cases]))
        for name, _, _, wanted in cases:
            for one in wanted:
                got, most = next(found), 2e-2 if one.dtype.itemsize == 2 else 1e-4
                same = got.shape == one.shape and got.dtype == one.dtype
                close = same and np.allclose(
                    got.astype(float), one.astype(float), most, most, equal_nan=True
                )
                wrong += [] if close else [name]
    assert per_version
    assert not wrong


@pytest.mark.tvm
@pytest.mark.parametrize("version", [7, 9, 10, 11, 13])
def test_operators_of_old_versions_are_converted(version, net):
    """Softmax of all dimensions behind one, slices and squeezes by attributes."""
    softmax = make.make_node("Softmax", ["x"], ["s"], axis=1)
    if version < 10:
        cut = make.make_node("Slice", ["s"], ["c"], axes=[2], starts=[1], ends=[9])
    else:
        cut = make.make_node("Slice", ["s", "from", "to", "axis"], ["c"])
    pool = make.make_node("ReduceMean", ["c"], ["m"], axes=[1], keepdims=1)
    constants = {"from": [1], "to": [9], "axis": [2]} if version >= 10 else {}
    ends = [("x", FLOAT, [2, 3, 4])], [("m", FLOAT, [2, 1, 3])]
    given, found = called(written(net, [softmax, cut, pool], *ends, constants, version=version))
    e = np.exp(given - given.max())
    total = e.sum(2, keepdims=True) if version >= 13 else e.sum((1, 2), keepdims=True)
    wanted = e / (e.sum(1, keepdims=True) if version >= 13 else total)
    np.testing.assert_allclose(found, wanted[:, :, 1:].mean(1, keepdims=True), rtol=1e-5)


@pytest.mark.tvm
def test_shapes_that_the_graph_computes_are_folded(net):
    """Also a branch whose condition depends on sizes alone; the batch is given by its name."""
    then, other = (
        onnx_graph([make.make_node(op, ["r"], [f"{op}_y"])], [], [(f"{op}_y", FLOAT, None)])
        for op in ("Neg", "Exp")
    )
    nodes = [
        make.make_node("Shape", ["x"], ["shape"]),
        make.make_node("Gather", ["shape", "zero"], ["batch"]),
        make.make_node("Unsqueeze", ["batch", "axes"], ["first"]),
        make.make_node("Concat", ["first", "rest"], ["new"], axis=0),
        make.make_node("Reshape", ["x", "new"], ["r"]),
        make.make_node("Equal", ["batch", "two"], ["is_two"]),
        make.make_node("If", ["is_two"], ["y"], then_branch=then, else_branch=other),
    ]
    constants = {"zero": 0, "two": 2, "axes": [0], "rest": [-1]}
    path = written(net, nodes, [("x", FLOAT, ["n", 3, 4])], [("y", FLOAT, None)], constants)
    for batch, function in ((2, np.negative), (3, np.exp)):
        given, found = called(path, n=batch)
        np.testing.assert_allclose(found, function(given.reshape(batch, 12)), rtol=1e-5)
    with pytest.raises(PrunerError, match="network=net: sizes are open: x nx3x4"):
        from_onnx(path, "net", NetworkOptions())


@pytest.mark.tvm
def test_quantised_tensors_are_right_within_a_step(net):
    """Weights of a scale for every channel, and an input that is quantised between."""
    rng = np.random.default_rng(0)
    weight = rng.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8)
    constants = {"s": np.float32(0.02), "z": np.uint8(120), "wz": np.zeros(4, np.int8)}
    constants |= {"w": weight, "ws": rng.uniform(0.01, 0.02, 4).astype(np.float32)}
    nodes = [
        make.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        make.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        make.make_node("DequantizeLinear", ["w", "ws", "wz"], ["dw"], axis=0),
        make.make_node("Conv", ["d", "dw"], ["c"]),
        make.make_node("QuantizeLinear", ["c", "s", "z"], ["y"]),
    ]
    ends = [("x", FLOAT, [1, 3, 8, 8])], [("y", onnx.TensorProto.UINT8, [1, 4, 6, 6])]
    path = written(net, nodes, *ends, constants, version=19)
    given, found = called(path)
    (wanted,) = reference.ReferenceEvaluator(str(path)).run(None, {"x": given})
    assert np.abs(found.astype(int) - wanted).max() <= 1


@pytest.mark.tvm
def test_quantised_products_have_scales_of_rows_and_columns(net):
    """By ONNX's own evaluator; by hand for rows, which it lacks."""
    rng = np.random.default_rng(0)
    constants = {"s": np.float32(0.02), "z": np.uint8(120), "t": np.float32(0.2)}
    for number, columns in enumerate((8, 5, 8)):
        constants |= {
            f"b{number}": rng.integers(-128, 128, (8, columns)).astype(np.int8),
            f"s{number}": rng.uniform(0.01, 0.02, columns).astype(np.float32),
            f"z{number}": np.zeros(columns, np.int8),
        }
    constants |= {"rows": constants["s1"][:4], "zeros": np.full(4, 120, np.uint8)}
    steps = [("s", "z"), ("s", "z"), ("rows", "zeros")]
    nodes = [
        make.make_node(
            "QLinearMatMul", ["x", *step, f"b{i}", f"s{i}", f"z{i}", "t", "z"], [f"y{i}"]
        )
        for i, step in enumerate(steps)
    ]
    given = rng.integers(0, 256, (4, 8)).astype(np.uint8)
    ends = [("x", UINT8, [4, 8])], [(f"y{i}", UINT8, None) for i in range(3)]
    found = computed(written(net, nodes, *ends, constants, version=21), [given])
    by_columns = written(net, nodes[:2], ends[0], ends[1][:2], constants, version=21)
    wanted = by_evaluator(by_columns, {"x": given})
    product = (given - 120.0) * constants["rows"][:, None] @ constants["b2"] * constants["s2"]
    wanted.append(np.clip(np.rint(product / 0.2) + 120, 0, 255))
    for mine, theirs in zip(found, wanted, strict=True):
        assert np.abs(mine.astype(int) - theirs).max() <= 1


@pytest.mark.tvm
def test_the_older_quantised_operators_of_microsoft(net):
    """By hand; a zero point that is left out is zero."""
    given, of = np.array([[100, 130, 128], [128, 160, 90]], np.uint8), {"domain": "com.microsoft"}
    nodes = [
        make.make_node("QLinearConcat", [*"szxsz", "x", "r", ""], ["a"], axis=1, **of),
        make.make_node("QLinearSoftmax", [*"xszp", ""], ["b"], opset=13, **of),
        make.make_node("QLinearSoftmax", [*"xszpo"], ["c"], opset=11, axis=0, **of),
        make.make_node("QLinearSigmoid", ["x", "r", "", "p", ""], ["d"], **of),
    ]
    constants = {"s": np.float32([0.05]), "z": np.uint8([128]), "r": np.float32([0.02])}
    constants |= {"p": np.float32([1 / 256]), "o": np.uint8([0])}
    ends = [("x", UINT8, [2, 3])], [(name, UINT8, None) for name in "abcd"]
    found = computed(written(net, nodes, *ends, constants), [given])
    real, other = (given - 128.0) * 0.05, given * 0.02
    share = np.exp(real)
    wanted = [
        np.rint(np.concatenate([real, other], 1) / 0.05) + 128,
        share / share.sum(1, keepdims=True) * 256,
        share / share.sum() * 256,
        256 / (1 + np.exp(-other)),
    ]
    for mine, theirs in zip(found, wanted, strict=True):
        assert (mine.dtype, mine.shape) == (np.uint8, theirs.shape)
        assert np.abs(mine.astype(int) - theirs).max() <= 1
    mean = make.make_node("QLinearReduceMean", [*"xszsz"], ["a"], **of)
    path = written(net, [mean], ends[0], ends[1][:1], constants)
    assert "QLinearReduceMean; if onnxruntime quantised the file, quantise it with" in refused(path)


@pytest.mark.tvm
def test_numbers_that_choose_rows_are_below_their_number(net):
    nodes = [
        make.make_node("Gather", ["table", "kinds"], ["a"]),
        make.make_node("Cast", ["attention_mask"], ["m"], to=FLOAT),
        make.make_node("Mul", ["a", "m"], ["y"]),
    ]
    inputs = [("kinds", INT64, [64]), ("attention_mask", INT64, [64])]
    table = {"table": np.arange(3, dtype=np.float32)}
    kinds, mask = drawn(written(net, nodes, inputs, [("y", FLOAT, [64])], table))
    assert (set(kinds), set(mask)) == ({0, 1, 2}, {0, 1})


@pytest.mark.tvm
@pytest.mark.parametrize("table", ["quantised", "constant", "transposed"])
def test_the_rows_of_a_table_that_is_computed_are_counted(table, net):
    rows = onnx.numpy_helper.from_array(np.zeros((2, 4), np.uint8))
    nodes = {
        "quantised": [],
        "constant": [make.make_node("Constant", [], ["q"], value=rows)],
        "transposed": [make.make_node("Transpose", ["columns"], ["q"])],
    }[table]
    nodes += [
        make.make_node("DequantizeLinear", ["q", "s"], ["t"]),
        make.make_node("Gather", ["t", "kinds"], ["y"]),
    ]
    constants = {"s": np.float32(0.5), "columns": np.zeros((4, 2), np.uint8)}
    constants |= {"q": np.zeros((2, 4), np.uint8)} if table == "quantised" else {}
    ends = [("kinds", INT64, [64])], [("y", FLOAT, [64, 4])]
    (kinds,) = drawn(written(net, nodes, *ends, constants))
    assert set(kinds) == {0, 1}


@pytest.mark.tvm
def test_weights_that_are_inputs_are_folded(net):
    """As older exporters wrote files."""
    nodes = [
        make.make_node("Shape", ["x"], ["shape"]),
        make.make_node("Slice", ["shape", "from", "to"], ["batch"]),
        make.make_node("Concat", ["batch", "rest"], ["new"], axis=0),
        make.make_node("Reshape", ["x", "new"], ["y"]),
    ]
    inputs = [("x", FLOAT, [2, 3, 4]), *((name, INT64, [1]) for name in ("from", "to", "rest"))]
    constants = {"from": [0], "to": [1], "rest": [-1]}
    given, found = called(written(net, nodes, inputs, [("y", FLOAT, None)], constants))
    np.testing.assert_array_equal(found, given.reshape(2, 12))


@pytest.mark.tvm
def test_statistics_that_nobody_reads_leave_a_normalisation_whole(net):
    node = make.make_node("LayerNormalization", ["x", "s"], ["y", "mean", "deviation"])
    ends = [("x", FLOAT, [2, 8])], [("y", FLOAT, [2, 8])]
    path = written(net, [node], *ends, {"s": np.ones(8, np.float32)})
    assert "nn.layer_norm" in str(from_onnx(path, "net", NetworkOptions()))


@pytest.mark.tvm
def test_doubles_are_computed_in_double_precision(net):
    """The last is beyond float32; by ONNX's own evaluator."""
    operators, given = ("Elu", "Selu", "ThresholdedRelu"), np.array([-1, 0.3, 1e39])
    nodes = [make.make_node(name, ["x"], [name]) for name in operators]
    path = written(net, nodes, [("x", DOUBLE, [3])], [(name, DOUBLE, [3]) for name in operators])
    with np.errstate(over="ignore"):
        wanted = by_evaluator(path, {"x": given})
    np.testing.assert_allclose(computed(path, [given]), wanted, rtol=1e-12)


@pytest.mark.tvm
def test_halves_are_summed_in_single_precision(net):
    """Half precision loses a one that is added to 2048."""
    names = ("Mean", "Sum", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
    nodes = [make.make_node(f"Reduce{one}", ["x", "axes"], [one]) for one in names]
    nodes.append(make.make_node("LpNormalization", ["x"], ["Lp"], p=1))
    nodes.append(make.make_node("GlobalAveragePool", ["image"], ["pool"]))
    nodes.append(make.make_node("InstanceNormalization", ["image", "w", "b"], ["norm"]))
    constants = {"axes": [1], "w": np.float16([1, 2]), "b": np.float16([0, 1])}
    outputs = [*names, "Lp", "pool", "norm"]
    ends = (
        [("x", HALF, [1, 8192]), ("image", HALF, [1, 2, 128, 128])],
        [(name, HALF, None) for name in outputs],
    )
    path = written(net, nodes, *ends, constants, version=18)
    image = (some(1, 2, 128, 128) + 1).astype(np.float16)
    found = dict(zip(outputs, computed(path, [np.ones((1, 8192), np.float16), image]), strict=True))
    numbers = [1, 8192, 8192, 8192**0.5, np.log(8192), np.log(8192) + 1, 8192]
    for name, number in zip(names, numbers, strict=True):
        np.testing.assert_allclose(found[name], [[number]], rtol=1e-3)
    np.testing.assert_allclose(found["Lp"], np.full((1, 8192), 1 / 8192), rtol=1e-3)
    wide = image.astype(float)
    mean, deviation = (f(wide, (2, 3), keepdims=True) for f in (np.mean, np.std))
    np.testing.assert_allclose(found["pool"], mean, rtol=1e-3)
    wanted = (wide - mean) / deviation * [[[1]], [[2]]] + [[[0]], [[1]]]
    np.testing.assert_allclose(found["norm"], wanted, rtol=4e-3, atol=4e-3)


@pytest.mark.tvm
@pytest.mark.parametrize(("size", "kind"), [(4, np.float32), (4, np.float16), (3, np.float64)])
def test_responses_of_even_numbers_of_channels(size, kind, net):
    """Also of doubles, for which TVM has constants of float32 alone."""
    node = make.make_node("LRN", ["x"], ["y"], size=size, alpha=0.5, beta=0.75, bias=2.0)
    given, dtype = some(1, 6, 2, 3).astype(kind), make.np_dtype_to_tensor_dtype(np.dtype(kind))
    ends = [("x", dtype, [1, 6, 2, 3])], [("y", dtype, None)]
    (found,) = computed(written(net, [node], *ends), [given])
    squares = np.pad(
        given.astype(float) ** 2, [(0, 0), ((size - 1) // 2, size // 2), *[(0, 0)] * 2]
    )
    total = np.stack([squares[:, i : i + size].sum(1) for i in range(6)], 1)
    wanted = given / (2 + 0.5 / size * total) ** 0.75
    assert found.dtype == kind
    np.testing.assert_allclose(found, wanted, rtol=max(4 * np.finfo(kind).eps, 1e-12))


@pytest.mark.tvm
def test_convolutions_with_pads_of_their_own_are_no_functions_of_their_own(net):
    """No layout passes through a TIR function; also of a quantised convolution."""
    pads = {"auto_pad": "SAME_LOWER", "strides": [2, 2]}
    nodes = [
        make.make_node("Conv", ["x", "w"], ["y"], **pads),
        make.make_node("QLinearConv", [*"qsz", *"vsz", *"sz"], ["r"], **pads),
    ]
    weight = some(3, 2, 3, 2)
    constants = {"w": weight, "v": np.uint8(weight * 20 + 128), "s": np.float32(0.1)}
    constants["z"] = np.uint8(128)
    ends = [("x", FLOAT, [1, 2, 7, 6]), ("q", UINT8, [1, 2, 7, 6])]
    path = written(net, nodes, ends, [("y", FLOAT, None), ("r", UINT8, None)], constants)
    module = from_onnx(path, "net", NetworkOptions())
    assert "call_tir" not in str(module["main"])
    given = [some(1, 2, 7, 6), np.uint8(some(1, 2, 7, 6) * 20 + 128)]
    found = run(module, given)
    wanted = by_evaluator(path, dict(zip("xq", given, strict=True)))
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5, atol=1e-5)
    assert np.abs(found[1].astype(int) - wanted[1]).max() <= 1


@pytest.mark.tvm
@pytest.mark.parametrize(("operator", "most"), [("GatherElements", 4), ("GatherND", 2)])
def test_numbers_that_index_are_within_what_they_index(net, operator, most):
    attributes = {"axis": 1} if operator == "GatherElements" else {}
    node = make.make_node(operator, ["x", "i"], ["y"], **attributes)
    shape = [64, 2] if operator == "GatherND" else [2, 64]
    inputs = [("x", FLOAT, [2, 4]), ("i", INT64, shape)]
    _, indices = drawn(written(net, [node], inputs, [("y", FLOAT, None)]))
    assert set(indices.flat) == set(range(most))


def refused(path):
    with pytest.raises(PrunerError) as caught:
        from_onnx(Path(path), "net", NetworkOptions())
    return str(caught.value)


@pytest.mark.tvm
def test_files_that_cannot_be_read_end_in_a_line(tmp_path):
    assert refused(tmp_path / "none.onnx") == "no such file"
    (tmp_path / "text.onnx").write_text("no protobuf", encoding="utf-8")
    assert "this is no ONNX file" in refused(tmp_path / "text.onnx")
    identity = [make.make_node("Identity", ["x"], ["y"])]
    ends = ([("x", FLOAT, [2])], [("y", FLOAT, [2])])
    assert "of version 999" in refused(written(tmp_path / "new.onnx", identity, *ends, version=999))
    chain = (("Det", "x", "d"), ("StringNormalizer", "d", "y"))
    unknown = [make.make_node(operator, [given], [made]) for operator, given, made in chain]
    square = [("x", FLOAT, [4, 4])], [("y", FLOAT, [])]
    found = refused(written(tmp_path / "odd.onnx", unknown, *square))
    assert "TVM cannot import Det, StringNormalizer; write" in found
    foreign = [make.make_node("Scaler", ["x"], ["y"], domain="ai.onnx.ml", scale=[1.0])]
    found = refused(written(tmp_path / "ml.onnx", foreign, *ends))
    assert "TVM cannot import ai.onnx.ml.Scaler; write" in found
    fused = [make.make_node("Conv", ["x"], ["y"], domain="com.microsoft.nchwc")]
    found = refused(written(tmp_path / "fused.onnx", fused, *ends))
    assert "com.microsoft.nchwc.Conv; if onnxruntime optimised the file, take it as it was" in found
    words = [("x", onnx.TensorProto.STRING, [2])], [("y", onnx.TensorProto.STRING, [2])]
    assert "its input x is no tensor" in refused(written(tmp_path / "s.onnx", identity, *words))


@pytest.mark.tvm
def test_networks_that_train_and_lists_of_tensors_are_refused(net):
    node = make.make_node("BatchNormalization", [*"xgbmv"], [*"ynw"], training_mode=1)
    ends = [("x", FLOAT, [2, 4, 6, 6])], [("y", FLOAT, [2, 4, 6, 6])]
    constants = {name: np.ones(4, np.float32) for name in "gbmv"}
    with pytest.raises(PrunerError, match="training_mode=0"):
        import_network(NetworkSource(name=str(written(net, [node], *ends, constants, version=15))))
    node = make.make_node("SplitToSequence", ["x"], ["y"])
    graph = onnx_graph([node], [("x", FLOAT, [2, 3])], [])
    graph.output.append(make.make_tensor_sequence_value_info("y", FLOAT, None))
    imports = [make.make_opsetid("", 17)]
    onnx.save(make.make_model(graph, opset_imports=imports, ir_version=9), net)
    assert "its output y is no tensor of numbers" in refused(net)


@pytest.mark.tvm
def test_weights_in_another_file(tmp_path, net):
    weight = np.random.default_rng(0).random((4, 5), dtype=np.float32)
    node = make.make_node("MatMul", ["x", "w"], ["y"])
    ends = [("x", FLOAT, [2, 4])], [("y", FLOAT, [2, 5])]
    path = written(net, [node], *ends, {"w": weight})
    model = onnx.load(path)
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    given, found = called(path)
    np.testing.assert_allclose(found, given @ weight, rtol=1e-5)
    (tmp_path / "w.bin").unlink()
    assert f"its weights are in w.bin, which is not in {tmp_path}" in refused(path)
    (tmp_path / "w.bin").write_bytes(b"cut")
    assert "its weights in w.bin are cut off: 80 bytes are read" in refused(path)


@pytest.mark.tvm
@pytest.mark.parametrize(
    ("operator", "told"),
    [
        ("NonZero", "NonZero: the size of its result depends on values"),
        ("Det", "TVM cannot import Det; write"),
    ],
)
def test_operators_that_tvm_cannot_convert_are_named(operator, told, net, capsys):
    node = make.make_node(operator, ["x"], ["y"])
    ends = [("x", FLOAT, [1, 1, 4, 4])], [("y", FLOAT, None)]
    assert told in refused(written(net, [node], *ends))
    assert not capsys.readouterr().out  # TVM prints them


@pytest.mark.tvm
def test_a_long_sequence_is_refused_and_its_steps_are_the_same_functions(tmp_path):
    nodes = [make.make_node("LSTM", ["x", "w", "r"], ["", "h"], hidden_size=4)]
    given = {"w": np.ones((1, 16, 3), np.float32), "r": np.ones((1, 16, 4), np.float32)}

    def layer(steps):
        ends = [("x", FLOAT, [steps, 1, 3])], [("h", FLOAT, [1, 1, 4])]
        return written(tmp_path / f"{steps}.onnx", nodes, *ends, given)

    target = target_of("llvm")
    few, more = (
        network_tasks(lower(from_onnx(layer(n), "net", NetworkOptions()), target), target)
        for n in (3, 6)
    )
    assert len(few) == len(more)
    assert "a sequence of 600 steps; 1 to 512 can be unrolled" in refused(layer(600))


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("place", ["half_pixel", "asymmetric", "half_pixel_symmetric"])
def test_resampling_is_a_product_with_weights(mode, place):
    """Against ONNX's own evaluator, where the scaled size is no whole number."""
    attrs = {"mode": mode, "coordinate_transformation_mode": place}
    data = np.random.default_rng(0).random((1, 1, 1, 7), dtype=np.float32)
    for scale in (0.6, 1.4, 2.3):
        node = make.make_node("Resize", ["x", "", "s"], ["y"], **attrs)
        scales = np.array([1, 1, 1, scale], np.float32)
        graph = onnx_graph([node], [("x", FLOAT, None)], [("y", FLOAT, None)], {"s": scales})
        model = make.make_model(graph, opset_imports=[make.make_opsetid("", 19)])
        (wanted,) = reference.ReferenceEvaluator(model).run(None, {"x": data})
        coded = {name: value.encode() for name, value in attrs.items()}
        matrix = weights(7, wanted.shape[-1], float(scales[3]), coded)
        np.testing.assert_allclose(data @ matrix.T, wanted, atol=1e-5)


@pytest.mark.tvm
def test_dropout_is_nothing_or_refused(net):
    """TVM's has two results, through which no layout passes."""
    ends = ([("x", FLOAT, [1, 3, 8, 8])], [("y", FLOAT, [1, 4, 6, 6])])
    weight = np.ones((4, 3, 3, 3), np.float32)
    convolution = make.make_node("Conv", ["x", "w"], ["c"])
    plain = make.make_node("Dropout", ["c"], ["y"])
    path = written(net, [convolution, plain], *ends, {"w": weight})
    module, form = from_onnx(path, "net", NetworkOptions()), NetworkFormat(layout="NHWC")
    lower(module, target_of("llvm"), form)
    trains = make.make_node("Dropout", ["c", "ratio", "trains"], ["y"])
    constants = {"w": weight, "ratio": np.float32(0.5), "trains": np.array(True)}
    path = written(net, [convolution, trains], *ends, constants)
    assert "Dropout: it drops elements (training_mode)" in refused(path)


@pytest.mark.tvm
def test_definitions_of_other_versions_are_taken(net):
    ends = [("x", FLOAT, [2, 3])], [("y", FLOAT, [2, 3])]
    celu = [make.make_node("Celu", ["x"], ["y"], alpha=0.5)]
    given, found = called(written(net, celu, *ends, version=17))
    wanted = np.maximum(given, 0) + np.minimum(0, 0.5 * (np.exp(given / 0.5) - 1))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.tvm
def test_whole_numbers_are_cut_off_and_nearest_pixels_of_tensorflow_are_further(net):
    """As onnxruntime has them, at any scale."""
    pixels = np.arange(0, 200, 40, dtype=np.uint8).reshape(1, 1, 1, 5)
    attrs = {"mode": "linear", "coordinate_transformation_mode": "asymmetric"}
    node, kind = make.make_node("Resize", ["x", "", "s"], ["y"], **attrs), onnx.TensorProto.UINT8
    ends = [("x", kind, [1, 1, 1, 5])], [("y", kind, [1, 1, 1, 7])]
    path = written(net, [node], *ends, {"s": np.array([1, 1, 1, 1.5], np.float32)})
    (found,) = computed(path, [pixels])
    assert found.ravel().tolist() == [int(i / 1.5 * 40) for i in range(7)]
    ends = [("x", kind, [1, 1, 5])], [("y", kind, [1, 1, 20])]
    path = written(net, [node], *ends, {"s": np.float32([1, 1, 4])})
    (found,) = computed(path, [pixels[0] // 40 * 3])
    assert found.ravel().tolist()[:17] == [i * 3 // 4 for i in range(17)]
    place = {"nearest_mode": b"floor", "coordinate_transformation_mode": b"tf_half_pixel_for_nn"}
    matrix = weights(5, 7, 1.5, place)
    assert matrix.argmax(1).tolist() == [int((i + 0.5) / 1.5) for i in range(7)]


@pytest.mark.tvm
@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
def test_pools_have_a_window_for_every_step_of_the_stride(mode, net):
    """Against ONNX's own evaluator; it has too few for ``SAME_LOWER``, the mirrored case."""

    def pools(mode):
        every = {"auto_pad": mode, "strides": [2, 2]}
        return [
            make.make_node("MaxPool", ["x"], ["a"], kernel_shape=[3, 2], **every),
            make.make_node("AveragePool", ["x"], ["b"], kernel_shape=[2, 3], **every),
            make.make_node("MaxPool", ["x"], ["c"], kernel_shape=[1, 1], **every),
        ]

    ends = [("x", FLOAT, [1, 2, 7, 6])], [(name, FLOAT, [1, 2, 4, 3]) for name in "abc"]
    path = written(net, pools(mode), *ends)
    (given,) = drawn(path)
    found = computed(path, [given])
    upper = reference.ReferenceEvaluator(str(written(path, pools("SAME_UPPER"), *ends)))
    mirror = np.s_[:, :, ::-1, ::-1] if mode == "SAME_LOWER" else np.s_[:]
    wanted = [one[mirror] for one in upper.run(None, {"x": given[mirror]})]
    wanted[2] = given[:, :, ::2, ::2]  # no padding, which it has
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


@pytest.mark.tvm
@pytest.mark.parametrize("rounded", [True, False])
def test_the_quantised_gemm_of_microsoft_is_right_within_a_step(rounded, net):
    """As onnxruntime's static quantisation writes it, with a scale for every column."""
    rng = np.random.default_rng(0)
    constants = {
        "s": np.float32(0.01),
        "z": np.uint8(128),
        "b": rng.integers(-127, 128, (5, 8)).astype(np.int8),
        "bs": rng.uniform(0.01, 0.02, 5).astype(np.float32),
        "bz": np.zeros(5, np.int8),
        "c": rng.integers(-900, 900, 5).astype(np.int32),
        "ys": np.float32(0.05),
    }
    names = ["q", "s", "z", "b", "bs", "bz", "c", *(["ys", "z"] if rounded else [])]
    nodes = [
        make.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        make.make_node("QGemm", names, ["y"], domain="com.microsoft", transB=1),
    ]
    kind = onnx.TensorProto.UINT8 if rounded else FLOAT
    path = written(net, nodes, [("x", FLOAT, [4, 8])], [("y", kind, [4, 5])], constants)
    given, found = called(path)
    scale = 0.01 * constants["bs"]
    first = np.clip(np.rint(given / np.float32(0.01)), -128, 127)
    wanted = (first @ constants["b"].T.astype(float) + constants["c"]) * scale
    if rounded:
        assert np.abs(found - np.clip(np.rint(wanted / 0.05) + 128, 0, 255)).max() <= 1
    else:
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


POOLS = [
    ([1, 2, 6, 7], {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ([2, 3, 7, 6], {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}),
    ([2, 2, 7, 8], {"kernel_shape": [2, 3], "dilations": [2, 2], "storage_order": 1}),
    ([1, 2, 7, 6], {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    ([1, 2, 6], {"kernel_shape": [3], "strides": [2], "ceil_mode": 1}),
    ([1, 2, 4, 5, 4], {"kernel_shape": [2, 2, 2], "strides": [2, 1, 2], "storage_order": 0}),
]


@pytest.mark.tvm
def test_places_of_maxima_are_those_of_onnxruntime(tmp_path):
    """Equal numbers among them; the first wins. All pools in one graph."""
    runtime = pytest.importorskip("onnxruntime")
    nodes, inputs, outputs = [], [], []
    for number, (shape, attributes) in enumerate(POOLS):
        names = [f"{letter}{number}" for letter in "xyi"]
        nodes.append(make.make_node("MaxPool", names[:1], names[1:], **attributes))
        inputs.append((names[0], FLOAT, shape))
        outputs += [(names[1], FLOAT, None), (names[2], INT64, None)]
    path = written(tmp_path / "net.onnx", nodes, inputs, outputs)
    rng = np.random.default_rng(0)
    given = [rng.integers(-9, 9, shape).astype(np.float32) for shape, _ in POOLS]
    session = runtime.InferenceSession(str(path))
    wanted = session.run(None, {one[0]: x for one, x in zip(inputs, given, strict=True)})
    found = run(from_onnx(path, "net", NetworkOptions()), given)
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.tvm
def test_a_pad_is_never_the_place_of_a_maximum(tmp_path):
    """The smallest numbers of types, and NaNs, whose places are those of torch."""
    kinds = {"p": FLOAT, "q": onnx.TensorProto.UINT8, "r": onnx.TensorProto.INT8}
    pool = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 1, 1, 0]}
    nodes = [make.make_node("MaxPool", [f"x{k}"], [f"y{k}", f"i{k}"], **pool) for k in kinds]
    inputs = [(f"x{k}", kind, [1, 2, 5, 6]) for k, kind in kinds.items()]
    outputs = [
        end for k, kind in kinds.items() for end in ((f"y{k}", kind, None), (f"i{k}", INT64, None))
    ]
    path = written(tmp_path / "net.onnx", nodes, inputs, outputs)
    real = np.full([1, 2, 5, 6], -np.inf, np.float32)
    real[0, 1] = np.random.default_rng(0).integers(-3, 3, (5, 6))
    real[0, 1, [0, 1, 1, 4], [0, 2, 3, 5]] = np.nan
    small = [np.zeros([1, 2, 5, 6], np.uint8), np.full([1, 2, 5, 6], -128, np.int8)]
    small[1][0, 1, 2, 3] = 5
    found = run(from_onnx(path, "net", NetworkOptions()), [real, *small])
    for given, *mine in zip([real, *small], found[::2], found[1::2], strict=True):
        x = torch.from_numpy(given).float()
        best, place = functional.max_pool2d(x, (3, 2), (2, 1), (1, 1), return_indices=True)
        place[:, 1] += 30  # torch counts in a channel
        for one, other in zip(mine, (best, place), strict=True):
            # torch has one more window, with a pad behind
            np.testing.assert_array_equal(one, other[..., :6].numpy())


@pytest.mark.tvm
def test_negative_pads_of_pools_are_refused(tmp_path):
    node = make.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2], pads=[-1, 0])
    path = written(tmp_path / "net.onnx", [node], [("x", FLOAT, [1, 1, 6])], [("y", FLOAT, None)])
    assert "its pads are negative" in refused(path)
    pool = {"domain": "com.microsoft", "kernel_shape": [2], "pads": [-1, 0]}
    node, kind = make.make_node("QLinearAveragePool", [*"xszsz"], ["y"], **pool), UINT8
    steps = {"s": np.float32(1), "z": np.uint8(0)}
    path = written(path, [node], [("x", kind, [1, 1, 6])], [("y", kind, None)], steps)
    assert "its pads are negative" in refused(path)


def some(*shape):
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def everywhere(row, *shape):
    return np.broadcast_to(row, shape).copy()


def without_a_channel():
    images = some(2, 3, 4, 5)
    images[:, 1] = 0
    return images


# operator, attributes, input, constants; computed by ONNX's own evaluator
DEFINED = {
    "writes to a part of the rows": (
        *("ScatterElements", {"axis": 0}, some(2, 3, 4)),
        *(np.array([[[1, 0], [-1, -2], [0, 1]]]), some(1, 3, 2)),
    ),
    "sums at a part of the rows": (
        *("ScatterElements", {"axis": 0, "reduction": "add"}, some(2, 3, 4)),
        *(np.array([[[1, 0], [-1, -2], [0, 1]]]), some(1, 3, 2)),
    ),
    "writes to a part of the columns": (
        *("ScatterElements", {"axis": 2}, some(2, 3, 4)),
        *(everywhere([0, -1, 2], 2, 2, 3), some(2, 2, 3)),
    ),
    "sums at repeated places": (
        *("ScatterElements", {"axis": -1, "reduction": "add"}, some(2, 3, 4)),
        *(everywhere(np.int32([1, -3, 1]), 2, 2, 3), some(2, 2, 3)),
    ),
    "a scale of one dimension": ("LayerNormalization", {"axis": 1}, some(2, 4, 4), some(4)),
    "a scale of rows": ("LayerNormalization", {}, some(2, 3, 4), some(3, 4), some(4)),
    "a scale without means": ("RMSNormalization", {"axis": 1}, some(2, 3, 4), some(4)),
    "a region of nothing": (
        *("Resize", {"mode": "linear", "axes": [2, 3]}, some(1, 1, 3, 3)),
        *(np.float32([]), np.float32([2, 2])),
    ),
    "places with pads on one side": (
        *("MaxUnpool", {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1, 0, 1, 0]}),
        *(some(1, 1, 2, 2), np.array([[[[0, 3], [5, 6]]]])),
    ),
    "places in a larger tensor": (
        *("MaxUnpool", {"kernel_shape": [2, 2], "strides": [2, 2]}, some(1, 1, 2, 2)),
        *(np.array([[[[5, 7], [13, 15]]]]), np.array([1, 1, 5, 5])),
    ),
    "a channel of zeros": ("MeanVarianceNormalization", {}, without_a_channel()),
}
# by onnxruntime: the evaluator computes other sizes
RUN = {
    "norms of a part of the window": (
        "LpPool",
        {"kernel_shape": [3, 2], "strides": [3, 2], "pads": [1, 0, 0, 1], "ceil_mode": 1},
        some(1, 2, 6, 6),
    ),
    "means of windows that hang over the pads": (
        "AveragePool",
        {"kernel_shape": [3], "strides": [2], "pads": [1, 1], "ceil_mode": 1}
        | {"count_include_pad": 1},
        some(1, 1, 6),
    ),
    "a last window that begins behind the tensor": (
        *("MaxPool", {"kernel_shape": [2], "strides": [2], "pads": [1, 1], "ceil_mode": 1}),
        some(1, 1, 3),
    ),
    "regions in half the size": (
        "RoiAlign",
        {"spatial_scale": 0.5, "sampling_ratio": 2, "output_height": 2, "output_width": 3},
        some(1, 1, 8, 8),
        *(np.float32([[2, 2, 10, 10], [1, 3, 14, 9]]), np.array([0, 0])),
    ),
    "a scale that float32 rounds": (
        *("Resize", {"mode": "linear"}, some(1, 1, 10, 10)),
        *(None, np.float32([1, 1, 0.7, 2.3])),
    ),
}


def by_evaluator(path, given):
    return reference.ReferenceEvaluator(str(path)).run(None, given)


def by_runtime(path, given):
    runtime = pytest.importorskip("onnxruntime")
    return runtime.InferenceSession(str(path)).run(None, given)


@pytest.mark.tvm
@pytest.mark.parametrize(
    ("cases", "version", "compute"), [(DEFINED, 23, by_evaluator), (RUN, 19, by_runtime)]
)
def test_operators_that_tvm_converts_otherwise(cases, version, compute, net):
    """All in one graph."""
    nodes, ends, constants, given = [], ([], []), {}, {}
    for number, (operator, attributes, data, *others) in enumerate(cases.values()):
        names = [f"c{number}_{i}" if one is not None else "" for i, one in enumerate(others)]
        nodes.append(make.make_node(operator, [f"x{number}", *names], [f"y{number}"], **attributes))
        ends[0].append((f"x{number}", FLOAT, data.shape))
        ends[1].append((f"y{number}", FLOAT, None))
        constants |= {name: one for name, one in zip(names, others, strict=True) if name}
        given[f"x{number}"] = data
    path = written(net, nodes, *ends, constants, version=version)
    wanted = compute(path, given)
    for name, mine, theirs in zip(cases, computed(path, given.values()), wanted, strict=True):
        assert (name, mine.dtype) == (name, theirs.dtype)
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.tvm
def test_old_writes_have_places_of_their_own(net):
    node = make.make_node("Scatter", ["x", "i", "v"], ["y"], axis=0)
    constants = {"i": np.array([[[1, 0], [0, 1]]]), "v": np.float32([[[5, 6], [7, 8]]])}
    ends = [("x", FLOAT, [2, 2, 3])], [("y", FLOAT, None)]
    path = written(net, [node], *ends, constants, version=10)
    (found,) = computed(path, [np.zeros((2, 2, 3), np.float32)])
    assert found.tolist() == [[[0, 6, 0], [7, 0, 0]], [[5, 0, 0], [0, 8, 0]]]


@pytest.mark.tvm
def test_random_numbers_of_constant_chances_are_refused(net):
    nodes = [
        make.make_node("Bernoulli", ["chances"], ["mask"]),
        make.make_node("Mul", ["x", "mask"], ["y"]),
    ]
    chances = {"chances": np.full(3, 0.5, np.float32)}
    path = written(net, nodes, [("x", FLOAT, [3])], [("y", FLOAT, [3])], chances)
    assert "TVM cannot import RandomUniformLike" in refused(path)


@pytest.mark.tvm
def test_maxima_go_back_to_their_places(tmp_path):
    """As SegNet does; against ONNX's own evaluator."""
    pool = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        make.make_node("MaxPool", ["x"], ["p", "i"], **pool),
        make.make_node("MaxUnpool", ["p", "i"], ["y"], **pool),
    ]
    ends = [("x", FLOAT, [1, 2, 6, 4])], [("y", FLOAT, None)]
    path = written(tmp_path / "net.onnx", nodes, *ends)
    (given,) = onnx_inputs(path, "net", NetworkOptions(), 0)
    (wanted,) = reference.ReferenceEvaluator(str(path)).run(None, {"x": given})
    (found,) = run(from_onnx(path, "net", NetworkOptions()), [given])
    np.testing.assert_array_equal(found, wanted)


BOOL = onnx.TensorProto.BOOL


def looped(path, limit, nodes, version=17, *, inputs=(), condition="go", constants=()):
    """Write a loop over rows of x; its body has the state ``s`` and an output of all steps."""
    body = make.make_graph(
        [*nodes, make.make_node("Identity", [condition], ["goes_on"])],
        "body",
        [
            make.make_tensor_value_info("i", INT64, []),
            make.make_tensor_value_info("go", BOOL, []),
            make.make_tensor_value_info("s", FLOAT, None),
        ],
        [
            make.make_tensor_value_info("goes_on", BOOL, []),
            make.make_tensor_value_info("next", FLOAT, None),
            make.make_tensor_value_info("row", FLOAT, None),
        ],
        [onnx.numpy_helper.from_array(np.asarray(1, np.int64), "one")],
    )
    return written(
        path,
        [
            make.make_node("Shape", ["x"], ["shape"]),
            make.make_node("Gather", ["shape", "zero"], ["rows"]),
            make.make_node("Loop", [limit, "true", "start"], ["y", "all"], body=body),
            make.make_node("Relu", ["y"], ["z"]),
        ],
        [("x", FLOAT, ["n", 4]), *inputs],
        [("z", FLOAT, None), ("all", FLOAT, None)],
        {
            "zero": np.int64(0),
            "true": np.array(True),
            "start": np.full(4, 0.5, np.float32),
            "w": np.random.default_rng(0).random((4, 4), dtype=np.float32),
            **dict(constants),
        },
        version=version,
    )


def steps_of_all_kinds():
    """A row by its number, a branch of a single step, a tensor from outside."""
    then, other = (
        make.make_graph(
            [make.make_node("Exp", ["m"], ["e"]), make.make_node(op, ["e"], ["b"])],
            op,
            [],
            [make.make_tensor_value_info("b", FLOAT, None)],
        )
        for op in ("Neg", "Relu")
    )
    return [
        make.make_node("Less", ["i", "one"], ["few"]),
        make.make_node("Gather", ["x", "i"], ["r"], axis=0),
        make.make_node("MatMul", ["s", "w"], ["m0"]),
        make.make_node("Tanh", ["m0"], ["m"]),
        make.make_node("Equal", ["i", "one"], ["second"]),
        make.make_node("If", ["second"], ["d"], then_branch=then, else_branch=other),
        make.make_node("Add", ["r", "d"], ["next"]),
        make.make_node("Neg", ["next"], ["row"]),
    ]


@pytest.mark.tvm
@pytest.mark.parametrize(("version", "condition", "steps"), [(11, "go", 3), (17, "few", 2)])
def test_loops_of_a_constant_number_of_steps_are_unrolled(version, condition, steps, tmp_path):
    """The number follows from a size or a condition; against ONNX's own evaluator."""
    nodes = steps_of_all_kinds()
    path = looped(tmp_path / "net.onnx", "rows", nodes, version, condition=condition)
    options = NetworkOptions(n=3)
    (given,) = onnx_inputs(path, "net", options, 0)
    wanted = reference.ReferenceEvaluator(str(path)).run(None, {"x": given})
    found = run(from_onnx(path, "net", options), [given])
    assert found[1].shape == (steps, 4)
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)


@pytest.mark.tvm
@pytest.mark.parametrize(
    ("limit", "condition", "told"),
    [
        ("count", "go", "TVM cannot import Loop; write"),
        ("rows", "small", "TVM cannot import Loop; write"),
        ("rows", "random", "TVM cannot import .*Loop"),
        ("many", "outside", "TVM cannot import Loop; write"),  # its third step has no number
        ("endless", "go", r"its Loop has at least \d{4} steps of \d operators, and at most 4096"),
        (
            "many",
            "go",
            r"its Loop has up to 3000 steps of \d operators, and at most 4096 operators can",
        ),
    ],
)
def test_other_loops_are_refused(limit, condition, told, tmp_path):
    nodes = [
        make.make_node("Add", ["s", "s"], ["next"]),
        make.make_node("Neg", ["s"], ["row"]),
    ]
    if condition == "small":
        nodes += [
            make.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
            make.make_node("Less", ["most", "bound"], ["small"]),
        ]
    if condition == "random":
        nodes += [
            make.make_node("RandomUniformLike", ["i"], ["number"], dtype=FLOAT),
            make.make_node("Less", ["number", "bound"], ["random"]),
        ]
    if condition == "outside":
        nodes += [make.make_node("Gather", ["pair", "i"], ["outside"])]
    constants = {
        "many": np.int64(3000),
        "endless": np.int64(2**63 - 1),
        "bound": np.float32(9),
        "pair": np.array([True, True]),
    }
    inputs = [("count", INT64, [])] if limit == "count" else []
    path = looped(
        tmp_path / "net.onnx", limit, nodes, inputs=inputs, condition=condition, constants=constants
    )
    with pytest.raises(PrunerError, match=told):
        from_onnx(path, "net", NetworkOptions(n=2))
