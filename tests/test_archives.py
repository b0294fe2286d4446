"""NumPy's archives: what is damaged or claims too much is refused, whatever it claims."""

import io
import zipfile
from contextlib import suppress

import numpy as np
import pytest

from pruner.archives import read_arrays
from pruner.arrays import dtype_bytes
from pruner.errors import DataError


def npy(shape, payload, descr="<f8"):
    buffer = io.BytesIO()
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue() + payload


def archive(path, method=zipfile.ZIP_STORED, **members):
    with zipfile.ZipFile(path, "w", method) as file:
        for name, payload in members.items():
            file.writestr(f"{name}.npy", payload)
    return path


def test_arrays_come_back_all_or_by_name(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, a=np.arange(6.0).reshape(2, 3), b=np.array("text"), c=np.zeros(0, np.int8))
    found = read_arrays(path)
    assert found["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert str(found["b"]) == "text"
    assert found["c"].dtype == np.int8
    assert list(read_arrays(io.BytesIO(path.read_bytes()), ["c"])) == ["c"]
    with pytest.raises(DataError, match="KeyError"):
        read_arrays(path, ["d"])


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        ((2**39,), "damaged"), ((2**20, 2**20), "damaged"), ((40,), "expected 320 bytes got 80"),
        ((9,), "than it claims"), ((-1,), "damaged"),
    ],
)  # fmt: skip
def test_a_header_that_does_not_fit_what_is_there_is_refused(tmp_path, shape, told):
    path = archive(tmp_path / "a.npz", a=npy(shape, bytes(80)))
    with pytest.raises(DataError, match=told):
        read_arrays(path)


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_no_flipped_bit_is_believed(tmp_path, every):
    path = tmp_path / "a.npz"
    np.savez(path, a=np.arange(32.0), b=np.arange(7))
    whole, good = path.read_bytes(), read_arrays(path)
    for place in range(0, 8 * len(whole), every):  # all bits of a byte in turn
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        with suppress(DataError):  # some bits say nothing, and a name may be lost
            for name, values in read_arrays(path).items():
                assert values.tolist() == good[name].tolist()
    for cut in range(0, len(whole), 5):
        path.write_bytes(whole[:cut])
        with pytest.raises(DataError):
            read_arrays(path)


def test_packed_ones_are_read_where_they_may_be_and_bounded(tmp_path):
    path = archive(tmp_path / "a.npz", zipfile.ZIP_DEFLATED, a=npy((10**5,), bytes(8 * 10**5)))
    assert path.stat().st_size < 2000
    with pytest.raises(DataError, match="compressed"):
        read_arrays(path)
    with pytest.raises(DataError, match="unpacks to more than 100000 bytes"):
        read_arrays(path, most_unpacked=10**5)
    assert read_arrays(path, most_unpacked=10**6)["a"].shape == (10**5,)


def test_objects_and_files_that_are_no_archive_are_refused(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, a=np.array([{}], object))
    with pytest.raises(DataError, match="allow_pickle"):
        read_arrays(path)
    path.write_bytes(b"nonsense")
    with pytest.raises(DataError, match="damaged"):
        read_arrays(path)
    with pytest.raises(DataError, match="FileNotFound"):
        read_arrays(tmp_path / "none.npz")


def test_an_array_that_became_shorter_is_refused(tmp_path):
    """Its checksum is that of all bytes, of which NumPy reads what the header says."""
    path = archive(tmp_path / "a.npz", a=npy((1500,), bytes(8 * 2000)))
    with np.load(path) as stored:
        assert stored["a"].shape == (1500,)
    with pytest.raises(DataError, match="more values than it claims"):
        read_arrays(path)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("float32", 4),
        ("float16", 2),
        ("int64", 8),
        ("uint8", 1),
        ("int4", 1),
        ("bool", 1),
        ("float8_e4m3fn", 1),
    ],
)
def test_bytes_of_an_element(dtype, expected):
    assert dtype_bytes(dtype) == expected
