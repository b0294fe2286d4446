"""TenSet's protocol end to end: networks held out, tasks weighed, the mean over networks.

Task files and programs are TenSet's own, a few of each; the measurements are simulated.
"""

import csv
import gzip
import json

import numpy as np
import pytest

from pruner.data.networks import HELD_OUT
from pruner.data.tenset.task_pickle import read_task_pickle
from tests.program.tenset_tasks import unpack_network_info

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
    programs = sorted((shared / "golden" / "tenset").glob("cuda__*.json.gz"))
    if not programs:
        pytest.skip("no programs of TenSet: ../shared/golden/tenset is absent")
    root = tmp_path_factory.mktemp("tenset") / "dataset"
    folder = root / "measure_records" / "t4"
    folder.mkdir(parents=True)
    info = root / "network_info"
    info.mkdir()
    unpack_network_info(shared, info)
    files = [info / file_of(name) for name in HELD_OUT["pruner"]]
    files += [file for name in LEARNT for file in info.glob(f"*{name},*cuda*")]
    wanted = {task.workload_key for file in files for task in read_task_pickle(file)}
    rng = np.random.default_rng(0)
    for file in programs:
        with gzip.open(file, "rt") as opened:
            lines = opened.readlines()
        key = json.loads(lines[0])["i"][0][0]
        if key in wanted:
            name = "(" + json.dumps(json.loads(key), separators=(",", ":")) + ",cuda).json"
            records = simulated(lines, rng)
            (folder / name).write_text("".join(json.dumps(r) + "\n" for r in records))
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
            key = json.dumps(json.loads(task.workload_key), separators=(",", ":"))
            row = tasks.get(f"t4/({key},cuda)")
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
