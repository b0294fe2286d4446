import gzip
import json
import resource
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from pruner.data import importing
from pruner.data.quarantine import Quarantine, read_report
from pruner.data.root import RecordRoot
from pruner.errors import DataError, PrunerError, UnsupportedProgram
from pruner.files import files_below


def by_name(key, steps, named):
    return key, named


def import_logs(*args, read_task=by_name, **kwargs):
    return importing.import_logs(*args, read_task=read_task, **kwargs)


RELU = '["relu_layer", [4096, 4096]]'
CONV = '["conv2d_layer", 1, 8, 14, 14, 8, 3, 3, 1, "SAME"]'


def files(out, platform="k80"):
    return sorted(path.name for path in (out / "measure_records" / platform).iterdir())


@pytest.fixture
def logs(write, line, tmp_path):
    write("logs/run1.log", [line(2), line(2, key=RELU), line(4, error_no=2), b"{broken"])
    path = write("logs/deep/er/ansor_conv2d_add_1_8.log", [line(2, key=CONV), line(4, key=CONV)])
    path.with_suffix(".log.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    write("logs/run2.txt", [line(2), line(4, costs=[0.5]), line(2, target="llvm")], end=b"\r\n")
    write("logs/.hidden", [line(8)])
    return tmp_path / "logs"


def test_mixed_logs_become_one_file_per_task(logs, tmp_path, line):
    with Quarantine(tmp_path / "report.jsonl") as quarantine:
        result = import_logs(logs, tmp_path / "out", "k80", quarantine)
    assert (result.records, result.failed, result.tasks, result.files) == (6, 0, 4, 3)
    assert result.quarantined == {"malformed_json": 1, "duplicate": 2}
    names = files(tmp_path / "out")
    assert names[0] == "conv2d_add_1_8_14_14_8_3_3_1_SAME.json"
    assert names[1] == "matmul_16_1024_1024.json"
    assert names[2].startswith("matmul_16_1024_1024__")  # the other target
    assert names[3] == "relu_4096_4096.json"
    matmul = tmp_path / "out/measure_records/k80/matmul_16_1024_1024.json"
    # the failed record of program 4 gave way to the valid one of the second log
    assert matmul.read_bytes() == line(2) + b"\n" + line(4, costs=[0.5]) + b"\n"
    entries = read_report(tmp_path / "report.jsonl")
    places = {(entry.file.rsplit("/", 1)[-1], entry.line, str(entry.reason)) for entry in entries}
    assert places == {
        ("run1.log", 3, "malformed_json"),
        ("run1.log", 2, "duplicate"),
        ("run2.txt", 0, "duplicate"),
    }


def test_an_imported_folder_reads_and_imports_to_itself(logs, tmp_path):
    quarantine = Quarantine()
    import_logs(logs, tmp_path / "one", "k80", quarantine)
    again = import_logs(tmp_path / "one/measure_records/k80", tmp_path / "two", "k80", Quarantine())
    assert again.quarantined == {}
    assert files(tmp_path / "one") == files(tmp_path / "two")
    read = [list(RecordRoot(tmp_path / name).read(Quarantine())) for name in ("one", "two")]
    for one, two in zip(*read, strict=True):
        assert (one.key, one.steps, one.costs_s) == (two.key, two.steps, two.costs_s)
    fused = [task.fused for task in read[0]]
    assert fused == [("add",), (), (), ()]


def test_few_open_files_are_enough(write, line, tmp_path, monkeypatch):
    """Many more tasks than files that the system lets us open."""
    monkeypatch.setattr(importing, "MAX_OPEN_FILES", 2)
    keys = [f'["matmul_layer", {size}, 64, 64]' for size in range(1, 121)]
    path = write("network.log", [line(tile, key=key) for tile in (1, 2, 3) for key in keys])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())  # of other tests
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 30, hard))
    try:
        result = import_logs(path, tmp_path / "out", "k80", Quarantine())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (result.records, result.tasks) == (360, 120)
    assert all(len(task) == 3 for task in RecordRoot(tmp_path / "out").read(Quarantine()))


def test_packed_output_is_reproducible(logs, tmp_path):
    for out in ("one", "two"):
        import_logs(logs, tmp_path / out, "k80", Quarantine(), compression="gz")
    packed = [
        [path.read_bytes() for path in sorted((tmp_path / out / "measure_records/k80").iterdir())]
        for out in ("one", "two")
    ]
    assert packed[0] == packed[1]
    assert all(name.endswith(".json.gz") for name in files(tmp_path / "one"))
    assert sum(len(task) for task in RecordRoot(tmp_path / "one").read(Quarantine())) == 6


