"""The jobs of worker processes: build, run, compute references, check results."""

import importlib
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pruner.errors import PrunerError
from pruner.processes import NoReference
from pruner.tune.compiling import code_bytes, compiled, link, scratch_watch
from pruner.tune.cuda import provide_compiler
from pruner.tune.kinds import OPENCL, is_cuda, is_opencl, lost_device
from pruner.tune.measure.numerics import (
    Arguments,
    Kind,
    defined,
    inputs,
    load_reference,
    save_reference,
    undisturbed,
    worst_error,
)
from pruner.tune.opencl.runtime import compile_kernels, load_runtime
from pruner.tune.tvm_import import load_tvm
from pruner.tune.workloads import arguments as arguments_of

JOBS, LOADED = __name__, "pruner.tune.measure.preload_tvm"
PRELOADED = (LOADED, JOBS)  # modules that the workers' server imports, TVM first
# symbols are resolved when a library is opened: where its first call looked for a symbol in vain,
# the linker would end the process
_AT_ONCE = ("-Wl,-z,now",)
_CHEAP_S = 1.0  # a program that takes longer is checked with one kind of inputs
_CALL_S = 0.1  # of runs that are made at once while energy is counted
_SESSION_S = 10.0  # until a remote device is there; a run may take longer


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveRepeats:
    """A rule that ends the repeats of a measurement.

    ``cv_limit`` (None: off), after each repeat beyond the second, as in AdaTune's release (Li et
    al., NeurIPS'20, measure_methods.py): stop if the coefficient of variation of the speeds (``1 /
    seconds``; of five and more the fastest and slowest left out) is below it. ``above_s``, after
    each repeat: stop if every repeat so far took longer, in seconds. A disturbance makes a repeat
    longer and hardly ever shorter, so the fastest repeat decides, and a program whose first repeat
    is within ``above_s`` gets all its repeats.
    """

    cv_limit: float | None = 0.1
    above_s: float = float("inf")

    def enough(self, costs_s: Sequence[float] | NDArray[np.float64]) -> bool:
        """Check whether the repeats so far, seconds [R], suffice."""
        if len(costs_s) and min(costs_s) > self.above_s:
            return True
        if self.cv_limit is None or len(costs_s) < 3:
            return False
        speed = np.sort(1.0 / np.asarray(costs_s))
        speed = speed[1:-1] if len(speed) > 4 else speed
        return bool(speed.std() < self.cv_limit * speed.mean())

    def measured(self, measure: Callable[[], float], most: int) -> list[float]:
        """Call `measure`, which returns seconds, until the repeats suffice or `most` calls."""
        costs_s: list[float] = []
        while len(costs_s) < most and not self.enough(costs_s):
            costs_s.append(measure())
        return costs_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long and how often a program runs: MetaSchedule's evaluator settings.

    A repeat is the mean of at least ``number`` runs and at least ``min_repeat_ms``. ``cv_limit``:
    as many repeats as `AdaptiveRepeats` needs. ``stop_above``: no second repeat where the first
    takes longer than this multiple of the task's best known latency. ``priority``: real-time.
    """

    number: int = 1
    repeats: int = 3
    cv_limit: float | None = None
    stop_above: float | None = None
    min_repeat_ms: int = 50
    flush_cache: bool = False
    priority: bool = True

    def __post_init__(self) -> None:
        if min(self.number, self.repeats) < 1 or self.min_repeat_ms < 0:
            raise PrunerError("measure: number and repeats must be at least 1, min_repeat_ms 0")
        if self.cv_limit is not None and not self.cv_limit > 0:
            raise PrunerError(f"measure.cv_limit={self.cv_limit}: it must be above 0, or null")
        if self.cv_limit is not None and self.repeats < 4:
            raise PrunerError(
                f"measure.cv_limit={self.cv_limit} leaves repeats out from the fourth on, and "
                f"measure.repeats={self.repeats}; give for example measure.repeats=6"
            )
        if self.stop_above is not None and not self.stop_above >= 1:
            raise PrunerError(
                f"measure.stop_above={self.stop_above}: it must be 1 or more, or null; below 1, a "
                "program that is faster than the best one would be timed only once"
            )
        if self.stop_above is not None and self.repeats == 1:
            raise PrunerError(
                f"measure.stop_above={self.stop_above} leaves repeats out from the second on, and "
                "measure.repeats=1; leave one of them out"
            )

    def rule(self, known_s: float) -> AdaptiveRepeats | None:
        """Return the rule that ends the repeats of a program, None for all repeats."""
        above_s = float("inf") if self.stop_above is None else self.stop_above * known_s
        if self.cv_limit is None and above_s == float("inf"):
            return None
        return AdaptiveRepeats(cv_limit=self.cv_limit, above_s=above_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcAddress:
    """A key at a TVM RPC tracker, with ``devices`` used at once."""

    host: str
    port: int
    key: str
    session_timeout_s: int = 60
    devices: int = 1


def ready() -> bool:
    """Import TVM and return True, which shows that the worker is ready."""
    load_tvm()
    return True


def build(
    module_json: str,
    target_json: str,
    path: str,
    exact: bool = False,
    runs: bool = False,
    sized: bool = False,
) -> tuple[int, int] | None:
    """Compile a scheduled module to `path`; with ``sized`` return bytes of code and scratch.

    ``exact``: with the C library's own functions, for reference programs. ``runs``: the linker of
    the target's processor must not be missing.
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
    scratch: list[int] = []
    seen = scratch_watch(int(target.attrs.get("num-cores", 1)), scratch) if sized else ()
    made = compiled(module, target, exact=exact, instruments=seen)
    if is_opencl(target) and tvm.device(OPENCL, 0).exist:
        compile_kernels(made, arguments_of(module))
    try:
        link(made, target, Path(path), _AT_ONCE)
    except PrunerError:
        if runs:
            raise
        # without the linker of another processor the objects show that it compiles
        made.export_library(f"{path}.tar")
        Path(f"{path}.tar").replace(path)
    return (code_bytes(Path(path)), scratch[-1] if scratch else 0) if sized else None


