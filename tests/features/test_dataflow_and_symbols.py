"""Dataflow rows and official symbols against the official code, and their documented quirks."""

import numpy as np
import pytest

from pruner.features import FeatureSpec, featurize, featurize_records
from tests.features.golden import aligned, load, needs_golden, tasks
from tests.features.matmul_skeleton import matmul_dag, matmul_steps


def compute(task, **options):
    return featurize_records(task.workload_key, task.fused, task.steps, FeatureSpec(**options))


@pytest.fixture(scope="module")
def sample():
    return [load(*task) for task in tasks(every=12)]


@needs_golden
def test_symbols_are_the_official_ones(sample):
    for task in sample:
        batch = compute(task, psa=True)
        for program, expected in enumerate(task.expected["psa"]):
            rows = aligned(batch.psa[batch.rows(program)], expected)
            np.testing.assert_allclose(rows, expected, rtol=1e-4)


@needs_golden
def test_dataflow_rows_are_the_official_ones_up_to_the_order_inside_a_store(sample):
    # The original lists the buffers of a store in hash order; a collision swaps two of them.
    total = exact = 0
    for task in sample:
        batch = compute(task, dataflow="official")
        for ours, expected in zip(batch.dataflow, task.expected["dataflow"], strict=True):
            total += 1
            exact += bool(np.abs(aligned(ours, expected) - expected).max() < 1e-4)
    assert exact >= 0.98 * total, f"{exact} of {total}"


@needs_golden
def test_paper_rows_are_the_official_rows_and_an_epilogue(sample):
    task = next(t for t in sample if np.any(t.expected["dataflow"][0]))
    batch = compute(task, dataflow="paper")
    paper, official = batch.dataflow, compute(task, dataflow="official").dataflow
    np.testing.assert_array_equal(paper[:, :8, 1:], official[:, :, 1:])
    # The release counts operations x P^2: a compute row is ops x P for us.
    ratio = (2.0 ** official[:, 5:, 0] - 1) / (2.0 ** paper[:, 5:8, 0] - 1)
    first = batch.statement[batch.row_start[:-1]]  # row 0 is the accumulated tile
    iterations = 2.0 ** first[:, 161] - 1
    np.testing.assert_allclose(ratio, np.broadcast_to(iterations[:, None], ratio.shape), rtol=1e-3)
    # Row 8 reads the local tile, row 9 writes the result to global memory.
    np.testing.assert_array_equal(paper[:, 8, 1:7], [[0, 0, 1, 1, 0, 0]] * len(paper))
    np.testing.assert_array_equal(paper[:, 9, 1:7], [[1, 0, 0, 0, 1, 0]] * len(paper))


def test_programs_of_lanes_leave_the_rows_of_fragments_zero():
    shape, steps = (128, 128, 128), matmul_steps(128, 128, 128, (1, 8, 2, 2), (1, 8, 2, 2), (4, 2))
    ten, rows = (
        featurize(matmul_dag(*shape), [steps], FeatureSpec(dataflow=kind)).dataflow
        for kind in ("paper", "fragments")
    )
    assert np.abs(ten).sum(axis=2).all()
    assert not rows[:, 5:9].any()
    np.testing.assert_array_equal(np.delete(rows, slice(5, 9), axis=1), ten)
