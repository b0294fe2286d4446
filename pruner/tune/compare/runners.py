"""Networks in other frameworks, as classes after :class:`pruner.tune.compare.jobs.Runner`.

They are made inside a process of their own (`jobs`), with as many cores as they may use.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pruner.errors import PrunerError
from pruner.files import write_atomic
from pruner.program.dag.operators import find_operator
from pruner.program.dag.operators.epilogue import EPILOGUES
from pruner.tune.kinds import OPENCL
from pruner.tune.networks.signature import Arguments, tensors_of, with_tensors
from pruner.tune.tvm_import import without_torch

AGAIN = "again.npz"  # beside the inputs of a network: other inputs, for a second call
# Of onnxruntime, with their options. TF32, its default on GPUs, rounds products as no other does.
_PROVIDERS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "cpu": ("CPUExecutionProvider", {}),
    "cuda": ("CUDAExecutionProvider", {"use_tf32": "0"}),
}


_RECENT = 21  # version of operators that ONNX's own evaluator has


class Eager:
    """The module in torch's inference mode, without TF32 on GPUs.

    ``half``: weights, inputs and outputs are float16.
    """

    def __init__(
        self,
        *,
        source: Mapping[str, Any],
        inputs: str,
        threads: int,
        device: str = "cpu",
        half: bool = False,
    ) -> None:
        torch = importlib.import_module("torch")
        torch.set_num_threads(threads)
        torch.backends.cudnn.allow_tf32 = False  # on by default for convolutions, not for products
        start = time.perf_counter()
        self._inference, on_cpu = torch.inference_mode, device == "cpu"
        self._wait = _nothing if on_cpu else torch.cuda.synchronize
        self._network, self._arguments = _example(source)
        if half:
            self._network = self._network.half()
        if not on_cpu:
            self._network = self._network.to(device)
        self._half, self._device = half, device
        self._given = self.prepared(_arrays(inputs))
        self._prepare(torch)
        # the first run allocates memory and chooses algorithms: part of the preparation
        self.run()
        self.facts: dict[str, Any] = {
            "torch": torch.__version__,
            "ready_s": time.perf_counter() - start,
        }
        if not on_cpu:
            self.facts["device"] = torch.cuda.get_device_name()

    def _prepare(self, torch: Any) -> None:
        """Prepare before the first run; nothing here."""

    def prepared(self, arrays: Sequence[NDArray[Any]]) -> Any:
        """Copy the inputs, which a network may change, to the device."""
        torch = importlib.import_module("torch")
        tensors = [torch.tensor(array, device=self._device) for array in arrays]
        if self._half:
            tensors = [one.half() if one.is_floating_point() else one for one in tensors]
        return with_tensors(self._arguments, tensors) if self._arguments else (tensors, {})

    def run(self, given: Any = None) -> Any:
        """Run a complete inference."""
        args, kwargs = given or self._given
        with self._inference():
            result = self._network(*args, **kwargs)
        self._wait()
        return result

    def outputs(self, result: Any) -> Sequence[NDArray[Any]]:
        """Return the outputs as arrays, float16 as float32."""
        return [_wide(tensor.detach().cpu().numpy()) for tensor in tensors_of(result)]


class Compiled(Eager):
    """``torch.compile`` with inductor; its preparation is mostly the compiler's.

    ``options`` go to inductor. Nothing is taken from the cache of an earlier start.
    """

    def __init__(self, *, options: Mapping[str, Any], **arguments: Any) -> None:
        os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"  # read when torch is imported
        self._options = dict(options)
        super().__init__(**arguments)
        self.facts["options"] = self._options

    def _prepare(self, torch: Any) -> None:
        # no_grad instead of inference mode: inductor's freezing checks for it when it traces
        self._inference = torch.no_grad
        self._network = torch.compile(self._network, options=self._options)


class OnnxRuntime:
    """onnxruntime on the network, exported by torch unless it is ONNX.

    Inputs lie on the device, and outputs stay there. Products of float32 are not rounded. Not
    ``optimized``: without fusion, which rounds quantised tensors at other places than the file
    says. Raises `PrunerError` where onnxruntime would silently run on another device.
    """

    def __init__(
        self,
        *,
        source: Mapping[str, Any],
        inputs: str,
        threads: int,
        device: str = "cpu",
        half: bool = False,
        optimized: bool = True,
    ) -> None:
        onnxruntime = importlib.import_module("onnxruntime")
        provider, options = _PROVIDERS[device]
        if provider not in onnxruntime.get_available_providers():
            raise PrunerError(f"this onnxruntime has no {provider}; install onnxruntime-gpu")
        if device != "cpu":
            onnxruntime.preload_dlls()  # CUDA's libraries as Python packages bring them
        start = time.perf_counter()
        given = _source(source)
        arrays = _arrays(inputs)
        settings = onnxruntime.SessionOptions()
        # operators in sequence, as in the other frameworks
        settings.intra_op_num_threads, settings.inter_op_num_threads = threads, 1
        if not optimized:
            level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            settings.graph_optimization_level = level
        with tempfile.TemporaryDirectory() as folder:
            if given.is_onnx:
                file = given.path
            else:
                file = Path(folder) / "network.onnx"
                _export(source, file, half=half)
            exported = time.perf_counter()
            self._session = onnxruntime.InferenceSession(
                str(file), settings, providers=[(provider, dict(options))]
            )
        if provider not in self._session.get_providers():
            raise PrunerError(f"onnxruntime could not start its {provider}; see the log")
        self._value, self._device = onnxruntime.OrtValue.ortvalue_from_numpy, device
        self._half = half and not given.is_onnx
        self._given = self.prepared(arrays)
        self.run()
        self.facts = {
            "onnxruntime": onnxruntime.__version__,
            "export_s": exported - start,
            "ready_s": time.perf_counter() - start,
        }

    def prepared(self, arrays: Sequence[NDArray[Any]]) -> Any:
        """Bind the inputs, and outputs that stay on the device."""
        binding = self._session.io_binding()
        for one, array in zip(self._session.get_inputs(), arrays, strict=True):
            if self._half and array.dtype == np.float32:
                array = array.astype(np.float16)
            binding.bind_ortvalue_input(one.name, self._value(array, self._device, 0))
        for one in self._session.get_outputs():
            # outputs stay on the device: a copy to the host would be timed, too
            binding.bind_output(one.name, self._device)
        return binding

    def run(self, given: Any = None) -> Any:
        """Run a complete inference."""
        binding = given or self._given
        self._session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        return binding

    def outputs(self, result: Any) -> Sequence[NDArray[Any]]:
        """Return the outputs as arrays, float16 as float32."""
        return [_wide(array) for array in result.copy_outputs_to_cpu()]


class OnnxReference:
    """ONNX's own evaluator in Python: slow, but it has every operator."""

    def __init__(self, *, source: Mapping[str, Any], inputs: str, threads: int) -> None:
        onnx, reference = importlib.import_module("onnx"), importlib.import_module("onnx.reference")
        path = str(_source(source).path)
        try:
            self._evaluator = reference.ReferenceEvaluator(path)
        except RuntimeError:  # it has recent versions of some operators only
            recent = onnx.version_converter.convert_version(onnx.load(path), _RECENT)
            self._evaluator = reference.ReferenceEvaluator(recent)
        self._given = self.prepared(_arrays(inputs))
        self.run()

    def prepared(self, arrays: Sequence[NDArray[Any]]) -> Any:
        """Name the inputs; older files have their weights among them."""
        weights = {one.name for one in self._evaluator.proto_.graph.initializer}
        names = [name for name in self._evaluator.input_names if name not in weights]
        return dict(zip(names, arrays, strict=True))

    def run(self, given: Any = None) -> Any:
        """Run a complete inference."""
        return self._evaluator.run(None, given or self._given)

    def outputs(self, result: Any) -> Sequence[NDArray[Any]]:
        """Return the outputs as arrays, float16 as float32."""
        return [_wide(np.asarray(array)) for array in result]


