"""Call a built network like a module: ``load("network.so")(x)``.

TVM's runtime is all that it needs: torch is not imported, and ``TVM_USE_RUNTIME_LIB=1`` is enough.
"""

import importlib
import json
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pruner.errors import DataError, MissingExtra, PrunerError, lines_of
from pruner.files import write_atomic
from pruner.tune.deploy.built_files import REPORT
from pruner.tune.deploy.interface import INTERFACE, Input, Interface, arranged, flattened
from pruner.tune.measure.targets import hidden_vectors

_ALIGNED = 64  # bytes; vector instructions of the programs rely on it
_NUMBER, _BIND = "TVM_NUM_THREADS", "TVM_BIND_THREADS"
_ALL_CORES = 1  # TVM's mode of a thread pool without a preference for cores
_pool = threading.local()  # TVM has a pool of threads for every calling thread


class _Environment:
    """Variables that TVM reads at every call: set while networks run, in any thread.

    TVM alone uses half of the processors that the system reports; if that is one, it runs without
    its pool of threads. It would also pin the calling thread to cores, which belongs to the caller.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._before: dict[str, str | None] = {}
        self._process: int | None = None  # of the first call; a fork keeps its parent's

    def check_process(self, threads: int) -> None:
        """Refuse a process that was forked after a call: TVM's threads are not copied."""
        self._process = self._process or os.getpid()
        if self._process != os.getpid() and threads > 1:
            raise PrunerError(
                "this process was forked after a network had run, without TVM's threads: start it "
                "with spawn, or fork before the first call"
            )

    @contextmanager
    def of(self, threads: int) -> Iterator[int]:
        """Yield the number of threads: `threads`, unless ``TVM_NUM_THREADS`` was set."""
        given = os.environ.get(_NUMBER)
        if given is not None and not self._running and not given.isdigit():
            raise PrunerError(f"{_NUMBER}={given}: it must be a whole number")
        with self._lock:
            if not self._running:
                self._before = {name: os.environ.get(name) for name in (_NUMBER, _BIND)}
                os.environ.setdefault(_NUMBER, str(max(threads, os.cpu_count() or 1)))
                os.environ[_BIND] = "0"
            self._running += 1
            number = int(self._before[_NUMBER] or threads)
        try:
            yield number
        finally:
            with self._lock:
                self._running -= 1
                if not self._running:
                    for name, value in self._before.items():
                        os.environ.pop(name, None)
                        os.environ.update({} if value is None else {name: value})


_environment = _Environment()


