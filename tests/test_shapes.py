"""With ``--check-shapes`` a wrong axis is refused, and the message names it."""

import numpy as np
import pytest
import torch
from jaxtyping import TypeCheckError

from pruner.models.networks.layers import segment_sum
from pruner.models.programs.batch import ProgramBatch


@pytest.fixture(autouse=True)
def _checked(request):
    if not request.config.getoption("--check-shapes"):
        pytest.skip("shapes are checked with --check-shapes")


def test_a_wrong_axis_is_refused():
    rows, segment = torch.zeros(3, 4), torch.tensor([0, 1])  # 3 rows, 2 of them assigned
    with pytest.raises(TypeCheckError, match="segment"):
        segment_sum(rows, segment, 2)


def test_a_wrong_number_of_rows_in_a_batch_is_refused():
    right = {"statement": torch.zeros(2, 174), "dataflow": torch.zeros(2, 10, 23)}
    ProgramBatch(**right, program=torch.tensor([0, 1]))
    with pytest.raises(TypeCheckError):
        ProgramBatch(**right, program=torch.tensor([0, 1, 1]))


def test_decisions_of_one_program_are_no_batch():
    """The engines refuse what has not one row a program."""
    from pruner.program.dag.operators import dag_for_workload
    from pruner.program.te.apply import apply

    with pytest.raises(TypeCheckError, match="decisions"):
        apply(dag_for_workload('["relu_layer", 4, 6]', ()), (), np.zeros(3, np.int64))
