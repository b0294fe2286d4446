"""Helpers on arrays of programs: the same whether programs agree or not, few or many."""

import numpy as np
import pytest

from pruner.features.statement.array_helpers import each_level, first_row, pick_row


@pytest.mark.parametrize("num", [1, 3, 300])
def test_the_first_row_is_the_first_true_one(num):
    mask = np.random.default_rng(0).random((2, 4, num)) < 0.3
    mask[:, :, 0] = [[False, True, True, False], [False] * 4]
    found = first_row(mask)
    for access in range(2):
        for n in range(num):
            rows = [row for row in range(4) if mask[access, row, n]]
            assert found[access, n] == (rows[0] if rows else 4)
    assert found[:, 0].tolist() == [1, 4]
    assert first_row(mask[0]).tolist() == found[0].tolist()
    assert first_row(mask[:, :0]).tolist() == [[0] * num] * 2


@pytest.mark.parametrize("places", [[2, 2, 2], [1, 3, 2], [0, 3, 3]])
def test_programs_take_the_value_of_their_row(places):
    rows = [np.array([10.0, 20.0, 30.0]) + row for row in range(4)]
    expected = [10 * (n + 1) + place for n, place in enumerate(places)]
    for given in (rows, np.array(rows)):
        assert pick_row(given, np.array(places)).tolist() == expected


def test_levels_with_the_very_same_values_are_computed_once():
    asked = []
    one, other = np.array([1, 2]), np.array([1, 2])

    def total(a, b):
        asked.append(1)
        return a + b

    found = each_level(total, [one, one, other, other], [one, one, one, one])
    assert [x.tolist() for x in found] == [[2, 4]] * 4
    assert found[0] is found[1]
    assert found[1] is not found[2]
    assert len(asked) == 2
    assert each_level(total) == []