def test_progress_ends_at_the_end(logs, tmp_path):
    calls = []
    import_logs(
        logs, tmp_path / "out", "k80", Quarantine(), progress=lambda *call: calls.append(call)
    )
    assert [call[0] for call in calls] == [0, 1, 2, 3]
    assert calls[-1] == (3, 3)


def test_logs_beside_the_output_are_not_read_twice(logs, tmp_path):
    """Neither are reports: the current one would grow by a line for each of its lines."""
    for platform, report in (("k80", "quarantine-k80.jsonl"), ("v100", "own.report")):
        with Quarantine(logs / report) as quarantine:
            assert import_logs(logs, logs, platform, quarantine).files == 3
        quarantine.report.touch()


def test_linked_folders_are_read_once_and_unreadable_ones_told(logs, tmp_path, caplog):
    place = tmp_path / "place"
    place.mkdir()
    (place / "to logs").symlink_to(logs)
    (logs / "deep" / "back").symlink_to(place)  # a circle
    names = {path.name for path in files_below(place)}
    assert names == {"run1.log", "run2.txt", ".hidden", "ansor_conv2d_add_1_8.log.gz"}
    assert import_logs(place, tmp_path / "out", "k80", Quarantine()).files == 3
    assert not caplog.text
    assert files_below(tmp_path / "nowhere") == []
    assert "left out: " in caplog.text


