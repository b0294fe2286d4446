"""Made-up logs of a V100 whose rates are not the analyzer's."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from pruner.models.analyzer.analyzer import load_analyzer
from pruner.models.analyzer.constants import AnalyzerConstants, GpuRates
from tests.features.matmul_skeleton import matmul_dag
from tests.matmul_logs import record, steps_of, write
from tests.paths import CONF

# m, k, n
SHAPES = [(128, 256, 256), (256, 256, 128), (256, 256, 512), (512, 256, 128), (512, 256, 256)]
TRUTH = GpuRates(shared_load=8.0, stage=100.0, step_cycles=5000.0, spill=60.0, rolled=0.1)
PROGRAMS = 16


@pytest.fixture(scope="session")
def measured(tmp_path_factory):
    """Makes a record folder; the latencies of the `poisoned` tasks are made up anew.

    Some records between the others failed.
    """
    analyzer = load_analyzer(CONF, "v100")
    device = replace(analyzer, constants=AnalyzerConstants(rates=TRUTH))

    @cache
    def make(*poisoned):
        rng, root = np.random.default_rng(0), tmp_path_factory.mktemp("measured")
        for shape in SHAPES:
            steps = steps_of(shape, rng, PROGRAMS)
            latency_s = np.exp(-device.score_steps(matmul_dag(*shape), steps))
            if "matmul_" + "_".join(map(str, shape)) in poisoned:
                latency_s = np.exp(np.random.default_rng(1).normal(size=PROGRAMS))
            made = zip(steps, latency_s, strict=True)
            records = [record(shape, *one, int(n % 5 == 2)) for n, one in enumerate(made)]
            write(root / "measure_records" / "v100", shape, records)
        return root

    return make
