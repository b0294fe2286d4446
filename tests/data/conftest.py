"""Small record lines made by hand."""

import copy

import orjson
import pytest

RECORD = {
    "i": [
        [
            '["matmul_layer", 16, 1024, 1024]',
            "cuda -keys=cuda,gpu -arch=sm_70",
            [-1, 16, 64, 49152, 2147483647, 1024, 8, 32],
            "",
            0,
            [],
        ],
        [
            [],
            [
                ["CHW", 2, "local"],
                ["SP", 2, 0, 16, [1, 4], 1],
                ["SP", 2, 1, 1024, [8, 2], 1],
                ["RE", 2, [0, 3, 1, 4, 2, 5]],
                ["FSP", 3, 0, 1, 1],
                ["FFSP", 3, 0, [1, 2], 0, 1],
                ["FU", 3, [0, 1]],
                ["AN", 3, 0, 5],
                ["PR", 2, 0, "auto_unroll_max_step$512"],
            ],
        ],
    ],
    "r": [[0.002, 0.004], 0, 1.5, 1700000000],
    "v": "v0.6",
}


@pytest.fixture(scope="session")
def record():
    """Make a record (a dict). `tile` and `unroll` vary the program, the rest is plain."""

    def make(tile=4, *, costs=(0.002, 0.004), error_no=0, key=None, target=None, **top):
        raw = copy.deepcopy(RECORD)
        raw["i"][1][1][1][4] = [1, tile]
        raw["r"][0], raw["r"][1] = list(costs), error_no
        raw["i"][0][0] = key or raw["i"][0][0]
        raw["i"][0][1] = target or raw["i"][0][1]
        return {**raw, **top}

    return make


@pytest.fixture(scope="session")
def line(record):
    """The same as one line of bytes, without newline."""

    def make(*args, **kwargs):
        return orjson.dumps(record(*args, **kwargs))

    return make


@pytest.fixture
def write(tmp_path):
    """Write lines to a file below the test's folder; returns the path."""

    def make(name, lines, end=b"\n"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(item + end for item in lines))
        return path

    return make


@pytest.fixture
def data_root(write, line, tmp_path):
    """A data root with two platforms: three workloads on a, two of them (other spelling) on b."""
    conv_a = '["conv2d_layer", 1, 8, 14, 14, 8, 3, 3, 1, "SAME"]'
    conv_b = '["conv2d_layer", 1, 8, 14, 14, 8, 3, 3, 1, 1]'
    relu = '["relu_layer", [4096, 4096]]'
    folder = "measure_records"
    write(f"{folder}/a/matmul_16_1024_1024.json", [line(2), line(4, costs=[0.001])])
    write(f"{folder}/a/conv2d_add_1_8_14_14_8_3_3_1_SAME.json", [line(2, key=conv_a)])
    write(f"{folder}/a/relu_4096_4096.json", [line(2, key=relu), line(4, key=relu, error_no=2)])
    write(f"{folder}/b/conv2d_1_8_14_14_8_3_3_1_1.json", [line(2, key=conv_b), line(4, key=conv_b)])
    write(f"{folder}/b/relu_4096_4096.json", [line(8, key=relu)])
    return tmp_path
