import hashlib
import json

import pytest

from pruner.errors import DataError
from pruner.tune.collect.layout import (
    TaskPaths,
    count_valid,
    finish_journal,
    open_journal,
    read_journal,
    write_sums,
)


def entry(origin, number, error_no=0):
    task = ['["matmul_layer", 2, 2, 2]', "llvm", [1, 16, 64, 0, 0, 0, 0, 0], "", 0, []]
    steps = [["SP", 2, 0, 2, [number], 1]]
    return {
        "origin": origin,
        "record": {"i": [task, [[], steps]], "r": [[1e-3], error_no, 0.5, 1], "v": "v0.6"},
    }


@pytest.fixture
def paths(tmp_path):
    return TaskPaths(out=tmp_path, platform="cpu-sse4", task="matmul_2_2_2")


def write_journal(paths, entries, tail=""):
    paths.journal.parent.mkdir(parents=True, exist_ok=True)
    paths.journal.write_text("".join(json.dumps(e) + "\n" for e in entries) + tail)


def test_a_half_written_last_line_is_cut_off(paths):
    write_journal(paths, [entry("random", 1)], tail='{"origin": "random", "rec')
    assert read_journal(paths.journal) == [entry("random", 1)]
    with paths.journal.open("a") as file:  # what the next child appends must be a line of its own
        file.write(json.dumps(entry("evolved", 2)) + "\n")
    assert read_journal(paths.journal) == [entry("random", 1), entry("evolved", 2)]


def test_a_damaged_file_is_one_line_that_says_what_to_do(paths):
    write_journal(paths, [entry("random", 1), entry("evolved", 2)])
    whole = paths.journal.read_bytes()
    paths.journal.write_bytes(whole.replace(b'"evolved"', b'"evolved'))
    with pytest.raises(DataError, match=r"damaged \(line 2: .*delete it"):
        read_journal(paths.journal)
    paths.journal.write_bytes(whole)
    finish_journal(paths)
    packed = paths.records.read_bytes()
    for bad in (packed[:-9], packed[:20], packed[:30] + b"x" + packed[31:], b"no gzip"):
        paths.records.write_bytes(bad)
        with pytest.raises(DataError, match="damaged"):
            open_journal(paths)


def test_failed_records_are_not_counted_as_valid():
    entries = [entry("random", 1), entry("random", 2, error_no=4), entry("evolved", 3)]
    assert count_valid(entries) == {"random": 1, "evolved": 1}


def test_finished_files_reopen_as_the_same_journal(paths):
    entries = [entry("random", 1), entry("evolved", 2)]
    write_journal(paths, entries)
    assert finish_journal(paths) == entries
    assert not paths.journal.exists()
    assert json.loads(paths.origin.read_text()) == ["random", "evolved"]
    assert open_journal(paths) == entries


def test_the_same_records_give_the_same_bytes(paths):
    digests = set()
    for _ in range(2):
        write_journal(paths, [entry("random", 1)])
        finish_journal(paths)
        digests.add(hashlib.sha256(paths.records.read_bytes()).hexdigest())
    assert len(digests) == 1
    assert paths.records.read_bytes()[4:8] == b"\0\0\0\0"  # the time stamp of the gzip header


def test_a_lost_origin_line_is_an_error_not_a_shift(paths):
    write_journal(paths, [entry("random", 1), entry("evolved", 2)])
    finish_journal(paths)
    paths.origin.write_text('["random"]')
    with pytest.raises(DataError, match="argument"):
        open_journal(paths)


def test_checksums_cover_records_and_origins(paths, tmp_path):
    write_journal(paths, [entry("random", 1)])
    finish_journal(paths)
    lines = write_sums(tmp_path).read_text().splitlines()
    assert [line.split("  ")[1] for line in lines] == [
        "measure_records/cpu-sse4/matmul_2_2_2.json.gz",
        "origin/cpu-sse4/matmul_2_2_2.json",
    ]
    assert lines[1].split()[0] == hashlib.sha256(paths.origin.read_bytes()).hexdigest()
