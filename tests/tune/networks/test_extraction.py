"""From torch to tasks: constants are folded, results stay, keys last."""

import numpy as np
import pytest
import torch

from pruner.errors import PrunerError
from pruner.tune.networks.catalog import NETWORKS
from pruner.tune.networks.network_tasks import short_name
from pruner.tune.networks.sizes import CATALOG, NetworkOptions
from pruner.tune.networks.source import NetworkSource, import_network, network_of
from tests.tune.networks.lowered import HERE, imported, lowered, source, tasks_of

pytestmark = pytest.mark.tvm
ENCODER = pytest.param("encoder", marks=pytest.mark.slow)  # test_lowering has it
BIASED = pytest.param("biased", marks=pytest.mark.slow)
ATTENTION = pytest.param("attention", marks=pytest.mark.slow)  # the causal one has a mask, too
LARGE = ("densenet121", "inception_v3", "wide_resnet50_2", "detr", "deeplabv3", "resnet50")


@pytest.fixture(scope="module")
def target(tvm):
    return tvm.tvm.target.Target({"kind": "llvm", "num-cores": 1})


QUICK = {"kind": "llvm", "opt-level": 0}  # LLVM compiles more quickly


def run(module, inputs):
    """Outputs of a lowered module on this CPU, not scheduled."""
    import tvm
    from tvm import relax

    machine = relax.VirtualMachine(tvm.compile(module, target=tvm.target.Target(QUICK)), tvm.cpu())
    found = machine["main"](*[tvm.runtime.tensor(x.numpy()) for x in inputs])
    many = not hasattr(found, "numpy")
    return [x.numpy() for x in found] if many else [found.numpy()]


@pytest.mark.parametrize("name", ["residual", BIASED, ENCODER, ATTENTION, "causal_attention"])
def test_a_lowered_network_computes_what_torch_computes(name, target):

    network, inputs = network_of(source(name))
    with torch.no_grad():
        wanted = network(*inputs)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for mine, theirs in zip(run(lowered(name), inputs), wanted, strict=True):
        error = np.abs(mine - theirs.numpy()).max() / np.abs(theirs.numpy()).max()
        assert error < 1e-5


def test_nothing_of_a_norm_is_left(target):
    """Convolutions hold their norms, one that stands alone is a product and a sum."""
    from pruner.tune.networks.rewrites.constant_folding import fold_constants

    text = fold_constants(imported("residual")).script()
    assert "batch_norm" not in text
    assert text.count("R.nn.conv2d(") == 2
    assert text.count("R.multiply(") == 1
    assert "permute_dims" not in text


def test_no_call_is_left_that_changes_nothing(target):
    """Before, torch's products of four dimensions broadcast each operand to its own shape."""
    from pruner.tune.networks.rewrites.constant_folding import fold_constants

    module = imported("linear_attention")
    assert module.script().count("R.broadcast_to(") == 4
    assert "R.broadcast_to(" not in fold_constants(module).script()
    assert not any("broadcast" in task.name for task in tasks_of("linear_attention"))


def test_a_copy_that_is_a_result_stays(target):
    """Else the result would have the memory of the argument."""
    from tvm import relax

    from pruner.tune.networks.rewrites.constant_folding import fold_constants

    x, builder = relax.Var("x", relax.TensorType((2, 3), "float32")), relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result, inside = (builder.emit(relax.op.reshape(x, (2, 3))) for _ in range(2))
            pair = builder.emit(relax.Tuple([result, builder.emit(relax.op.exp(inside))]))
            pair = builder.emit_output(pair)
        builder.emit_func_output(pair)
    text = fold_constants(builder.get()).script()
    assert text.count("R.reshape(") == 1
    assert "R.exp(x)" in text


def test_a_norm_behind_a_bias_is_folded_unless_something_else_reads_the_sum(target):
    """Two of five norms go into convolutions; three stay products, no convolution is doubled."""
    from pruner.tune.networks.rewrites.constant_folding import fold_constants

    text = fold_constants(imported("biased")).script()
    assert "batch_norm" not in text
    assert text.count("R.nn.conv2d(") == 4
    assert text.count("R.nn.conv2d_transpose(") == 1
    assert text.count("R.multiply(") == 3
    names = {t.name[:-9] for t in tasks_of("biased")}
    assert {"conv2d_add_relu", "conv2d_add_multiply_add_relu_add"} <= names
    assert "conv2d_add_multiply_add_relu" not in names


