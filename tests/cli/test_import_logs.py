import gzip
from itertools import islice

import pytest

from pruner import features
from pruner.data.quarantine import Quarantine
from pruner.data.root import RecordRoot

RECORD = (
    '{"i": [["[\\"matmul_layer\\", 16, 64, 64]", "llvm", [4, 64, 64, 0, 0, 0, 0, 0], "", 0, []], '
    '[[], [["SP", 2, 0, 16, [%d], 1]]]], "r": [[%s], 0, 1.0, 1700000000], "v": "v0.6"}\n'
)


@pytest.fixture
def call(door):
    return lambda *arguments: door("import_logs", *arguments)


@pytest.fixture
def logs(tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    lines = [RECORD % (2, 0.1), RECORD % (4, 0.2), RECORD % (4, 0.2), RECORD % (8, "NaN"), "{\n"]
    (folder / "any name.log").write_text("".join(lines))
    return folder


def test_the_last_line_is_one_json_object(call, logs, tmp_path):
    found, _ = call(f"logs={logs}", "out=data", "platform=v100").done
    assert found.pop("seconds") >= 0
    assert found == {
        "records": 2,
        "failed": 0,
        "tasks": 1,
        "files": 1,
        "quarantined": {"duplicate": 1, "bad_cost": 1, "malformed_json": 1},
        "report": "data/quarantine-v100.jsonl",
        "out": "data/measure_records/v100",
    }
    records = (tmp_path / "data/measure_records/v100/matmul_16_64_64.json").read_text()
    assert records == RECORD % (2, 0.1) + RECORD % (4, 0.2)
    assert len((tmp_path / "data/quarantine-v100.jsonl").read_text().splitlines()) == 3
    # nothing but the two is left behind
    assert {path.name for path in tmp_path.iterdir()} == {"logs", "data"}
    assert "exists and is left alone" in call(f"logs={logs}", "out=data", "platform=v100").refusal


def test_fused_convolutions_are_told_apart_and_can_be_replayed(call, repository, tmp_path):
    """Under a name that says nothing; a plain convolution would not fit their steps. Of each file
    32 records."""
    folder = repository / "datasets/ansor/measure_records/cpu-avx2"
    names = [path.name.removesuffix(".json.gz") for path in sorted(folder.glob("*conv2d*"))]
    lines = []
    for name in names:
        with gzip.open(folder / f"{name}.json.gz") as file:
            lines += islice(file, 32)
    (tmp_path / "network.log").write_bytes(b"".join(lines))
    _, err = call("logs=network.log", "out=data", "platform=cpu-avx2").done
    assert "description" not in err
    tasks = list(RecordRoot(tmp_path / "data").read(Quarantine()))
    assert sorted(task.key.task for task in tasks) == names
    assert sum("_add" in name for name in names) == 3
    for task in tasks:
        ran = task.select(task.valid)
        found = features.featurize_records(ran.workload_key, ran.fused, ran.steps)
        assert found.valid.all(), (task.key.task, found.failures)


def test_a_platform_that_nobody_described_is_told(call, logs):
    code, _, err = call(f"logs={logs}", "out=data", "platform=rtx4080")
    assert code == 0
    assert "copy the nearest of conf/platform/*.yaml to conf/platform/rtx4080.yaml" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "missing logs= out= platform=; use: pruner import_logs"),
        (["logs=nowhere", "out=data", "platform=a"], "logs=nowhere: no such file or folder"),
        (["logs=logs", "out=data", "platform=a", "compress=rar"], "use none or gz"),
        (["logs=logs", "output=data", "platform=a"], "output is unknown; did you mean out?"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(call, logs, arguments, message):
    err = call(*arguments).refusal
    (told,) = err.splitlines()  # and nothing on stdout
    assert message in told
