"""What a GPU takes: numbers by hand, the official check's verdicts, TVM 0.19's near the limits."""

import gzip
import json

import numpy as np
import pytest

from pruner.program.dag.operators import dag_for_workload
from pruner.program.dag.task_index import TaskIndex, find_dag
from pruner.program.te.lower import build_nests
from pruner.program.te.skeleton import group_programs
from pruner.program.te.verify import GpuLimits, kernel_uses, legal
from tests.features import matmul_skeleton

HARDWARE = (-1, 16, 64, 49152, 2**31 - 1, 1024, 8, 32)  # of the records, a V100


def limits_of(params):
    """Cores, vector bytes, line bytes, shared bytes, local bytes, threads, vthreads, warp size."""
    return GpuLimits(
        vector_bytes=params[1],
        shared_bytes=params[3],
        local_bytes=params[4],
        threads=params[5],
        vthreads=params[6],
    )


LIMITS = limits_of(HARDWARE)
EVERY = 10  # of the golden files, to stay fast


def matmul_steps(i, j, k, a_lanes=1, b_lanes=1):
    """Ansor's tiling of a 128 x 256 x 256 product: shared tiles, threads, virtual threads."""
    vectors = (a_lanes, b_lanes)
    return matmul_skeleton.matmul_steps(128, 256, 256, i, j, k, vectors=vectors, unroll=0)


def nests_of(*steps):
    dag = dag_for_workload('["matmul_layer", 128, 256, 256]')
    (group,), _ = group_programs(list(steps))
    return build_nests(dag, group.skeleton, group.decisions)


def test_a_matmul_by_hand():
    # i: 1 block, 2 virtual threads, 2 threads, tiles 2 and 16; j: 2, 1, 2, 16, 4; k: 8, 2, 16.
    (use,) = kernel_uses(nests_of(matmul_steps((2, 2, 2, 16), (1, 2, 16, 4), (2, 16), 2, 4)))
    assert use.threads.tolist() == [2 * 2]
    a_tile, b_tile = (2 * 2 * 2 * 16) * (2 * 16), (2 * 16) * (1 * 2 * 16 * 4)
    assert use.shared_bytes.tolist() == [4 * (a_tile + b_tile)]
    sums = (2 * 16) * (16 * 4)  # of one thread, in 2 copies: its operands differ by virtual thread
    assert use.local_bytes.tolist() == [4 * sums * 2]
    assert use.vector_bytes.tolist() == [4 * 4]
    assert use.vthreads.tolist() == [1]
    assert use.same_threads.all()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"i": (1, 32, 1, 1), "j": (1, 64, 1, 1)}, "threads"),
        ({"i": (1, 1, 1, 128), "j": (1, 2, 16, 4), "k": (8, 16)}, "shared_bytes"),
        ({"j": (1, 4, 1, 32), "b_lanes": 8}, "vector_bytes"),
        ({"i": (16, 1, 1, 1), "j": (1, 4, 1, 1), "k": (1, 4)}, "vthreads"),
    ],
)
def test_one_step_over_each_limit(change, field):
    fits = {"i": (1, 4, 1, 1), "j": (1, 4, 1, 1), "k": (1, 4)}
    (use,) = kernel_uses(nests_of(matmul_steps(**(fits | change))))
    wanted = {
        name: bool(getattr(use, name)[0] <= getattr(LIMITS, name)) for name in LIMITS.__slots__
    }
    assert [name for name, inside in wanted.items() if not inside] == [field]
    assert not legal(nests_of(matmul_steps(**(fits | change))), LIMITS)[0]
    assert legal(nests_of(matmul_steps(**fits)), LIMITS)[0]


def test_a_guard_that_holds_the_lane_gives_up_vectors():
    # The fetched tile has 16 x 4 = 64 elements for 4 x 4 threads: 8 lanes are 8 vectors, too few.
    ragged = nests_of(matmul_steps((1, 4, 1, 4), (1, 4, 1, 1), (1, 4), a_lanes=8))
    assert legal(ragged, LIMITS)[0]
    assert not legal(ragged, LIMITS, simplifier="later")[0]  # 64 is a multiple of 8


def test_a_batch_is_its_programs():
    rng = np.random.default_rng(0)
    powers = [1, 2, 4, 8]
    steps = [
        matmul_steps(rng.choice(powers, 4).tolist(), rng.choice(powers, 4).tolist(), (2, 8), lanes)
        for lanes in rng.choice(powers, 40).tolist()
    ]
    together = legal(nests_of(*steps), LIMITS)
    assert together.tolist() == [bool(legal(nests_of(s), LIMITS)[0]) for s in steps]
    assert 0 < together.sum() < len(steps)


def test_cpu_programs_are_legal():
    dag = dag_for_workload('["matmul_layer", 16, 16, 16]')
    steps = [["SP", 2, 0, 16, [4], 1], ["AN", 2, 1, 2]]
    (group,), _ = group_programs([steps])
    nests = build_nests(dag, group.skeleton, group.decisions)
    assert kernel_uses(nests) == []
    assert legal(nests, LIMITS).all()


def verdicts(dag, steps, hardware):
    groups, _ = group_programs(steps)
    out = np.zeros(len(steps), bool)
    for group in groups:
        nests = build_nests(dag, group.skeleton, group.decisions)
        out[group.rows] = legal(nests, limits_of(hardware))
    return out


def test_the_official_check_says_the_same_of_tensets_tasks(shared, network_info):
    files = sorted((shared / "golden" / "tenset").glob("cuda*.npz"))[::EVERY]
    if not files:
        pytest.skip("no golden programs: ../shared/golden/tenset is absent")
    tasks, agree, total = TaskIndex(network_info), 0, 0
    for file in files:
        with np.load(file) as arrays:
            accepted = {int(name.split(".")[0]) for name in arrays.files}
        with gzip.open(file.with_suffix(".json.gz")) as lines:
            headers, programs = zip(*(json.loads(line)["i"] for line in lines), strict=True)
        found = verdicts(
            find_dag(headers[0][0], (), tasks), [p[1] for p in programs], headers[0][2]
        )
        wanted = [line in accepted for line in range(len(found))]
        assert all(found[wanted]), file.name  # what it accepts is legal, without exception
        agree, total = agree + int((found == wanted).sum()), total + len(found)
    assert agree >= 0.99 * total


def test_measured_programs_are_legal(shared):
    folder = shared / "data" / "gpu-records" / "measure_records"
    files = sorted(folder.glob("*/*_1_SAME.json.gz"))[::20] + sorted(folder.glob("*/matmul*"))[::12]
    if not files:
        pytest.skip("no records: ../shared/data is absent")
    for file in files:
        with gzip.open(file) as lines:
            records = [json.loads(line) for line in lines][::5]
        headers = records[0]["i"][0]
        fused = tuple(word for word in ("add", "relu") if f"_{word}_" in file.name)
        steps = [record["i"][1][1] for record in records if record["r"][1] == 0]
        assert verdicts(dag_for_workload(headers[0], fused), steps, headers[2]).all(), file.name


@pytest.mark.parametrize("broken", ["shared_bytes", "threads"])
def test_a_tighter_limit_refuses(broken):
    values = {name: getattr(LIMITS, name) for name in LIMITS.__slots__}
    tight = GpuLimits(**(values | {broken: 1}))
    nests = nests_of(matmul_steps((1, 4, 1, 1), (1, 4, 1, 1), (1, 4)))
    assert legal(nests, LIMITS)[0]
    assert not legal(nests, tight)[0]
