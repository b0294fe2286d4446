"""PyTorch's files with nothing in them but numbers, text and tensors, read without running any.

`torch.load(weights_only=True)` calls no function that the file names. What it leaves open is closed
before: files that unpack to far more than they have, and keys that take for ever to look up.
"""

import io
import pickle
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import torch

from pruner.data.tenset.safe_pickle import UnsafePickle, check_keys, first_line
from pruner.errors import DataError
from pruner.files import write_whole

MAX_BYTES = 1 << 32
"""Of a file: the models here have megabytes, and an optimizer twice as much again."""


MAX_VIEWS = 4
"""Times that the bytes of a file may be named: weights may be shared, but a tensor of a few bytes
can claim any shape (strides of 0), and costs that memory as soon as it is looked at."""


def save_archive(path: Path, content: Any) -> None:
    """Write what `load_archive` reads, the whole file or nothing.

    Into memory first: given a path, torch writes its name into the archive, and on a full disk its
    own writer fails with an error that nobody takes for one.
    """
    buffer = io.BytesIO()
    torch.save(content, buffer)
    with write_whole(path) as partial:
        partial.write_bytes(buffer.getbuffer())


def load_archive(path: Path) -> Any:
    """The content, on the CPU.

    Raises:
        UnsafePickle: it asks for something that data never needs.
        DataError: no such archive, or a damaged one.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise DataError(f"larger than {MAX_BYTES} bytes")
        with ZipFile(path) as archive:
            members = archive.infolist()
            if any(member.compress_type != ZIP_STORED for member in members):
                raise DataError("its members are compressed, which PyTorch never does")
            if sum(member.file_size for member in members) > path.stat().st_size:
                raise DataError("its members claim more bytes than it has")
            if (damaged := archive.testzip()) is not None:  # PyTorch does not look
                raise DataError(f"{damaged} does not match its checksum")
            for member in members:
                if member.filename.endswith("data.pkl"):
                    check_keys(archive.read(member))
        content = torch.load(path, map_location="cpu", weights_only=True)
        if (claimed := _tensor_bytes(content)) > MAX_VIEWS * path.stat().st_size:
            raise DataError(f"its tensors claim {claimed} bytes, more than the file can have")
        return content
    except (DataError, MemoryError):
        raise
    except pickle.UnpicklingError as error:
        raise UnsafePickle(f"refused: more than data in it ({first_line(error)[:120]})") from error
    except BadZipFile as error:
        raise DataError(f"no archive of PyTorch ({error})") from error
    except Exception as error:  # a damaged archive fails in many ways
        raise DataError(f"damaged ({type(error).__name__}: {first_line(error)[:120]})") from error


def _tensor_bytes(content: Any) -> int:
    """Bytes of all tensors in it if each were written out, as often as they are named."""
    found, seen, left = 0, set(), [content]
    while left:
        value = left.pop()
        if isinstance(value, torch.Tensor):
            found += value.numel() * value.element_size()
        elif isinstance(value, Mapping | list | tuple | Set) and id(value) not in seen:
            seen.add(id(value))  # a few references can make a tree without end
            left += value.values() if isinstance(value, Mapping) else value
    return found
