"""Save nested content as safetensors: tensors as they are, JSON otherwise.

The JSON is the entry ``pruner`` of the file's metadata, which also hold a checksum over both: a
flipped bit of a weight would give a model that ranks slightly differently.
"""

import json
import pickle
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from pruner.data.tenset.safe_pickle import UnsafePickle, first_line
from pruner.errors import DataError
from pruner.files import write_atomic

SUFFIX = ".safetensors"
_CONTENT, _SHA256 = "pruner", "sha256"
_SEPARATOR, _ESCAPED = "/", "~1"  # joins the keys that lead to a tensor; stands for it inside a key
_NUMBER = "int:"  # begins a key that is a whole number, as in an optimizer's state


def save_tensors(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file for `load_tensors`, atomically; tuples become lists."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_without_tensors(content, (), tensors))
    metadata = {_CONTENT: text, _SHA256: _digest(text, tensors)}
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_atomic(path) as partial:
        partial.write_bytes(save(tensors, metadata))


def load_tensors(path: Path) -> Any:
    """The content of a file, on the CPU; raises DataError where absent or damaged."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if not {_CONTENT, _SHA256} <= metadata.keys():
            raise DataError("a safetensors file of another project")
        if _digest(metadata[_CONTENT], tensors) != metadata[_SHA256]:
            raise DataError("does not match its checksum")
        content = json.loads(metadata[_CONTENT])
        for name, tensor in tensors.items():
            *way, last = (key.replace(_ESCAPED, _SEPARATOR) for key in name.split(_SEPARATOR))
            place = content
            for key in way:
                place = place[int(key) if isinstance(place, list) else key]
            place[int(last) if isinstance(place, list) else last] = tensor
        return _with_numbers(content)
    except (DataError, MemoryError):
        raise
    except Exception as error:  # a damaged file fails in many ways
        raise DataError(f"damaged ({type(error).__name__}: {first_line(error)[:120]})") from error


def _without_tensors(content: Any, way: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    """The same content with null for tensors, which go into `tensors` by their keys."""
    if isinstance(content, Tensor):
        # A copy: weights may share their bytes, which the format refuses.
        tensors[_SEPARATOR.join(way)] = content.detach().cpu().clone().contiguous()
        return None
    if isinstance(content, list | tuple):
        return [_without_tensors(v, (*way, str(n)), tensors) for n, v in enumerate(content)]
    if not isinstance(content, Mapping):
        return content
    kept = {}
    for key, value in content.items():
        name = f"{_NUMBER}{key}" if isinstance(key, int) else key
        part = name.replace(_SEPARATOR, _ESCAPED)
        kept[name] = _without_tensors(value, (*way, part), tensors)
    return kept


def _with_numbers(content: Any) -> Any:
    if isinstance(content, list):
        return [_with_numbers(value) for value in content]
    if not isinstance(content, dict):
        return content
    return {
        int(key.removeprefix(_NUMBER)) if key.startswith(_NUMBER) else key: _with_numbers(value)
        for key, value in content.items()
    }


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    digest = sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


OLD_SUFFIX = ".pt"  # of files in PyTorch's format, which nothing writes any more
_ZIP = b"PK"  # begins PyTorch's files; safetensors begins with a length


def load_content(path: Path) -> Any:
    """The content, on the CPU, of a file of this or an earlier version.

    Raises UnsafePickle where the file needs more than plain data, DataError where it is absent or
    damaged.
    """
    with path.open("rb") as file:
        is_old = file.read(2) == _ZIP
    return _load_archive(path) if is_old else load_tensors(path)


def existing(path: Path) -> Path:
    """The path, or the earlier version's file if only that exists."""
    old = path.with_suffix(OLD_SUFFIX)
    return old if old.is_file() and not path.is_file() else path


def _load_archive(path: Path) -> Any:
    """Read PyTorch's format; ``weights_only`` calls no function that the file names."""
    try:
        with ZipFile(path) as archive:
            if (damaged := archive.testzip()) is not None:  # PyTorch checks no checksum
                raise DataError(f"{damaged} does not match its checksum")
        return torch.load(path, map_location="cpu", weights_only=True)
    except (DataError, MemoryError):
        raise
    except pickle.UnpicklingError as error:
        raise UnsafePickle(f"refused: more than data in it ({first_line(error)[:120]})") from error
    except Exception as error:  # a damaged archive fails in many ways
        raise DataError(f"damaged ({type(error).__name__}: {first_line(error)[:120]})") from error
