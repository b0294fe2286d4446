"""A TenSet data set as downloaded is a data root: records by task, operators in network_info."""

import csv
import gzip
import json

import numpy as np
import pytest

from pruner.data.networks import HELD_OUT
from pruner.data.tenset.task_pickle import read_task_pickle
from tests.program.tenset_tasks import unpack_network_info

CHOSEN = 6  # tasks for each target


def golden(shared, kind):
    found = sorted((shared / "golden" / "tenset").glob(kind))
    if not found:
        pytest.skip("no TenSet records: ../shared/golden/tenset is absent")
    return found


def with_networks(shared, tmp_path_factory):
    root = tmp_path_factory.mktemp("tenset") / "dataset"
    (root / "network_info").mkdir(parents=True)
    unpack_network_info(shared, root / "network_info")
    return root


def lines_of(file):
    with gzip.open(file, "rt") as opened:
        return opened.readlines()


def named(key, target):
    return "(" + json.dumps(json.loads(key), separators=(",", ":")) + f",{target})"


def write(root, platform, name, records):
    path = root / "measure_records" / platform / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in records))


@pytest.fixture(scope="module")
def tenset_root(shared, tmp_path_factory):
    """``network_info`` and ``measure_records/<platform>/([key],target).json``, as downloaded."""
    files, root = golden(shared, "*.npz"), with_networks(shared, tmp_path_factory)
    for platform, target in (("t4", "cuda"), ("graviton2", "llvm")):
        with_programs = [f for f in files if f.name.startswith(target) and f.stat().st_size > 4000]
        for file in with_programs[:: len(with_programs) // CHOSEN][:CHOSEN]:
            records = [json.loads(line) for line in lines_of(file.with_suffix(".json.gz"))]
            for number, record in enumerate(records):
                record["r"][0] = [1e-3 * (1 + number)]  # generated, never measured
            write(root, platform, named(records[0]["i"][0][0], target), records)
    return root, files


def test_featurize_train_and_evaluate_take_it(run, tenset_root, tmp_path):
    root, _ = tenset_root
    data = (f"data.root={root}", "data.platform=t4")
    written = run("featurize", *data, f"out={tmp_path}/out", "num_workers=1", "features=official")
    assert written["files"] == CHOSEN
    assert written["failed"] <= 0.1 * written["programs"]
    trained = run(
        "train",
        *data,
        "model=tensetmlp",
        "split=within_task",
        "trainer.max_epochs=1",
        "logger=csv",
        "min_programs=1",
        "run_id=r",
    )
    judged = run("evaluate", *data, f"checkpoint={trained['checkpoint']}", "tasks=all")
    assert judged["num_tasks"] == CHOSEN
    assert judged["num_programs"] + written["failed"] == written["programs"]


@pytest.mark.parametrize(("platform", "target"), [("t4", "cuda"), ("graviton2", "llvm")])
def test_features_are_the_official_ones(run, tenset_root, tmp_path, platform, target):
    root, files = tenset_root
    run(
        "featurize",
        f"data.root={root}",
        f"data.platform={platform}",
        f"out={tmp_path}/out",
        "num_workers=1",
        "features=official",
    )
    close = total = 0
    by_lines = {g.with_suffix(".json.gz"): g for g in files if g.name.startswith(target)}
    for records, features in by_lines.items():
        name = named(json.loads(lines_of(records)[0])["i"][0][0], target)
        written = tmp_path / "out" / platform / f"{name}.npz"
        if not written.exists():
            continue
        with np.load(features) as wanted, np.load(written) as found:
            for line, statement in enumerate(found["statement"]):
                if f"{line}.statement" in wanted:
                    expected = wanted[f"{line}.statement"]
                    rows = statement[: found["num_statements"][line]]
                    total += 1
                    close += rows.shape == expected.shape and bool(
                        np.isclose(np.sort(rows[:, 161]), np.sort(expected[:, 161])).all()
                    )
    assert total >= CHOSEN
    assert close >= 0.9 * total  # the columns themselves are compared in tests/features


def test_without_network_info_the_reason_is_told(run, tenset_root, tmp_path):
    root, _ = tenset_root
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "measure_records").symlink_to(root / "measure_records")
    written = run(
        "featurize", f"data.root={bare}", "data.platform=t4", f"out={tmp_path}/out", "num_workers=1"
    )
    assert written["failures"] == {"unknown-task": written["programs"]}


