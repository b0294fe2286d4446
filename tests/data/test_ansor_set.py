"""The Ansor set obeys the record format and holds what its card promises."""

import gzip
import json
import math

import pytest

from pruner.data.quarantine import Quarantine
from pruner.data.tasks import read_tasks
from pruner.data.workload import fused_from_name, parse_workload
from pruner.tune.measure.targets import CPU_TARGETS
from tests.checksums import assert_checksums
from tests.paths import REPOSITORY

RECORDS = REPOSITORY / "datasets" / "ansor" / "measure_records"
TASKS = [path.name.removesuffix(".json.gz") for path in sorted(RECORDS.glob("cpu-avx2/*.json.gz"))]
PAIRS = [(target, task) for target in CPU_TARGETS for task in TASKS]
PAIRED = pytest.mark.parametrize(
    ("target", "task"), PAIRS, ids=lambda value: getattr(value, "platform", value)
)


@pytest.fixture(scope="module")
def ansor(repository):
    return repository / "datasets" / "ansor"


@pytest.fixture(scope="module")
def records(ansor):
    found = {}
    for path in sorted((ansor / "measure_records").glob("*/*.json.gz")):
        platform, task = path.parent.name, path.name.removesuffix(".json.gz")
        lines = gzip.decompress(path.read_bytes()).splitlines()
        origins = json.loads((ansor / "origin" / platform / f"{task}.json").read_text())
        found[platform, task] = [
            (json.loads(line), origin) for line, origin in zip(lines, origins, strict=True)
        ]
    return found


def test_every_task_is_there_on_every_target(records):
    assert len(TASKS) == 15
    assert set(records) == {(target.platform, task) for target, task in PAIRS}


@PAIRED
def test_records_are_ansor_records_of_their_task(records, target, task):
    for record, _ in records[target.platform, task]:
        assert list(record) == ["i", "r", "v"]
        (key, target_text, hardware, host, layout_rewrite, inputs), (empty, steps) = record["i"]
        assert parse_workload(key).file_stem(fused_from_name(task)) == task
        assert f"-mcpu={target.processor}" in target_text
        assert hardware == [target.cores, target.vector_bytes, 64, 0, 0, 0, 0, 0]
        assert (host, inputs, empty) == ("", [], [])
        assert layout_rewrite == 0
        assert all(isinstance(step[0], str) for step in steps)
        costs, error_no, all_cost_s, timestamp = record["r"]
        assert record["v"] == "v0.6"
        assert timestamp > 0
        assert all_cost_s > 0
        if error_no == 0:
            assert len(costs) == 5
            assert all(math.isfinite(cost) and 1e-7 < cost < 1 for cost in costs)


def test_our_reader_takes_every_line(ansor, records):
    quarantine = Quarantine()
    lines = sum(
        len(task)
        for path in (ansor / "measure_records").glob("*/*.json.gz")
        for task in read_tasks(path, quarantine)
    )
    assert lines == sum(len(rows) for rows in records.values())


def test_checksums_hold_and_cover_every_file(ansor):
    assert_checksums(ansor)
