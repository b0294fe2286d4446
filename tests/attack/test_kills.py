"""Commands that are killed again and again: nothing lost, nothing twice, nothing left behind.

``ATTACK_KILLS`` (``make attack KILLS=200``) is the number of kills of all commands together. Each
command is run once as a whole, then started, killed at a random moment, and started again until it
has had its kills; then it runs to its end.
"""

import gzip
import json
import random
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from pruner.files import load_metrics
from pruner.tune.run.journal import JOURNAL_FILE, read_trials
from tests.attack.kills import Attack, attacked, partial_files, resumed, send
from tests.attack.sizes import KILLS

pytestmark = [pytest.mark.tvm, pytest.mark.slow]

PARTS = 4  # of the longest, each a case that an ended attack need not repeat
SHARE = {
    "test_tune": 0.36 / PARTS,
    "test_train": 0.14,
    "test_featurize": 0.14,
    "test_collect_pools": 0.18,
    "test_adapt": 0.1,
    "test_deploy": 0.08,
}


@pytest.fixture
def attack(tmp_path, request, record_property, log):
    """An attack with a seed of its own, and its share of all kills."""
    name = request.node.name
    made = Attack(
        folder=tmp_path,
        temporary=Path(tempfile.mkdtemp(prefix="attack-")),  # names of sockets are short
        rng=random.Random(name),
        kills=max(1, round(KILLS * SHARE[request.node.originalname])),
        log=log,
        record=record_property,
    )
    yield made
    for pid in made.processes():
        send(pid, signal.SIGKILL)
    shutil.rmtree(made.temporary, ignore_errors=True)


TUNE = [
    "tune.py", "workload.m=64", "workload.n=64", "workload.k=64", "measure.min_repeat_ms=1",
    "measure.repeats=2", "policy=pruner_live", "model=xgboost", "budget.batch=8",
]  # fmt: skip
TRIALS = 48


@pytest.mark.parametrize("part", range(PARTS))
def test_tune(attack, part):
    fresh = [*TUNE, f"outputs={attack.folder}", f"budget.trials={TRIALS}"]

    def words() -> Sequence[str]:
        folder = attack.folder / "tune" / attack.name
        return resumed(folder, [*fresh, f"run_id={attack.name}"], ["tune.py", f"resume={folder}"])

    def judge(result: dict) -> None:
        attack.wrong += wrong_in(attack.folder / "tune" / attack.name, result)

    def finished() -> dict | None:
        found = load_metrics(attack.folder / "tune" / attack.name)
        return None if found is None or "interrupted" in found else found

    whole = attack.finish([*fresh, "run_id=whole"])
    attack.wrong += wrong_in(attack.folder / "tune" / "whole", whole)
    attacked(attack, words, judge, finished)


def wrong_in(folder: Path, result: dict) -> list[str]:
    told: list[str] = []
    rows = read_trials(folder / JOURNAL_FILE, told.append)
    places = Counter((row.batch, row.position) for row in rows)
    programs = Counter((row.space, *row.decisions) for row in rows)
    lines = (folder / "database_tuning_record.json").read_text().splitlines()
    records = Counter(tuple(json.loads(line)[1][1]) for line in lines)
    ran = Counter(tuple(row.costs_s) for row in rows if row.error is None)
    lost = [row.trial for row in rows] != list(range(1, TRIALS + 1))
    ordered = all(a.elapsed_s <= b.elapsed_s for a, b in pairwise(rows))
    spent, total = sum(result["seconds"].values()), result["total_seconds"]
    return [
        *told,
        *([] if ordered else ["time runs backwards"]),
        *([] if abs(spent - total) <= 0.01 * total else [f"{spent} of {total} s"]),
        *([f"{len(rows)} rows"] if lost or result["trials"] != TRIALS else []),
        *[f"{place} twice" for place, number in places.items() if number > 1],
        *[f"program {program} twice" for program, number in programs.items() if number > 1],
        *([f"{(records - ran).total()} records too many"] if records - ran else []),
        *([f"{(ran - records).total()} records lacking"] if ran - records else []),
        *[f"blamed: {row.error} {row.message:.60}" for row in rows if row.error is not None],
        *partial_files(folder),
        *(["builds"] if (folder / "builds").exists() else []),
    ]


def test_deploy(attack):
    folder = attack.folder / "tune" / "tuned"
    attack.finish([*TUNE, "budget.trials=8", "run_id=tuned", f"outputs={attack.folder}"])
    kept = {name: (folder / name).read_bytes() for name in (JOURNAL_FILE, "config.yaml")}

    def judge(result: dict) -> None:
        (kernel,) = result["kernels"].values()
        others = [name for name, text in kept.items() if (folder / name).read_bytes() != text]
        empty = [path for path in kernel["sources"] if not Path(path).stat().st_size]
        left = [path for path in (folder / "deploy").iterdir() if path.name != ".lock"]
        attack.wrong += [*others, *empty, *partial_files(folder), *map(str, left)]

    words = ["deploy", f"run={folder}"]
    judge(attack.finish(words))
    attacked(attack, lambda: words, judge)
    from pruner.tune import tuned_module
    from pruner.tune.tvm_import import load_tvm

    tensor = load_tvm().tvm.runtime.tensor
    a, b = np.random.default_rng(0).random((2, 64, 64), dtype=np.float32)
    c = tensor(np.zeros_like(a))
    tuned_module(folder)["main"](tensor(a), tensor(b), c)
    np.testing.assert_allclose(c.numpy(), a @ b, rtol=1e-4)