def test_an_interrupted_import_starts_anew_and_leaves_nothing_half(logs, tmp_path):
    def interrupt(done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_logs(logs, tmp_path / "out", "k80", Quarantine(), progress=interrupt)
    assert list((tmp_path / "out/measure_records").iterdir()) == []
    assert import_logs(logs, tmp_path / "out", "k80", Quarantine()).records == 6


@pytest.mark.parametrize(
    ("platform", "message"),
    [("../k80", "use letters"), ("", "use letters"), ("done", "exists and is left alone")],
)
def test_nothing_is_overwritten(logs, tmp_path, platform, message):
    (tmp_path / "out/measure_records/done").mkdir(parents=True)
    with pytest.raises(DataError, match=message):
        import_logs(logs, tmp_path / "out", platform, Quarantine())


def test_two_imports_do_not_write_into_one_folder(logs, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    words = "import pathlib, sys; from pruner.files import hold; hold(pathlib.Path(sys.argv[1])); "
    words += "print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", words, str(out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.raises(PrunerError, match=f"process {other.pid} .* works in it"):
            import_logs(logs, out, "k80", Quarantine())
        other.stdin.close()
    assert import_logs(logs, out, "k80", Quarantine()).records == 6


def test_no_logs_say_so(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        import_logs(tmp_path / "nowhere", tmp_path / "out", "k80", Quarantine())
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no file in it"):
        import_logs(tmp_path / "empty", tmp_path / "out", "k80", Quarantine())


def test_fused_operators_are_those_of_the_steps(write, line, tmp_path):
    """One file a fusion, whatever the log is called; what no fusion explains is set aside."""

    def read_task(key, steps, named):
        assert named == (("add",) if key == CONV else ())
        tile = steps[1][4][1]
        if tile == 8:
            raise UnsupportedProgram("unknown-fusion", "eight")
        return key, ("add", "relu") if tile == 4 else named

    lines = [line(2, key=CONV), line(4, key=CONV), line(8, key=CONV), line(2)]
    path = write("conv2d_add_1_mixed.log", lines)
    with Quarantine(tmp_path / "report.jsonl") as quarantine:
        result = import_logs(path, tmp_path / "out", "k80", quarantine, read_task=read_task)
    assert files(tmp_path / "out") == [
        "conv2d_add_1_8_14_14_8_3_3_1_SAME.json",
        "conv2d_add_relu_1_8_14_14_8_3_3_1_SAME.json",
        "matmul_16_1024_1024.json",
    ]
    assert result.quarantined == {"unknown_fusion": 1}
    (entry,) = read_report(tmp_path / "report.jsonl")
    assert (entry.line, entry.detail) == (2, "eight")


def test_records_of_another_order_of_arguments_are_written_in_ours(write, line, tmp_path):
    """The key changes in the file and in its name; what contradicts every order is set aside."""
    theirs = '["conv2d_layer", 1, 14, 14, 8, 8, 3, 3, [1, 1], [1, 1]]'

    def read_task(key, steps, named):
        if key == RELU:
            raise UnsupportedProgram("other-arguments", "no")
        return (CONV, ("bias",)) if key == theirs else (key, named)

    path = write("a.log", [line(2, key=theirs), line(4, key=CONV), line(2, key=RELU)])
    quarantine = Quarantine()
    import_logs(path, tmp_path / "out", "k80", quarantine, read_task=read_task)
    assert quarantine.counts == {"other_arguments": 1}
    folder = tmp_path / "out/measure_records/k80"
    (theirs_now,) = (folder / "conv2d_bias_1_8_14_14_8_3_3_1_SAME.json").read_text().splitlines()
    (ours,) = (folder / "conv2d_1_8_14_14_8_3_3_1_SAME.json").read_text().splitlines()
    assert json.loads(theirs_now)["i"][0] == json.loads(ours)["i"][0]
    assert json.loads(theirs_now)["i"][1] == json.loads(line(2, key=theirs))["i"][1]


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_tar_archive_is_refused_whole(line, tmp_path, mode):
    """Its header would cost the first record of every member."""
    (tmp_path / "a.json").write_bytes(line(4) + b"\n" + line(8) + b"\n")
    with tarfile.open(tmp_path / "logs.tar", mode) as archive:
        archive.add(tmp_path / "a.json", "a.json")
    with pytest.raises(DataError, match=r"1 archive.*tar archives are not read; unpack them"):
        import_logs(tmp_path / "logs.tar", tmp_path / "out", "k80", Quarantine())


def test_devices_are_counted_and_apart(write, line, tmp_path):
    """By target and by hardware parameters: of each the same program has a latency of its own."""
    one, other = json.loads(line(2)), json.loads(line(2, target="llvm"))
    other["i"][0][2] = [32, *one["i"][0][2][1:]]
    more = json.loads(line(2, target="llvm"))
    more["i"][0][2] = [8, *one["i"][0][2][1:]]
    logs = write("a.json", [line(2), line(8), *(json.dumps(n).encode() for n in (other, more))])
    result = import_logs(logs, tmp_path / "out", "k80", Quarantine())
    assert sorted(result.devices.values()) == [1, 1, 2]
    assert result.devices["llvm", tuple(other["i"][0][2])] == 1
    assert (result.records, result.tasks) == (4, 3)
    tasks = list(RecordRoot(tmp_path / "out").read(Quarantine()))
    assert len({task.key for task in tasks}) == len(tasks) == 3


AUTOTVM = (
    {"i": ["opencl", "topi_nn_conv2d", [], {}, None, {}], "r": [[1], 0, 1, 1], "v": 0.1},
    {"input": ["rocm", "conv2d", [], {}], "config": {}, "result": [[1], 0, 1, 1]},
)


def array(line, indent):
    return json.dumps([json.loads(line(n)) for n in (2, 4)], indent=indent).encode().splitlines()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ([b"# hello"], r"no usable record in 1 files.*1 malformed_json"),
        (
            [b"# tuned", *[json.dumps(AUTOTVM[0]).encode()] * 3],
            r"3 autotvm, 1 malformed_json\); 3 lines are AutoTVM's",
        ),
        ([json.dumps(AUTOTVM[1]).encode()] * 3, r"3 autotvm\); 3 lines are AutoTVM's"),
        (lambda line: array(line, None), r"a\.log is a JSON array; write one record a line: jq"),
        (lambda line: array(line, 1), r"a\.log is a JSON array; write one record a line: jq"),
        ([b"PK\x03\x04\x14\0 a.json"], "a.log is a zip archive; unpack it"),
        ([b"BZh91AY&SY"], "a.log is packed by bzip2; unpack it, or pack it by gzip, xz or zstd"),
        ([b"version https://git-lfs.github.com/spec/v1"], "a.log is a pointer of Git LFS; fetch"),
        ([b"\x80\x04\x95\x10"], "a.log is a pickle of Python, which may run code; write"),
        ([b"<!DOCTYPE html>"], "a.log is a page of the web; fetch the file itself"),
        (
            lambda line: [line(2).replace(b'["PR"', b'["PPT"],["PR"')],
            "1 unknown_step.*steps that Ansor does not have",
        ),
        (
            lambda line: [line(2, costs=[0]), line(4, costs=[])],
            r"2 bad_cost\); its programs were not measured",
        ),
    ],
)
def test_unusable_files_are_told_with_the_way_out(write, line, tmp_path, content, told):
    logs = write("a.log", content(line) if callable(content) else content)
    with pytest.raises(DataError, match=told) as error:
        import_logs(logs, tmp_path / "out", "k80", Quarantine())
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out/measure_records/k80").exists()
