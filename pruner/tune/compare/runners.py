"""Networks in other frameworks, and the jobs of their workers.

The worker is a fresh interpreter, whose environment limits the threads of every library before it
is imported.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pruner.archives import write_arrays
from pruner.errors import PrunerError
from pruner.program.dag.operators import find_operator
from pruner.program.dag.operators.epilogue import EPILOGUES
from pruner.tune.kinds import OPENCL
from pruner.tune.networks.plain import Arguments, tensors_of, with_tensors
from pruner.tune.networks.source import NetworkSource, example_of
from pruner.tune.tvm_import import without_torch

JOBS = __name__
AGAIN = "again.npz"  # beside the inputs of a network: other inputs, for a second call
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TVM_NUM_THREADS")
# Of onnxruntime, with their options. TF32, its default on GPUs, rounds products as no other does.
_PROVIDERS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "cpu": ("CPUExecutionProvider", {}),
    "cuda": ("CUDAExecutionProvider", {"use_tf32": "0"}),
}
_RECENT = 21  # version of operators that ONNX's own evaluator has
_LOOK_S = 0.02
_loaded: list[tuple[Runner, str]] = []  # with the path of its inputs


def thread_limits(threads: int) -> dict[str, str]:
    """Make the environment that limits the threads of all libraries.

    TVM would pin its threads to the first cores; `pruner.load` leaves them free, too.
    """
    return {**dict.fromkeys(_THREADS, str(threads)), "TVM_BIND_THREADS": "0"}


def load(runner: str, arguments: Mapping[str, Any], threads: int) -> dict[str, Any]:
    """Load a network by a class of this module; return its facts.

    The process keeps so many of its cores, the same cores for every baseline.
    """
    # affinity binds also libraries that ignore the variables of their thread pools
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    made = globals()[runner](**arguments, threads=threads)
    _loaded.append((made, arguments["inputs"]))
    return dict(made.facts)


def save(path: Path) -> None:
    """Run on the inputs of each compared call, and save the outputs."""
    save_outputs(*_loaded[0], path)


def run_for(seconds: float) -> list[float]:
    """Return the latencies of a turn; see :func:`timed_turn`."""
    return timed_turn(_loaded[0][0].run, seconds)


def rest(most_s: float) -> None:
    """Wait until the threads of this process compute nothing, at most `most_s`.

    Threads spin after a call: those of TVM slowed torch eager, whose turn was next, 20-fold.
    """
    end = time.monotonic() + most_s
    while time.monotonic() < end:
        before = time.process_time()
        time.sleep(_LOOK_S)
        if time.process_time() - before < _LOOK_S / 10:
            return


def timed_turn(
    run: Callable[[], Any], seconds: float, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Run until `seconds` are used; return the seconds of every run.

    The first run starts with caches that others filled and is not counted, unless it is longer than
    the turn: then it is the turn.
    """
    latencies_s: list[float] = []
    started = now = clock()
    while not latencies_s or now - started < seconds:
        run()
        before, now = now, clock()
        latencies_s.append(now - before)
    if latencies_s[0] < seconds and len(latencies_s) > 1:
        del latencies_s[0]
    return latencies_s


class Runner:
    """A loaded network; ``facts`` are versions and seconds for tables."""

    facts: dict[str, Any]
    _given: Any

    def _begin(self, inputs: str, start: float, **facts: Any) -> None:
        """Make the first run, which allocates memory and chooses algorithms: a preparation."""
        self._given = self.prepared(_read(inputs))
        self.run()
        self.facts = {**facts, "ready_s": time.perf_counter() - start}

    def prepared(self, arrays: Sequence[NDArray[Any]]) -> Any:
        """Copy inputs, which a network may change, to the device."""
        raise NotImplementedError

    def run(self, given: Any = None) -> Any:
        """Run a complete inference on prepared inputs, by default its own."""
        return self._call(self._given if given is None else given)

    def outputs(self, result: Any) -> list[NDArray[Any]]:
        """Convert a result of `run` to arrays, float16 to float32."""
        found = self._arrays(result)
        return [one.astype(np.float32) if one.dtype == np.float16 else one for one in found]

    def _call(self, given: Any) -> Any:
        raise NotImplementedError

    def _arrays(self, result: Any) -> Sequence[NDArray[Any]]:
        raise NotImplementedError


