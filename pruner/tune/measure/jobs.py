"""What worker processes do: build a program, run it, compute its reference, check its results."""

from __future__ import annotations

import importlib
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pruner.errors import PrunerError
from pruner.files import write_whole
from pruner.processes import NoReference
from pruner.tune.compiling import compiled
from pruner.tune.cuda import provide_compiler
from pruner.tune.kinds import OPENCL, is_cuda, is_opencl
from pruner.tune.measure.numerics import (
    Arguments,
    Kind,
    defined,
    inputs,
    load_reference,
    save_reference,
    worst_error,
)
from pruner.tune.measure.priority import undisturbed
from pruner.tune.measure.repeats import AdaptiveRepeats
from pruner.tune.opencl.runtime import (
    compile_kernels,
    load_runtime,
    lost_device,
)
from pruner.tune.tvm_import import load_tvm
from pruner.tune.workloads import arguments as arguments_of

JOBS, LOADED = __name__, "pruner.tune.measure.loaded"
PRELOADED = (LOADED, JOBS)  # what the workers' server imports, TVM first
_CHEAP_S = 1.0  # a program that runs so long is checked with one kind of inputs
_SESSION_S = 10.0  # until a remote device is there; a run may take longer


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long and how often a program runs: MetaSchedule's evaluator settings.

    A repeat is the mean of at least ``number`` runs and at least ``min_repeat_ms``; all repeats are
    kept. ``cv_limit``: as many as :class:`~pruner.tune.measure.repeats.AdaptiveRepeats` needs, at
    most ``repeats`` (Ansor's own process makes all). ``flush_cache`` empties the CPU caches before
    each. ``priority`` asks the system to let nothing else run meanwhile, where it may.
    """

    number: int = 1
    repeats: int = 3
    cv_limit: float | None = None
    min_repeat_ms: int = 50
    flush_cache: bool = False
    priority: bool = True

    def __post_init__(self) -> None:
        """Raises `PrunerError` on numbers that cannot work."""
        if min(self.number, self.repeats) < 1 or self.min_repeat_ms < 0:
            raise PrunerError("measure: number and repeats must be at least 1, min_repeat_ms 0")
        if self.cv_limit is not None and not self.cv_limit > 0:
            raise PrunerError(f"measure.cv_limit={self.cv_limit}: it must be above 0, or null")
        if self.cv_limit is not None and self.repeats < 4:
            raise PrunerError(
                f"measure.cv_limit={self.cv_limit} leaves repeats out from the fourth on, and "
                f"measure.repeats={self.repeats}; give for example measure.repeats=6"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcAddress:
    """A device behind a TVM RPC tracker; ``devices`` of its key are asked at the same time."""

    host: str
    port: int
    key: str
    session_timeout_s: int = 60
    devices: int = 1


def ready() -> bool:
    """TVM is there, and with this answer the worker."""
    load_tvm()
    return True


def build(module_json: str, target_json: str, path: str, exact: bool = False) -> float:
    """Compile a scheduled module into the shared library `path`; its size in bytes.

    ``exact``: with the C library's own functions, for what others are compared with.
    """
    tvm = load_tvm().tvm
    module = tvm.ir.load_json(module_json)
    cleared = importlib.import_module("tvm.s_tir.transform").RemoveWeightLayoutRewriteBlock
    module = cleared(skip_tensor_rewrite=True)(module)
    target = load_target(target_json)
    if is_cuda(target):
        provide_compiler()
    if is_opencl(target):
        load_runtime()
    made = compiled(module, target, exact=exact)
    if is_opencl(target) and tvm.device(OPENCL, 0).exist:
        compile_kernels(made, arguments_of(module))
    made.export_library(path)
    return float(Path(path).stat().st_size)


def load_target(target_json: str) -> Any:
    """The target that ``str(target)`` wrote."""
    return load_tvm().tvm.target.Target(importlib.import_module("json").loads(target_json))


def run(
    path: str, device: str, arguments: Arguments, timing: Timing, address: RpcAddress | None
) -> list[float]:
    """Seconds of every repeat. Raises `ConnectionError` where the device is lost meanwhile."""
    with _still_there(address):
        return _timed(path, device, arguments, timing, address)


def _timed(
    path: str, device: str, arguments: Arguments, timing: Timing, address: RpcAddress | None
) -> list[float]:
    module, handle = _open(path, device, address)
    arrays = _upload(_same_inputs(arguments), handle)
    evaluator = module.time_evaluator(
        "main",
        handle,
        number=timing.number,
        repeat=timing.repeats if timing.cv_limit is None else 1,
        min_repeat_ms=timing.min_repeat_ms,
        f_preproc="cache_flush_cpu_non_first_arg" if timing.flush_cache else "",
    )

    def measure() -> list[float]:
        return [float(cost) for cost in evaluator(*arrays).results]

    with undisturbed() if timing.priority else nullcontext():
        if timing.cv_limit is None:
            return measure()
        rule = AdaptiveRepeats(cv_limit=timing.cv_limit)
        return rule.measured(lambda: measure()[0], timing.repeats)


def reference(path: str, arguments: Arguments, out: str) -> float:
    """Run the unscheduled program on this CPU, keep its results in `out`; seconds of one run.

    With inputs of [-1, 1), and where that is quick those of edge cases, too; an operator that is
    not defined below zero gets positive ones instead. Raises `ValueError` where no result is a
    number.
    """
    module, handle = _open(path, "cpu", None)

    def results(kind: Kind) -> tuple[list[NDArray[Any]], float]:
        arrays = _upload(inputs(arguments, kind=kind), handle)
        start = time.perf_counter()
        module["main"](*arrays)
        seconds = time.perf_counter() - start
        return [array.numpy() for array in arrays], seconds

    signed, seconds = results("signed")
    kept: dict[Kind, list[NDArray[Any]]] = {"signed": signed}
    if not defined(signed):
        positive, seconds = results("positive")
        if defined(positive):
            kept = {"positive": positive}
        elif any(bool(np.isnan(values).all()) for values in signed if values.dtype.kind == "f"):
            raise ValueError("its results are not numbers, whatever the inputs")
    elif seconds < _CHEAP_S:
        edges, _ = results("edges")
        kept |= {"edges": edges} if defined(edges) else {}
    with write_whole(Path(out)) as partial, partial.open("wb") as file:
        save_reference(file, kept)
    return seconds


def check(
    path: str, device: str, arguments: Arguments, expected: str, address: RpcAddress | None
) -> float:
    """Largest `worst_error` over all arguments and all inputs that the reference has.

    Raises `NoReference` where it cannot be read, `ConnectionError` where the device is lost.
    """
    wanted = _loaded_reference(expected)
    with _still_there(address):
        return _worst(path, device, arguments, wanted, address)


def _worst(
    path: str,
    device: str,
    arguments: Arguments,
    wanted: Mapping[Kind, Sequence[NDArray[Any]]],
    address: RpcAddress | None,
) -> float:
    module, handle = _open(path, device, address)
    found = 0.0
    for kind, values in wanted.items():
        arrays = _upload(_same_inputs(arguments, kind), handle)
        module["main"](*arrays)
        handle.sync()
        pairs = zip(arrays, values, strict=True)
        found = max(found, *(worst_error(array.numpy(), value) for array, value in pairs))
    return found


# A worker runs many programs of one task: drawing the inputs and reading the reference again for
# each program took longer than the timing of a fast program.
def _loaded_reference(path: str) -> dict[Kind, list[NDArray[Any]]]:
    try:
        found = Path(path).stat()
    except OSError as error:
        raise NoReference(f"{path}: {error}") from error
    return _read_reference(path, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=1)
def _read_reference(path: str, _written: int, _size: int) -> dict[Kind, list[NDArray[Any]]]:
    return load_reference(path)


def _same_inputs(arguments: Arguments, kind: Kind = "signed") -> list[NDArray[Any]]:
    return _drawn(tuple((tuple(shape), dtype) for shape, dtype in arguments), kind)


@lru_cache(maxsize=2)
def _drawn(arguments: tuple[tuple[tuple[int, ...], str], ...], kind: Kind) -> list[NDArray[Any]]:
    return inputs(arguments, kind=kind)


def servers(address: RpcAddress) -> dict[str, int]:
    """How many devices of each key the tracker knows."""
    found = importlib.import_module("tvm.rpc").connect_tracker(address.host, address.port)
    keys = [info["key"].partition(":")[2] for info in found.summary()["server_info"]]
    return {key: keys.count(key) for key in sorted(set(keys))}


def health(address: RpcAddress) -> float:
    """Get a device and move bytes there and back; their sum as a sign of life."""
    values = np.arange(16, dtype=np.float32)
    array = load_tvm().tvm.runtime.tensor(values, device=_session(address).cpu(0))
    return float(array.numpy().sum())


@contextmanager
def _still_there(address: RpcAddress | None) -> Iterator[None]:
    """Raise `ConnectionError` for whatever fails while a remote device goes away: that is no fault
    of its program. Of several devices one is lost where there are fewer than before. A program that
    crashes takes TVM 0.27's server with it (`tvm.rpc.server._serving` raises), so it may look the
    same: it gets no second turn, which would cost a second device.
    """
    before = _number(address) if address is not None and address.devices > 1 else 1
    try:
        yield
    except ConnectionError:
        raise
    except Exception as error:  # TVM's own kinds
        if address is None:
            if lost_device(error):
                raise ConnectionError(f"the device was lost: {error}"[-300:]) from error
            raise
        if _number(address) < max(1, before):
            raise ConnectionError(f"the device was lost: {error}"[:300]) from error
        raise


def _number(address: RpcAddress) -> int:
    """How many devices of the key there are; none where there is no tracker."""
    try:  # TVM's client asks a tracker that is gone for a minute
        socket.create_connection((address.host, address.port), _SESSION_S).close()
        return servers(address).get(address.key, 0)
    except Exception:  # no tracker any more
        return 0


def _open(path: str, device: str, address: RpcAddress | None) -> tuple[Any, Any]:
    tvm = load_tvm().tvm
    if address is None:
        if device == OPENCL:
            load_runtime()
            if not tvm.device(device, 0).exist:
                raise ConnectionError("the OpenCL device is not there any more")
        # TVM's own load_module keeps every library it has opened: its mappings, of which a process
        # may have 65,530, and around them the memory that inputs were in.
        load = importlib.import_module("tvm_ffi").load_module
        return load(path, keep_module_alive=False), tvm.device(device, 0)
    session = _session(address)
    session.upload(path)
    return session.load_module(os.path.basename(path)), session.device(device, 0)  # noqa: PTH119


def _session(address: RpcAddress) -> Any:
    """A connection to a device. Raises `ConnectionError` where there is none to be had in time.

    TVM's client tries a lost tracker for a minute and waits for a free device for ever: the job's
    own time would be over first, and its program blamed.
    """
    asking = ThreadPoolExecutor(1)
    try:
        return asking.submit(_request, address).result(_SESSION_S)
    except TimeoutError as error:
        message = f"no device of the key {address.key} was free within {_SESSION_S:g} s"
        raise ConnectionError(message) from error
    except Exception as error:  # sockets', TVM's and Python's own kinds
        raise ConnectionError(str(error)) from error
    finally:
        asking.shutdown(wait=False)


def _request(address: RpcAddress) -> Any:
    tracker = importlib.import_module("tvm.rpc").connect_tracker(address.host, address.port)
    return tracker.request(address.key, priority=1, session_timeout=address.session_timeout_s)


def _upload(values: Sequence[NDArray[Any]], device: Any) -> list[Any]:
    tensor = load_tvm().tvm.runtime.tensor
    return [tensor(value, device=device) for value in values]
