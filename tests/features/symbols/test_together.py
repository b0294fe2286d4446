"""Symbols of statements that are computed together: those of each alone, and fewer computations."""

import numpy as np
import pytest

from pruner.features.batched import tables_of
from pruner.features.symbols.cpu import cpu_symbols, cpu_symbols_of
from pruner.features.symbols.statement import nest_statements
from pruner.program.device import load_device
from tests.features.cpu_nests import NESTS
from tests.paths import CONF


@pytest.mark.parametrize("platform", ["cpu-avx2", "cpu-avx512"])
def test_symbols_are_those_of_each_alone(platform):
    device = load_device(CONF / "platform" / f"{platform}.yaml")
    together = cpu_symbols_of(list(NESTS.values()), device)
    for (name, nests), found in zip(NESTS.items(), together, strict=True):
        alone = cpu_symbols(nests, device)
        assert found.scopes == alone.scopes
        assert found.reductions == alone.reductions
        np.testing.assert_array_equal(found.values, alone.values, err_msg=name)


@pytest.mark.parametrize(
    ("names", "computed"),
    [
        (["tiles", "others", "one"], 1),
        (["tiles", "parallel", "order"], 3),  # another mark; C's columns move with the outer loop
        (["stages", "larger"], 2),  # two stages, whatever their sizes
        (["stages", "sum"], 3),
        (["stages", "halves"], 4),
        (["padded", "wider"], 1),
        (["row", "column"], 2),
    ],
)
def test_what_has_one_structure_is_computed_once(names, computed):
    statements = [one for name in names for one in nest_statements(NESTS[name])]
    looked_at = []

    def table_of(statement):
        looked_at.append(statement)
        return np.stack([loop.extent for loop in statement.loops])

    tables = tables_of(statements, table_of)
    assert len(looked_at) == computed
    for statement, table in zip(statements, tables, strict=True):
        np.testing.assert_array_equal(table, [loop.extent for loop in statement.loops])
