"""Import TVM once, quickly, and explain where it is missing.

TVMScript's decorators call `inspect.stack`, which resolves the source file of every frame: 40 to
90 s when torch is loaded. They use only file, line, function and the text of the nearest frames.
"""

import gc
import importlib
import importlib.util
import inspect
import linecache
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from pruner.errors import MissingExtra
from pruner.files import write_atomic

_CPUS_ONLY = "PRUNER_TVM_CPUS_ONLY"  # in the environment, so that worker processes inherit it
_READ_FRAMES = 4
_OF_CPUS = ("x86", "arm_cpu", "riscv_cpu")
_NO_TENSOR_CORES = ("llvm", "c", "opencl")  # kinds of targets
SERIAL, PARALLEL, VECTORIZED, UNROLLED, BOUND = range(5)  # kinds of loops, tirx.ForKind


class Tvm(NamedTuple):
    """The modules of TVM 0.27 for tuning; properties import on first use."""

    tvm: Any
    s_tir: Any
    tirx: Any
    meta_schedule: Any

    @property
    def relax(self) -> Any:
        """``tvm.relax``: complete networks."""
        return importlib.import_module("tvm.relax")

    @property
    def ffi(self) -> Any:
        """``tvm_ffi``: walks, maps and hashes of TVM's objects."""
        return importlib.import_module("tvm_ffi")


@cache
def load_tvm() -> Tvm:
    """Return TVM's modules, imported once; raise `MissingExtra` without TVM."""
    first = "tvm" not in sys.modules
    if shutil.which("nvcc") is not None:
        # TVM's default, NVRTC, needs a package (cuda-bindings) that TVM does not require
        os.environ.setdefault("TVM_CUDA_COMPILE_MODE", "nvcc")
    # Without this, tvm_ffi imports torch and queries its CUDA device. No worker forked from the
    # process can use the device then: every program ends with cudaErrorInitializationError.
    os.environ.setdefault("TVM_FFI_DISABLE_TORCH_C_DLPACK", "1")
    try:
        with quick_stacks(), without_torch():
            names = ("tvm", "tvm.s_tir", "tvm.tirx", "tvm.s_tir.meta_schedule")
            found = Tvm(*map(importlib.import_module, names))
            if _CPUS_ONLY in os.environ:
                _load_intrinsics_of_cpus()
            else:
                import_intrinsics()
        if first:  # imported objects stay: the collector need not walk them again and again
            gc.freeze()
        return found
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("tvm", "tvm_ffi"):
            raise
        raise MissingExtra("apache-tvm", "tvm") from error


def inside(part: Any, kind: Any) -> list[Any]:
    """List the nodes of a kind in an expression, statement or function."""
    found: list[Any] = []
    load_tvm().ffi.structural_walk(part, (kind, found.append))
    return found


def holds(part: Any, var: Any) -> bool:
    """Check whether an expression has a variable."""
    return any(found.same_as(var) for found in inside(part, load_tvm().tirx.Var))


def map_functions(module: Any, change: Callable[[Any], Any]) -> Any:
    """Replace the functions of a module that `change` does not return as they are."""
    kind, changed = load_tvm().tirx.PrimFunc, dict[Any, Any]()
    for name, function in module.functions_items():
        if isinstance(function, kind) and not (new := change(function)).same_as(function):
            changed[name] = new
    module = module.clone() if changed else module
    for name, function in changed.items():
        module[name] = function
    return module


def map_loops(module: Any, change: Callable[[Any], Any]) -> Any:
    """Replace the loops of a module's functions, inner loops first."""
    ffi, rule = load_tvm().ffi, (load_tvm().tirx.For, change)
    return map_functions(module, lambda function: ffi.structural_map(function, rule))


def changed_loop(loop: Any, **changes: Any) -> Any:
    """Make a loop with another ``kind``, ``body`` or ``annotations``."""
    # TVM's nodes are immutable: a loop of another kind is a new loop
    names = "loop_var min extent kind body thread_binding annotations step span"
    return type(loop)(*(changes.get(name, getattr(loop, name)) for name in names.split()))


def replaced(part: Any, values: Iterable[tuple[Any, Any]]) -> Any:
    """Replace variables of an expression or statement; `values` has each and its value."""
    pairs = list(values)

    def value(var: Any) -> Any:
        return next((new for old, new in pairs if var.same_as(old)), var)

    return load_tvm().ffi.structural_map(part, (load_tvm().tirx.Var, value))


def cpus_only() -> None:
    """Import TVM without tensor cores' instructions, in processes for a CPU."""
    os.environ[_CPUS_ONLY] = "1"


def load_intrinsics(target: Any) -> None:
    """Register what `cpus_only` left out, if a target of a sweep needs it."""
    left_out = getattr(sys.modules.get(INTRINSICS), "of_cpus_only", False)
    if left_out and str(target.kind.name) not in _NO_TENSOR_CORES:
        del sys.modules[INTRINSICS]
        with quick_stacks():
            import_intrinsics()


def _load_intrinsics_of_cpus() -> None:
    if INTRINSICS not in sys.modules:
        with package_without_its_code() as found:
            for family in _OF_CPUS:
                importlib.import_module(f"{INTRINSICS}.{family}")
        vars(found)["of_cpus_only"] = True
        sys.modules[INTRINSICS] = found  # TVM's later imports find this module


