"""Damaged lines through whole commands: each is told with file, line and reason, and they go on."""

import json
from pathlib import Path

import pytest

from pruner.cli.shared.door import run_door
from pruner.data.quarantine import read_report
from tests.attack.lines import good_lines
from tests.paths import REPOSITORY

PLATFORM = "cpu-avx2"
RECORDS = REPOSITORY / "datasets/ansor/measure_records" / PLATFORM
TASKS = ("matmul_128_128_128", "matmul_256_256_256")
GOOD = 50


def nine(good: bytes) -> list[bytes]:
    """One line of each kind that once ended a command, or was believed; the last is a record whose
    program contradicts itself."""

    def steps(change):
        raw = json.loads(good)
        change(raw["i"][1][1])
        return json.dumps(raw).encode()

    def halved(found):
        next(step for step in found if step[0] == "SP")[3] //= 2

    return [
        good[:-20],
        b"[" * 100_000,
        b"\xff\xfe" + good,
        good.replace(b'"r": [[', b'"r": [[NaN, '),
        good.replace(b'"r": ', b'"r": [[0.1], 0, 1, 1], "r": '),
        steps(lambda found: found.insert(0, ["XX", 1, 2])),
        steps(lambda found: found.insert(0, ["SP", 2, 0, 2**65, [1], 1])),
        steps(lambda found: found.insert(0, ["SP", 2, 0, 128, [1] * 10_000, 1])),
        steps(halved),
    ]


@pytest.fixture
def root(tmp_path):
    """Two tasks; in the first the bad lines are the last nine."""
    folder = tmp_path / "records/measure_records" / PLATFORM
    folder.mkdir(parents=True)
    for task in TASKS:
        good = good_lines(RECORDS / f"{task}.json.gz", GOOD)
        bad = nine(good[0]) if task == TASKS[0] else []
        (folder / f"{task}.json").write_bytes(b"".join(line + b"\n" for line in [*good, *bad]))
    return folder.parents[1]


@pytest.fixture
def door(monkeypatch, capsys, tmp_path):
    def run(name, *arguments):
        monkeypatch.chdir(tmp_path)
        run_door(name, [*map(str, arguments)])
        return json.loads(capsys.readouterr().out.strip().splitlines()[-1])

    return run


def told(report: Path) -> list[tuple[str, int]]:
    """(file name, line) of every entry, each of which has a reason."""
    entries = read_report(report)
    assert all(entry.reason for entry in entries)
    assert "bad_line" not in {entry.reason for entry in entries}
    return sorted((Path(entry.file).name, entry.line) for entry in entries)


def test_nine_bad_lines_cost_themselves_at_every_door(door, root, tmp_path, record_property):
    first = f"{TASKS[0]}.json"
    bad = [(first, GOOD + number) for number in range(9)]
    record_property("tried", 5 * len(bad))
    data = f"data.root={root}", f"data.platform={PLATFORM}"

    logs = root / "measure_records" / PLATFORM
    imported = door("import_logs", f"logs={logs}", "out=imported", f"platform={PLATFORM}")
    assert imported["records"] == 2 * GOOD + 1  # nothing is replayed here
    assert told(tmp_path / imported["report"]) == bad[:8]

    written = door("featurize", *data, "out=features", "num_workers=1")
    assert (written["programs"], written["failed"]) == (2 * GOOD + 1, 1)
    assert told(tmp_path / f"features/{PLATFORM}/{TASKS[0]}.quarantine.jsonl") == bad

    trained = door(
        "train", *data, f"platform={PLATFORM}", "model=tensetmlp", "split=within_task",
        "trainer.max_epochs=1", "logger=csv", "min_programs=1",
    )  # fmt: skip
    run = tmp_path / trained["run_dir"]
    assert told(run / "quarantine.jsonl") == bad

    judged = door("evaluate", *data, f"platform={PLATFORM}", f"checkpoint={run}", "tasks=all")
    assert told(tmp_path / judged["run_dir"] / "quarantine.jsonl") == bad

    scored = door("predict", *data, f"platform={PLATFORM}", f"checkpoint={run}")
    assert (scored["num_programs"], scored["num_without_score"]) == (2 * GOOD + 1, 1)
    assert told(tmp_path / scored["run_dir"] / "quarantine.jsonl") == bad
