"""From torch to tasks: constants are folded, results stay, also with indices of 32 bits."""

import pytest
import torch

from pruner.errors import PrunerError
from pruner.tune.networks import lowering
from pruner.tune.networks.catalog import NETWORKS
from pruner.tune.networks.coverage import coverage
from pruner.tune.networks.extraction import LOG, extract_tasks
from pruner.tune.networks.lowering import lower, narrowed
from pruner.tune.networks.rewrites.constant_folding import fold_constants
from pruner.tune.networks.rewrites.packing import tensors_of
from pruner.tune.networks.sizes import CATALOG, NetworkOptions
from pruner.tune.networks.source import NetworkSource, example_of, import_network
from pruner.tune.spaces.design import design_spaces
from pruner.tune.tvm_import import load_tvm
from tests.tune.networks.lowered import HERE, imported, lowered, source, tasks_of, torch_error
from tests.tune.some_slow import some_slow
from tests.tune.targets import A100

pytestmark = pytest.mark.tvm
LARGE = ("densenet121", "inception_v3", "wide_resnet50_2", "detr", "deeplabv3", "resnet50")


# the encoder is fast for CUDA; the causal attention has a mask, too
@some_slow("name", ["residual", "causal_attention"], ["biased", "encoder", "attention"])
def test_a_lowered_network_computes_what_torch_computes(name):
    assert torch_error(source(name), lowered(name)) < 1e-5


def test_nothing_of_a_norm_is_left_and_a_network_is_lowered_once(target):
    """Convolutions hold their norms, one that stands alone is a product and a sum."""
    text = fold_constants(imported("residual")).script()
    assert "batch_norm" not in text
    assert text.count("R.nn.conv2d(") == 2
    assert text.count("R.multiply(") == 1
    assert "permute_dims" not in text
    with pytest.raises(ValueError, match="once"):
        lower(lowered("residual"), target)


def test_no_call_is_left_that_changes_nothing(target):
    """Before, torch's products of four dimensions broadcast each operand to its own shape."""
    from pruner.tune.networks.rewrites.constant_folding import without_copies

    module = imported("linear_attention")
    assert module.script().count("R.broadcast_to(") == 4
    assert "R.broadcast_to(" not in without_copies(module).script()
    assert not any("broadcast" in task.name for task in tasks_of("linear_attention"))


def test_a_copy_that_is_a_result_stays(target):
    """Else the result would have the memory of the argument."""
    from tvm import relax

    from pruner.tune.networks.rewrites.constant_folding import without_copies

    x, builder = relax.Var("x", relax.TensorType((2, 3), "float32")), relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result, inside = (builder.emit(relax.op.reshape(x, (2, 3))) for _ in range(2))
            pair = builder.emit(relax.Tuple([result, builder.emit(relax.op.exp(inside))]))
            pair = builder.emit_output(pair)
        builder.emit_func_output(pair)
    text = without_copies(builder.get()).script()
    assert text.count("R.reshape(") == 1
    assert "R.exp(x)" in text


def test_a_norm_behind_a_bias_is_folded_unless_something_else_reads_the_sum(target):
    """Two of five norms go into convolutions; three stay products, no convolution is doubled."""
    text = fold_constants(imported("biased")).script()
    assert "batch_norm" not in text
    assert text.count("R.nn.conv2d(") == 4
    assert text.count("R.nn.conv2d_transpose(") == 1
    assert text.count("R.multiply(") == 3
    names = {t.name[:-9] for t in tasks_of("biased")}
    assert {"conv2d_add_relu", "conv2d_add_multiply_add_relu_add"} <= names
    assert "conv2d_add_multiply_add_relu" not in names


def test_tasks_of_the_same_operators_may_be_similar(target):
    """Whatever their sizes: the order of tasks divides them by their arithmetic."""
    tasks = tasks_of("encoder")
    kinds = {task.name: task.workload.operator for task in tasks}
    assert all(name == f"{kind}_{name[-8:]}" for name, kind in kinds.items())
    assert len(set(kinds.values())) < len(kinds)


def test_a_batch_of_one_can_be_tiled(target):
    """Convolutions, transposed ones and products have tile sizes to choose."""
    tasks = (*tasks_of("one_image"), *tasks_of("encoder"))
    tiled = [t for t in tasks if "conv2d" in t.name or "matmul" in t.name]
    assert len(tiled) >= 6
    for task in tiled:
        spaces = design_spaces(task.module, target)
        assert all("sample_perfect_tile" in str(space.trace) for space in spaces), task.name


