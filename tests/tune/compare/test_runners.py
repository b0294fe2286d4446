"""onnxruntime runs where it is told to, or says that it does not; OpenVINO computes."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from pruner.errors import PrunerError
from pruner.tune.compare.runners import OnnxRuntime, OpenVino, save_outputs

SOURCE = {"name": "made-up.onnx", "options": {}, "seed": 0}


class Session:
    """One input and no outputs; it has the providers that `started` names."""

    started = ("CUDAExecutionProvider", "CPUExecutionProvider")

    def __init__(self, file, settings, providers):
        self.asked, self.threads = providers, settings.intra_op_num_threads
        MADE.append(self)

    def get_providers(self):
        return list(self.started)

    def get_inputs(self):
        return [SimpleNamespace(name="x")]

    def get_outputs(self):
        return []

    def io_binding(self):
        return SimpleNamespace(
            bind_ortvalue_input=lambda *_: None, synchronize_outputs=lambda: None
        )

    def run_with_iobinding(self, binding):
        self.ran = True


MADE = []


@pytest.fixture
def made_up(monkeypatch, tmp_path):
    """An onnxruntime that has CUDA, and inputs for it."""
    found = SimpleNamespace(
        __version__="1",
        get_available_providers=lambda: list(Session.started),
        preload_dlls=lambda: None,
        SessionOptions=SimpleNamespace,
        InferenceSession=Session,
        OrtValue=SimpleNamespace(ortvalue_from_numpy=lambda *given: given),
    )
    monkeypatch.setitem(sys.modules, "onnxruntime", found)
    np.savez(tmp_path / "inputs.npz", np.zeros(3, np.float32))
    MADE.clear()
    return str(tmp_path / "inputs.npz")


@pytest.mark.parametrize(
    ("device", "wanted"),
    [
        ("cpu", ("CPUExecutionProvider", {})),
        ("cuda", ("CUDAExecutionProvider", {"use_tf32": "0"})),  # nor does torch round here
    ],
)
def test_onnxruntime_computes_float32_in_full(made_up, device, wanted):
    OnnxRuntime(source=SOURCE, inputs=made_up, threads=2, device=device)
    (session,) = MADE
    assert (session.asked, session.threads, session.ran) == ([wanted], 2, True)


def test_an_onnxruntime_that_fell_back_to_the_cpu_is_no_contender_of_a_gpu(made_up, monkeypatch):
    monkeypatch.setattr(Session, "get_providers", lambda _: ["CPUExecutionProvider"])
    with pytest.raises(PrunerError, match="could not start its CUDAExecutionProvider"):
        OnnxRuntime(source=SOURCE, inputs=made_up, threads=2, device="cuda")
    monkeypatch.setattr(
        sys.modules["onnxruntime"], "get_available_providers", lambda: ["CPUExecutionProvider"]
    )
    with pytest.raises(PrunerError, match="install onnxruntime-gpu"):
        OnnxRuntime(source=SOURCE, inputs=made_up, threads=2, device="cuda")


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
