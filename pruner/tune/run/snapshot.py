"""The state of a run on disk: arrays and JSON, from which a resumed run goes on exactly.

A NumPy archive: ``json`` is the tree of plain values, in which ``{"array": NAME}`` stands for the
array of that name. Nothing in it is ever run; each member has the checksum of a ZIP file.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pruner.errors import DataError
from pruner.files import write_whole

SNAPSHOT_FILE = "state.npz"
OLD_FILE = "state.pkl"  # of versions that wrote pickles, which are not read any more
MAX_BYTES = 1 << 32
"""Unpacked: decisions and latencies of a hundred thousand programs and a large network."""
_TREE, _ARRAY = "json", "array"
_KINDS = "biuf"  # of arrays: truth values and numbers

Arrays = dict[str, NDArray[Any]]


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write mappings with text keys, lists, arrays, text and finite numbers: the whole file or
    nothing. Raises `TypeError` or `ValueError` for anything else."""
    arrays: Arrays = {}
    tree = json.dumps(_plain(state, arrays), allow_nan=False)
    arrays[_TREE] = np.frombuffer(tree.encode(), np.uint8)
    with write_whole(path) as partial, partial.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # the stub knows one keyword only


def load_state(path: Path) -> dict[str, Any]:
    """What `save_state` wrote. Raises `DataError` for a damaged file, or another one."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise ValueError("its members are compressed")
        if sum(member.file_size for member in members) > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES} bytes")
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        found = _with_arrays(json.loads(arrays.pop(_TREE).tobytes()), arrays)
        if not isinstance(found, dict):
            raise TypeError("no mapping")
    except MemoryError:
        raise
    except Exception as error:  # a damaged archive fails in many ways
        told = " ".join(str(error).split())[:120]
        raise DataError(f"{path}: damaged ({type(error).__name__}: {told})") from error
    return found


def _plain(value: Any, arrays: Arrays) -> Any:
    match value:
        case np.ndarray():
            if value.dtype.kind not in _KINDS:
                raise TypeError(f"an array of {value.dtype} is neither truth values nor numbers")
            name = str(len(arrays))
            arrays[name] = value
            return {_ARRAY: name}
        case Mapping():
            if _ARRAY in value or not all(isinstance(key, str) for key in value):
                raise TypeError(f"keys {sorted(map(str, value))} are no text, or reserved")
            return {key: _plain(item, arrays) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item, arrays) for item in value]
        case np.generic():
            return value.item()
        case None | bool() | int() | float() | str():
            return value
        case _:
            raise TypeError(f"{type(value).__name__} is neither an array nor a plain value")


def _with_arrays(value: Any, arrays: Arrays) -> Any:
    match value:
        case {"array": name} if len(value) == 1:
            return arrays[name]
        case dict():
            return {key: _with_arrays(item, arrays) for key, item in value.items()}
        case list():
            return [_with_arrays(item, arrays) for item in value]
        case _:
            return value
