"""Read checkpoints and training states of earlier versions (PyTorch's format).

`torch.load(weights_only=True)` calls no function that the file names. Nothing writes this format
any more.
"""

import pickle
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch

from pruner.data.tenset.safe_pickle import UnsafePickle, first_line
from pruner.errors import DataError
from pruner.models.checkpoint.tensors import load_tensors

OLD_SUFFIX = ".pt"
_ZIP = b"PK"  # begins PyTorch's files; safetensors begins with a length


def load_content(path: Path) -> Any:
    """The content of a file of this or an earlier version.

    Tensors are on the CPU.

    Raises:
        UnsafePickle: the file needs more than plain data.
        DataError: no such file, or a damaged file.
    """
    with path.open("rb") as file:
        is_old = file.read(2) == _ZIP
    return _load_archive(path) if is_old else load_tensors(path)


def existing(path: Path) -> Path:
    """The path, or the earlier version's file if only that exists."""
    old = path.with_suffix(OLD_SUFFIX)
    return old if old.is_file() and not path.is_file() else path


def _load_archive(path: Path) -> Any:
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
