"""How schedules were found, told by a file beside the records."""

import gzip
import json

import pytest

from pruner.data.quarantine import Quarantine
from pruner.data.root import RecordRoot
from pruner.errors import DataError
from pruner.study.draft_quality import found_by


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "measure_records" / "cpu-sse4"
    folder.mkdir(parents=True)
    hardware = [1, 16, 64, 0, 0, 0, 0, 0]
    lines = [
        {
            "i": [
                ['["matmul_layer", 8, 8, 8]', "llvm", hardware, "", 0, []],
                [[], [["SP", 2, 0, 8, [factor], 1]]],
            ],
            "r": [[1e-3], 0, 1.0, 1700000000],
            "v": "v0.6",
        }
        for factor in (1, 2, 2, 4)
    ]
    text = "\n".join(map(json.dumps, lines))
    (folder / "matmul.json.gz").write_bytes(gzip.compress(text.encode()))
    return tmp_path


def only(root):
    return next(iter(RecordRoot(root).read(Quarantine(), "cpu-sse4")))


def write(root, marks):
    path = root / "origin" / "cpu-sse4" / "matmul.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(marks))


def test_marks_belong_to_lines_not_to_rows(root):
    write(root, ["evolved", "random", "evolved", "random"])
    records = only(root)
    assert records.line.tolist() == [0, 1, 3]  # line 2 repeats line 1
    assert found_by(root, records, "random").tolist() == [False, True, True]
    assert not found_by(root, records, "guessed").any()


def test_records_without_marks_are_refused(root):
    with pytest.raises(DataError, match="leave out the choice by origin"):
        found_by(root, only(root), "random")
    write(root, ["random"] * 3)
    with pytest.raises(DataError, match="one text for every line"):
        found_by(root, only(root), "random")
