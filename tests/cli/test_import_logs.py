import json
import os
import subprocess
import sys

import pytest

RECORD = (
    '{"i": [["[\\"matmul_layer\\", 16, 64, 64]", "llvm", [4, 64, 64, 0, 0, 0, 0, 0], "", 0, []], '
    '[[], [["SP", 2, 0, 16, [%d], 1]]]], "r": [[%s], 0, 1.0, 1700000000], "v": "v0.6"}\n'
)


@pytest.fixture
def call(repository, tmp_path):
    def run(*arguments):
        return subprocess.run(
            [sys.executable, str(repository / "import_logs.py"), *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(repository)},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.fixture
def logs(tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    lines = [RECORD % (2, 0.1), RECORD % (4, 0.2), RECORD % (4, 0.2), RECORD % (8, "NaN"), "{\n"]
    (folder / "any name.log").write_text("".join(lines))
    return folder


def test_the_last_line_is_one_json_object(call, logs, tmp_path):
    result = call(f"logs={logs}", "out=data", "platform=v100")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
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
    again = call(f"logs={logs}", "out=data", "platform=v100")
    assert again.returncode == 2
    assert "exists and is left alone" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "missing logs= out= platform=; use: python import_logs.py"),
        (["logs=nowhere", "out=data", "platform=a"], "logs=nowhere: no such file or folder"),
        (["logs=logs", "out=data", "platform=a", "compress=rar"], "use none or gz"),
        (["logs=logs", "output=data", "platform=a"], "'output'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(call, logs, arguments, message):
    result = call(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    (told,) = result.stderr.splitlines()
    assert message in told


def test_help_shows_the_command_and_every_option(call):
    text = call("--help").stdout
    assert "python import_logs.py logs=DIR out=DIR platform=NAME" in text
    for option in ("logs:", "out:", "platform:", "compress:", "report:"):
        assert option in text