def test_a_network_is_lowered_once(target):
    from pruner.tune.networks.lowering import lower

    with pytest.raises(ValueError, match="once"):
        lower(lowered("residual"), target)


def test_tasks_of_the_same_operators_may_be_similar(target):
    """Whatever their sizes: the order of tasks divides them by their arithmetic."""

    tasks = tasks_of("encoder")
    kinds = {task.name: task.workload.operator for task in tasks}
    assert all(name == f"{kind}_{name[-8:]}" for name, kind in kinds.items())
    assert len(set(kinds.values())) < len(kinds)


def test_a_batch_of_one_can_be_tiled(target):
    """Convolutions, transposed ones and products have tile sizes to choose."""
    from pruner.tune.spaces.design import design_spaces

    tasks = []
    for name in ("one_image", "encoder"):
        tasks += tasks_of(name)
    tiled = [t for t in tasks if "conv2d" in t.name or "matmul" in t.name]
    assert len(tiled) >= 6
    for task in tiled:
        spaces = design_spaces(task.module, target)
        assert all("sample_perfect_tile" in str(space.trace) for space in spaces), task.name


@pytest.mark.parametrize("name", [ATTENTION, "causal_attention"])
def test_own_attention_is_tasks_that_the_engine_knows(name, target):
    """Two products of the attention, two linear layers, and the softmax by itself."""
    from pruner.tune.networks.coverage import coverage

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
    from pruner.tune.networks.extraction import LOG, extract_tasks

    here = tasks_of("encoder")
    found = extract_tasks(source("encoder"), str(target), tmp_path)
    assert [(t.name, t.key, t.weight, t.flops) for t in found] == [
        (t.name, t.key, t.weight, t.flops) for t in here
    ]
    import tvm_ffi

    assert [f"{tvm_ffi.structural_hash(t.module) & (1 << 64) - 1:016x}" for t in found] == [
        t.key for t in here
    ]
    assert sum(t.share for t in found) == pytest.approx(1.0)
    # a layer has four linear parts, two products of attention and two of its feed-forward part; one
    # more pools
    assert sum(t.weight for t in found if "matmul" in t.name) == 2 * (4 + 2 + 2) + 1
    assert (tmp_path / LOG).is_file()


def test_mistakes_are_one_line(target, tmp_path):
    from pruner.tune.networks.extraction import extract_tasks

    with pytest.raises(PrunerError, match=r"must return \(nn.Module"):
        extract_tasks(source("broken"), str(target), tmp_path)
    for name, told in {
        "resnet19": "unknown; known: resnet18",
        f"{HERE}:missing": "missing",
        "no_such_package:factory": "no_such_package",
        "no_such_file.pt2": "no such file",
    }.items():
        with pytest.raises(PrunerError, match=told):
            import_network(NetworkSource(name=name, options=NetworkOptions()))


def test_a_file_that_torch_did_not_export_is_refused_with_the_way_out(tmp_path):
    torch.save(torch.nn.Linear(2, 2).state_dict(), tmp_path / "weights.pt2")
    (tmp_path / "cut.pt2").write_bytes((tmp_path / "weights.pt2").read_bytes()[:500])
    for name in ("weights.pt2", "cut.pt2"):
        with pytest.raises(
            PrunerError, match=r"torch.export.load cannot read it .*; a FILE.pt2 is"
        ):
            import_network(NetworkSource(name=str(tmp_path / name)))


def test_a_branch_on_values_is_named_by_its_line():
    with pytest.raises(PrunerError) as refused:
        import_network(source("branching"))
    told = str(refused.value)
    assert "depends on values of tensors (line " in told
    assert (
        "of small_networks.py: return x if x.sum() > 0 else -x): write it with torch.where" in told
    )


def test_operators_that_tvm_does_not_know_are_named_in_one_line():
    with pytest.raises(PrunerError) as refused:
        import_network(source("decomposed"))
    told = str(refused.value)
    assert f"network={HERE}:decomposed: TVM cannot import _linalg_svd.default, linalg_eig" in told
    assert "; write that part with other operators, or leave it out of the network" in told
    assert "\n" not in told


def test_operators_of_an_onnx_file_that_tvm_does_not_know_are_named(tmp_path):
    onnx = pytest.importorskip("onnx")
    make, floats = onnx.helper, onnx.TensorProto.FLOAT
    graph = make.make_graph(
        [make.make_node("Det", ["x"], ["d"]), make.make_node("StringNormalizer", ["d"], ["y"])],
        "odd",
        [make.make_tensor_value_info("x", floats, [4, 4])],
        [make.make_tensor_value_info("y", floats, [])],
    )
    onnx.save(make.make_model(graph), tmp_path / "net.onnx")
    with pytest.raises(PrunerError, match=r"TVM cannot import Det, StringNormalizer; write"):
        import_network(NetworkSource(name=str(tmp_path / "net.onnx")))


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


