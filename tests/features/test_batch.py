"""Records in, arrays out: order, padding, refusals; and a kernel small enough to do by hand."""

import numpy as np
import pytest

from pruner.errors import UnsupportedProgram
from pruner.features import STATEMENT_COLUMNS, FeatureSpec, batch, featurize_records
from pruner.program import replay
from pruner.program.te.lower import lower
from tests.features.recorded import recorded_task

KEY = '["relu_layer", 64, 32]'
AT = {column.name: i for i, column in enumerate(STATEMENT_COLUMNS)}

PSA = FeatureSpec(psa=True)


def relu(threads):
    """64 x 32 relu: all loops fused, then split over threads."""
    return [
        ["FU", 1, [0, 1]],
        ["SP", 1, 0, 2048, [threads], 1],
        ["AN", 1, 0, 5],
        ["AN", 1, 1, 6],
    ]


def compute(steps, key=KEY):
    return featurize_records(key, (), steps)


def value(batch, program, name):
    return 2.0 ** batch.statement[batch.row_start[program], AT[name]] - 1


def test_an_elementwise_kernel_by_hand():
    batch = compute([relu(32)])
    assert batch.statement.shape == (1, len(STATEMENT_COLUMNS))
    assert value(batch, 0, "float_cmp") == pytest.approx(2048)  # one max an element
    assert value(batch, 0, "blockIdx_x_len") == pytest.approx(2048 / 32)
    assert value(batch, 0, "threadIdx_x_len") == pytest.approx(32)
    assert value(batch, 0, "outer_prod") == pytest.approx(2048)
    assert value(batch, 0, "num_loops") == pytest.approx(2)
    for buffer in ("B0.", "B1."):  # read once and written once, 4 bytes an element
        assert value(batch, 0, buffer + "bytes") == pytest.approx(2048 * 4)
        assert value(batch, 0, buffer + "unique_bytes") == pytest.approx(2048 * 4)
        assert batch.statement[0, AT[buffer + "reuse_type.none"]] == 1


def test_rows_keep_the_order_of_the_records():
    batch = compute([relu(32), relu(64), relu(8)])
    found = [value(batch, i, "threadIdx_x_len") for i in range(3)]
    assert found == pytest.approx([32, 64, 8])


def test_a_program_that_cannot_be_replayed_costs_itself_only():
    batch = compute([relu(32), [["PPT", 0]], [["FU", 9, [0, 1]]], relu(8)])
    assert batch.valid.tolist() == [True, False, False, True]
    assert batch.failures == {1: "unknown-step", 2: "step-mismatch"}
    assert len(batch.statement) == 2
    assert not batch.dataflow[1:3].any()
    assert batch.num_statements.tolist() == [1, 0, 0, 1]


def failing_at_16(schedule):
    split = schedule.at(1).relations[-1]
    if np.any(np.equal(split.factor, 16)):
        raise AssertionError("16")
    return lower(schedule)


def test_one_program_on_which_the_engine_fails_costs_itself_only(monkeypatch):
    """Of many replayed at once: they are divided down to the one at fault."""
    monkeypatch.setattr(replay, "lower", failing_at_16)
    threads = [8, 32, 16, 64, 16, 8, 128]
    found = compute([relu(number) for number in threads])
    assert found.valid.tolist() == [number != 16 for number in threads]
    assert found.failures == {2: "replay-error", 4: "replay-error"}
    assert value(found, 6, "threadIdx_x_len") == pytest.approx(128)


def test_programs_that_all_fail_are_not_tried_one_by_one_for_ever(monkeypatch):
    tried = []

    def failing(schedule):
        tried.append(schedule.num_programs)
        raise KeyError("loop")

    monkeypatch.setattr(replay, "lower", failing)
    found = compute([relu(2 ** (n % 4)) for n in range(500)])
    assert found.failures == dict.fromkeys(range(500), "replay-error")
    assert len(tried) < 100


def test_a_chunk_in_which_all_failed_says_nothing_of_the_next(monkeypatch):
    """Of 64 a time: no program of the first chunk can be replayed, one of the second cannot."""
    monkeypatch.setattr(replay, "lower", failing_at_16)
    monkeypatch.setattr(batch, "_CHUNK", 64)
    found = compute([relu(16)] * 64 + [relu(8)] * 63 + [relu(16)])
    assert found.valid.tolist() == [False] * 64 + [True] * 63 + [False]


def test_a_program_whose_log_contradicts_the_loop_it_splits_is_left_out():
    wrong = relu(16)
    wrong[1][3] = 2047
    found = compute([relu(32), wrong, relu(8)])
    assert found.failures == {1: "contradicting-extent"}
    alone = compute([relu(32), relu(8)])
    assert np.array_equal(found.statement, alone.statement)


def test_no_records_is_an_empty_batch():
    batch = compute([])
    assert len(batch) == len(batch.statement) == 0
    assert batch.dataflow.shape == (0, 10, 23)


def test_an_unknown_operator_is_refused():
    with pytest.raises(UnsupportedProgram):
        compute([relu(32)], key='["no_such_layer", 1]')


def test_values_are_finite():
    batch = compute([relu(t) for t in (1, 2, 1024)])
    assert np.isfinite(batch.statement).all()


@pytest.mark.parametrize(
    "task",
    [
        "v100/conv2d_128_64_56_56_64_3_3_1_SAME",  # padded: conditions
        "v100/matmul_65536_1024_1024",
        "k80/depthwise_conv2d_128_42_83_83_7_7_1_SAME",
    ],
)
def test_a_program_alone_has_the_features_that_it_has_in_company(task, shared):
    """Alone its numbers are plain, in company they are arrays: two paths, one answer."""
    dag, steps = recorded_task(shared, task)
    together = batch.featurize(dag, steps, PSA)
    for program in range(0, len(steps), len(steps) // 12):
        alone, rows = batch.featurize(dag, [steps[program]], PSA), together.rows(program)
        np.testing.assert_array_equal(alone.statement, together.statement[rows])
        np.testing.assert_array_equal(alone.psa, together.psa[rows])
        np.testing.assert_array_equal(alone.dataflow[0], together.dataflow[program])
