import gzip
import math

import pytest

from pruner.data.quarantine import Quarantine, read_report
from pruner.data.tasks import read_tasks


def test_good_lines_around_bad_ones_survive(write, line, tmp_path):
    path = write("log.json", [line(2), b"{broken", line(4), b"", line(8).replace(b"CHW", b"PPT")])
    with Quarantine(tmp_path / "report.jsonl") as quarantine:
        (task,) = read_tasks(path, quarantine)
    assert task.line.tolist() == [0, 2]
    assert [steps[1][4] for steps in task.steps] == [[1, 2], [1, 4]]
    assert quarantine.counts == {"malformed_json": 1, "unknown_step": 1}
    entries = read_report(tmp_path / "report.jsonl")
    assert [(entry.file, entry.line, entry.reason) for entry in entries] == [
        (str(path), 1, "malformed_json"),
        (str(path), 4, "unknown_step"),
    ]
    assert entries[0].excerpt == "{broken"
    assert "'PPT'" in entries[1].detail


def test_latency_is_the_mean_of_the_timings(write, line):
    path = write("log.json", [line(2, costs=[0.001, 0.002, 0.006]), line(4, error_no=6)])
    (task,) = read_tasks(path, Quarantine())
    assert task.valid.tolist() == [True, False]
    assert task.latency_s[0] == pytest.approx((0.001 + 0.002 + 0.006) / 3)
    assert task.latency_s[1] == math.inf
    assert task.best_s == task.latency_s[0]


def test_the_first_valid_record_of_a_program_counts(write, line):
    lines = [
        line(2, error_no=2),  # 0 failed: makes way for 2
        line(2, error_no=4),  # 1 failed again: duplicate
        line(2, costs=[0.5]),  # 2 ran: counts
        line(2, costs=[0.1]),  # 3 ran again: duplicate
        line(2, error_no=2),  # 4 duplicate
        line(2, target="llvm"),  # 5 another target is another task
    ]
    quarantine = Quarantine()
    tasks = read_tasks(write("log.json", lines), quarantine)
    assert [task.line.tolist() for task in tasks] == [[2], [5]]
    assert quarantine.counts == {"duplicate": 4}


def test_a_file_cut_in_a_line_says_so(write, line):
    quarantine = Quarantine()
    path = write("log.json", [line(2), line(4)[:100]], end=b"\n")
    path.write_bytes(path.read_bytes()[:-1])
    assert [len(task) for task in read_tasks(path, quarantine)] == [1]
    assert quarantine.counts == {"truncated_file": 1}


def test_a_gzip_cut_in_the_middle_keeps_what_came_before(tmp_path, line):
    lines = [line(tile) for tile in range(1, 400)]
    packed = gzip.compress(b"\n".join(lines) + b"\n")
    path = tmp_path / "log.json.gz"
    path.write_bytes(packed[: len(packed) // 2])
    quarantine = Quarantine()
    (task,) = read_tasks(path, quarantine)
    assert 0 < len(task) < 399
    assert [steps[1][4][1] for steps in task.steps] == list(range(1, len(task) + 1))
    assert quarantine.counts == {"truncated_file": 1}


def test_a_file_of_rubbish_gives_nothing_and_does_not_stop(tmp_path):
    path = tmp_path / "photo.json"
    path.write_bytes(bytes(range(256)) * 64)
    quarantine = Quarantine()
    assert read_tasks(path, quarantine) == []
    assert quarantine.total == 65
