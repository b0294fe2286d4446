"""The Ansor set obeys the record format and holds what its card promises."""

import gzip
import json
import math
from collections import Counter

import pytest

from pruner.data.quarantine import Quarantine
from pruner.data.tasks import read_tasks
from pruner.data.workload import fused_from_name, parse_workload
from pruner.tune.measure.targets import CPU_TARGETS
from tests.checksums import assert_checksums
from tests.paths import REPOSITORY

MIN_VALID = 48
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


def valid_latencies(rows, origin=None):
    return [
        sum(record["r"][0]) / len(record["r"][0])
        for record, source in rows
        if record["r"][1] == 0 and origin in (None, source)
    ]


def test_every_task_is_there_on_every_target(records):
    assert len(TASKS) == 15
    assert set(records) == {(target.platform, task) for target, task in PAIRS}


@pytest.mark.parametrize(
    ("target", "task"), PAIRS, ids=lambda value: getattr(value, "platform", value)
)
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


@pytest.mark.parametrize(
    ("target", "task"), PAIRS, ids=lambda value: getattr(value, "platform", value)
)
def test_half_of_the_valid_records_is_random_and_half_evolved(records, target, task):
    rows = records[target.platform, task]
    valid = Counter(origin for record, origin in rows if record["r"][1] == 0)
    assert sum(valid.values()) >= MIN_VALID
    assert valid["random"] == valid["evolved"]
    programs = {json.dumps(record["i"][1][1]) for record, _ in rows}
    assert len(programs) == len(rows), "a program stands twice"


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


def test_wider_vectors_and_a_second_core_make_compute_bound_tasks_faster(records):
    for task in ("matmul_128_128_128", "matmul_256_256_256", "conv2d_1_64_28_28_64_3_3_1_SAME"):
        best = [min(valid_latencies(records[target.platform, task])) for target in CPU_TARGETS]
        assert best == sorted(best, reverse=True), task
        assert best[0] > 2 * best[2], task  # 1 core of 4 lanes against 2 cores of 16 lanes


def test_evolution_found_better_programs_than_sampling(records):
    pairs = [
        (min(valid_latencies(rows, "evolved")), min(valid_latencies(rows, "random")))
        for rows in records.values()
    ]
    assert sum(evolved < random for evolved, random in pairs) > 0.7 * len(pairs)
    assert math.exp(sum(math.log(e / r) for e, r in pairs) / len(pairs)) < 0.95
