import gzip
import json
import shutil

import pytest

from pruner.data.quarantine import Quarantine
from pruner.data.root import RecordRoot
from pruner.errors import DataError
from pruner.study.draft_quality import found_by


def test_layout_is_listed_in_order_and_every_task_read(data_root):
    folder = data_root / "measure_records"
    shutil.copytree(folder / "a", folder / ".c.partial")  # an import that was ended, or runs
    root = RecordRoot(data_root)
    assert root.platforms == ("a", "b")
    assert [(file.platform, file.task) for file in root.task_files()] == [
        ("a", "conv2d_add_1_8_14_14_8_3_3_1_SAME"),
        ("a", "matmul_16_1024_1024"),
        ("a", "relu_4096_4096"),
        ("b", "conv2d_1_8_14_14_8_3_3_1_1"),
        ("b", "relu_4096_4096"),
    ]
    assert len(root.task_files("b")) == 2
    assert len(root.task_files(["b", "a"])) == 5
    quarantine = Quarantine()
    tasks = list(RecordRoot(data_root).read(quarantine))
    assert [(task.key.platform, len(task), int(task.valid.sum())) for task in tasks] == [
        ("a", 1, 1),
        ("a", 2, 2),
        ("a", 2, 1),
        ("b", 2, 2),
        ("b", 1, 1),
    ]
    assert quarantine.total == 0


@pytest.mark.parametrize("suffix", [".json", ".json.gz", ".json.xz", ".json.zst"])
def test_tenset_names_are_tasks(write, line, suffix):
    key = '["0bcb8746286db050cd088f375c85372d", 1, 64]'
    name = "([0bcb8746286db050cd088f375c85372d,1,64],cuda)"
    path = write(f"measure_records/t4/{name}{suffix}", [line(2, key=key)])
    write("measure_records/t4/notes.txt", [b"not a record file"])
    (records,) = RecordRoot(path.parents[2]).read(Quarantine())
    assert (records.key.platform, records.key.task) == ("t4", name)
    assert records.key.workload.short_op == "subgraph"


def test_the_same_task_twice_is_read_once(data_root, caplog):
    path = data_root / "measure_records/b/relu_4096_4096.json"
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
    assert len(RecordRoot(data_root).task_files("b")) == 2
    assert "relu_4096_4096.json.gz ignored" in caplog.text


def one_line(error):
    message = str(error.value)
    assert "\n" not in message
    return message


def test_wrong_folders_and_platforms_are_one_line(data_root, tmp_path):
    (tmp_path / "other" / "measure_records" / "empty").mkdir(parents=True)
    for make, told in (
        (lambda: RecordRoot(tmp_path / "nowhere"), "no such folder.*pruner import_logs logs=DIR"),
        (lambda: RecordRoot(data_root / "measure_records"), "name its parent instead"),
        (lambda: RecordRoot(data_root / "measure_records/a"), "name its parent instead"),
        (lambda: RecordRoot(tmp_path / "other"), "no platform folder"),
        (
            lambda: RecordRoot(data_root).task_files("orin"),
            "no records for platform 'orin'; there are records for: a, b",
        ),
    ):
        with pytest.raises(DataError, match=told) as error:
            make()
        one_line(error)


@pytest.mark.parametrize("kind", ["rubbish", "empty", "failed"])
def test_no_usable_record_is_one_clear_line(write, line, tmp_path, kind):
    lines = {"rubbish": [b"x"] * 3, "empty": [], "failed": [line(2, error_no=2)]}[kind]
    root = write("measure_records/k80/matmul.json", lines).parents[2]
    quarantine = Quarantine(tmp_path / "report.jsonl")
    with quarantine, pytest.raises(DataError) as error:
        list(RecordRoot(root).read(quarantine))
    message = one_line(error)
    assert "no usable record in 1 files" in message
    assert "pruner import_logs" in message
    expected = {"rubbish": "3 malformed_json", "empty": "1 empty_file", "failed": "every meas"}
    assert expected[kind] in message
    if kind != "failed":
        assert "report.jsonl" in message


def test_a_broken_file_does_not_stop_the_others(data_root):
    path = data_root / "measure_records/a/matmul_16_1024_1024.json"
    path.write_bytes(b"\x1f\x8b broken")
    shutil.copy(path, path.with_name("aaa.json"))
    quarantine = Quarantine()
    assert len(list(RecordRoot(data_root).read(quarantine, "a"))) == 2
    assert quarantine.total == 2


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


def mark(root, marks):
    path = root / "origin" / "cpu-sse4" / "matmul.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(marks))


def test_marks_belong_to_lines_not_to_rows(root):
    mark(root, ["evolved", "random", "evolved", "random"])
    records = only(root)
    assert records.line.tolist() == [0, 1, 3]  # line 2 repeats line 1
    assert found_by(root, records, "random").tolist() == [False, True, True]
    assert not found_by(root, records, "guessed").any()


def test_records_without_marks_are_refused(root):
    with pytest.raises(DataError, match="leave out the choice by origin"):
        found_by(root, only(root), "random")
    mark(root, ["random"] * 3)
    with pytest.raises(DataError, match="one text for every line"):
        found_by(root, only(root), "random")
