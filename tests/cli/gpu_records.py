"""A folder of matrix products on two GPUs: Ansor's steps, latencies by a formula."""

import itertools
import math

from tests import matmul_logs
from tests.features.matmul_skeleton import matmul_steps

PLATFORMS = {"k80": 3.0, "v100": 1.0}  # how much longer
SHAPES = [(256, 128, 128), (128, 512, 256), (512, 128, 64), (64, 64, 512), (256, 256, 512),
          (1024, 64, 128)]  # m, k, n  # fmt: skip
TILES = [(1, 8, 2, 2), (1, 8, 1, 2), (2, 8, 2, 1), (1, 4, 2, 2)]
REDUCED = [(4, 2), (8, 1)]


def write(root):
    for platform, slower in PLATFORMS.items():
        for shape in SHAPES:
            records = [
                record(shape, rows, columns, reduced, slower)
                for rows, columns, reduced in itertools.product(TILES, TILES, REDUCED)
            ]
            matmul_logs.write(root / "measure_records" / platform, shape, records)
    return root


def record(shape, rows, columns, reduced, slower):
    """More threads and deeper inner products are faster, and more so of long reductions."""
    threads = rows[1] * columns[1]
    reused = math.prod(rows) * math.prod(columns) / (math.prod(rows) + math.prod(columns))
    latency_s = slower * math.prod(shape) * 1e-12 * (1 + 64 / threads + 32 / reused)
    latency_s *= 1 + shape[1] / 1024 / reduced[1]
    return matmul_logs.record(shape, matmul_steps(*shape, rows, columns, reduced), latency_s)
