"""Files that are there whole or not at all."""

import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from pruner import files
from pruner.errors import DataError, PrunerError

HERE = files.socket.gethostname()


def part_of(path, process, host=HERE):
    """The file that a process writes before it takes the name `path`."""
    return path.with_name(f".{path.name}.{zlib.crc32(host.encode()):08x}.{process}.part")


def test_an_error_while_writing_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("old")

    def interrupted():
        with files.write_atomic(path) as partial:
            partial.write_text("half")
            assert path.read_text() == "old"  # a reader sees no part
            raise RuntimeError

    with pytest.raises(RuntimeError):
        interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_names_the_file(tmp_path):
    path, full = tmp_path / "kept.json", OSError(28, "No space left on device")
    with (
        pytest.raises(OSError, match=f"No space left on device: '{path}'"),
        files.write_atomic(path),
    ):
        raise full
    other = FileNotFoundError(2, "No such file or directory", "elsewhere")
    with pytest.raises(OSError, match="'elsewhere'"), files.write_atomic(path):
        raise other
    assert not list(tmp_path.iterdir())


def test_what_a_kill_left_of_a_file_goes_when_that_is_written_again(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    path = tmp_path / "a[1].npz"
    left = part_of(path, dead.pid)
    elsewhere = part_of(path, dead.pid, "another machine")
    others = [part_of(tmp_path / "b.npz", dead.pid), part_of(path, 1), elsewhere]
    for part in (left, *others):
        part.write_text("half")
    with files.write_atomic(path) as partial:
        partial.write_text("whole")
    assert not left.exists()
    assert all(part.exists() for part in others)


def test_temporary_files_of_a_kill_go_with_the_next_start(tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    program = (
        "import os, pathlib, signal, subprocess, sys, tempfile\n"
        "from pruner.files import temporaries_in\n"
        "with temporaries_in(pathlib.Path(sys.argv[1])):\n"
        "    tempfile.mkdtemp()\n"
        "    subprocess.run(['mktemp'], check=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", program, str(folder)]
    assert subprocess.run(command, check=False, capture_output=True).returncode == -9
    assert len(list(folder.iterdir())) == 2
    before = tempfile.gettempdir()
    monkeypatch.delenv("TMPDIR", raising=False)
    with files.temporaries_in(folder):
        assert list(folder.iterdir()) == []
        assert (tempfile.gettempdir(), os.environ["TMPDIR"]) == (str(folder), str(folder))
    assert not folder.exists()
    assert tempfile.gettempdir() == before
    assert "TMPDIR" not in os.environ


def test_content_is_synced_before_its_name(tmp_path, monkeypatch):
    done = []
    replace = Path.replace
    monkeypatch.setattr(
        files.os, "fsync", lambda fd: done.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
    )
    monkeypatch.setattr(Path, "replace", lambda a, b: (done.append("named"), replace(a, b)))
    with files.write_atomic(tmp_path / "a") as partial:
        partial.write_text("x")
    assert done == [str(partial), "named", str(tmp_path)]


def test_a_folder_that_cannot_be_synced_is_no_error_and_a_file_is(tmp_path, monkeypatch):
    def refusing(descriptor):
        if refused(Path(f"/proc/self/fd/{descriptor}").readlink()):
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(files.os, "fsync", refusing)
    refused = Path.is_dir
    with files.write_atomic(tmp_path / "a") as partial:
        partial.write_text("new")
    assert (tmp_path / "a").read_text() == "new"
    refused = Path.is_file
    with pytest.raises(OSError, match="Invalid"), files.write_atomic(tmp_path / "a") as partial:
        partial.write_text("newer")
    assert (tmp_path / "a").read_text() == "new"


def test_what_json_does_not_know_becomes_plain(tmp_path):
    value = {
        1: float("nan"), "inf": [math.inf, -math.inf, 1.5], "path": Path("a/b"),
        "np": np.float32(0.5), "array": (np.int64(3), True, None, "x"),
    }  # fmt: skip
    assert files.jsonable(value) == {
        "1": None, "inf": [None, None, 1.5], "path": "a/b", "np": 0.5,
        "array": [3, True, None, "x"],
    }  # fmt: skip
    files.save_metrics(tmp_path, value)
    assert files.load_metrics(tmp_path) == files.jsonable(value)
    assert files.load_metrics(tmp_path / "elsewhere") is None
    values = {"losses": np.array([1.0, np.nan]), "nan": np.float32("nan")}
    files.write_json(tmp_path / "x.json", values)
    assert (tmp_path / "x.json").read_text() == '{"losses": [1.0, null], "nan": null}\n'


def test_a_table_reads_back_and_new_rows_replace_those_of_their_key(tmp_path):
    path = tmp_path / "new" / "folder" / "table.csv"
    assert files.read_table(path) == []
    files.write_table(path, [{"a": 1, "b": 0.1234567}, {"a": 'x,"y', "c": "ä\nö"}], floats=".3g")
    assert files.read_table(path) == [
        {"a": "1", "b": "0.123", "c": ""},
        {"a": 'x,"y', "b": "", "c": "ä\nö"},
    ]
    files.write_table(path, [{"x": 0.1 + 0.2}])
    assert float(files.read_table(path)[0]["x"]) == 0.1 + 0.2  # all digits
    path = tmp_path / "table.csv"
    rows = [{"model": m, "seed": s, "top1": 0.5} for m in "ab" for s in (0, 1)]
    files.write_table(path, rows)
    merged = files.merged_table(
        path, [{"model": "a", "seed": 1, "top1": 0.75}, {"model": "c", "seed": 0, "top1": 1.0}],
        key=("model", "seed"),
    )  # fmt: skip
    found = [(row["model"], int(row["seed"]), float(row["top1"])) for row in merged]
    assert found == [("a", 0, 0.5), ("b", 0, 0.5), ("b", 1, 0.5), ("a", 1, 0.75), ("c", 0, 1.0)]


@pytest.mark.parametrize("text", [b"", b'{"a": 1', b"\xff{}", b"[" * 100_000])
def test_a_damaged_json_file_is_one_line_with_its_name(tmp_path, text):
    path = tmp_path / files.METRICS_FILE
    path.write_bytes(text)
    with pytest.raises(DataError, match=f"^{path}: damaged .*again$"):
        files.load_metrics(tmp_path)
    files.save_metrics(tmp_path, {"a": 1})
    assert files.load_metrics(tmp_path) == files.read_json(path) == {"a": 1}


def test_a_sealed_line_is_json_with_the_checksum_of_the_rest():
    line = b'{"a": 1, "b": [2]}'
    sealed = files.sealed(line)
    assert json.loads(sealed) == {"a": 1, "b": [2], "crc32": f"{zlib.crc32(line):08x}"}
    assert files.unsealed(sealed) == line
    assert files.unsealed(line) == line  # of an older version
    with pytest.raises(ValueError, match="checksum"):
        files.unsealed(sealed.replace(b'"a": 1', b'"a": 2'))


HOLD = "import sys, time; from pathlib import Path; from pruner.files import hold; "
HOLD += "hold(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"


def test_a_folder_has_one_owner_until_that_dies_or_gives_it_back(tmp_path):
    with files.held(tmp_path):
        pass
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE
    ) as child:
        assert child.stdout.readline() == b"held\n"
        child.kill()
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE)
    with child.stdout:
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(PrunerError, match=f"process {child.pid} on .* works in it"):
            files.hold(tmp_path)
        child.kill()
        child.wait()
    files.hold(tmp_path)
    files.hold(tmp_path)  # it is ours already
    with files.held(tmp_path, tmp_path / "."):  # and stays so
        pass
    assert (tmp_path / files.LOCK_FILE).read_text().split()[0] == str(os.getpid())


