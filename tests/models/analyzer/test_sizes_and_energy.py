"""The estimate of code and the model of energy, by hand arithmetic."""

import numpy as np
import pytest

from pruner.models.analyzer.estimates import CPU, code_bytes, energy_model_j
from tests.models.analyzer.test_cpu import cpu, one


def test_joules_are_arithmetic_bytes_and_time():
    device = cpu().device

    def joules(latency_s=0.0, **values):
        return float(energy_model_j(one(**values), np.array([latency_s]), device)[0])

    assert joules(comp_count=1e12) == pytest.approx(0.85)
    assert joules(l3_traffic=8e9) == pytest.approx(1.3)
    assert joules(latency_s=2.0) == pytest.approx(2.0 * device.num_cores * CPU.watts_per_unit)
    assert joules(1.0, comp_count=1e12, l3_traffic=8e9) == pytest.approx(
        0.85 + 1.3 + device.num_cores * 3.125
    )


def test_unrolled_statements_are_code():
    rolled, unrolled = (float(code_bytes(one(body=body))[0]) for body in (1.0, 512.0))
    assert unrolled - rolled == pytest.approx(511 * 40.0)
