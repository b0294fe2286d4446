"""Write NumPy's archives (``.npz``); read them as data, executing nothing; detect damage."""

from collections.abc import Collection
from pathlib import Path
from typing import IO, Any
from zipfile import ZIP_STORED, ZipFile

import numpy as np
from numpy.typing import NDArray

from pruner.errors import DataError
from pruner.files import write_atomic

Arrays = dict[str, NDArray[Any]]


def read_arrays(
    file: Path | IO[bytes], names: Collection[str] | None = None, *, most_unpacked: int = 0
) -> Arrays:
    """Read arrays of an ``.npz``, all or by name; raise `DataError` if damaged."""
    try:
        with ZipFile(file) as archive:
            known = {one.filename.removesuffix(".npy"): one for one in archive.infolist()}
            if not most_unpacked and any(m.compress_type != ZIP_STORED for m in known.values()):
                raise ValueError("its members are compressed")
            if most_unpacked and sum(m.file_size for m in known.values()) > most_unpacked:
                raise ValueError(f"it unpacks to more than {most_unpacked} bytes")
            found: Arrays = {}
            for name in known if names is None else names:
                with archive.open(known[name]) as member:
                    found[name] = np.lib.format.read_array(member, allow_pickle=False)
                    if member.read(1):  # at its end the checksum is compared
                        raise ValueError(f"{name} has more values than it claims")
            return found
    except Exception as error:  # a damaged archive fails in many ways
        message = " ".join(str(error).split())[:120]
        raise DataError(f"damaged ({type(error).__name__}: {message})") from error


def write_arrays(path: Path, *arrays: NDArray[Any], **named: NDArray[Any]) -> None:
    """Write an ``.npz`` atomically; arrays without names are called ``arr_0``, ``arr_1`` ..."""
    with write_atomic(path) as partial, partial.open("wb") as file:
        np.savez(file, *arrays, **named)  # type: ignore[arg-type]  # the stub has one keyword only