TRAIN = [
    "train.py", "data.platform=cpu-avx2", "platform=cpu-avx2", "model=tensetmlp",
    "trainer.max_epochs=8",
]  # fmt: skip


def weights(folder: Path) -> dict[str, bytes]:
    from pruner.models.checkpoint.tensors import load_content

    state = load_content(folder / "best.safetensors")["state"]
    return {
        f"{part}.{name}": value.numpy().tobytes()
        for part in ("network", "scaler")
        for name, value in state[part].items()
    }


def test_train(attack):
    own = [f"outputs={attack.folder}", f"data.cache={attack.folder}/cache"]
    whole = attack.finish([*TRAIN, *own, "run_id=whole"])
    numbers = ("top1", "top5", "top1_task_mean", "pairwise_accuracy", "num_tasks", "num_programs")

    def words() -> Sequence[str]:
        folder = attack.folder / "train" / attack.name
        fresh = [*TRAIN, *own, f"run_id={attack.name}"]
        return resumed(folder, fresh, ["train.py", f"resume={folder}"])

    def judge(result: dict) -> None:
        folder = attack.folder / "train" / attack.name
        if weights(folder) != weights(attack.folder / "train" / "whole"):
            attack.wrong.append("other weights")
        attack.wrong += [name for name in numbers if result[name] != whole[name]]
        attack.wrong += partial_files(folder)

    def finished() -> dict | None:
        return load_metrics(attack.folder / "train" / attack.name)

    attacked(attack, words, judge, finished)


def arrays(folder: Path) -> dict[str, bytes]:
    found = {}
    for path in sorted(folder.rglob("*.npz")):
        with np.load(path) as stored:
            for name in stored.files:
                found[f"{path.relative_to(folder)} {name}"] = stored[name].tobytes()
    return found


def test_featurize(attack):
    words = ["featurize", "platform=cpu-avx2", "num_workers=2"]
    whole = attack.folder / "whole"
    attack.finish([*words, f"out={whole}"])

    def judge(result: dict) -> None:
        folder = attack.folder / attack.name
        attack.wrong += [] if arrays(folder) == arrays(whole) else ["other features"]
        attack.wrong += partial_files(folder)

    attacked(attack, lambda: [*words, f"out={attack.folder / attack.name}"], judge)


POOLS = [
    "collect", "platform=cpu-sse4", "programs=12", "pool.apart_s=0",
    "pool.most=2", "measure.repeats=2", "measure.min_repeat_ms=1",
    "workloads=[{operator:matmul,m:32,n:32,k:32,epilogue:[relu]},"
    "{operator:softmax,rows:16,columns:64}]",
]  # fmt: skip


def test_collect_pools(attack):
    whole = attack.folder / "whole"
    attack.finish([*POOLS, f"out={whole}"])

    def judge(result: dict) -> None:
        attack.wrong += wrong_in_pools(attack.folder / attack.name, whole)

    attacked(attack, lambda: [*POOLS, f"out={attack.folder / attack.name}"], judge)


def wrong_in_pools(folder: Path, whole: Path) -> list[str]:
    """Where pools are not what an uninterrupted collection has of the same seed."""
    wrong = partial_files(folder) + [f"left {path}" for path in folder.rglob("*.so")]
    wrong += ["builds"] if (folder / "builds").exists() else []
    for path in sorted((whole / "pools").rglob("*.jsonl")):
        ours = folder / path.relative_to(whole)
        timed, errors = ledger_of(ours)
        wrong += [f"{ours.stem} {n} timed {times} times" for n, times in timed.items() if times > 2]
        if (set(timed), errors) != (set(ledger_of(path)[0]), ledger_of(path)[1]):
            wrong.append(f"{ours.stem}: other programs, or blamed ones: {sorted(errors)}")
    for path in sorted((whole / "measure_records").rglob("*.json.gz")):
        ours = folder / path.relative_to(whole)
        if inputs_of(ours) != inputs_of(path):
            wrong.append(f"{ours.name}: other records")
        task = path.name.removesuffix(".json.gz")
        database = folder / "metaschedule" / path.parent.name / task / "database_tuning_record.json"
        if len(database.read_text().splitlines()) != len(inputs_of(path)):
            wrong.append(f"{task}: a database of other programs")
    return wrong


def ledger_of(path: Path) -> tuple[Counter[int], set[tuple[int, str]]]:
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    timed = Counter(entry["program"] for entry in entries if entry.get("costs_s"))
    return timed, {(entry["program"], entry["error"]) for entry in entries if entry.get("error")}


def inputs_of(path: Path) -> list[object]:
    return [json.loads(line)["i"] for line in gzip.decompress(path.read_bytes()).splitlines()]


def test_adapt(attack):
    own = [f"outputs={attack.folder}", f"data.cache={attack.folder}/cache"]
    fresh = [
        "adapt.py", "source=cpu-sse4", "target=cpu-avx2", "method=finetune", "references=[]",
        "budget=small", "seeds=[0]", "trainer.max_epochs=2", *own,
    ]  # fmt: skip
    whole = attack.finish([*fresh, "run_id=whole"])

    def words() -> Sequence[str]:
        folder = attack.folder / "adapt" / attack.name
        return resumed(folder, [*fresh, f"run_id={attack.name}"], ["adapt.py", f"resume={folder}"])

    def judge(result: dict) -> None:
        for name, found in whole["methods"].items():
            for unit in ("area", "final", "trials_to_target"):
                if result["methods"][name][unit] != found[unit]:
                    attack.wrong.append(f"{name}: another {unit}")
        attack.wrong += partial_files(attack.folder / "adapt" / attack.name)

    attacked(attack, words, judge)
