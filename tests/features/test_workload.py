"""Workload flags: by hand, and against words in the original's own text."""

from pathlib import Path

import numpy as np
import pytest

from pruner.features.columns import WORDS, WORKLOAD_COLUMNS, text_flags
from pruner.program.dag.dag import dag_text
from pruner.program.dag.operators import dag_for_workload
from pruner.program.dag.tenset import dag_from_json
from tests.program.tenset_tasks import golden_tasks, unique_tasks, unpack_network_info


def flags(key: str, *fused: str) -> list[str]:
    values = text_flags(dag_text(dag_for_workload(key, fused)))
    return [word for word, value in zip(WORDS, values[:9], strict=True) if value]


def test_ten_named_columns() -> None:
    assert len(WORKLOAD_COLUMNS) == 10
    assert len({column.name for column in WORKLOAD_COLUMNS}) == 10
    values = text_flags(dag_text(dag_for_workload('["relu_layer", 8]')))
    assert values.shape == (10,)
    assert values.dtype == np.float32
    assert values[9] == 0


@pytest.mark.parametrize(
    ("key", "fused", "expected"),
    [
        ('["matmul_layer", 2, 3, 4]', (), []),
        ('["batch_matmul_layer", 2, 3, 4, 5, 6]', (), ["compute(b, i, j)"]),
        ('["relu_layer", 8, 8]', (), ["max"]),
        ('["conv2d_layer", 1, 8, 9, 9, 4, 3, 3, 1, "SAME"]', (), []),
        ('["conv2d_layer", 1, 8, 9, 9, 4, 3, 3, 1, "SAME"]', ("add",), ["add"]),
        ('["conv2d_layer", 1, 8, 9, 9, 4, 3, 3, 1, "SAME"]', ("add", "relu"), ["max", "add"]),
        # "PaddedInput" holds the word "add"
        (
            '["depthwise_conv2d_layer", 1, 8, 9, 9, 3, 3, 1, 1]',
            (),
            ["add", "DepthwiseConv2d"],
        ),
        ('["pool_layer", "max", 1, 8, 9, 9, 3, 3, 2, "VALID"]', (), ["max"]),
        ('["pool_layer", "avg", 1, 8, 9, 9, 3, 3, 2, "VALID"]', (), []),
    ],
)
def test_words_of_standard_operators(key: str, fused: tuple[str, ...], expected: list[str]) -> None:
    assert flags(key, *fused) == expected


def test_words_in_the_text_of_the_original(
    shared: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tasks = unique_tasks(unpack_network_info(shared, tmp_path_factory.mktemp("network_info")))
    seen = np.zeros(10)
    for golden in golden_tasks(shared):
        dag = dag_from_json(tasks[golden.target, golden.workload_key].compute_dag)
        values = text_flags(dag_text(dag))
        expected = [golden.dag_text.find(word) >= 0 for word in WORDS]
        assert values[:9].tolist() == expected, golden.name
        seen += values
    assert (seen[[0, 1, 2, 3, 4, 5, 6, 8]] > 0).all()
