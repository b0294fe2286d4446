"""Networks as others run them; each class follows :class:`pruner.tune.contenders.protocol.Runner`.

They are made inside a process of their own (`child`), with as many cores as they may use.
"""

from __future__ import annotations

import importlib
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Eager:
    """The module as torch runs it, in inference mode."""

    def __init__(self, *, source: Mapping[str, Any], inputs: str, threads: int) -> None:
        torch = importlib.import_module("torch")
        torch.set_num_threads(threads)
        start = time.perf_counter()
        self._inference = torch.inference_mode
        self._network = _module(source)
        self._inputs = [torch.from_numpy(array) for array in _arrays(inputs)]
        self._prepare(torch)
        self.run()
        self.facts: dict[str, Any] = {
            "torch": torch.__version__,
            "ready_s": time.perf_counter() - start,
        }

    def _prepare(self, torch: Any) -> None:
        """What comes before the first run."""

    def run(self) -> Any:
        """One inference."""
        with self._inference():
            return self._network(*self._inputs)

    def outputs(self, result: Any) -> Sequence[NDArray[Any]]:
        """As arrays."""
        return [tensor.numpy() for tensor in _flat(result)]


class Compiled(Eager):
    """``torch.compile`` with inductor; its ready seconds are mostly the compiler's.

    ``options`` go to inductor. Nothing is taken from the cache of an earlier start.
    """

    def __init__(self, *, options: Mapping[str, Any], **arguments: Any) -> None:
        os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"  # read when torch is imported
        self._options = dict(options)
        super().__init__(**arguments)

    def _prepare(self, torch: Any) -> None:
        # Without gradients: what freezes weights asks for that where it traces.
        self._inference = torch.no_grad
        self._network = torch.compile(self._network, options=self._options)


class OnnxRuntime:
    """onnxruntime's CPU provider on the network, exported by torch unless it is ONNX already."""

    def __init__(self, *, source: Mapping[str, Any], inputs: str, threads: int) -> None:
        onnxruntime = importlib.import_module("onnxruntime")
        start = time.perf_counter()
        given = _source(source)
        arrays = _arrays(inputs)
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads, settings.inter_op_num_threads = threads, 1
        with tempfile.TemporaryDirectory() as folder:
            if given.is_onnx:
                file = given.path
            else:
                file = Path(folder) / "network.onnx"
                _export(source, arrays, file)
            exported = time.perf_counter()
            self._session = onnxruntime.InferenceSession(
                str(file), settings, providers=["CPUExecutionProvider"]
            )
        names = [one.name for one in self._session.get_inputs()]
        self._feed = dict(zip(names, arrays, strict=True))
        self.run()
        self.facts = {
            "onnxruntime": onnxruntime.__version__,
            "export_s": exported - start,
            "ready_s": time.perf_counter() - start,
        }

    def run(self) -> Any:
        """One inference."""
        return self._session.run(None, self._feed)

    def outputs(self, result: Any) -> Sequence[NDArray[Any]]:
        """As arrays, which they are."""
        return list(result)


class TvmLibrary:
    """A network that TVM compiled, loaded with TVM's runtime alone."""

    def __init__(self, *, library: str, inputs: str, threads: int) -> None:
        tvm = importlib.import_module("tvm")
        machine = importlib.import_module("tvm.runtime.vm").VirtualMachine
        start = time.perf_counter()
        loaded = tvm.runtime.load_module(library)
        self._main = machine(loaded, tvm.cpu())["main"]
        load_s = time.perf_counter() - start
        self._inputs = [tvm.runtime.tensor(array) for array in _arrays(inputs)]
        self.run()
        self.facts = {
            "tvm": tvm.__version__,
            "threads": threads,
            "megabytes": Path(library).stat().st_size / 1e6,
            "load_s": load_s,
            "ready_s": time.perf_counter() - start,
        }

    def run(self) -> Any:
        """One inference."""
        return self._main(*self._inputs)

    def outputs(self, result: Any) -> Sequence[NDArray[Any]]:
        """As arrays: one tensor, or several."""
        tensors = [result] if hasattr(result, "numpy") else list(result)
        return [tensor.numpy() for tensor in tensors]


def _arrays(inputs: str) -> list[NDArray[Any]]:
    with np.load(inputs) as arrays:
        return [arrays[name] for name in arrays.files]


def _source(source: Mapping[str, Any]) -> Any:
    # Not above: it needs torch, without which a library of TVM runs.
    return importlib.import_module("pruner.tune.networks.source").NetworkSource.read(source)


def _module(source: Mapping[str, Any]) -> Any:
    found = _source(source)
    torch = importlib.import_module("torch")
    if found.path is not None:
        return torch.export.load(found.path).module()
    return importlib.import_module("pruner.tune.networks.source").network_of(found)[0]


def _export(source: Mapping[str, Any], arrays: Sequence[NDArray[Any]], file: Path) -> None:
    torch = importlib.import_module("torch")
    tensors = tuple(torch.from_numpy(array) for array in arrays)
    with torch.no_grad():
        # onnxruntime wants one file, weights included
        torch.onnx.export(_module(source), tensors, str(file), dynamo=True, external_data=False)


def _flat(result: Any) -> list[Any]:
    """Tensors of nested tuples, lists and mappings, in order."""
    if isinstance(result, Mapping):
        return [tensor for value in result.values() for tensor in _flat(value)]
    if isinstance(result, list | tuple):
        return [tensor for value in result for tensor in _flat(value)]
    return [result] if result is not None else []
