"""Damaged records: each costs itself, with a reason; none ends a run, none takes long."""

import gzip
import json
import resource
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pruner import features
from pruner.data.parse import LineParser
from pruner.data.quarantine import MalformedError, Quarantine
from pruner.data.tasks import read_tasks
from pruner.errors import UnsupportedProgram
from tests.attack.mutations import MUTATIONS, damaged
from tests.places import REPOSITORY

MAX_LINE_S = 0.2
MAX_BYTES = 1 << 30
TRIED = 50_000


BUNDLED = REPOSITORY / "datasets/bundled/measure_records"


def good_lines(path: Path, number: int = 40) -> list[bytes]:
    return gzip.decompress(path.read_bytes()).splitlines()[:number]


GOOD = good_lines(BUNDLED / "cpu-avx2/conv2d_1_64_28_28_64_3_3_1_SAME.json.gz")


def verdicts(path: Path) -> tuple[int, int, Counter[str]]:
    """(programs with features, programs without, lines set aside by reason) of a record file."""
    quarantine, valid, failed = Quarantine(), 0, 0
    for task in read_tasks(path, quarantine, duplicates="keep"):
        try:
            found = features.featurize_records(task.workload_key, task.fused, task.steps)
        except UnsupportedProgram:
            failed += len(task)
            continue
        valid, failed = valid + int(found.valid.sum()), failed + len(found.failures)
        assert np.isfinite(found.statement).all()
        assert np.isfinite(found.dataflow).all()
    return valid, failed, quarantine.counts


@pytest.mark.parametrize("task", ["matmul_128_128_128", "conv2d_1_64_28_28_64_3_3_1_SAME"])
def test_every_damaged_line_of_a_file_is_counted_once(task, tmp_path, record_property):
    good = good_lines(BUNDLED / f"cpu-avx2/{task}.json.gz", 10)
    bad = [line for _, line in damaged(good, 8 * len(MUTATIONS), seed=1)]
    path = tmp_path / f"{task}.json"
    path.write_bytes(b"".join(line + b"\n" for line in [*good, *bad]))
    record_property("tried", len(bad))
    valid, failed, aside = verdicts(path)
    assert valid + failed + aside.total() == len(good) + len(bad)
    assert valid >= len(good)
    assert not aside["bad_line"]


@given(kind=st.sampled_from(sorted(MUTATIONS)), random=st.randoms(use_true_random=False))
@settings(max_examples=300, deadline=None)
def test_a_line_is_a_record_or_has_a_reason(kind, random):
    """And what is taken for a record is replayed, or has a reason for that, too."""
    line = MUTATIONS[kind](json.loads(random.choice(GOOD)), random).replace(b"\n", b" ")
    start = time.process_time()
    with suppress(MalformedError, UnsupportedProgram):
        parsed = LineParser().parse(line)
        found = features.featurize_records(parsed.header.workload_key, (), [parsed.steps])
        assert found.valid[0] != (0 in found.failures)
    assert time.process_time() - start < MAX_LINE_S


def test_lines_that_are_slow_by_their_size_are_refused_at_once():
    """Twenty kilobytes took 4 s, two megabytes never ended."""
    for lengths in ([1] * 10_000, [2**31] * 100_000):
        raw = json.loads(GOOD[0])
        next(step for step in raw["i"][1][1] if step[0] == "SP")[4] = lengths
        start = time.process_time()
        with pytest.raises(MalformedError):
            LineParser().parse(json.dumps(raw).encode())
        assert time.process_time() - start < MAX_LINE_S


@pytest.mark.slow
def test_fifty_thousand_damaged_lines(tmp_path, record_property):
    """No traceback, exact counts, no line over 0.2 s of this process, bounded memory."""
    files = sorted(BUNDLED.rglob("*.json.gz"))
    slowest, wrong = 0.0, Counter[str]()
    each = -(-TRIED // len(files))
    record_property("tried", each * len(files))
    for number, file in enumerate(files):
        path = tmp_path / file.name.removesuffix(".gz")
        alone = Counter[str]()
        lines = [line for _, line in damaged(good_lines(file), each, seed=number)]
        for line in lines:
            path.write_bytes(line + b"\n")
            start = time.process_time()
            valid, failed, aside = verdicts(path)
            slowest = max(slowest, time.process_time() - start)
            alone += Counter(valid=valid, failed=failed, aside=aside.total())
            wrong["counts"] += valid + failed + aside.total() != 1
            wrong["bad_line"] += aside["bad_line"]
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        valid, failed, aside = verdicts(path)
        wrong["together"] += Counter(valid=valid, failed=failed, aside=aside.total()) != alone
    record_property("failed", wrong.total())
    record_property("slowest_s", round(slowest, 3))
    assert not +wrong
    assert slowest < MAX_LINE_S
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 < MAX_BYTES