class KernelLibrary:
    """An operator's kernel that TVM compiled: ``main(*inputs, output)``.

    ``output``: its shape and dtype.
    """

    def __init__(
        self, *, library: str, inputs: str, output: Sequence[Any], threads: int, device: str
    ) -> None:
        with without_torch():
            tvm = importlib.import_module("tvm")
        start = time.perf_counter()
        if device == OPENCL:
            importlib.import_module("pruner.tune.opencl.runtime").load_runtime()
        self._main = tvm.runtime.load_module(library)["main"]
        self._device, self._tensor = tvm.runtime.device(device, 0), tvm.runtime.tensor
        self._output = np.zeros(tuple(output[0]), output[1])
        self._given = self.prepared(_arrays(inputs))
        self.run()
        self.facts = {"tvm": tvm.__version__, "ready_s": time.perf_counter() - start}

    def prepared(self, arrays: Sequence[NDArray[Any]]) -> Any:
        """Copy inputs and an output to the device."""
        return [self._tensor(array, self._device) for array in (*arrays, self._output)]

    def run(self, given: Any = None) -> Any:
        """Run a complete call."""
        arguments = given or self._given
        self._main(*arguments)
        self._device.sync()
        return arguments[-1]

    def outputs(self, result: Any) -> Sequence[NDArray[Any]]:
        """Return the output as an array, float16 as float32."""
        return [_wide(result.numpy())]


