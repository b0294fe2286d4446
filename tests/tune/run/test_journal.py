"""The journal of a run after a kill and after damage, and what its rows mean."""

import json
from dataclasses import asdict

import pytest

from pruner.errors import PrunerError
from pruner.files import JsonLines, cut_incomplete_line
from pruner.tune.run.journal import Trial, read_trials


def trial(number, costs_s, **changes):
    return Trial(**{
        "task": "t", "trial": number, "batch": 1, "position": number, "space": 0,
        "decisions": [4, 2], "costs_s": costs_s, "error": None, "message": "", "build_s": 0.1,
        "run_s": 0.2, "elapsed_s": 1.0, "timestamp": 0.0, **changes,
    })  # fmt: skip


def written(path, *rows):
    journal = JsonLines(path)
    for row in rows:
        journal.append(asdict(row))
    return path


def test_a_torn_line_is_cut_and_the_rest_is_kept(tmp_path):
    path = tmp_path / "trials.jsonl"
    written(path, trial(1, [1.0, 3.0]), trial(2, [2.0]))
    with path.open("ab") as file:
        file.write(b'{"task": "t", "tri')
    assert [row.trial for row in read_trials(path)] == [1, 2]  # readers pass over it
    assert read_trials(path)[0].latency_s == 2.0
    written(path, trial(3, [1.0]))
    assert [row.trial for row in read_trials(path)] == [1, 2, 3]


def test_a_row_reads_back_as_it_was_written(tmp_path):
    rows = [
        trial(1, [0.1 + 0.2, 1e-300], extra={"rank": 3}),
        trial(2, [], error="timeout", message='line\nbreak "quoted" \u2028 ä'),
        trial(3, [], compiled_only=True),
    ]
    assert read_trials(written(tmp_path / "trials.jsonl", *rows)) == rows
    # only what ran and was right has a latency
    assert trial(1, [1.0, 2.0, 6.0]).latency_s == 3.0
    assert trial(1, [1.0], error="wrong_result").latency_s == float("inf")
    assert trial(1, [], compiled_only=True).latency_s == float("inf")


def test_a_file_without_a_complete_line_becomes_empty(tmp_path):
    path = tmp_path / "trials.jsonl"
    cut_incomplete_line(path)
    assert not path.exists()
    path.write_bytes(b'{"task"')
    assert read_trials(path) == []
    assert path.read_bytes() == b'{"task"'  # another run may be writing it
    cut_incomplete_line(path)
    assert path.read_bytes() == b""
    path.write_bytes(b"{}\n")
    cut_incomplete_line(path)
    assert path.read_bytes() == b"{}\n"


def test_no_flipped_bit_is_believed_and_the_other_rows_stay(tmp_path):
    """Whatever a disk or an editor does to one row costs that row."""
    rows = [trial(number, [0.1 * number], checked=True, record="[]") for number in (1, 2, 3)]
    path = written(tmp_path / "trials.jsonl", *rows)
    lines = path.read_bytes().splitlines(keepends=True)
    for place in range(len(lines[1]) - 1):
        for bit in (1, 16, 128):
            damaged = bytearray(lines[1])
            damaged[place] ^= bit
            path.write_bytes(lines[0] + bytes(damaged) + lines[2])
            told = []
            assert read_trials(path, told.append) == [rows[0], rows[2]], (place, bit)
            assert any(f"{path}, line 2" in line for line in told)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"costs_s": [None]}, "costs_s"),
        ({"costs_s": []}, "no seconds above 0"),
        ({"costs_s": [0.0]}, "no seconds above 0"),
        ({"trial": "1"}, "trial"),
        ({"decisions": [1.5]}, "decisions"),
        ({"strange": 1}, "strange"),
        ({"error": 3}, "error"),
    ],
)
def test_a_row_without_checksum_is_looked_at(tmp_path, changes, reason):
    """Rows of older versions have none; what is written by hand may be anything."""
    path = written(tmp_path / "trials.jsonl", trial(1, [1.0]), trial(2, [2.0]))
    first = json.loads(path.read_bytes().splitlines()[0])
    del first["crc32"]
    plain, last = json.dumps(first).encode(), path.read_bytes().splitlines()[1]
    path.write_bytes(plain + b"\n" + last + b"\n")
    assert [row.trial for row in read_trials(path)] == [1, 2]
    path.write_bytes(json.dumps(first | changes).encode() + b"\n" + last + b"\n")
    told = []
    assert [row.trial for row in read_trials(path, told.append)] == [2]
    (line,) = told
    assert f"{path}, line 1: its " in line
    assert reason in line
    del first["task"]
    path.write_bytes(b"[]\n" + json.dumps(first).encode() + b"\nnonsense\n")
    assert read_trials(path) == []


def test_a_row_that_is_there_twice_counts_once(tmp_path):
    path = written(tmp_path / "trials.jsonl", *(trial(n, [0.1 * n]) for n in (1, 2, 3)))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines, lines[1]]))
    told = []
    assert [row.trial for row in read_trials(path, told.append)] == [1, 2, 3]
    assert told == [f"{path}, line 4: trial 2 once more; it counts as not measured"]


def test_a_journal_that_is_a_link_is_left_alone(tmp_path):
    precious = tmp_path / "thesis.txt"
    precious.write_bytes(b"one line\nand another")
    (tmp_path / "trials.jsonl").symlink_to(precious)
    with pytest.raises(PrunerError, match="a link"):
        JsonLines(tmp_path / "trials.jsonl")
    assert precious.read_bytes() == b"one line\nand another"
