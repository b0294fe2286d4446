"""Contenders of a small network, each in its process; what is not there says so."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from pruner.archives import write_arrays
from pruner.errors import PrunerError
from pruner.tune.compare import baselines
from pruner.tune.compare.baselines import Library, Resources, network_baselines
from pruner.tune.compare.benchmark import BenchmarkSettings, run_interleaved
from pruner.tune.compare.runners import OnnxRuntime, OpenVino, save_outputs, thread_limits
from pruner.tune.measure.measurer import Platform
from pruner.tune.networks.source import NetworkSource, inputs_of
from tests.tune.networks.small_networks import residual

SOURCE = NetworkSource(name="tests.tune.networks.small_networks:residual")


def lined_up(names, libraries=None, source=SOURCE, resources=Resources(threads=2), **more):  # noqa: B008
    places = {"inputs": Path("inputs.npz"), "resources": resources, **more}
    return {one.name: one for one in network_baselines(source, names, libraries or {}, **places)}


def test_all_get_as_many_threads_and_the_same_inputs():
    found = lined_up(["eager", "onnxruntime"], {"ours": Library(label="ours", path=Path("a.so"))})
    assert list(found) == ["eager", "onnxruntime", "ours"]
    for one in found.values():
        assert (one.threads, one.arguments["inputs"]) == (2, "inputs.npz")
    limits = thread_limits(2)
    assert limits.pop("TVM_BIND_THREADS") == "0"
    assert set(limits.values()) == {"2"}
    assert {"OMP_NUM_THREADS", "TVM_NUM_THREADS"} <= set(limits)
    assert found["ours"].environment["TVM_USE_RUNTIME_LIB"] == "1"


def test_on_a_gpu_all_run_there_and_halves_are_what_a_user_would_give_torch():
    library, gpu = Library(label="ours", path=Path("a.so")), Resources(threads=4, device="cuda")
    found = lined_up(["eager", "onnxruntime"], {"ours": library}, resources=gpu, half=True)
    assert {one.arguments["device"] for one in found.values()} == {"cuda"}
    assert found["eager"].arguments["half"] is found["onnxruntime"].arguments["half"] is True
    assert "half" not in found["ours"].arguments  # it is what it was built as
    # TVM's `_autoload_backends` loads no device's runtime in a process that has this
    assert "TVM_USE_RUNTIME_LIB" not in found["ours"].environment
    graphs = lined_up(["compile", "autotune"], resources=gpu)
    # as torch's modes "reduce-overhead" and "max-autotune" do
    assert graphs["compile"].arguments["options"] == {"triton.cudagraphs": True}
    assert lined_up(["compile"])["compile"].arguments["options"] == {}
    assert graphs["autotune"].arguments["options"]["triton.cudagraphs"] is True
    # of an operator torch would copy every input into the graph's memory
    matmul = {"operator": "matmul", "m": 8, "n": 8, "k": 8}
    places = {"inputs": Path("inputs.npz"), "resources": gpu, "output": ((8, 8), "float32")}
    (kernel,) = baselines.kernel_baselines(matmul, ["compile"], {}, **places)
    assert kernel.arguments["options"] == {}
    frozen = lined_up(["autotune"])["autotune"].arguments["options"]
    assert frozen == {"max_autotune": True, "coordinate_descent_tuning": True, "freezing": True}
    all_of_torch = lined_up(["eager", "compile", "autotune"], {"ours": library}, resources=gpu)
    assert {name for name, one in all_of_torch.items() if one.tunes} == {"compile", "autotune"}
    on_cpu = lined_up(["eager"], half=True)
    assert on_cpu["eager"].arguments == {**found["eager"].arguments, "device": "cpu", "half": False}


def test_the_lane_of_a_platform():
    cpu = Platform(target=None, device="cpu", cores=3)
    assert Resources.of(cpu) == Resources(threads=3)
    assert str(Resources.of(cpu)) == "3 threads"
    gpu = Resources.of(Platform(target=None, device="cuda"))
    assert gpu == Resources(threads=len(os.sched_getaffinity(0)), device="cuda")
    assert str(gpu) == "cuda"


def test_what_cannot_run_says_why(monkeypatch):
    monkeypatch.setattr(baselines, "find_spec", lambda name: name != "onnxruntime" or None)
    found = lined_up(["onnxruntime"], {"draft": Library(label="d", missing="no draft here")})
    assert found["onnxruntime"].missing == (
        "onnxruntime not installed; run: pip install 'pruner[network]'"
    )
    assert found["draft"].missing == "no draft here"
    unusual = ("autotune", "onnxruntime", "openvino", "draft")
    assert baselines.by_default() == [n for n in baselines.BASELINES if n not in unusual]
    monkeypatch.setattr(baselines, "find_spec", lambda name: name)
    gpu = Resources(threads=2, device="cuda")
    assert "not run on cuda" in lined_up(["openvino"], resources=gpu)["openvino"].missing
    assert lined_up(["openvino"])["openvino"].missing is None
    onnx = lined_up(["eager"], source=NetworkSource(name="x.onnx"))
    assert onnx["eager"].missing == "an ONNX file holds no torch module"
    with pytest.raises(PrunerError, match=r"torch.*known: eager"):
        lined_up(["torch"])


@pytest.mark.slow
def test_torch_onnxruntime_and_openvino_agree(tmp_path):
    pytest.importorskip("onnxruntime")
    inputs = tmp_path / "inputs.npz"
    write_arrays(inputs, *inputs_of(SOURCE))
    with np.load(inputs) as arrays:
        np.testing.assert_array_equal(arrays["arr_0"], residual()[1][0].numpy())
    pytest.importorskip("openvino")
    names = ("eager", "compile", "autotune", "onnxruntime", "openvino")
    entries = network_baselines(SOURCE, names, {}, inputs=inputs, resources=Resources(threads=2))
    settings = BenchmarkSettings(warm_up_s=0.01, rounds=2, turn_s=0.01)
    found = run_interleaved(entries, tmp_path, settings, reference="eager")
    assert [row.error for row in found] == [None] * 5
    assert all(row.relative_error < 1e-5 for row in found[1:])
    assert all(row.median_s > 0 and row.facts["ready_s"] > 0 for row in found)


MADE_UP = {"name": "made-up.onnx", "options": {}, "seed": 0}
# names of onnxruntime that are called; any other name is an error
MODULE = ["__version__", "get_available_providers", "preload_dlls", "SessionOptions"]
MODULE += ["InferenceSession", "OrtValue"]
SESSION = ["get_providers", "get_inputs", "get_outputs", "io_binding", "run_with_iobinding"]
PROVIDERS = ["CUDAExecutionProvider", "CPUExecutionProvider"]


@pytest.fixture
def made_up(monkeypatch, tmp_path):
    """An onnxruntime that has CUDA, whose session has one input and no outputs; and the input."""
    session = Mock(spec=SESSION, **{"get_providers.return_value": PROVIDERS})
    session.get_outputs.return_value, session.get_inputs.return_value = (
        [],
        [SimpleNamespace(name="x")],
    )
    session.io_binding.return_value = Mock(spec=["bind_ortvalue_input", "synchronize_outputs"])
    found = Mock(spec=MODULE, __version__="1")
    found.get_available_providers.return_value = PROVIDERS
    found.OrtValue = Mock(spec=["ortvalue_from_numpy"])
    found.InferenceSession.return_value = session
    monkeypatch.setitem(sys.modules, "onnxruntime", found)
    np.savez(tmp_path / "inputs.npz", np.zeros(3, np.float32))
    return found, session, str(tmp_path / "inputs.npz")


@pytest.mark.parametrize(
    ("device", "wanted"),
    [
        ("cpu", ("CPUExecutionProvider", {})),
        ("cuda", ("CUDAExecutionProvider", {"use_tf32": "0"})),  # nor does torch round here
    ],
)
def test_onnxruntime_computes_float32_in_full(made_up, device, wanted):
    runtime, session, inputs = made_up
    OnnxRuntime(source=MADE_UP, inputs=inputs, threads=2, device=device)
    (_, settings), given = runtime.InferenceSession.call_args
    assert (given["providers"], settings.intra_op_num_threads) == ([wanted], 2)
    session.run_with_iobinding.assert_called_once()


def test_an_onnxruntime_that_fell_back_to_the_cpu_is_no_contender_of_a_gpu(made_up):
    runtime, session, inputs = made_up
    for found, told in (
        (session.get_providers, "could not start its CUDAExecutionProvider"),
        (runtime.get_available_providers, "install onnxruntime-gpu"),
    ):
        found.return_value = ["CPUExecutionProvider"]
        with pytest.raises(PrunerError, match=told):
            OnnxRuntime(source=MADE_UP, inputs=inputs, threads=2, device="cuda")


def test_openvino_computes_a_product(tmp_path):
    """Two inputs in another order than by name; the second call has other inputs."""
    pytest.importorskip("openvino")
    onnx = pytest.importorskip("onnx")
    info = onnx.helper.make_tensor_value_info
    given = [info("y", 1, [2, 3]), info("x", 1, [3, 4])]
    product = onnx.helper.make_node("MatMul", ["y", "x"], ["z"])
    graph = onnx.helper.make_graph([product], "product", given, [info("z", 1, [2, 4])])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    onnx.save(model, tmp_path / "product.onnx")
    rng = np.random.default_rng(0)
    left, right = (rng.random(shape, np.float32) for shape in ((2, 3), (3, 4)))
    np.savez(tmp_path / "inputs.npz", left, right)
    source = {"name": str(tmp_path / "product.onnx"), "options": {}, "seed": 0}
    runner = OpenVino(source=source, inputs=str(tmp_path / "inputs.npz"), threads=1)
    for factor in (1, 2):
        (found,) = runner.outputs(runner.run(runner.prepared([factor * left, right])))
        np.testing.assert_allclose(found, factor * left @ right, rtol=1e-6)
    assert runner.facts["ready_s"] > 0


def test_compared_outputs_have_rows_of_padding_and_timed_runs_the_fast_path(tmp_path):
    """The fast path of encoders would leave 0 in rows that torch computes otherwise."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 1).eval()
    mask = torch.tensor([[False, False, False], [False, True, True]])

    class Runner:
        def prepared(self, arrays):
            return torch.from_numpy(arrays[0])

        def run(self, given):
            with torch.inference_mode():
                return encoder(given, src_key_padding_mask=mask)

        def outputs(self, result):
            return [result.numpy()]

    x = torch.rand(2, 3, 8)
    np.savez(tmp_path / "inputs.npz", x.numpy())
    save_outputs(Runner(), tmp_path / "inputs.npz", tmp_path / "found.npz")
    assert torch.backends.mha.get_fastpath_enabled()  # for timed runs
    # with gradients torch takes no fast path
    wanted = encoder(x, src_key_padding_mask=mask).detach().numpy()
    with np.load(tmp_path / "found.npz") as found:
        np.testing.assert_allclose(found["arr_0"], wanted, atol=1e-6)
    assert np.abs(wanted[1, 1:]).min() > 0