def load_target(target_json: str) -> Any:
    """Parse the text of ``str(target)``."""
    return load_tvm().tvm.target.Target(importlib.import_module("json").loads(target_json))


def run(
    path: str,
    device: str,
    arguments: Arguments,
    timing: Timing,
    address: RpcAddress | None,
    known_s: float = float("inf"),
) -> list[float]:
    """Time a library; return seconds of repeats; raise `ConnectionError` if the device is gone."""
    rule = timing.rule(known_s)
    with _still_there(address):
        module, handle = _open(path, device, address)
        arrays = _upload(_same_inputs(arguments), handle)
        evaluator = module.time_evaluator(
            "main",
            handle,
            number=timing.number,
            # adaptive repeats are single calls, since TVM makes a fixed number a call
            repeat=timing.repeats if rule is None else 1,
            min_repeat_ms=timing.min_repeat_ms,
            f_preproc="cache_flush_cpu_non_first_arg" if timing.flush_cache else "",
        )

        def measure() -> list[float]:
            return [float(cost) for cost in evaluator(*arrays).results]

        # inputs are uploaded before: only the timed runs have the priority
        with undisturbed() if timing.priority else nullcontext():
            if rule is None:
                return measure()
            return rule.measured(lambda: measure()[0], timing.repeats)


def hold(path: str, device: str, arguments: Arguments, seconds: float, latency_s: float) -> int:
    """Run a library for `seconds` in calls of a tenth; return the runs."""
    module, handle = _open(path, device, None)
    arrays = _upload(_same_inputs(arguments), handle)
    number = max(1, round(_CALL_S / latency_s))
    evaluator = module.time_evaluator("main", handle, number=number, repeat=1)
    runs, until = 0, time.monotonic() + seconds
    while not runs or time.monotonic() < until:
        evaluator(*arrays)
        runs += number + 1  # a first run, which it does not time
    return runs


