"""Store a run's state as arrays and JSON, to resume exactly; executes nothing."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pruner.archives import Arrays, read_arrays, write_arrays
from pruner.errors import DataError

SNAPSHOT_FILE = "state.npz"
OLD_FILE = "state.pkl"  # of versions that wrote pickles, which are not read any more
_TREE, _ARRAY = "json", "array"
_KINDS = "biuf"  # of arrays: truth values and numbers


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write mappings, lists, arrays, text, finite numbers atomically, or raise `TypeError`."""
    arrays: Arrays = {}
    # NaN and infinity are no JSON; as elements of arrays they are allowed
    tree = json.dumps(_plain(state, arrays), allow_nan=False)
    # as bytes: NumPy's text arrays take four bytes a character
    arrays[_TREE] = np.frombuffer(tree.encode(), np.uint8)
    write_arrays(path, **arrays)


def load_state(path: Path) -> dict[str, Any]:
    """Read the file of `save_state`; raise `DataError` where it is damaged."""
    try:
        arrays = read_arrays(path)

        def with_array(one: dict[str, Any]) -> Any:
            return arrays[one[_ARRAY]] if one.keys() == {_ARRAY} else one

        found = json.loads(arrays.pop(_TREE).tobytes(), object_hook=with_array)
        if not isinstance(found, dict):
            raise TypeError("no mapping")
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    except (KeyError, TypeError, ValueError, RecursionError) as error:  # no tree of ours in it
        message = " ".join(str(error).split())[:120]
        raise DataError(f"{path}: damaged ({type(error).__name__}: {message})") from error
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