class Eager(Runner):
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
        # calls on a CPU return when they are complete
        self._wait = (lambda: None) if on_cpu else torch.cuda.synchronize
        self._network, self._arguments = _example(source)
        if half:
            self._network = self._network.half()
        if not on_cpu:
            self._network = self._network.to(device)
        self._half, self._device = half, device
        self._prepare(torch)
        self._begin(inputs, start, torch=torch.__version__)
        if not on_cpu:
            self.facts["device"] = torch.cuda.get_device_name()

    def _prepare(self, torch: Any) -> None:
        """Compile the network, where there is a compiler."""

    def prepared(self, arrays: Sequence[NDArray[Any]]) -> Any:
        """Make arguments by position and by name."""
        torch = importlib.import_module("torch")
        tensors = [torch.tensor(array, device=self._device) for array in arrays]
        if self._half:
            tensors = [one.half() if one.is_floating_point() else one for one in tensors]
        return with_tensors(self._arguments, tensors) if self._arguments else (tensors, {})

    def _call(self, given: Any) -> Any:
        args, kwargs = given
        with self._inference():
            result = self._network(*args, **kwargs)
        self._wait()
        return result

    def _arrays(self, result: Any) -> Sequence[NDArray[Any]]:
        return [tensor.detach().cpu().numpy() for tensor in tensors_of(result)]


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


class OnnxRuntime(Runner):
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
        settings = onnxruntime.SessionOptions()
        # operators in sequence, as in the other frameworks
        settings.intra_op_num_threads, settings.inter_op_num_threads = threads, 1
        if not optimized:
            level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            settings.graph_optimization_level = level
        with _onnx_file(source, half=half) as file:
            exported = time.perf_counter()
            self._session = onnxruntime.InferenceSession(
                str(file), settings, providers=[(provider, dict(options))]
            )
        if provider not in self._session.get_providers():
            raise PrunerError(f"onnxruntime could not start its {provider}; see the log")
        self._value, self._device = onnxruntime.OrtValue.ortvalue_from_numpy, device
        self._half = half and not NetworkSource.read(source).is_onnx
        export_s = exported - start
        self._begin(inputs, start, onnxruntime=onnxruntime.__version__, export_s=export_s)

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

    def _call(self, given: Any) -> Any:
        self._session.run_with_iobinding(given)
        given.synchronize_outputs()
        return given

    def _arrays(self, result: Any) -> Sequence[NDArray[Any]]:
        found: Sequence[NDArray[Any]] = result.copy_outputs_to_cpu()
        return found


class OpenVino(Runner):
    """OpenVINO on a CPU, on the ONNX file, for short calls.

    Products of float32 are not rounded: its default on some CPUs is bfloat16.
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
        openvino = importlib.import_module("openvino")
        start, core = time.perf_counter(), openvino.Core()
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": "1",
            "INFERENCE_NUM_THREADS": str(threads),
            "INFERENCE_PRECISION_HINT": "f32",
        }
        with _onnx_file(source, half=half) as file:
            exported = time.perf_counter()
            compiled = core.compile_model(core.read_model(str(file)), device.upper(), settings)
        self._request, self._tensor = compiled.create_infer_request(), openvino.Tensor
        self._begin(inputs, start, openvino=openvino.__version__, export_s=exported - start)

    def prepared(self, arrays: Sequence[NDArray[Any]]) -> Any:
        """Wrap the inputs, which are read where they lie."""
        found = [np.asarray(array, order="C") for array in arrays]  # also without dimensions
        return {n: self._tensor(array, shared_memory=True) for n, array in enumerate(found)}

    def _call(self, given: Any) -> Any:
        return self._request.infer(given, share_outputs=True)

    def _arrays(self, result: Any) -> Sequence[NDArray[Any]]:
        return [np.array(array) for array in result.values()]


class OnnxReference(Runner):
    """ONNX's own evaluator in Python: slow, but it has every operator."""

    def __init__(self, *, source: Mapping[str, Any], inputs: str, threads: int) -> None:
        onnx, reference = importlib.import_module("onnx"), importlib.import_module("onnx.reference")
        start = time.perf_counter()
        path = str(NetworkSource.read(source).path)
        try:
            self._evaluator = reference.ReferenceEvaluator(path)
        except RuntimeError:  # it has recent versions of some operators only
            recent = onnx.version_converter.convert_version(onnx.load(path), _RECENT)
            self._evaluator = reference.ReferenceEvaluator(recent)
        self._begin(inputs, start)

    def prepared(self, arrays: Sequence[NDArray[Any]]) -> Any:
        """Name the inputs; older files have their weights among them."""
        weights = {one.name for one in self._evaluator.proto_.graph.initializer}
        names = [name for name in self._evaluator.input_names if name not in weights]
        return dict(zip(names, arrays, strict=True))

    def _call(self, given: Any) -> Any:
        return self._evaluator.run(None, given)

    def _arrays(self, result: Any) -> Sequence[NDArray[Any]]:
        return [np.asarray(array) for array in result]


