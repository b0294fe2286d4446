import gc
import weakref

import numpy as np
import pytest

from pruner.data import tasks
from pruner.data.quarantine import Quarantine, read_report
from pruner.data.tasks import read_tasks


def test_columns_hold_what_the_lines_say(write, line, record):
    random = line(8, costs=[0.001, 0.002, 0.006], origin="random")
    lines = [line(2), line(4, error_no=2), b"{", random]
    path = write("conv2d_add_relu_1_2.json", lines)
    (task,) = read_tasks(path, Quarantine(), platform="k80")
    assert task.key.platform == "k80"
    assert task.key.task == "conv2d_add_relu_1_2"
    assert task.fused == ("add", "relu")
    own = write("foo_relu_4.json", [line(2, key='["foo_relu_layer", 4]')])
    assert read_tasks(own, Quarantine())[0].fused == ()
    assert len(task) == 3
    assert task.file == str(path)
    assert task.steps == [record(tile)["i"][1][1] for tile in (2, 4, 8)]
    assert task.costs_s == [(0.002, 0.004), (0.002, 0.004), (0.001, 0.002, 0.006)]
    assert task.origin == [None, None, "random"]
    assert task.line.tolist() == [0, 1, 3]
    assert task.latency_s.tolist() == pytest.approx([0.003, np.inf, 0.003])
    assert task.best_s == task.latency_s.min()
    assert task.error_no.tolist() == [0, 2, 0]
    assert task.all_cost_s.tolist() == [1.5] * 3
    assert task.timestamp.tolist() == [1700000000] * 3
    assert task.structure.tolist() == [0, 0, 0]
    assert len(set(task.digest.tolist())) == 3


def test_a_mixed_log_is_split_by_workload_and_target(write, line):
    relu = '["relu_layer", [4096, 4096]]'
    lines = [line(2), line(2, key=relu), line(2, target="llvm"), line(4), line(4, key=relu)]
    tasks = read_tasks(write("network.json", lines), Quarantine())
    assert [task.line.tolist() for task in tasks] == [[0, 3], [1, 4], [2]]
    assert len({task.key for task in tasks}) == 3
    assert [task.key.workload.short_op for task in tasks] == ["matmul", "relu", "matmul"]


def test_select_keeps_columns_together(write, line):
    path = write("log.json", [line(2), line(4, error_no=2), line(8)])
    (task,) = read_tasks(path, Quarantine())
    ran = task.select(task.valid)
    assert ran.line.tolist() == [0, 2]
    assert [steps[1][4] for steps in ran.steps] == [[1, 2], [1, 8]]
    assert task.select(np.array([2, 0])).line.tolist() == [2, 0]


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_left_as_it_was(write, line, enabled):
    was_enabled = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        read_tasks(write("log.json", [line(2)]), Quarantine())
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()


@pytest.fixture
def thawed(monkeypatch):
    """Nothing is frozen; afterwards what was there is frozen again, as the other tests have it."""
    monkeypatch.setattr(tasks, "_FROZEN", [])
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


def test_the_garbage_collector_need_not_walk_what_was_read(write, line, thawed):
    """Nor does reading thaw what somebody froze."""
    path = write("log.json", [line(2), line(4)])
    (task,) = read_tasks(path, Quarantine())
    assert gc.get_freeze_count() == 0
    old = {id(found) for found in gc.get_objects(generation=2)}
    assert {id(program) for program in task.steps} <= old
    gc.freeze()
    read_tasks(path, Quarantine())
    assert gc.get_freeze_count() > 0


def test_what_is_frozen_is_counted_once(write, line, thawed, monkeypatch):
    """Counting walks over all of it: a tenth of a second where TVM and torch are loaded."""
    counted, count = [], gc.get_freeze_count
    monkeypatch.setattr(gc, "get_freeze_count", lambda: counted.append(1) or count())
    path = write("log.json", [line(2), line(4)])
    gc.freeze()
    for _ in range(3):
        read_tasks(path, Quarantine())
    assert len(counted) == 1


def test_garbage_of_the_caller_does_not_grow_old_by_reading(write, line, thawed):
    class Knot:
        pass

    path, knot = write("log.json", [line(2), line(4)]), Knot()
    knot.knot, gone = knot, weakref.ref(knot)
    del knot
    read_tasks(path, Quarantine())
    assert gone() is None


def test_a_file_larger_than_the_memory_for_it_gives_its_beginning(write, line, monkeypatch):
    path = write("matmul_1_2_3.json", [line(2), line(4), line(8)])
    monkeypatch.setattr(tasks, "MAX_HELD_BYTES", len(line(2)) + len(line(4)))
    quarantine = Quarantine()
    (task,) = read_tasks(path, quarantine)
    assert (task.line.tolist(), quarantine.counts) == ([0, 1], {"file_too_large": 1})


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
    path = write("log.json", lines)
    tasks = read_tasks(path, quarantine)
    assert [task.line.tolist() for task in tasks] == [[2], [5]]
    assert quarantine.counts == {"duplicate": 4}
    quarantine = Quarantine()
    kept = read_tasks(path, quarantine, duplicates="keep")
    assert [task.line.tolist() for task in kept] == [[0, 1, 2, 3, 4], [5]]
    assert quarantine.total == 0


def test_a_file_cut_in_a_line_says_so(write, line):
    quarantine = Quarantine()
    path = write("log.json", [line(2), line(4)[:100]], end=b"\n")
    path.write_bytes(path.read_bytes()[:-1])
    assert [len(task) for task in read_tasks(path, quarantine)] == [1]
    assert quarantine.counts == {"truncated_file": 1}


def test_a_file_of_rubbish_gives_nothing_and_does_not_stop(tmp_path):
    path = tmp_path / "photo.json"
    path.write_bytes(bytes(range(256)) * 64)
    quarantine = Quarantine()
    assert read_tasks(path, quarantine) == []
    assert quarantine.total == 65