@contextmanager
def without_torch() -> Iterator[None]:
    """Import TVM in the body without torch, which takes 2 s, unless loaded.

    Torch is hidden from this thread alone.
    """
    hidden = _Hidden("torch")
    sys.meta_path.insert(0, hidden)
    try:
        yield
    finally:
        sys.meta_path.remove(hidden)


class _Hidden:
    """A finder that hides a module from the thread that makes it."""

    def __init__(self, name: str) -> None:
        self._name, self._thread = name, threading.get_ident()

    def find_spec(self, name: str, *_: object) -> None:
        if name == self._name and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def warm_worker() -> None:
    """Import TVM in TVM's worker: ``LocalBuilder(initializer=warm_worker)``.

    Workers are fresh processes; a slow import otherwise uses up the 30 s of a candidate.
    """
    load_tvm()


@contextmanager
def quick_stacks() -> Iterator[None]:
    """Let `inspect.stack` look for source text of the nearest frames alone in the body."""
    original = inspect.stack
    inspect.stack = _quick_stack
    try:
        yield
    finally:
        inspect.stack = original


def _quick_stack(*_: object, **__: object) -> list[inspect.FrameInfo]:
    frames: list[inspect.FrameInfo] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code, line = frame.f_code, frame.f_lineno
        found: list[str] | None = None
        if len(frames) < _READ_FRAMES:  # the third tells whether a function is in a class
            linecache.checkcache(code.co_filename)
            found = [linecache.getline(code.co_filename, line)]
        frames.append(
            inspect.FrameInfo(
                frame, code.co_filename, line, code.co_name, found, 0 if found else None
            )
        )
        frame = frame.f_back
    return frames


INTRINSICS = "tvm.s_tir.tensor_intrin"
_CUDA = f"{INTRINSICS}.cuda"  # the only family that takes long; all its functions are registered


def import_intrinsics() -> None:
    """Import the instructions of every family, CUDA's from the cache if there."""
    if _CUDA not in sys.modules:
        path = _kept_file()
        kept = None if path is None else read_kept(path)
        with package_without_its_code():
            if kept is None:
                parsed = _parsed()
                if path is not None:
                    _keep(path, parsed)
            else:
                with _unparsed():
                    importlib.import_module(_CUDA)
        for entry in kept or []:
            _registry().register(*entry)
    importlib.import_module(INTRINSICS)


@contextmanager
def package_without_its_code() -> Iterator[Any]:
    """Have an empty package in the body: its own code imports every family."""
    spec = importlib.util.find_spec(INTRINSICS)
    assert spec is not None
    sys.modules[INTRINSICS] = found = importlib.util.module_from_spec(spec)
    try:
        yield found
    finally:
        del sys.modules[INTRINSICS]


def read_kept(path: Path) -> list[tuple[str, Any, Any]] | None:
    """Read names, computations and implementations; None where the file is absent or damaged."""
    load = importlib.import_module("tvm.ir").load_json
    try:
        digest, _, text = path.read_text(encoding="utf-8").partition("\n")
        if digest != _digest(text):
            return None
        return [(str(name), computation, call) for name, computation, call in load(text)]
    except Exception:  # TVM's kinds, too: a file that it cannot load is made again
        return None


def _parsed() -> list[tuple[str, Any, Any]]:
    """Import the family as TVM does; return what it registers."""
    found, register = [], _registry().register

    def noted(name: str, computation: Any, call: Any, override: bool = False) -> Any:
        found.append((name, computation, call))
        return register(name, computation, call, override)

    with _registering(noted):
        importlib.import_module(_CUDA)
    return found


@contextmanager
def _unparsed() -> Iterator[None]:
    script: Any = importlib.import_module("tvm.tirx.script")  # `T` of TVMScript
    parse = script.prim_func
    script.prim_func = lambda function=None, **_: function or (lambda given: given)
    try:
        with _registering(lambda *_, **__: None):
            yield
    finally:
        script.prim_func = parse


@contextmanager
def _registering(register: Callable[..., Any]) -> Iterator[None]:
    registry = _registry()
    before = vars(registry)["register"]
    registry.register = staticmethod(register)
    try:
        yield
    finally:
        registry.register = before


def _registry() -> Any:
    return importlib.import_module("tvm.s_tir").TensorIntrin


def _kept_file() -> Path | None:
    """Return the file of this TVM's source, in a folder of this user's."""
    tvm, ffi = importlib.import_module("tvm"), importlib.import_module("tvm_ffi")
    spec = importlib.util.find_spec(INTRINSICS)
    assert spec is not None
    assert spec.origin is not None
    with suppress(OSError, RuntimeError):  # RuntimeError: a user without a home folder
        source = Path(spec.origin).with_name("cuda.py").read_bytes()
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        version = f"{tvm.__version__}-ffi{ffi.__version__}"
        name = f"cuda-tvm{version}-{sha256(source).hexdigest()[:16]}.json"
        return Path(home) / "pruner" / "intrinsics" / name
    return None


def _keep(path: Path, parsed: list[tuple[str, Any, Any]]) -> None:
    text = importlib.import_module("tvm.ir").save_json([list(entry) for entry in parsed])
    with suppress(OSError):  # of another user, or a full disk: the next process parses, too
        path.parent.mkdir(parents=True, exist_ok=True)
        with write_atomic(path, lasting=False) as partial:
            partial.write_text(f"{_digest(text)}\n{text}", encoding="utf-8")


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()