@some_slow("name", ["causal_attention"], ["attention"])
def test_own_attention_is_tasks_that_the_engine_knows(name, target):
    """Two products of the attention, two linear layers, and the softmax by itself."""
    tasks = tasks_of(name)
    products = [task for task in tasks if "matmul" in task.name]
    assert sum(task.weight for task in products) == 4
    # 2 images x 2 heads x 6 x 6 x 8 products and sums, both ways
    assert sum(task.flops >= 2 * 2 * 2 * 6 * 6 * 8 for task in products) == 4
    assert not [task.name for task in products if "softmax" in task.name]
    assert any("softmax" in task.name for task in tasks)
    for task in tasks:
        if task.tuned:
            found = coverage(task, target)
            assert found.whole, (task.name, found.reasons)


@pytest.mark.slow
def test_tasks_come_out_of_a_child_process_as_they_are(target, tmp_path):
    here = tasks_of("encoder")
    found = extract_tasks(source("encoder"), str(target), tmp_path)
    assert [(t.name, t.key, t.weight, t.flops) for t in found] == [
        (t.name, t.key, t.weight, t.flops) for t in here
    ]
    hashed = load_tvm().ffi.structural_hash
    assert [f"{hashed(t.module) & (1 << 64) - 1:016x}" for t in found] == [t.key for t in here]
    assert (tmp_path / LOG).is_file()


def refusal(name):
    """The line that an import ends with."""
    with pytest.raises(PrunerError) as refused:
        import_network(NetworkSource(name=str(name)))
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("resnet19", ["unknown; known: resnet18"]),
        (f"{HERE}:missing", ["missing"]),
        ("no_such_package:factory", ["no_such_package"]),
        ("no_such_file.pt2", ["no such file"]),
        (
            f"{HERE}:branching",
            [
                "depends on values of tensors (line ",
                "of small_networks.py: return x if x.sum() > 0 else -x): write it with torch.where",
            ],
        ),
        (
            f"{HERE}:decomposed",
            [
                f"network={HERE}:decomposed: TVM cannot import _linalg_svd.default, linalg_eig",
                "; write that part with other operators, or leave it out of the network",
            ],
        ),
    ],
)
def test_mistakes_are_one_line(name, told):
    line = refusal(name)
    assert [words for words in told if words not in line] == []


def test_a_mistake_of_a_real_worker_is_one_line(target, tmp_path):
    with pytest.raises(PrunerError, match=r"must return \(nn.Module"):
        extract_tasks(source("broken"), str(target), tmp_path)


def test_a_file_that_torch_did_not_export_is_refused_with_the_way_out(tmp_path):
    torch.save(torch.nn.Linear(2, 2).state_dict(), tmp_path / "weights.pt2")
    (tmp_path / "cut.pt2").write_bytes((tmp_path / "weights.pt2").read_bytes()[:500])
    for name in ("weights.pt2", "cut.pt2"):
        told = refusal(tmp_path / name)
        assert "torch.export.load cannot read it " in told
        assert "; a FILE.pt2 is" in told


@pytest.mark.parametrize("training", [False, True])
def test_a_file_of_a_network_that_trains_is_refused(training, tmp_path):
    """Its norms would be computed with statistics of other batches: another result than torch's."""
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    with torch.no_grad():
        program = torch.export.export(network.train(training), (torch.randn(2, 3, 8, 8),))
    torch.export.save(program, tmp_path / "net.pt2")
    given = NetworkSource(name=str(tmp_path / "net.pt2"))
    if training:
        with pytest.raises(PrunerError, match=r"net\.pt2: its batch .* in training mode; export"):
            import_network(given)
    else:
        assert "batch_norm" in import_network(given).script()


def test_sizes_go_to_those_that_take_them():
    two = NetworkOptions(batch=2)
    _, ((images,), _) = example_of(NetworkSource(name=f"{HERE}:sized", options=two))
    assert images.shape == (2, 16)
    with pytest.raises(PrunerError, match=r"leave sizes\.\* out, .*takes no argument"):
        import_network(NetworkSource(name=f"{HERE}:faint", options=two))
    asked = NetworkSource(name="resnet18", options=NetworkOptions(length=16, layers=1))
    told = "resnet18: leave sizes.length, sizes.layers out, it has sizes.batch, sizes.image"
    with pytest.raises(PrunerError, match=told):
        example_of(asked)


@some_slow("name", [name for name in NETWORKS if name not in LARGE], LARGE)
def test_a_named_network_changes_with_every_size_that_it_has(name):
    """As many pixels, tokens or layers as asked for: other inputs, or another number of weights."""

    def shape(**sizes):
        with torch.device("meta"):
            network, inputs = NETWORKS[name](NetworkOptions(**sizes))
        return [x.shape for x in inputs], sum(p.numel() for p in network.parameters())

    own = shape()
    for size, value in {"image": 96, "length": 16, "layers": 1}.items():
        assert (shape(**{size: value}) != own) == (size in CATALOG[name])


