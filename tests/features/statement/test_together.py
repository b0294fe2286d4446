"""Stores that are measured together: rows of each nest alone, and fewer measurements."""

from dataclasses import replace

import numpy as np
import pytest

from pruner.features.batch import FeatureSpec, featurize_nests
from pruner.features.columns import WORKLOAD_COLUMNS
from pruner.features.dataflow import NUM_ROWS, cpu_rows
from pruner.features.statement.analysis import analyse, statement_features
from tests.features.cpu_nests import NESTS

FLAGS = np.zeros(len(WORKLOAD_COLUMNS), np.float32)


def featurized(nests, extra=None):
    """Rows by nest: its programs are numbered on from those before."""
    starts = np.cumsum([0, *(one.num_programs for one in nests)])
    groups = [(s + np.arange(n.num_programs), n) for s, n in zip(starts, nests, strict=False)]
    num = int(starts[-1])
    spec = FeatureSpec(extra=extra)
    return featurize_nests(groups, num, spec, workload=FLAGS, failures={}), starts


def measured(names):
    """How many analyses the stores of some nests have."""
    found = analyse([NESTS[name] for name in names], "unique")
    return len({id(analysis) for stores in found for analysis, _ in stores})


def test_rows_are_those_of_each_alone():
    found, starts = featurized(list(NESTS.values()))
    assert found.valid.all()
    for start, (name, nests) in zip(starts, NESTS.items(), strict=False):
        some = found.take(start + np.arange(nests.num_programs))
        (stores,) = analyse([nests], "unique")
        rows = statement_features(nests, stores)
        np.testing.assert_array_equal(some.statement, rows.reshape(-1, rows.shape[2]), name)
        crossings = cpu_rows(stores, nests.num_programs, NUM_ROWS["paper"])
        np.testing.assert_array_equal(some.dataflow, crossings, name)


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        (["tiles", "others", "one"], 2),  # where a product starts, and what it adds
        (["tiles", "parallel", "order"], 2),  # whatever the marks and the order of the loops
        (["stages", "larger"], 2),  # two stages, whatever their sizes
        (["stages", "sum"], 3),
        (["stages", "halves"], 4),
    ],
)
def test_stores_with_one_value_are_measured_once(names, groups):
    assert measured(names) == groups


def test_further_columns_are_of_each_program():
    def columns(nests):
        num = nests.num_programs
        return np.stack([np.arange(num), np.full(num, len(nests.stores))], 1).astype(np.float32)

    found, starts = featurized(list(NESTS.values()), lambda some: list(map(columns, some)))
    for start, nests in zip(starts, NESTS.values(), strict=False):
        some = found.extra[start : start + nests.num_programs]
        np.testing.assert_array_equal(some, columns(nests))


def test_many_programs_are_measured_by_themselves(monkeypatch):
    monkeypatch.setattr("pruner.features.batched._WIDE", 2)
    assert measured(["tiles", "others", "one"]) == 4


def test_a_nest_that_fails_costs_itself():
    good = NESTS["tiles"]
    bad = replace(good, stores=[replace(good.stores[0], slots=())])
    found, _ = featurized([good, bad])
    assert found.valid.tolist() == [True] * 3 + [False] * 3
    assert set(found.failures) == {3, 4, 5}
