"""Damaged records: each costs itself, with a reason; none ends a run, none takes long."""

import json
import multiprocessing
import os
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pruner import features
from pruner.data.parse import LineParser
from pruner.data.quarantine import MalformedError
from pruner.errors import UnsupportedProgram
from pruner.program.replay import definitions_of
from pruner.program.tir.saved import FOLDER
from tests.attack.lines import (
    MAX_LINE_S,
    Verdict,
    attacked_file,
    good_lines,
    least_s,
    verdicts,
)
from tests.attack.mutations import MUTATIONS, OF_TRACES, damaged
from tests.attack.sizes import LINES
from tests.paths import REPOSITORY
from tests.program.tir.test_saved import DECISIONS, location_space

FILE_S = 900.0  # for the lines of one file, on a busy machine
MAX_BYTES = 1 << 30
ANSOR = REPOSITORY / "datasets/ansor/measure_records"
GOOD = good_lines(ANSOR / "cpu-avx2/conv2d_1_64_28_28_64_3_3_1_SAME.json.gz")


def assert_counted_once(path, good, bad, tasks=None):
    path.write_bytes(b"".join(line + b"\n" for line in [*good, *bad]))
    valid, failed, aside = verdicts(path, tasks)
    assert valid + failed + aside.total() == len(good) + len(bad)
    assert valid >= len(good)
    assert not aside["bad_line"]
    return failed


@pytest.mark.parametrize("task", ["matmul_128_128_128", "conv2d_1_64_28_28_64_3_3_1_SAME"])
def test_every_damaged_line_of_a_file_is_counted_once(task, tmp_path, record_property):
    good = good_lines(ANSOR / f"cpu-avx2/{task}.json.gz", 10)
    bad = [line for _, line in damaged(good, 8 * len(MUTATIONS), seed=1)]
    record_property("tried", len(bad))
    assert_counted_once(tmp_path / f"{task}.json", good, bad)


def assert_judged(line, tasks=None):
    """And what is taken for a record is replayed, or has a reason for that, too."""

    def judged():
        with suppress(MalformedError, UnsupportedProgram):
            parsed = LineParser().parse(line.replace(b"\n", b" "))
            key = parsed.header.workload_key
            found = features.featurize_records(key, (), [parsed.steps], tasks=tasks)
            assert found.valid[0] != (0 in found.failures)

    assert least_s(judged) < MAX_LINE_S


@given(kind=st.sampled_from(sorted(MUTATIONS)), random=st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_a_line_is_a_record_or_has_a_reason(kind, random):
    assert_judged(MUTATIONS[kind](json.loads(random.choice(GOOD)), random))


def test_lines_that_are_slow_by_their_size_are_refused_at_once():
    """Twenty kilobytes took 4 s, two megabytes never ended."""
    for lengths in ([1] * 10_000, [2**31] * 100_000):
        raw = json.loads(GOOD[0])
        next(step for step in raw["i"][1][1] if step[0] == "SP")[4] = lengths
        line = json.dumps(raw).encode()

        def refused(line=line):
            with pytest.raises(MalformedError):
                LineParser().parse(line)

        assert least_s(refused) < MAX_LINE_S


def _attacked(job: tuple[Path, int, int]) -> Verdict:
    return attacked_file(*job)


@pytest.mark.slow
def test_fifty_thousand_damaged_lines(record_property, log):
    """No traceback, exact counts, no line over 0.2 s, less than 1 GB in each process."""
    files = sorted(ANSOR.rglob("*.json.gz"))
    each = -(-LINES // len(files))
    wrong, slowest_s, peak_bytes, lines = Counter[str](), 0.0, 0, 0
    jobs = [(file, each, seed) for seed, file in enumerate(files)]
    spawn = multiprocessing.get_context("spawn")
    # An executor with max_tasks_per_child stops for ever once all its processes have done theirs.
    with spawn.Pool(os.cpu_count(), maxtasksperchild=8) as pool:
        results = pool.imap_unordered(_attacked, jobs)
        for _ in jobs:
            found = results.next(timeout=FILE_S)  # none of a process that a line has killed
            lines, wrong = lines + found.lines, wrong + found.wrong
            slowest_s = max(slowest_s, found.slowest_s)
            peak_bytes = max(peak_bytes, found.peak_bytes)
            record_property("tried", lines)
            record_property("failed", wrong.total())
            log(f"{lines} of {each * len(files)} lines, slowest {slowest_s:.3f} s, wrong {wrong}")
    record_property("slowest_s", round(slowest_s, 3))
    record_property("peak_mb", peak_bytes >> 20)
    assert not wrong
    assert peak_bytes < MAX_BYTES


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """Lines of MetaSchedule's traces, and their design spaces, read once, as by a command."""
    root = tmp_path_factory.mktemp("traces")
    location_space().save(root / FOLDER)
    (path,) = (root / FOLDER).iterdir()
    header = ['["tir_location_64"]', "llvm", [4, 64, 64, 0, 0, 0, 0, 0]]
    results = [[1.0e-5], 0, 1.0, 1700000000]
    rows = [["MS", path.name.partition(".")[0], row] for row in DECISIONS.tolist()]
    lines = [json.dumps({"i": [header, [[], [row]]], "r": results}).encode() for row in rows]
    return lines, definitions_of(root)


def test_every_damaged_line_of_traces_is_counted_once(traces, tmp_path, record_property):
    lines, spaces = traces
    good = [*dict.fromkeys(lines)]
    bad = [line for _, line in damaged(good, 8 * len(OF_TRACES), seed=1, of=OF_TRACES)]
    record_property("tried", len(bad))
    assert assert_counted_once(tmp_path / "location_64.json", good, bad, spaces) > 0


@given(kind=st.sampled_from(sorted(OF_TRACES)), random=st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_a_line_of_traces_is_a_record_or_has_a_reason(traces, kind, random):
    lines, spaces = traces
    assert_judged(OF_TRACES[kind](json.loads(random.choice(lines)), random), spaces)
