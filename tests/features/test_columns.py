"""Every column has a name of its own; blocks have the original's sizes and order."""

from pruner.features import (
    DATAFLOW_COLUMNS,
    OFFICIAL_COLUMNS,
    STATEMENT_COLUMNS,
    WORKLOAD_COLUMNS,
)


def names(columns):
    return [c.name for c in columns]


def test_sizes_are_the_originals():
    sizes = [
        len(c) for c in (STATEMENT_COLUMNS, WORKLOAD_COLUMNS, DATAFLOW_COLUMNS, OFFICIAL_COLUMNS)
    ]
    assert sizes == [164, 10, 23, 11]


def test_names_are_unique_and_every_column_is_described():
    for columns in (STATEMENT_COLUMNS, DATAFLOW_COLUMNS, OFFICIAL_COLUMNS):
        assert len(set(names(columns))) == len(columns)
        assert all(c.unit and c.formula and c.source for c in columns)


def test_groups_start_where_the_original_puts_them():
    # GetPerStoreFeatureName of feature.cc: 57 + 5 x 18 + 10 + 4 + 3
    at = {name: i for i, name in enumerate(names(STATEMENT_COLUMNS))}
    assert at["is_gpu"] == 49
    assert at["B0.acc_type.read"] == 57
    assert at["B4.stride"] == 57 + 5 * 18 - 1
    assert at["arith_intensity_curve_0"] == 147
    assert at["alloc_size"] == 157
    assert at["auto_unroll_max_step"] == 163