class Network:
    """A tuned network in a library, with weights, fixed sizes, no gradients.

    Called with tensors of torch it returns tensors of torch, called with arrays of numpy it returns
    arrays, in the structure that the module had (tensor, tuple, list, dict). Inputs that are
    contiguous and aligned to 64 bytes are not copied. An output is copied only where it would share
    memory with an input, the library or another output. Calls from several threads take turns.

    ``latency_s``: seconds of a call when the library was built, None after :func:`load`; ``folder``
    and ``report``: the run that made it, in the same way.
    """

    def __init__(
        self, path: str | Path, *, latency_s: float | None = None, folder: Path | None = None
    ) -> None:
        self.path, self.latency_s, self.folder = Path(path), latency_s, folder
        self._tvm, machine = _runtime()
        if not self.path.is_file():
            raise DataError(f"{path}: no such file")
        try:
            library = _opened(self.path)
            text = machine(library, self._tvm.cpu())[INTERFACE]()
        except Exception as error:  # TVM's own kinds
            raise DataError(
                f"{path}: no library of a network, or of an older version "
                f"({lines_of(error)[0]:.120}); pruner deploy run=RUN builds that of a run again"
            ) from error
        self.interface = Interface.of_json(json.loads(str(text)))
        if lacking := hidden_vectors(self.interface.vectors):
            raise PrunerError(
                f"{path}: built for a CPU with {', '.join(lacking[:3])}, which this machine lacks; "
                "tune the network on this machine, or for its instructions (target=)"
            )
        self._device = self._tvm.runtime.device(self.interface.device, 0)
        try:
            self._main = machine(library, self._device)["main"]
        except Exception as error:
            raise PrunerError(
                f"{path}: built for {self.interface.device}, which does not answer here "
                f"({lines_of(error)[0]:.120})"
            ) from error
        self._turn = threading.Lock()

    @property
    def inputs(self) -> Sequence[Input]:
        """Names, shapes and types of the inputs."""
        return self.interface.inputs

    @property
    def report(self) -> Path | None:
        """The page about the run that made it, if any."""
        path = None if self.folder is None else self.folder / REPORT
        return path if path is not None and path.is_file() else None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs for inputs as the module takes them.

        That is in its structure of arguments, where constants may be left out; or tensors alone, in
        the order of :attr:`inputs`, or by their names there.

        Raises `PrunerError`: another number of inputs, another structure, shape, type or device, or
        an input that requires a gradient.
        """
        wanted = self.interface.inputs
        inputs = self._flattened(args, kwargs)
        torch = sys.modules.get("torch")  # not imported: no input can be a tensor of it
        is_torch = [torch is not None and isinstance(one, torch.Tensor) for one in inputs]
        given = [
            self._of_torch(value, one, torch) if of_torch else self._of_numpy(value, one)
            for value, one, of_torch in zip(inputs, wanted, is_torch, strict=True)
        ]
        _environment.check_process(self.interface.threads)
        with self._turn, _environment.of(self.interface.threads) as threads:
            if self.interface.device == "cpu" and getattr(_pool, "threads", None) != threads:
                # the pool of this thread is created by this call
                self._tvm.get_global_func("runtime.config_threadpool")(_ALL_CORES, threads)
                _pool.threads = threads
            result = self._main(*given)
            if self.interface.device != "cpu":
                self._device.sync()
        outputs = list(result) if isinstance(result, Sequence) else [result]
        if torch is not None and any(is_torch):
            # TVM that was imported before an older torch returns its own tensors
            kind, new = torch.Tensor, torch.from_dlpack
            outputs = [one if isinstance(one, kind) else new(one) for one in outputs]
        else:
            is_here = self.interface.device == "cpu"
            outputs = [np.from_dlpack(one) if is_here else one.numpy() for one in outputs]
        for number in self.interface.copied:
            one = outputs[number]
            outputs[number] = one.clone() if any(is_torch) else one.copy()
        return arranged(self.interface.outputs, outputs)

    def _flattened(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        wanted, arguments = self.interface.inputs, self.interface.arguments
        takes = f"the network takes {', '.join(map(str, wanted))}"
        names = [one.name for one in wanted]
        if not args and len(names) == len(kwargs) and kwargs.keys() <= set(names):
            args, kwargs = [kwargs[name] for name in names], {}
        # tensors that the module was called with by position, and that are now given by name
        args, kwargs = list(args), dict(kwargs)
        for part in arguments["tuple"][0]["tuple"][len(args) :] if arguments else ():
            if isinstance(part, int) and names[part] in kwargs:
                args.append(kwargs.pop(names[part]))
            elif isinstance(part, dict) and "value" in part and kwargs:  # a constant before them
                args.append(part["value"])
            else:
                break
        are_tensors = not kwargs and all(hasattr(one, "shape") for one in args)
        if are_tensors and len(args) == len(wanted):
            return args
        if arguments is None or (are_tensors and len(args) < len(wanted)):
            raise PrunerError(f"{len(args) + len(kwargs)} inputs given; {takes}")
        try:
            by_position, by_name = arguments["tuple"]
            return [*flattened(by_position, args, "inputs"), *flattened(by_name, kwargs, "inputs")]
        except PrunerError as error:
            raise PrunerError(f"{error}; {takes}") from error

    def save(self, path: str | Path) -> Path:
        """Copy the library, which :func:`load` needs alone; return its path."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with write_atomic(path) as partial:
            shutil.copyfile(self.path, partial)
        return path

    def __reduce__(self) -> Any:
        """Copy by the path of the library, which has everything."""
        return _again, (self.path.resolve(), self.latency_s, self.folder)

    def __repr__(self) -> str:
        inputs = ", ".join(map(str, self.inputs))
        known = "" if self.latency_s is None else f", {1e3 * self.latency_s:.4g} ms"
        return f"Network({str(self.path)!r}: {inputs}{known})"

    def _of_torch(self, value: Any, wanted: Input, torch: Any) -> Any:
        dtype = str(value.dtype).removeprefix("torch.")
        # TVM has the first GPU
        device = str(value.device) if value.device.index else value.device.type
        self._check(wanted, tuple(value.shape), dtype, device)
        if value.requires_grad:
            if torch.is_grad_enabled():
                raise PrunerError(
                    f"input {wanted.name} requires a gradient, and a compiled network computes "
                    "none; call it under torch.no_grad(), or with the input detached"
                )
            value = value.detach()
        value = value.contiguous()
        # unaligned: a view into a larger tensor
        return value.clone() if value.data_ptr() % _ALIGNED else value

    def _of_numpy(self, value: Any, wanted: Input) -> Any:
        array = np.asarray(value)
        self._check(wanted, array.shape, str(array.dtype), self.interface.device)
        aligned = not array.ctypes.data % _ALIGNED and array.flags.c_contiguous
        if self.interface.device == "cpu" and aligned and array.flags.writeable:
            return self._tvm.runtime.from_dlpack(array)
        return self._tvm.runtime.tensor(array, self._device)

    def _check(self, wanted: Input, shape: tuple[int, ...], dtype: str, device: str) -> None:
        if shape != wanted.shape or dtype != wanted.dtype:
            given = Input(name=wanted.name, shape=shape, dtype=dtype)
            raise PrunerError(
                f"input {given} given, {wanted} wanted; a network has the sizes and types it was "
                "built for"
            )
        if device != self.interface.device:
            raise PrunerError(
                f"input {wanted.name} is on {device}, the network on {self.interface.device}"
            )


def load(path: str | Path) -> Network:
    """Load a library: ``network.so`` of a run folder, or the file of :meth:`Network.save`.

    Raises `DataError`: no such file, or no library of a network; `PrunerError`: TVM is not
    installed, or the library is for a device that is not here.
    """
    return Network(path)


def _runtime() -> tuple[Any, Any]:
    """Import TVM and its virtual machine, which needs no compiler."""
    try:
        tvm = importlib.import_module("tvm")
        return tvm, importlib.import_module("tvm.runtime.vm").VirtualMachine
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("tvm", "tvm_ffi"):
            raise
        raise MissingExtra("apache-tvm", "tvm") from error


def _opened(path: Path) -> Any:
    """Load TVM's module of a library under a new name.

    Under the same name the system returns the file that was opened before, even where another has
    taken its place. So does ``tvm.runtime.load_module``, which follows links.
    """
    with tempfile.TemporaryDirectory() as folder:
        name = Path(folder) / "network.so"
        name.symlink_to(path.resolve())
        return importlib.import_module("tvm_ffi").load_module(str(name))


def _again(path: Path, latency_s: float | None, folder: Path | None) -> Network:
    return Network(path, latency_s=latency_s, folder=folder)