def reference(path: str, arguments: Arguments, out: str) -> float:
    """Run the unscheduled program on this CPU, save its results, and return its seconds.

    Inputs are in [-1, 1), and edge cases are added where a run is quick; an operator that is not
    defined below zero gets positive inputs instead. Raises `ValueError`: no result is a number.
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
    save_reference(Path(out), kept)
    return seconds


def check(
    path: str, device: str, arguments: Arguments, expected: str, address: RpcAddress | None
) -> float:
    """Compute the largest `worst_error`; raise `NoReference`, and `ConnectionError` as `run`."""
    try:
        written = Path(expected).stat()
    except OSError as error:
        raise NoReference(f"{expected}: {error}") from error
    wanted = _read_reference(expected, written.st_mtime_ns, written.st_size)
    found = 0.0
    with _still_there(address):
        module, handle = _open(path, device, address)
        for kind, values in wanted.items():
            arrays = _upload(_same_inputs(arguments, kind), handle)
            module["main"](*arrays)
            # a GPU's call returns at once: its error belongs to this program, not to the next
            handle.sync()
            pairs = zip(arrays, values, strict=True)
            found = max(found, *(worst_error(array.numpy(), value) for array, value in pairs))
    return found


# A worker runs many programs of one task: drawing the inputs and reading the reference again for
# each program took longer than the timing of a fast program.
@lru_cache(maxsize=1)
def _read_reference(path: str, _written: int, _size: int) -> dict[Kind, list[NDArray[Any]]]:
    return load_reference(path)


def _same_inputs(arguments: Arguments, kind: Kind = "signed") -> list[NDArray[Any]]:
    return _drawn(tuple((tuple(shape), dtype) for shape, dtype in arguments), kind)


@lru_cache(maxsize=2)
def _drawn(arguments: tuple[tuple[tuple[int, ...], str], ...], kind: Kind) -> list[NDArray[Any]]:
    return inputs(arguments, kind=kind)


def servers(address: RpcAddress) -> dict[str, int]:
    """Count the devices of each key at the tracker."""
    found = importlib.import_module("tvm.rpc").connect_tracker(address.host, address.port)
    keys = [info["key"].partition(":")[2] for info in found.summary()["server_info"]]
    return {key: keys.count(key) for key in sorted(set(keys))}


def health(address: RpcAddress) -> float:
    """Get a device and move bytes there and back; return their sum."""
    values = np.arange(16, dtype=np.float32)
    array = load_tvm().tvm.runtime.tensor(values, device=_session(address).cpu(0))
    return float(array.numpy().sum())


@contextmanager
def _still_there(address: RpcAddress | None) -> Iterator[None]:
    """Raise `ConnectionError` for errors while a remote device disappears.

    Such an error is no fault of the program. Of several devices one is lost where there are fewer
    than before. A program that crashes takes TVM 0.27's server with it (`tvm.rpc.server._serving`
    raises), so it may look the same: it gets no second turn, which would cost a second device.
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
    try:  # TVM's client retries a lost tracker for a minute
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
        # TVM's own load_module keeps every library that it opened: its mappings, of which a
        # process may have 65,530, and between them the memory of freed inputs.
        load = importlib.import_module("tvm_ffi").load_module
        return load(path, keep_module_alive=False), tvm.device(device, 0)
    session = _session(address)
    session.upload(path)
    return session.load_module(os.path.basename(path)), session.device(device, 0)  # noqa: PTH119


def _session(address: RpcAddress) -> Any:
    """Connect to a device within a time limit.

    TVM's client retries a lost tracker for a minute and waits for a free device without end: the
    job's own time would be over first, and its program blamed.
    """

    def request() -> Any:
        tracker = importlib.import_module("tvm.rpc").connect_tracker(address.host, address.port)
        seconds = address.session_timeout_s
        return tracker.request(address.key, priority=1, session_timeout=seconds)

    asking = ThreadPoolExecutor(1)
    try:
        return asking.submit(request).result(_SESSION_S)
    except TimeoutError as error:
        message = f"no device of the key {address.key} was free within {_SESSION_S:g} s"
        raise ConnectionError(message) from error
    except Exception as error:  # sockets', TVM's and Python's own kinds
        raise ConnectionError(str(error)) from error
    finally:
        asking.shutdown(wait=False)


def _upload(values: Sequence[NDArray[Any]], device: Any) -> list[Any]:
    tensor = load_tvm().tvm.runtime.tensor
    return [tensor(value, device=device) for value in values]
