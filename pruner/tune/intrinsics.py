"""Import TVM's instructions of tensor cores without parsing them again.

TVM parses some 200 functions whenever a process imports it, which takes seconds. The first process
leaves what it parsed in the user's cache; in later ones TVM's decorator returns functions unparsed.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from pruner.files import write_atomic

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
