"""Pools of recorded programs: what the analyzer does not know is told."""

import numpy as np
import pytest

from pruner.data.quarantine import Quarantine
from pruner.data.tasks import read_tasks
from pruner.models.analyzer.analyzer import load_analyzer
from pruner.search.offline.recorded import recorded_task, table
from tests.paths import CONF, DATASETS


@pytest.fixture(scope="module")
def records():
    folder = DATASETS / "ansor/measure_records/cpu-avx2"
    path = folder / "conv2d_1_64_28_28_64_3_3_1_SAME.json.gz"
    return read_tasks(path, Quarantine())[0]


class Ignorant:
    """An analyzer that knows the first programs alone."""

    def __init__(self, known):
        self.known = known

    def score_steps(self, dag, steps):
        return np.where(np.arange(len(steps)) < self.known, np.arange(len(steps)), -np.inf)


def test_a_pool_without_a_draft_is_told_by_name(records, caplog):
    pool = recorded_task(records, analyzer=Ignorant(0))
    assert pool.draft is None
    (line,) = caplog.messages
    assert records.key.task in line
    assert "the analyzer scores none of its programs; no draft" in line


def test_unknown_programs_are_ranked_last_and_counted(records, caplog):
    pool = recorded_task(records, analyzer=Ignorant(5))
    assert (pool.draft[5:] < pool.draft[:5].min()).all()
    assert f"{len(pool) - 5} of {len(pool)} programs" in caplog.text


def test_a_pool_that_is_known_says_nothing_and_looks_scores_up_by_row(records, caplog):
    pool = recorded_task(records, analyzer=load_analyzer(CONF, "cpu-avx2"))
    assert np.isfinite(pool.draft).all()
    rows = np.array([3, 0, 3])
    assert table(pool.space, pool.draft)(pool.space.decisions[rows]).tolist() == (
        pool.draft[rows].tolist()
    )
    assert recorded_task(records).draft is None
    assert not caplog.messages