class TvmLibrary(Runner):
    """A network that TVM compiled, loaded with TVM's runtime alone."""

    def __init__(self, *, library: str, inputs: str, threads: int, device: str = "cpu") -> None:
        with without_torch():
            tvm = importlib.import_module("tvm")
        machine = importlib.import_module("tvm.runtime.vm").VirtualMachine
        start = time.perf_counter()
        if device == OPENCL:
            importlib.import_module("pruner.tune.opencl.runtime").load_runtime()
        loaded = tvm.runtime.load_module(library)
        self._device, self._tensor = tvm.runtime.device(device, 0), tvm.runtime.tensor
        self._main = self._opened(loaded, machine)
        # before the inputs are copied and the first run is made
        load_s = time.perf_counter() - start
        facts = {"threads": threads, "megabytes": Path(library).stat().st_size / 1e6}
        self._begin(inputs, start, tvm=tvm.__version__, **facts, load_s=load_s)

    def _opened(self, loaded: Any, machine: Any) -> Any:
        return machine(loaded, self._device)["main"]

    def prepared(self, arrays: Sequence[NDArray[Any]]) -> Any:
        """Copy arrays to the device."""
        return [self._tensor(array, self._device) for array in arrays]

    def _call(self, given: Any) -> Any:
        result = self._main(*given)
        self._device.sync()
        return result

    def _arrays(self, result: Any) -> Sequence[NDArray[Any]]:
        tensors = [result] if hasattr(result, "numpy") else list(result)
        return [tensor.numpy() for tensor in tensors]


class KernelLibrary(TvmLibrary):
    """An operator's kernel that TVM compiled: ``main(*inputs, output)``.

    ``output``: its shape and dtype.
    """

    def __init__(self, *, output: Sequence[Any], **arguments: Any) -> None:
        self._output = np.zeros(tuple(output[0]), output[1])
        super().__init__(**arguments)
        self.facts = {name: self.facts[name] for name in ("tvm", "ready_s")}

    def _opened(self, loaded: Any, machine: Any) -> Any:
        return loaded["main"]

    def prepared(self, arrays: Sequence[NDArray[Any]]) -> Any:
        """Copy arrays and an output to the device."""
        return super().prepared([*arrays, self._output])

    def _call(self, given: Any) -> Any:
        super()._call(given)
        return given[-1]


def _read(inputs: str | Path) -> list[NDArray[Any]]:
    with np.load(inputs) as arrays:
        return [arrays[name] for name in arrays.files]


def save_outputs(runner: Any, inputs: str | Path, path: Path) -> None:
    """Write the outputs of each compared call, as ``arr_0`` ... and ``again_0`` ...

    Networks have two: the second has the inputs of :data:`AGAIN`.
    """
    calls = [Path(inputs), Path(inputs).with_name(AGAIN)]
    with _no_fast_path():
        first, *others = (
            runner.outputs(runner.run(runner.prepared(_read(call))))
            for call in calls
            if call.is_file()
        )
    again = {f"again_{n}": array for other in others for n, array in enumerate(other)}
    write_arrays(path, *first, **again)


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


def _example(source: Mapping[str, Any]) -> tuple[Any, Arguments | None]:
    if "operator" in source:
        return torch_operator(source), None
    return example_of(NetworkSource.read(source))


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


@contextmanager
def _onnx_file(source: Mapping[str, Any], *, half: bool) -> Iterator[Path]:
    """Yield a network's ONNX file; torch exports other networks."""
    given = NetworkSource.read(source)
    if given.path is not None and given.is_onnx:
        yield given.path
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "network.onnx"
        _export(source, file, half=half)
        yield file


def _export(source: Mapping[str, Any], file: Path, *, half: bool) -> None:
    torch = importlib.import_module("torch")
    network, arguments = _example(source)
    assert arguments is not None, "onnxruntime and OpenVINO run networks"
    if half:
        network = network.half()
        tensors = [t.half() if t.is_floating_point() else t for t in tensors_of(arguments)]
        arguments = with_tensors(arguments, tensors)
    args, kwargs = arguments
    with torch.no_grad():
        # one file, weights included
        torch.onnx.export(network, args, str(file), kwargs=kwargs, dynamo=True, external_data=False)
