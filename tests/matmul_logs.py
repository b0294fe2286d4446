"""Ansor's records of matrix products on a V100, with latencies of our choice."""

import json

from tests.features.matmul_skeleton import matmul_steps

HARDWARE = [-1, 16, 64, 49152, 1 << 30, 1024, 8, 32]


def record(shape, steps, latency_s, error_no=0):
    """Of a product of m x k and k x n, the shape as its key has it."""
    key = json.dumps(["matmul_layer", *shape])
    return {
        "i": [[key, "cuda", HARDWARE, "", 0, []], [[], steps]],
        "r": [[float(latency_s)], error_no, 1.0, 1700000000],
        "v": "v0.6",
    }


def steps_of(shape, rng, count):
    """Steps of so many different programs."""
    found = {}
    while len(found) < count:
        tiles = [tuple(int(2**e) for e in rng.integers(0, 3, 4)) for _ in range(2)]
        reduce = tuple(int(2**e) for e in rng.integers(0, 4, 2))
        steps = matmul_steps(*shape, *tiles, reduce, unroll=int(rng.choice([0, 64, 512])))
        found[json.dumps(steps)] = steps
    return list(found.values())


def write(folder, shape, records):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"matmul_{'_'.join(map(str, shape))}.json"
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return path