LEARNT = ("wide_resnet_50", "dcgan")  # networks whose other tasks are there to learn from
UNROLLED = ("0", "16", "64", "512")


def file_of(name):
    family, _, size = name.partition("@")
    return f"(({family},[({size.replace('x', ',')})]),cuda).task.pkl"


def simulated(lines, rng):
    """Every program with every depth of unrolling, measured by nobody."""
    for line in lines:
        for depth in UNROLLED:
            record = json.loads(line)
            steps = record["i"][1][1]
            for step in steps:
                if step[0] == "PR":
                    step[-1] = f"auto_unroll_max_step${depth}"
            seconds = 1e-3 * len(steps) * rng.lognormal()
            yield {**record, "r": [[seconds], 0, 1.0, 1]}


@pytest.fixture(scope="module")
def root(shared, tmp_path_factory):
    """``network_info`` and ``measure_records/t4/([key],target).json``, as TenSet has them."""
    programs, root = golden(shared, "cuda__*.json.gz"), with_networks(shared, tmp_path_factory)
    info = root / "network_info"
    files = [info / file_of(name) for name in HELD_OUT["pruner"]]
    files += [file for name in LEARNT for file in info.glob(f"*{name},*cuda*")]
    wanted = {task.workload_key for file in files for task in read_task_pickle(file)}
    rng = np.random.default_rng(0)
    for file in programs:
        lines = lines_of(file)
        key = json.loads(lines[0])["i"][0][0]
        if key in wanted:
            write(root, "t4", named(key, "cuda"), simulated(lines, rng))
    return root


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow  # a model is trained on the way
def test_a_model_is_judged_on_the_papers_networks(run, root, tmp_path):
    data = (f"data.root={root}", "platform=t4")
    trained = run(
        "train", *data, "split=by_network", "model=tensetmlp", "trainer.max_epochs=1", "run_id=r"
    )
    tasks = {row["task"]: row for row in rows_of(tmp_path / trained["run_dir"] / "tasks.csv")}
    means, judged = [], set()
    for name in HELD_OUT["pruner"]:
        best = chosen = 0.0
        for task in read_task_pickle(root / "network_info" / file_of(name)):
            row = tasks.get(f"t4/{named(task.workload_key, 'cuda')}")
            if row is not None:  # TenSet's scripts skip tasks without records, too
                judged.add(row["task"])
                best += task.weight * float(row["best_latency_s"])
                chosen += task.weight * float(row["chosen_latency_s"])
        means.append(best / chosen)
    assert judged == set(tasks)
    assert trained["num_networks"] == 5
    assert trained["top1_network_mean"] == pytest.approx(np.mean(means))
    assert 0 < trained["random"]["top1_network_mean"] < 1
    rows = rows_of(tmp_path / trained["run_dir"] / "networks.csv")
    assert {row["network"] for row in rows} == {f"t4/{name}" for name in HELD_OUT["pruner"]}
    assert [int(row["calls_of_network"]) for row in rows if "bert_base" in row["network"]] == [135]

    again = run("evaluate", *data, f"checkpoint={trained['checkpoint']}", "networks=[pruner]")
    assert again["num_tasks"] == len(tasks)
    for name in ("top1_network_mean", "top5_network_mean", "top1", "top5_task_mean"):
        assert again[name] == pytest.approx(trained[name])
    assert rows_of(tmp_path / again["run_dir"] / "networks.csv") == rows
    seen = run("evaluate", *data, f"checkpoint={trained['checkpoint']}")
    assert "top1_network_mean" not in seen
    assert seen["top1"] == again["top1"]


def test_networks_that_are_not_there_are_told(door, root):
    err = door(
        "evaluate", f"data.root={root}", "platform=t4", "model=random", "networks=[vgg]"
    ).refusal
    assert "networks vgg are not with these records" in err
