"""What one iteration of a store touches and computes, by hand."""

import numpy as np

from pruner.features.columns import COUNT_COLUMNS
from pruner.features.statement.ops import OpCounter
from pruner.features.statement.touches import READ, READ_WRITE, WRITE, store_accesses
from pruner.program.dag.operators import dag_for_workload
from pruner.program.te.apply import apply
from pruner.program.te.lower import lower
from pruner.program.te.skeleton import parse_steps

MATMUL = '["matmul_layer", 16, 32, 8]'
NAMES = [column.name for column in COUNT_COLUMNS]


def nests_of(*programs, key=MATMUL):
    parsed = [parse_steps(steps) for steps in programs]
    decisions = np.array([d for _, d in parsed], np.int64)
    return lower(apply(dag_for_workload(key, ()), parsed[0][0], decisions))


def counts(store, program=0):
    """Operations that occur, by name."""
    values = [int(np.broadcast_to(c, 2)[program]) for c in OpCounter(store).counts]
    return {name: value for name, value in zip(NAMES, values, strict=True) if value}


def test_an_update_reads_and_writes_its_own_element():
    nests = nests_of([])
    init, update = nests.stores
    (written,) = store_accesses(nests.buffers, init)
    accesses = store_accesses(nests.buffers, update)
    assert (written.buffer.name, written.kind) == ("compute", WRITE)
    kinds = [(access.buffer.name, access.kind) for access in accesses]
    assert kinds == [("compute", READ_WRITE), ("A", READ), ("B", READ)]
    row, column, depth = (loop.var for loop in update.loops)
    touched = [[index.terms[0].index for index in access.indices[0]] for access in accesses]
    assert touched == [[row, column], [row, depth], [depth, column]]
    assert [access.buffer.bytes_per_element for access in accesses] == [4, 4, 4]


def test_operations_of_a_product():
    _, update = nests_of([]).stores
    assert counts(update) == {"float_addsub": 1, "float_mul": 1}


def test_a_tile_costs_index_arithmetic_only_where_it_has_an_outer_loop():
    """Row ``4 o + i``: in C and in A. A tile of all 16 rows leaves one loop and nothing to add."""
    _, update = nests_of([["SP", 2, 0, 16, [4], 1]], [["SP", 2, 0, 16, [16], 1]]).stores
    product = {"float_addsub": 1, "float_mul": 1}
    assert counts(update, 0) == product | {"int_mul": 2, "int_addsub": 2}
    assert counts(update, 1) == product