def test_a_name_is_refused_before_anything_is_imported(tmp_path):
    assert list(CATALOG) == list(NETWORKS)
    for name in ("resnet18", "package:factory", "net.onnx", "net.pt2"):
        NetworkSource(name=name).check_name()
    (tmp_path / "net.pth").write_bytes(b"weights")
    for name, told in {
        "resnet81": "network=resnet81 is unknown; known: resnet18, ",
        str(tmp_path / "net.pth"): "a file must be FILE.pt2 .of torch.export.save. or FILE.onnx",
        "nets/case.py:make": "name the module, network=case:make, in the folder of this file",
        "case.py": "name the module, network=case:FACTORY",
    }.items():
        with pytest.raises(PrunerError, match=told):
            NetworkSource(name=name).check_name()


def test_a_file_is_known_by_its_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file, factory = NetworkSource(name="a/b.onnx"), NetworkSource(name="my.package:factory")
    assert (file.label, file.is_onnx) == ("b", True)
    assert file.resolved.path == tmp_path / "a" / "b.onnx"
    assert (factory.label, factory.is_onnx) == ("my.package-factory", False)
    assert factory.resolved == factory


def test_shares_are_of_the_arithmetic_of_all_calls():
    tasks = tasks_of("encoder")
    assert max(task.weight for task in tasks) > 1
    # four linear parts, two products of attention, two of the feed-forward part; one more pools
    assert sum(t.weight for t in tasks if "matmul" in t.name) == 2 * (4 + 2 + 2) + 1
    assert sum(task.share for task in tasks) == pytest.approx(1.0)
    first, second = sorted(tasks, key=lambda task: task.flops)[-2:]
    calls = first.weight * first.flops / (second.weight * second.flops)
    assert first.share / second.share == pytest.approx(calls)


@pytest.mark.parametrize("name", ["residual", "encoder"])
def test_a_network_for_cuda_computes_what_torch_computes(name, tvm):
    module = lowered(name, A100)
    functions = [f for _, f in module.functions_items() if isinstance(f, tvm.tvm.tirx.PrimFunc)]
    data = [{str(tensor.dtype) for tensor in tensors_of(function)} for function in functions]
    wide = ["int64" in function.script() for function in functions]
    assert wide == ["int64" in types for types in data]
    assert not all(wide)
    assert torch_error(source(name), module) < 1e-5


def outer_sum(te, rows, columns):
    """Arguments of one axis each, and a sum of two of which every element has its place first."""
    a, b = te.placeholder((rows,), "float32", "a"), te.placeholder((columns,), "float32", "b")
    both = te.compute((rows, columns), lambda i, j: a[i] + b[j], "both")
    j = te.reduce_axis((0, columns), "j")
    return [a, b, te.compute((rows,), lambda i: te.sum(both[i, j], axis=j))]


def counted(te, rows, columns):
    """64-bit integers as data."""
    a = te.placeholder((rows, columns), "int64", "a")
    return [a, te.compute((rows, columns), lambda i, j: a[i, j] + te.const(1, "int64"))]


@pytest.mark.parametrize(
    ("operator", "rows", "columns", "narrow"),
    [
        (outer_sum, 64, 32, True),
        (outer_sum, 65536, 32767, True),  # 2^31 - 2^16 elements between the parts
        (outer_sum, 65536, 65536, False),
        (counted, 64, 32, False),
    ],
)
def test_what_32_bits_do_not_reach_keeps_its_indices(operator, rows, columns, narrow, tvm):
    te = tvm.tvm.te
    made = te.create_prim_func(operator(te, rows, columns), index_dtype_override="int64")
    module = tvm.tvm.IRModule({"main": made})
    found = narrowed(module)["main"]
    assert ("int64" not in found.script()) == narrow
    if not narrow:
        assert found.same_as(made) or found.script() == made.script()


def test_variants_that_cannot_be_lowered_are_given_up_before_the_layout(monkeypatch, tvm):
    wanted = lowering.NetworkFormat(layout="NHWC", variants={"class": ["order 0"]})
    for works in ("NHWC float32", "NCHW float32"):

        def lower(module, target, form, known, works=works):
            if str(form) != works:
                raise ValueError(f"not {form}")
            return module

        monkeypatch.setattr(lowering, "lower", lower)
        _, form, reason = lowering.lower_somehow(None, None, wanted)
        assert str(form) == works
        assert reason == "ValueError: not NHWC float32, 1 variants"