class TvmLibrary:
    """A network that TVM compiled, loaded with TVM's runtime alone."""

    def __init__(self, *, library: str, inputs: str, threads: int, device: str = "cpu") -> None:
        with without_torch():
            tvm = importlib.import_module("tvm")
        machine = importlib.import_module("tvm.runtime.vm").VirtualMachine
        start = time.perf_counter()
        loaded = tvm.runtime.load_module(library)
        self._device, self._tensor = tvm.runtime.device(device, 0), tvm.runtime.tensor
        self._main = machine(loaded, self._device)["main"]
        # before the inputs are copied and the first run is made
        load_s = time.perf_counter() - start
        self._given = self.prepared(_arrays(inputs))
        self.run()
        self.facts = {
            "tvm": tvm.__version__,
            "threads": threads,
            "megabytes": Path(library).stat().st_size / 1e6,
            "load_s": load_s,
            "ready_s": time.perf_counter() - start,
        }

    def prepared(self, arrays: Sequence[NDArray[Any]]) -> Any:
        """Copy the inputs to the device."""
        return [self._tensor(array, self._device) for array in arrays]

    def run(self, given: Any = None) -> Any:
        """Run a complete inference."""
        result = self._main(*(self._given if given is None else given))
        self._device.sync()
        return result

    def outputs(self, result: Any) -> Sequence[NDArray[Any]]:
        """Return the outputs, a tensor or several, as arrays.

        Float16 becomes float32.
        """
        tensors = [result] if hasattr(result, "numpy") else list(result)
        return [_wide(tensor.numpy()) for tensor in tensors]


def _nothing() -> None:
    """Do nothing: calls on a CPU return when they are complete."""


def _wide(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(np.float32) if array.dtype == np.float16 else array


def _arrays(inputs: str | Path) -> list[NDArray[Any]]:
    with np.load(inputs) as arrays:
        return [arrays[name] for name in arrays.files]


def calls(inputs: str | Path) -> list[list[NDArray[Any]]]:
    """Read the inputs of the calls whose outputs are compared: two for networks."""
    again = Path(inputs).with_name(AGAIN)
    return [_arrays(path) for path in (inputs, again) if Path(path).is_file()]


def save_outputs(runner: Any, inputs: str | Path, path: Path) -> None:
    """Write the outputs of each call of `calls`, as ``arr_0`` ... and ``again_0`` ..."""
    with _no_fast_path():
        first, *others = (
            runner.outputs(runner.run(runner.prepared(arrays))) for arrays in calls(inputs)
        )
    again = {f"again_{n}": array for other in others for n, array in enumerate(other)}
    with write_atomic(path) as partial, partial.open("wb") as file:
        np.savez(file, *first, **again)


@contextmanager
def _no_fast_path() -> Iterator[None]:
    """Switch off torch's fast path of encoders, which leaves rows of padding empty.

    Export computes these rows. Timed runs use the fast path.
    """
    torch = sys.modules.get("torch")  # not imported: a library runs without
    if torch is None:
        yield
        return
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _source(source: Mapping[str, Any]) -> Any:
    # Not above: it needs torch, without which a library of TVM runs.
    return importlib.import_module("pruner.tune.networks.source").NetworkSource.read(source)


def _example(source: Mapping[str, Any]) -> tuple[Any, Arguments | None]:
    """Load a network and its example inputs, or torch's equivalent of an operator."""
    if "operator" in source:
        return torch_operator(source), None
    sources = importlib.import_module("pruner.tune.networks.source")
    module, arguments = sources.example_of(_source(source))
    return module, arguments


def torch_operator(spec: Mapping[str, Any]) -> Any:
    """Make a module without weights that computes an operator.

    Its inputs are those of the operator, in their order. A bias goes into the convolution or
    product itself, where torch takes one. `spec`: as
    :func:`pruner.program.dag.operators.task_options.checked` returns it.
    """
    torch = importlib.import_module("torch")
    operator, behind = find_operator(spec["operator"]), [EPILOGUES[n] for n in spec["epilogue"]]
    assert operator.torch is not None, "kernel_baselines leaves it out"
    call, takes_bias = operator.torch(torch, spec), operator.torch_takes_bias
    is_biased = takes_bias and "bias" in spec["epilogue"]  # the first one behind it
    extra = sum(epilogue.inputs for epilogue in behind)

    class Operator(torch.nn.Module):  # type: ignore[name-defined]
        def forward(self, *inputs: Any) -> Any:
            given, rest = list(inputs[: len(inputs) - extra]), list(inputs[len(inputs) - extra :])
            if takes_bias:
                given.append(rest.pop(0) if is_biased else None)
            out = call(*given)
            for epilogue in behind[is_biased:]:
                out = epilogue.torch(torch, out, rest)
            return out

    return Operator().eval()


def _export(source: Mapping[str, Any], file: Path, *, half: bool) -> None:
    """Write the network as ONNX, perhaps in float16."""
    torch = importlib.import_module("torch")
    network, arguments = _example(source)
    assert arguments is not None, "onnxruntime runs networks"
    if half:
        network = network.half()
        tensors = [t.half() if t.is_floating_point() else t for t in tensors_of(arguments)]
        arguments = with_tensors(arguments, tensors)
    args, kwargs = arguments
    with torch.no_grad():
        # onnxruntime needs one file, weights included
        torch.onnx.export(network, args, str(file), kwargs=kwargs, dynamo=True, external_data=False)
