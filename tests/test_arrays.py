"""Sizes of element types."""

import pytest

from pruner.arrays import dtype_bytes


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
