"""Each bundled set is a collection as docs/pools.md has it; what of a collection is copied."""

import gzip
import json
import runpy
import shutil
from collections import Counter, defaultdict
from itertools import combinations, pairwise
from statistics import mean, median

import numpy as np
import pytest
import yaml

from pruner.cli.shared.door import run_door
from pruner.cli.shared.output import FEW
from pruner.data.frozen import FrozenSplit
from pruner.data.quarantine import Quarantine
from pruner.data.root import RecordRoot
from pruner.data.splits import SIDES, make_split
from pruner.errors import PrunerError
from pruner.features.columns import DATAFLOW_COLUMNS
from pruner.features.dataflow import NUM_ROWS
from pruner.models.judging.judge import noise_ceiling, random_report
from pruner.models.judging.metrics import ScoredTask
from pruner.models.programs.dataset import load_programs
from pruner.tune.pools.records import bundle
from tests.checksums import assert_checksums
from tests.paths import CONF, DATASETS

CPU, GPU, H200 = "bundled", "opencl-pocl", "h200"
ON_CPU = pytest.mark.parametrize("folder", [CPU], indirect=True)
ON_GPU = pytest.mark.parametrize("folder", [GPU], indirect=True)
ON_H200 = pytest.mark.parametrize("folder", [H200], indirect=True)
GPU_OPERATORS = {
    "matmul", "batch_matmul", "conv2d", "depthwise_conv2d", "pool", "softmax", "layer_norm"
}  # fmt: skip
ADDED = {  # tasks of the H200 that were measured later than the other 13
    "conv2d_8_512_28_28_128_1_1_1_0", "conv2d_bias_relu_1_256_56_56_64_1_1_1_0",
    "conv2d_bias_relu_1_3_224_224_64_7_7_2_3", "depthwise_conv2d_8_144_56_56_3_3_1_1",
    "layer_norm_512_768",
}  # fmt: skip
PLATFORMS = ("cpu-sse4", "cpu-avx2", "cpu-avx512")  # from narrow to wide, from one core to two
WORKLOADS = 25


@pytest.fixture(scope="module", params=[CPU, GPU, H200])
def folder(request):
    found = DATASETS / request.param
    if not found.is_dir():
        pytest.skip(f"{found} is not bundled yet")
    return found


