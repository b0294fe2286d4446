"""The ragged container against lists of programs, one after another."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pruner.features import DATAFLOW_COLUMNS, OFFICIAL_COLUMNS, STATEMENT_COLUMNS
from pruner.features.batch import FeatureSpec, ProgramFeatures, padded


def made(counts, seed=0):
    """Programs with the given numbers of rows; without rows: not valid, for the reason its number.

    Every number occurs once, so a row that comes from elsewhere is seen.
    """
    rng, rows = np.random.default_rng(seed), sum(counts)

    def numbers(*shape):
        return rng.permutation(int(np.prod(shape))).reshape(shape).astype(np.float32)

    return ProgramFeatures(
        statement=numbers(rows, len(STATEMENT_COLUMNS)),
        row_start=np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]),
        dataflow=numbers(len(counts), 10, len(DATAFLOW_COLUMNS)),
        workload=np.ones(10, np.float32),
        valid=np.array(counts, int) > 0,
        failures={n: f"reason-{seed}-{n}" for n, count in enumerate(counts) if not count},
        psa=numbers(rows, len(OFFICIAL_COLUMNS)),
    )


def listed(features):
    """Programs as (rows, symbols, dataflow, valid, reason)."""
    return [
        (
            features.statement[features.rows(n)].tolist(),
            features.psa[features.rows(n)].tolist(),
            features.dataflow[n].tolist(),
            bool(features.valid[n]),
            features.failures.get(n),
        )
        for n in range(len(features))
    ]


programs = st.lists(st.integers(0, 3), min_size=1, max_size=6)


@given(programs, st.data())
def test_taken_programs_are_those_of_a_list(counts, data):
    features = made(counts)
    index = data.draw(st.lists(st.integers(0, len(counts) - 1), max_size=8))
    whole = listed(features)
    assert listed(features.take(np.array(index, np.int64))) == [whole[n] for n in index]
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(counts), max_size=len(counts))))
    assert listed(features.take(mask)) == [p for p, kept in zip(whole, mask, strict=True) if kept]


@given(programs, programs)
def test_concatenated_programs_are_a_longer_list(first, second):
    a, b = made(first), made(second, seed=1)
    assert listed(ProgramFeatures.concatenate([a, b])) == listed(a) + listed(b)


@given(programs, programs, st.randoms(use_true_random=False))
def test_scattered_programs_stand_where_they_were_put(first, second, random):
    parts = [made(first), made(second, seed=1)]
    num = len(first) + len(second) + 2
    places = random.sample(range(num), num)
    where = [np.array(places[: len(first)]), np.array(places[len(first) : num - 2])]
    empty = ProgramFeatures.empty(num, FeatureSpec(psa=True), failures={places[-1]: "known before"})
    found = listed(empty.scatter(list(zip(where, parts, strict=True))))
    for at, part in zip(where, parts, strict=True):
        assert [found[n] for n in at] == listed(part)
    for place, reason in zip(places[-2:], (None, "known before"), strict=True):
        rows, symbols, dataflow, valid, told = found[place]
        assert (rows, symbols, valid, told) == ([], [], False, reason)
        assert not np.any(dataflow)


def test_padding_puts_zeros_behind_a_programs_rows():
    values = np.arange(1, 7, dtype=np.float32).reshape(3, 2)
    found = padded(values, np.array([0, 1, 1, 3]), 2)
    assert found.tolist() == [[[1, 2], [0, 0]], [[0, 0], [0, 0]], [[3, 4], [5, 6]]]


def test_lengths_that_do_not_belong_together_are_refused():
    from dataclasses import replace

    features = made([2, 1])
    with pytest.raises(Exception, match=r"row_start|boundary|program"):
        replace(features, valid=np.ones(3, bool))
    with pytest.raises(ValueError, match="its last entry 2 instead of 3"):
        replace(features, row_start=np.array([0, 1, 2]))
    with pytest.raises(ValueError, match="columns 5 instead of"):
        replace(features, statement=features.statement[:, :5])
