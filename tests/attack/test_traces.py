"""Damaged records of MetaSchedule's traces: each costs itself, with a reason, and takes no time."""

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pruner import features
from pruner.data.parse import LineParser
from pruner.data.quarantine import MalformedError
from pruner.errors import UnsupportedProgram
from pruner.program.replay import definitions_of
from pruner.program.tir.saved import FOLDER
from tests.attack.lines import MAX_LINE_S, least_s, verdicts
from tests.attack.mutations import OF_TRACES, damaged
from tests.program.tir.test_saved import DECISIONS, location_space


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    location_space().save(folder / FOLDER)
    return folder


def good_lines(root) -> list[bytes]:
    (path,) = (root / FOLDER).iterdir()
    header = ['["tir_location_64"]', "llvm", [4, 64, 64, 0, 0, 0, 0, 0]]
    results = [[1.0e-5], 0, 1.0, 1700000000]
    return [
        json.dumps({"i": [header, [[], [["MS", path.name.partition(".")[0], row]]]], "r": results})
        .encode()
        for row in DECISIONS.tolist()
    ]  # fmt: skip


def test_every_damaged_line_is_counted_once(root, tmp_path, record_property):
    good = [*dict.fromkeys(good_lines(root))]
    bad = [line for _, line in damaged(good, 8 * len(OF_TRACES), seed=1, of=OF_TRACES)]
    path = tmp_path / "location_64.json"
    path.write_bytes(b"".join(line + b"\n" for line in [*good, *bad]))
    record_property("tried", len(bad))
    valid, failed, aside = verdicts(path, definitions_of(root))
    assert valid + failed + aside.total() == len(good) + len(bad)
    assert valid >= len(good)
    assert not aside["bad_line"]
    assert failed > 0


@pytest.fixture(scope="module")
def good(root):
    return good_lines(root)


@pytest.fixture(scope="module")
def known(root):
    return definitions_of(root)


@given(kind=st.sampled_from(sorted(OF_TRACES)), random=st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_a_line_is_a_record_or_has_a_reason(good, known, kind, random):
    """And what is taken for a record is replayed, or has a reason for that, too."""
    line = OF_TRACES[kind](json.loads(random.choice(good)), random)

    def judged():
        with suppress(MalformedError, UnsupportedProgram):
            parsed = LineParser().parse(line.replace(b"\n", b" "))
            key = parsed.header.workload_key
            found = features.featurize_records(key, (), [parsed.steps], tasks=known)
            assert found.valid[0] != (0 in found.failures)

    assert least_s(judged) < MAX_LINE_S