@pytest.fixture(scope="module")
def about(folder):
    return json.loads((folder / "about.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def records(folder):
    """(platform, task) -> the record lines, parsed by nobody else."""
    paths = sorted((folder / "measure_records").glob("*/*.json.gz"))
    return {
        (path.parent.name, path.name.removesuffix(".json.gz")): [
            json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()
        ]
        for path in paths
    }


@pytest.fixture(scope="module")
def read(folder):
    """The same as our reader takes them, and what it set aside."""
    with Quarantine() as quarantine:
        return list(RecordRoot(folder).read(quarantine)), quarantine.total


def ran(lines):
    return [line for line in lines if line["r"][1] == 0]


def best_s(lines):
    return min(mean(line["r"][0]) for line in ran(lines))


@ON_CPU
def test_every_task_of_the_list_is_there_on_every_target(records):
    listed = yaml.safe_load((CONF / "pools" / "small.yaml").read_text(encoding="utf-8"))["tasks"]
    tasks = {task for _, task in records}
    assert len(tasks) == len(listed) == WORKLOADS
    assert set(records) == {(platform, task) for platform in PLATFORMS for task in tasks}
    keys = defaultdict(set)
    for (_, task), lines in records.items():
        keys[task] |= {line["i"][0][0] for line in lines}
    assert all(len(found) == 1 for found in keys.values())  # the same work under the same name
    operators = Counter(json.loads(*found)[0] for found in keys.values())
    assert operators == Counter(f"{one['operator']}_layer" for one in listed)


def test_pools_are_as_large_as_was_asked_but_for_small_spaces(records, about):
    asked = about["settings"]["programs"]
    told = {(pool["platform"], pool["task"]): pool for pool in about["pools"]}
    assert told.keys() == records.keys()
    sizes = {name: len(ran(lines)) for name, lines in records.items()}
    assert sizes == {name: pool["valid"] for name, pool in told.items()}
    assert sum(size == asked for size in sizes.values()) > 0.8 * len(sizes)
    # max pooling for a GPU has 56 programs in all
    assert [task for (_, task), size in sizes.items() if size <= asked / 2] in (
        [], ["pool_max_1_64_56_56_3_3_2_1"]
    )  # fmt: skip
    assert max(sizes.values()) == asked


def test_our_reader_takes_every_line_and_all_programs_of_a_task_are_different(records, read):
    tasks, set_aside = read
    assert set_aside == 0
    assert sum(map(len, tasks)) == sum(map(len, records.values()))
    for name, lines in records.items():
        programs = {json.dumps(line["i"][1][1]) for line in lines}
        assert len(programs) == len(lines), name


def test_all_but_the_named_programs_were_timed_twice_and_apart(records, about):
    apart_s, repeats = about["settings"]["apart_s"], about["timing"]["repeats"]
    once = {(pool["platform"], pool["task"]): pool["timed_once"] for pool in about["pools"]}
    for name, lines in records.items():
        assert sum(len(line["timings"]) == 1 for line in ran(lines)) == once[name], name
        for line in ran(lines):
            times = [at for at, _ in line["timings"]]
            # times have one decimal
            assert all(b - a > apart_s - 0.11 for a, b in pairwise(times)), name
            assert {len(costs) for _, costs in line["timings"]} == {repeats}, name


def test_the_latency_is_the_mean_of_the_two_timings_that_agree_best(records, read):
    by_name = {(task.key.platform, task.key.task): task for task in read[0]}
    for name, lines in records.items():
        for line, latency_s in zip(lines, by_name[name].latency_s, strict=True):
            if line["r"][1] != 0:
                assert latency_s == np.inf
                continue
            each = [median(costs) for _, costs in line["timings"]]
            if len(each) == 1:
                assert line["r"][0] == each
                continue
            pairs = combinations(range(len(each)), 2)
            pair = min(pairs, key=lambda p: max(each[n] for n in p) / min(each[n] for n in p))
            assert line["r"][0] == pytest.approx([each[n] for n in pair]), name
            assert latency_s == pytest.approx(mean(each[n] for n in pair)), name


def test_draws_are_even_over_design_spaces(records, about):
    """A pool that has all that was asked for has as many of each; failed ones are replaced."""
    for name, lines in records.items():
        if len(ran(lines)) < about["settings"]["programs"]:
            continue  # its spaces have no more
        counts = Counter(line["i"][1][1][0][1] for line in lines).values()
        if name == (H200, "pool_max_8_64_112_112_3_3_2_1"):
            # one space has a single decision of 8 choices, the other space gives the rest
            assert sorted(counts) == [8, 24]
            continue
        assert max(counts) - min(counts) <= 1 + len(lines) - len(ran(lines)), name


def test_files_are_records_with_their_design_spaces_and_name_no_machine(folder, records, about):
    named = {line["i"][1][1][0][1] for lines in records.values() for line in lines}
    there = (folder / "design_spaces").iterdir()
    assert {path.name.removesuffix(".json.gz") for path in there} == named
    assert_checksums(folder)  # of every file
    # nothing names the machine that it was collected on
    assert "/" not in json.dumps(about)
    assert "kernel" not in about["machine"]


def test_a_second_timing_orders_programs_nearly_as_the_first(read):
    for platform in sorted({task.key.platform for task in read[0]}):
        tasks = [
            ScoredTask(
                name=task.key.task,
                latency_s=task.latency_s[task.valid],
                score=np.zeros(task.valid.sum()),
                timed_s=task.timed_s[task.valid],
            )
            for task in read[0]
            if task.key.platform == platform
        ]
        ceiling, chance = noise_ceiling(tasks), random_report(tasks)
        assert ceiling["num_tasks"] == len(tasks)
        twice = sum(np.isfinite(task.timed_s).all(axis=1).sum() for task in tasks)
        assert ceiling["num_programs"] == twice
        # two timings of a program on PoCL typically differ by 12 %
        least = 0.88 if platform == GPU else 0.9
        assert ceiling["pairwise_accuracy"] > least > chance["pairwise_accuracy"]
        assert ceiling["top1_task_mean"] > chance["top1_task_mean"] + 0.2


@ON_CPU
@pytest.mark.parametrize("task", ["matmul_bias_relu_256_256_256", "conv2d_1_64_28_28_64_3_3_1_1"])
def test_wider_vectors_and_a_second_core_make_compute_bound_tasks_faster(records, task):
    best = [best_s(records[platform, task]) for platform in PLATFORMS]
    assert best == sorted(best, reverse=True)
    assert best[0] > 2 * best[2]  # 1 core of 4 lanes against 2 cores of 16 lanes


def test_the_frozen_split_trains_on_every_operator_and_lists_every_workload(folder, read):
    split = make_split(folder.name, [task.key for task in read[0]])
    frozen = FrozenSplit.load(folder.name, 0)
    listed = {side: set(frozen.side(side)) for side in SIDES}
    assert {side: {key.identity for key in split.side(side)} for side in SIDES} == listed
    operators = {side: {key.workload.short_op for key in split.side(side)} for side in SIDES}
    judged = operators["test"] | operators["valid"]
    # the only softmax, the only pooling and the only layer norm of the H200 are not trained on
    alone = {"softmax", "pool", "layer_norm"} if folder.name == H200 else set()
    assert judged - operators["train"] == alone
    platforms = {key.platform for side in SIDES for key in split.side(side)}
    for side in SIDES:
        assert len(split.side(side)) == len(platforms) * len(listed[side])
    if folder.name == CPU:
        assert [len(listed[side]) for side in SIDES] == [15, 4, 6]
    elif folder.name == H200:
        assert [len(listed[side]) for side in SIDES] == [9, 3, 6]
    else:
        assert len(listed["test"]) >= FEW


@ON_GPU
def test_the_set_of_gpu_kind_has_all_named_operators_and_is_small(folder, records):
    assert {platform for platform, _ in records} == {GPU}
    assert len(records) >= 24
    keys = {json.loads(line["i"][0][0])[0] for lines in records.values() for line in lines}
    assert keys >= {f"{name}_layer" for name in GPU_OPERATORS}
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 1e6


@ON_GPU
def test_programs_of_gpu_kind_have_rows_of_a_gpu(folder):
    """Staging through shared memory is what the dataflow rows of a GPU show."""
    stores = load_programs(RecordRoot(folder), [GPU]).store
    assert stores.dataflow.shape[1:] == (NUM_ROWS["paper"], len(DATAFLOW_COLUMNS))
    matmuls = [n for n, key in enumerate(stores.keys) if key.workload.short_op == "matmul"]
    assert stores.dataflow[stores.programs_of(matmuls)].any(-1).any(-1).float().mean() > 0.5


@ON_H200
def test_the_h200_set_has_all_tasks_and_every_program_was_right(records):
    listed = yaml.safe_load((CONF / "pools" / "gpu.yaml").read_text(encoding="utf-8"))["tasks"]
    assert len(records) == len(listed) == 18
    assert {platform for platform, _ in records} == {H200}
    lines = [line for lines in records.values() for line in lines]
    assert sum(line["checked"] for line in ran(lines)) == len(ran(lines)) == 576
    # the others were never timed: their builds exceeded the limit
    assert Counter(line["r"][1] for line in lines if line["r"][1]) == {6: 12}


@ON_H200
def test_the_h200_split_is_two_draws_by_one_rule(read):
    """The workloads that were measured later were drawn alone, so none changed its side."""
    frozen = FrozenSplit.load(H200, 0)
    script = runpy.run_path(str(DATASETS / "splits" / "draw.py"))
    drawn = {side: set() for side in SIDES}
    measured = {task.key.identity: task for task in read[0]}
    later = {name for name, task in measured.items() if task.key.task in ADDED}
    assert len(later) == len(ADDED)
    for names in (measured.keys() - later, later):
        workloads = {
            name: (measured[name].key.workload.short_op, frozenset({H200})) for name in names
        }
        draw = script["draw_split"](H200, workloads, seed=0, test=0.3, valid=0.16)
        assert draw.how in frozen.how
        for side in SIDES:
            drawn[side] |= set(draw.side(side))
    assert {side: set(frozen.side(side)) for side in SIDES} == drawn


NETWORK = "networks/cpu-avx2/net/tasks.json"
POOLS = (("cpu-sse4", "softmax_64_1000"), ("cpu-avx2", "matmul_128_128_128"))


@pytest.fixture
def collection(tmp_path):
    """Two finished pools with what a collection leaves beside them."""
    out = tmp_path / "pools"
    shutil.copytree(DATASETS / "bundled/design_spaces", out / "design_spaces")
    for platform, task in POOLS:
        for folder, suffix in (("measure_records", ".json.gz"), ("pools", ".jsonl")):
            (out / folder / platform).mkdir(parents=True, exist_ok=True)
            (out / folder / platform / f"{task}{suffix}").touch()
        name = f"measure_records/{platform}/{task}.json.gz"
        shutil.copyfile(DATASETS / "bundled" / name, out / name)
    about = json.loads((DATASETS / "bundled/about.json").read_text())
    about["pools"] = [p for p in about["pools"] if (p["platform"], p["task"]) in POOLS]
    about["machine"]["kernel"] = "6.1-of-this-host"
    (out / NETWORK).parent.mkdir(parents=True)
    (out / NETWORK).write_text("[]")
    (out / NETWORK).with_name("request.json").touch()  # of this host
    (out / "about.json").write_text(json.dumps(about))
    return out


@pytest.mark.tvm
def test_records_their_spaces_and_what_was_measured_are_copied(collection, tmp_path):
    found, copy = bundle(collection, tmp_path / "set"), tmp_path / "set"
    names = [f"measure_records/{platform}/{task}.json.gz" for platform, task in POOLS]
    lines = [
        json.loads(line)
        for name in names
        for line in gzip.decompress((collection / name).read_bytes()).splitlines()
    ]
    spaces = {line["i"][1][1][0][1] for line in lines}
    assert found == {"pools": 2, "records": len(lines), "spaces": len(spaces)}
    names += [NETWORK, *(f"design_spaces/{space}.json.gz" for space in spaces)]
    files = {path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file()}
    assert files == {*names, "about.json", "SHA256SUMS"}
    assert all((copy / name).read_bytes() == (collection / name).read_bytes() for name in names)
    about = json.loads((copy / "about.json").read_text())
    told = json.loads((collection / "about.json").read_text())
    assert told["machine"].pop("kernel")
    assert about == told
    assert_checksums(copy)


@pytest.mark.tvm
def test_an_unfinished_collection_and_a_folder_that_is_there_are_refused(collection, tmp_path):
    platform, task = POOLS[0]
    path = collection / f"measure_records/{platform}/{task}.json.gz"
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    path.write_bytes(gzip.compress(b"".join(lines[1:])))  # of fewer programs than it has by now
    with pytest.raises(PrunerError, match=f"{platform} {task} is not finished"):
        bundle(collection, tmp_path / "set")
    path.unlink()
    with pytest.raises(PrunerError, match=f"{platform} {task} is not finished"):
        bundle(collection, tmp_path / "set")
    assert not (tmp_path / "set").exists()
    with pytest.raises(PrunerError, match="exists and is left alone"):
        bundle(collection, collection)
    with pytest.raises(PrunerError, match=r"no about\.json in it"):
        bundle(tmp_path, tmp_path / "set")


@pytest.mark.tvm
def test_the_command_bundles_without_workloads(collection, tmp_path, capsys):
    run_door("collect", ["backend=tvm", f"out={collection}", f"bundle={tmp_path / 'set'}"])
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["pools"] == 2
    assert result["out"] == str(tmp_path / "set")