def test_an_onnx_file_of_a_network_that_trains_is_refused(tmp_path):
    onnx = pytest.importorskip("onnx")
    make, floats = onnx.helper, onnx.TensorProto.FLOAT
    node = make.make_node("BatchNormalization", [*"xgbmv"], [*"ynw"], training_mode=1)
    graph = make.make_graph(
        [node],
        "norm",
        [make.make_tensor_value_info("x", floats, [2, 4, 6, 6])],
        [make.make_tensor_value_info("y", floats, [2, 4, 6, 6])],
        [onnx.numpy_helper.from_array(np.ones(4, np.float32), name) for name in "gbmv"],
    )
    onnx.save(
        make.make_model(graph, opset_imports=[make.make_opsetid("", 15)]), tmp_path / "net.onnx"
    )
    with pytest.raises(PrunerError, match="training_mode=0"):
        import_network(NetworkSource(name=str(tmp_path / "net.onnx")))


def test_sizes_go_to_those_that_take_them():
    two = NetworkOptions(batch=2)
    (images,) = network_of(NetworkSource(name=f"{HERE}:sized", options=two))[1]
    assert images.shape == (2, 16)
    with pytest.raises(PrunerError, match=r"leave sizes\.\* out, .*takes no argument"):
        import_network(NetworkSource(name=f"{HERE}:faint", options=two))


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow if n in LARGE else ()) for n in NETWORKS],
)
def test_a_named_network_changes_with_every_size_that_it_has(name):
    """As many pixels, tokens or layers as asked for: other inputs, or another number of weights."""

    def shape(**sizes):
        with torch.device("meta"):
            network, inputs = NETWORKS[name](NetworkOptions(**sizes))
        return [x.shape for x in inputs], sum(p.numel() for p in network.parameters())

    own = shape()
    for size, value in {"image": 96, "length": 16, "layers": 1}.items():
        assert (shape(**{size: value}) != own) == (size in CATALOG[name])


def test_a_name_is_refused_before_anything_is_imported():
    assert list(CATALOG) == list(NETWORKS)
    with pytest.raises(PrunerError, match="network=resnet81 is unknown; known: resnet18, "):
        NetworkSource(name="resnet81").check_name()
    for name in ("resnet18", "package:factory", "net.onnx", "net.pt2"):
        NetworkSource(name=name).check_name()


def test_files_of_other_kinds_are_refused_with_the_way_out(tmp_path):
    (tmp_path / "net.pth").write_bytes(b"weights")
    for name, told in {
        str(tmp_path / "net.pth"): "a file must be FILE.pt2 .of torch.export.save. or FILE.onnx",
        "nets/case.py:make": "name the module, network=case:make, in the folder of this file",
        "case.py": "name the module, network=case:FACTORY",
    }.items():
        with pytest.raises(PrunerError, match=told):
            NetworkSource(name=name).check_name()


def test_sizes_that_a_named_network_has_not_are_refused():
    asked = NetworkSource(name="resnet18", options=NetworkOptions(length=16, layers=1))
    told = "resnet18: leave sizes.length, sizes.layers out, it has sizes.batch, sizes.image"
    with pytest.raises(PrunerError, match=told):
        network_of(asked)


def test_a_file_is_known_by_its_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file, factory = NetworkSource(name="a/b.onnx"), NetworkSource(name="my.package:factory")
    assert (file.label, file.is_onnx) == ("b", True)
    assert file.resolved.path == tmp_path / "a" / "b.onnx"
    assert (factory.label, factory.is_onnx) == ("my.package-factory", False)
    assert factory.resolved == factory


def test_names_without_the_numbers_of_passes():
    assert short_name("fused_conv2d9_add7_add8_relu4") == "conv2d_add_add_relu"
    assert short_name("fused_matmul5_add5_tir_tanh") == "matmul_add_tanh"


def test_shares_are_of_the_arithmetic_of_all_calls():
    tasks = tasks_of("encoder")
    assert max(task.weight for task in tasks) > 1
    assert sum(task.share for task in tasks) == pytest.approx(1.0)
    first, second = sorted(tasks, key=lambda task: task.flops)[-2:]
    calls = first.weight * first.flops / (second.weight * second.flops)
    assert first.share / second.share == pytest.approx(calls)
