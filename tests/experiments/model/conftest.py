"""Made-up logs of a V100 whose rates are not the analyzer's."""

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from pruner.models.analyzer.analyzer import load_analyzer
from pruner.models.analyzer.constants import AnalyzerConstants, GpuRates
from tests.features.matmul_skeleton import matmul_dag, matmul_steps
from tests.paths import CONF

SHAPES = [(128, 256, 256), (256, 128, 256), (256, 512, 256), (512, 128, 256), (512, 256, 256)]
HARDWARE = [-1, 16, 64, 49152, 1 << 30, 1024, 8, 32]
TRUTH = GpuRates(shared_load=8.0, stage=100.0, step_cycles=5000.0, spill=60.0, rolled=0.1)
PROGRAMS = 16


def steps_of(shape, rng):
    m, n, k = shape
    found = {}
    while len(found) < PROGRAMS:
        tiles = [tuple(int(2**e) for e in rng.integers(0, 3, 4)) for _ in range(2)]
        reduce = tuple(int(2**e) for e in rng.integers(0, 4, 2))
        steps = matmul_steps(m, k, n, *tiles, reduce, unroll=int(rng.choice([0, 64, 512])))
        found[json.dumps(steps)] = steps
    return list(found.values())


def task_of(shape):
    m, n, k = shape
    return f"matmul_{m}_{k}_{n}"


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
        folder = root / "measure_records" / "v100"
        folder.mkdir(parents=True)
        for shape in SHAPES:
            m, n, k = shape
            steps = steps_of(shape, rng)
            latency_s = np.exp(-device.score_steps(matmul_dag(m, k, n), steps))
            if task_of(shape) in poisoned:
                latency_s = np.exp(np.random.default_rng(1).normal(size=PROGRAMS))
            key = json.dumps(["matmul_layer", m, k, n])
            lines = [
                {
                    "i": [[key, "cuda", HARDWARE, "", 0, []], [[], program]],
                    "r": [[float(seconds)], int(number % 5 == 2), 1.0, 1700000000],
                    "v": "v0.6",
                }
                for number, (program, seconds) in enumerate(zip(steps, latency_s, strict=True))
            ]
            text = "\n".join(map(json.dumps, lines)) + "\n"
            (folder / f"{task_of(shape)}.json").write_text(text)
        return root

    return make
