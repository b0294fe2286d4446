"""What spaces have in common, against brute force."""

import numpy as np

from pruner.search.space import RowKeys, divisors, unique_rows


def test_divisors_by_brute_force():
    assert divisors(360).tolist() == [d for d in range(1, 361) if 360 % d == 0]


def test_unique_rows_keep_the_first_of_each():
    rows = np.random.default_rng(4).integers(0, 5, (500, 3))
    places = unique_rows(RowKeys(3)(rows))
    first = [n for n, row in enumerate(rows.tolist()) if row not in rows[:n].tolist()]
    assert places.tolist() == first