def test_where_the_system_has_no_locks_the_process_that_is_named_counts(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(files.fcntl, "flock", refuse)
    lock, host = tmp_path / files.LOCK_FILE, files.socket.gethostname()
    lock.write_text(f"1 {host}\n")  # always there
    with pytest.raises(PrunerError, match="process 1 on"):
        files.hold(tmp_path)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for stale in (f"{dead.pid} {host}", "", "nonsense"):
        lock.write_text(stale)
        files.hold(tmp_path)
        assert lock.read_text() == f"{os.getpid()} {host}\n"
    lock.write_text("7 another machine\n")  # nobody here can tell
    with pytest.raises(PrunerError, match="another machine"):
        files.hold(tmp_path)


def test_a_link_is_never_written_through(tmp_path):
    """A run folder of somebody else may have links to any file of this user."""
    precious, folder = tmp_path / "precious", tmp_path / "run"
    precious.write_text("mine")
    folder.mkdir()
    (folder / files.LOCK_FILE).symlink_to(precious)
    with pytest.raises(DataError, match="a link, so another file would be changed"):
        files.hold(folder)
    part_of(folder / "a.json", os.getpid()).symlink_to(precious)  # the name that it would take
    (folder / "a.json").symlink_to(precious)
    files.write_json(folder / "a.json", 3)
    assert files.read_json(folder / "a.json") == 3
    assert precious.read_text() == "mine"


def test_links_that_lead_out_of_a_folder_are_found_however_deep(tmp_path):
    folder = tmp_path / "run"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "file").touch()
    (folder / "a" / "b" / "inside").symlink_to("../file")
    (folder / "wandb").mkdir()
    (folder / "wandb" / "debug.log").symlink_to(tmp_path / "cache.log")
    files.check_links(folder)
    (tmp_path / "same").symlink_to(folder)
    files.check_links(tmp_path / "same")  # the folder itself may be reached by one
    for target in (tmp_path, tmp_path / "gone"):
        (folder / "a" / "b" / "out").symlink_to(target)
        with pytest.raises(DataError, match=f"{folder}/a/b/out: a link to {target}"):
            files.check_links(folder)
        (folder / "a" / "b" / "out").unlink()


def test_a_line_that_the_disk_takes_a_part_of_is_an_error(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"x" * 1000)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1010, before[1]))
    try:
        with path.open("ab", buffering=0) as file:
            files.append_line(file, b"12345", path)
            with pytest.raises(OSError, match=f"No space left on device: '{path}'"):
                files.append_line(file, b"12345", path)  # 4 bytes of it fit
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes()[1000:] == b"12345\n1234"


@pytest.mark.parametrize("text", ["[]", "5", "null", '"text"'])
def test_json_of_another_kind_is_damaged(tmp_path, text):
    path = tmp_path / "metrics.json"
    path.write_text(text)
    with pytest.raises(DataError, match=rf"{path}: damaged \(TypeError: a \w+, not a dict\)"):
        files.load_metrics(tmp_path)


def test_what_does_not_fit_is_damaged_and_errors_of_ours_pass(tmp_path):
    path = tmp_path / "a.json"
    for read in (lambda: {}["x"], lambda: float("x"), lambda: [][0], lambda: 1 // 0):
        with pytest.raises(DataError, match=f"{path}: damaged"), files.as_written(path):
            read()
    with pytest.raises(PrunerError, match="finished"), files.as_written(path):
        raise PrunerError("this run is finished")
