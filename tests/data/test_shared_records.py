"""The public GPU records against the table that came with them; the Ansor set by its card."""

import csv
import gzip
import json
import math
from collections import Counter

import numpy as np
import pytest

from pruner.data.frozen import FrozenSplit
from pruner.data.quarantine import Quarantine
from pruner.data.root import RecordRoot
from pruner.data.splits import SIDES, make_split
from pruner.data.tasks import read_tasks
from pruner.data.workload import fused_from_name, parse_workload
from pruner.tune.measure.targets import CPU_TARGETS
from tests.checksums import assert_checksums
from tests.paths import REPOSITORY


@pytest.fixture(scope="module")
def gpu_records(shared):
    path = shared / "data" / "gpu-records"
    if not (path / "tasks.csv").is_file():
        pytest.skip("the public GPU logs are absent: no ../shared/data/gpu-records")
    return path


def read(folder):
    files = {}
    quarantine = Quarantine()
    for task in RecordRoot(folder).read(quarantine, duplicates="keep"):
        parts = files.setdefault((task.key.platform, task.key.task), [])
        programs = Counter(task.digest.tolist())
        repeated = sum(count - 1 for count in programs.values())
        parts.append((task.key, task.latency_s, repeated))
    return files, quarantine


@pytest.fixture(scope="module")
def read_once(gpu_records):
    return read(gpu_records)


def test_some_files_match_the_table(gpu_records, tmp_path):
    for file in RecordRoot(gpu_records).task_files()[::24]:
        place = tmp_path / "measure_records" / file.platform
        place.mkdir(parents=True, exist_ok=True)
        (place / file.path.name).symlink_to(file.path)
    files, quarantine = read(tmp_path)
    assert quarantine.counts == {}
    assert len(files) == 15
    with (gpu_records / "tasks.csv").open() as handle:
        assert_rows(files, [row for row in csv.DictReader(handle) if name_of(row) in files])


@pytest.mark.slow
def test_every_line_of_every_file_is_a_record(read_once):
    files, quarantine = read_once
    assert quarantine.counts == {}
    assert len(files) == 360
    assert sum(len(latency_s) for parts in files.values() for _, latency_s, _ in parts) == 289_839


@pytest.mark.slow
def test_counts_best_latency_and_fusion_match_the_table(read_once, gpu_records):
    files, _ = read_once
    with (gpu_records / "tasks.csv").open() as handle:
        assert_rows(files, list(csv.DictReader(handle)))


def name_of(row):
    return row["platform"], row["file"].rsplit("/", 1)[-1].removesuffix(".json.gz")


def assert_rows(files, rows):
    assert len(rows) == len(files)
    for row in rows:
        parts = files[name_of(row)]
        latency_s = np.concatenate([part[1] for part in parts])
        ran_s = latency_s[np.isfinite(latency_s)]
        assert len(latency_s) == int(row["records"]), row
        assert len(ran_s) == int(row["valid"]), row
        if len(ran_s):
            assert ran_s.min() == pytest.approx(float(row["best_s"]), rel=1e-5), row
            middle_s = np.sort(ran_s)[len(ran_s) // 2]  # the upper one of an even number
            assert middle_s == pytest.approx(float(row["median_s"]), rel=1e-5), row
        for key, _, _ in parts:
            assert "_".join(key.fused) == row["fused"], row
            assert key.workload.op == row["op"], row
            assert json.dumps(key.workload.args) == json.dumps(json.loads(row["args"])), row


@pytest.mark.slow
def test_tasks_of_two_campaigns_are_not_pooled(read_once):
    """Six files hold two target texts; in the A100 folder, 20 records are of another GPU."""
    files, _ = read_once
    mixed = {name: parts for name, parts in files.items() if len(parts) > 1}
    assert Counter(platform for platform, _ in mixed) == {"a100": 2, "v100": 4}
    assert all(len(parts) == 2 for parts in mixed.values())
    strangers = [
        latency_s
        for (platform, _), parts in mixed.items()
        for key, latency_s, _ in parts
        if platform == "a100" and "sm_75" in key.target
    ]
    assert [len(latency_s) for latency_s in strangers] == [10, 10]


@pytest.mark.slow
def test_repeated_programs(read_once):
    """Found once by comparing the raw step texts: 897 + 70 on A100, 440 on K80."""
    repeated = Counter()
    for (platform, _), parts in read_once[0].items():
        repeated[platform] += sum(part[2] for part in parts)
    assert repeated == {"a100": 967, "k80": 440, "mi50": 0, "v100": 0}


@pytest.fixture(scope="module")
def keys(read_once):
    return [key for parts in read_once[0].values() for key, _, _ in parts]


@pytest.mark.slow
def test_the_same_work_is_found_across_padding_spellings(keys):
    on = {name: {key.identity for key in keys if key.platform == name} for name in ("k80", "mi50")}
    on["v100"] = {key.identity for key in keys if key.platform == "v100"}
    assert on["k80"] <= on["v100"]
    # MI50 writes integers. Two of its convolutions ran without the padding that the others had.
    assert len(on["mi50"]) == 101
    assert on["mi50"] - on["v100"] == {
        '["conv2d_layer",128,256,14,14,256,3,3,1,[0,0,0,0]]',
        '["conv2d_layer",128,64,56,56,64,3,3,1,[0,0,0,0]]',
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_frozen_splits_cover_all_and_test_every_platform(keys, seed):
    split = make_split("by_task", keys, seed)
    assert sum(len(split.side(side)) for side in SIDES) == len(keys) == 366
    frozen = FrozenSplit.load("by_task", seed)
    assert {key.identity for key in keys} == set(frozen.sides)
    for platform in ("k80", "mi50", "v100", "a100"):
        here = {key.identity for key in keys if key.platform == platform}
        held_out = here & set(frozen.test)
        assert 0.1 <= len(held_out) / len(here) <= 0.3


@pytest.mark.slow
def test_platforms_are_judged_on_work_unseen_anywhere(keys):
    for platform in ("k80", "mi50", "v100", "a100"):
        split = make_split("by_platform", keys, held_out=[platform])
        seen = {key.identity for key in split.train + split.valid}
        assert split.test
        assert not seen & {key.identity for key in split.test}


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


@PAIRED
def test_half_of_the_valid_records_is_random_and_half_evolved(records, target, task):
    rows = records[target.platform, task]
    valid = Counter(origin for record, origin in rows if record["r"][1] == 0)
    assert sum(valid.values()) >= 48
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
