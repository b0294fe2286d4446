"""NumPy's archives (``.npz``) as data: nothing in one runs, and its claims are not believed.

NumPy itself makes room for whatever length a header claims, and does not see a header that was
damaged to a shorter one: the checksum of a member counts for nothing until its last byte was read.
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod
from pathlib import Path
from typing import IO, Any
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import numpy as np
from numpy.typing import NDArray

from pruner.errors import DataError

_SUFFIX = ".npy"
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}

Arrays = dict[str, NDArray[Any]]


def read_arrays(
    file: Path | IO[bytes], names: Collection[str] | None = None, *, most_unpacked: int = 0
) -> Arrays:
    """The arrays of an archive that `np.savez` wrote, all or those of some names.

    They take no more memory than the file has bytes. One of `np.savez_compressed` is read where
    `most_unpacked` says how many bytes may come of it.

    Raises:
        DataError: no such archive, or a damaged one; the text does not name the file.
    """
    try:
        with ZipFile(file) as archive:
            known = {one.filename.removesuffix(_SUFFIX): one for one in archive.infolist()}
            _check_sizes(archive, most_unpacked)
            wanted = known if names is None else names
            return {name: _array(archive, known[name]) for name in wanted}
    except Exception as error:  # a damaged archive fails in many ways
        told = " ".join(str(error).split())[:120]
        raise DataError(f"damaged ({type(error).__name__}: {told})") from error


def _check_sizes(archive: ZipFile, most_unpacked: int) -> None:
    """Raise `ValueError` where the members would be more than there is, or than is allowed."""
    members, on_disk = archive.infolist(), archive.fp.seek(0, 2) if archive.fp else 0
    if not most_unpacked and any(one.compress_type != ZIP_STORED for one in members):
        raise ValueError("its members are compressed")
    if sum(one.file_size for one in members) > (most := most_unpacked or on_disk):
        raise ValueError(f"it unpacks to more than {most} bytes")


def _array(archive: ZipFile, member: ZipInfo) -> NDArray[Any]:
    with archive.open(member) as file:
        shape, _, dtype = _HEADERS[np.lib.format.read_magic(file)](file)
        if prod(shape) * max(dtype.itemsize, 1) > member.file_size:
            raise ValueError(f"{member.filename} claims more values than it has")
    with archive.open(member) as file:
        found: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
        if file.read(1):  # at its end the checksum is compared
            raise ValueError(f"{member.filename} has more values than it claims")
    return found
