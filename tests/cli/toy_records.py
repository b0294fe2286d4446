"""A small record folder whose latencies follow from the steps, and features to match."""

from dataclasses import replace

import numpy as np

from pruner.features import OFFICIAL_COLUMNS, STATEMENT_COLUMNS
from pruner.features.batch import DEFAULT, ProgramFeatures
from pruner.features.primitives import primitive_tokens
from pruner.models.analyzer.columns import NUM_DRAFT_COLUMNS
from pruner.program.te.skeleton import group_programs
from tests import matmul_logs

QUICK = ("trainer.max_epochs=1", "batches.programs=8", "trainer.accelerator=cpu")
SMALL = ("trainer.max_epochs=2", "batches.programs=8", "num_threads=1", "trainer.accelerator=cpu")
SHAPES = [(64, 64, 64), (128, 64, 32), (32, 32, 512), (256, 16, 64), (96, 48, 24), (16, 16, 16)]


def record(shape, tile, unroll, platform_factor=1.0, error_no=0):
    m, k, n = shape
    steps = [
        ["SP", 2, 0, m, [tile], 1],
        ["SP", 2, 4, k, [tile], 1],
        ["PR", 2, 0, f"auto_unroll_max_step${unroll}"],
    ]
    latency = platform_factor * 1e-6 * m * k * n / (1 + tile) / (1 + 0.1 * np.log2(1 + unroll))
    return matmul_logs.record(shape, steps, latency if error_no == 0 else 1e10, error_no)


def write(root, platforms=("v100", "k80"), shapes=SHAPES):
    for factor, platform in enumerate(platforms, start=1):
        for shape in shapes:
            records = [
                record(shape, tile, unroll, factor)
                for tile in (1, 2, 4, 8, 16)
                for unroll in (0, 16, 64)
            ]
            records.insert(3, record(shape, 32, 0, error_no=2))
            matmul_logs.write(root / "measure_records" / platform, shape, records)
    return root


def featurize_records(
    workload_key,
    fused,
    steps_list,
    spec=DEFAULT,
    *,
    tasks=None,
):
    n = len(steps_list)
    statement = np.zeros((n, 2, len(STATEMENT_COLUMNS)), np.float32)
    for i, steps in enumerate(steps_list):
        statement[i, 0, :2] = np.log2([steps[0][4][0] + 1, int(steps[2][3].split("$")[1]) + 1])
        statement[i, 1, 2] = np.log2(steps[0][3])
    nothing = ProgramFeatures.empty(n, spec)
    return replace(
        nothing,
        statement=statement.reshape(2 * n, -1),
        row_start=2 * np.arange(n + 1),
        dataflow=np.full_like(nothing.dataflow, 0.5) * statement[:, :1, :1],
        valid=np.ones(n, bool),
        psa=np.zeros((2 * n, len(OFFICIAL_COLUMNS)), np.float32) if spec.psa else None,
        tokens=primitive_tokens(group_programs(steps_list)[0], n),
        extra=None if spec.extra is None else np.resize(statement[:, 0], (n, NUM_DRAFT_COLUMNS)),
    )
