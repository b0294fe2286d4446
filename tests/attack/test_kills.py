"""Commands that are killed again and again: nothing lost, nothing twice, nothing left behind.

``ATTACK_KILLS`` (``make attack KILLS=200``) is the number of kills of all commands together. Each
command is started, killed at a random moment, and started again until it has had its kills; then it
runs to its end. Half of the kills end the whole group of processes, the others the main process
alone, one of its workers, or the main process by SIGTERM.
"""

import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from pruner.tune.run.journal import JOURNAL_FILE, read_trials
from tests.places import REPOSITORY

pytestmark = [pytest.mark.tvm, pytest.mark.slow]

KILLS = int(os.environ.get("ATTACK_KILLS", "12"))
SHARE = {
    "tune": 0.44,
    "train": 0.16,
    "featurize": 0.16,
    "collect": 0.12,
    "deploy": 0.1,
}
TOKEN = "PRUNER_ATTACK"
GONE_S = 20  # until all processes of a killed command have ended
WAYS = ("group", "group", "group", "main", "worker", "term")


def kills_of(command: str) -> int:
    """Its share of all."""
    return max(1, round(KILLS * SHARE[command]))


@dataclass(slots=True)
class Attack:
    """Starts a command, kills it, and counts what it finds afterwards."""

    folder: Path
    rng: random.Random
    wrong: list[str] = field(default_factory=list)
    starts: int = 0
    round: int = 0  # of a command that ended before it was killed

    @property
    def name(self) -> str:
        """Of the folder of this round."""
        return f"killed-{self.round}"

    @property
    def temporary(self) -> Path:
        """What the command is told is the place of temporary files."""
        return self.folder / "temporary"

    def start(self, words: Sequence[str]) -> "subprocess.Popen[bytes]":
        """Begin the command in a group of its own."""
        self.starts += 1
        self.temporary.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {
            "TMPDIR": str(self.temporary), TOKEN: str(self.folder), "PYTHONPATH": str(REPOSITORY),
        }  # fmt: skip
        with (self.folder / f"{self.starts}.out").open("wb") as out:
            return subprocess.Popen(
                [sys.executable, *words], cwd=REPOSITORY, env=environment, stdout=out,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def processes(self) -> list[int]:
        """All processes that came of the command."""
        mark, found = f"{TOKEN}={self.folder}".encode(), []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def workers(self, main: int) -> list[int]:
        """Those that are Python and not the main one."""
        names = {pid: name_of(pid) for pid in self.processes() if pid != main}
        return [pid for pid, name in names.items() if name.startswith("python")]

    def kill(self, child: "subprocess.Popen[bytes]") -> None:
        """One kill; waits until what it ended is gone."""
        way = self.rng.choice(WAYS)
        workers = self.workers(child.pid) if way == "worker" else []
        if way == "worker" and workers:
            send(self.rng.choice(workers), signal.SIGKILL)
            return
        if way == "term":
            send(child.pid, signal.SIGTERM)
            wait(child, GONE_S)
        elif way == "main":
            send(child.pid, signal.SIGKILL)
        if child.poll() is None or way == "group":
            send(-child.pid, signal.SIGKILL)
        child.wait()
        end = time.monotonic() + GONE_S
        while self.processes() and time.monotonic() < end:
            time.sleep(0.05)
        for pid in self.processes():
            self.wrong.append(f"{way}: {name_of(pid)} left behind")
            send(pid, signal.SIGKILL)

    def finish(self, words: Sequence[str]) -> dict:
        """Run the command to its end; the object of its last line."""
        child = self.start(words)
        code = child.wait(timeout=900)
        text = (self.folder / f"{self.starts}.out").read_text(errors="replace")
        assert code == 0, text[-3000:]
        names = (path.name for path in self.temporary.iterdir())
        left = [name for name in names if not name.startswith("torchinductor_")]  # torch's cache
        self.wrong += [f"temporary {name} left behind" for name in left]
        return json.loads(text.strip().splitlines()[-1])


def name_of(pid: int) -> str:
    """What a process is called."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "gone"


def send(pid: int, number: int) -> None:
    """A signal to what may be gone."""
    try:
        os.killpg(-pid, number) if pid < 0 else os.kill(pid, number)
    except ProcessLookupError:
        return


def wait(child: "subprocess.Popen[bytes]", seconds: float) -> None:
    """Until it has ended, or the time is over."""
    end = time.monotonic() + seconds
    while child.poll() is None and time.monotonic() < end:
        time.sleep(0.02)


def attacked(
    attack: Attack,
    words: Callable[[], Sequence[str]],
    judge: Callable[[dict], None],
    kills: int,
    span_s: float,
) -> None:
    """Kill a command so many times at any moment of its first `span_s` seconds, then let it finish.

    `words` says how to start it now; `judge` looks at what came of it. One that has ended before
    its kill is judged, and the next round begins in a new folder.
    """
    done = 0
    while done < kills and attack.round < kills + 3:
        child, before = attack.start(words()), done
        while child.poll() is None and done < kills:
            wait(child, attack.rng.uniform(0, span_s))
            if child.poll() is None:
                attack.kill(child)
                done += 1
        if child.poll() is None:
            child.wait(timeout=900)
        if child.returncode == 0:
            judge(last_line(attack))
            attack.round += 1
        elif done == before:  # it would do so again, for ever
            attack.wrong.append(f"ended by itself with {child.returncode}")
            break
    judge(attack.finish(words()))
    if done < kills:
        attack.wrong.append(f"only {done} of {kills} kills, the command is too quick")


def last_line(attack: Attack) -> dict:
    """Of the start that has ended by itself."""
    text = (attack.folder / f"{attack.starts}.out").read_text(errors="replace")
    return json.loads(text.strip().splitlines()[-1])


def resumed(folder: Path, fresh: Sequence[str], again: Sequence[str]) -> Sequence[str]:
    """Go on with a run; one that was killed before it had written its options begins anew."""
    if (folder / "config.yaml").is_file():
        return again
    shutil.rmtree(folder, ignore_errors=True)
    return fresh


def partial_files(folder: Path) -> list[str]:
    """Those that a finished command has no more use for."""
    return [str(path.relative_to(folder)) for path in folder.rglob("*.part")]


@pytest.fixture
def attack(tmp_path, request, record_property):
    """An attack with a seed of its own, which counts what it found."""
    made = Attack(folder=tmp_path, rng=random.Random(request.node.name))
    yield made
    record_property("failed", len(made.wrong))
    for pid in made.processes():
        send(pid, signal.SIGKILL)


def judged(attack: Attack, record_property: Callable[[str, object], None], command: str) -> None:
    record_property("tried", kills_of(command))
    assert not attack.wrong


TUNE = [
    "tune.py", "workload.m=64", "workload.n=64", "workload.k=64", "measure.min_repeat_ms=1",
    "measure.repeats=2", "policy=pruner_live", "model=xgboost", "budget.batch=8",
]  # fmt: skip
TRIALS = 48


def test_tune(attack, record_property):
    def words() -> Sequence[str]:
        folder = attack.folder / "tune" / attack.name
        own = [f"outputs={attack.folder}", f"run_id={attack.name}", f"budget.trials={TRIALS}"]
        return resumed(folder, [*TUNE, *own], ["tune.py", f"resume={folder}"])

    def judge(result: dict) -> None:
        attack.wrong += wrong_in(attack.folder / "tune" / attack.name, result)

    attacked(attack, words, judge, kills_of("tune"), span_s=15)
    judged(attack, record_property, "tune")


def wrong_in(folder: Path, result: dict) -> list[str]:
    """What a tuning run has lost, has twice, blames or leaves."""
    told: list[str] = []
    rows = read_trials(folder / JOURNAL_FILE, told.append)
    places = Counter((row.batch, row.position) for row in rows)
    programs = Counter((row.space, *row.decisions) for row in rows)
    lines = (folder / "database_tuning_record.json").read_text().splitlines()
    records = Counter(tuple(json.loads(line)[1][1]) for line in lines)
    ran = Counter(tuple(row.costs_s) for row in rows if row.error is None)
    lost = [row.trial for row in rows] != list(range(1, TRIALS + 1))
    return [
        *told,
        *([f"{len(rows)} rows"] if lost or result["trials"] != TRIALS else []),
        *[f"{place} twice" for place, number in places.items() if number > 1],
        *[f"program {program} twice" for program, number in programs.items() if number > 1],
        *([f"{(records - ran).total()} records too many"] if records - ran else []),
        *([f"{(ran - records).total()} records lacking"] if ran - records else []),
        *[f"blamed: {row.error} {row.message:.60}" for row in rows if row.error is not None],
        *partial_files(folder),
        *(["builds"] if (folder / "builds").exists() else []),
    ]


def test_deploy(attack, record_property):
    folder = attack.folder / "tune" / "tuned"
    attack.finish([*TUNE, "budget.trials=8", "run_id=tuned", f"outputs={attack.folder}"])
    kept = {name: (folder / name).read_bytes() for name in (JOURNAL_FILE, "config.yaml")}

    def judge(result: dict) -> None:
        (kernel,) = result["kernels"].values()
        others = [name for name, text in kept.items() if (folder / name).read_bytes() != text]
        empty = [path for path in kernel["sources"] if not Path(path).stat().st_size]
        attack.wrong += [*others, *empty, *partial_files(folder)]

    words = ["deploy.py", f"run={folder}"]
    attacked(attack, lambda: words, judge, kills_of("deploy"), span_s=8)
    from pruner.tune import tuned_module
    from pruner.tune.tvm_import import load_tvm

    tensor = load_tvm().tvm.runtime.tensor
    a, b = np.random.default_rng(0).random((2, 64, 64), dtype=np.float32)
    c = tensor(np.zeros_like(a))
    tuned_module(folder)["main"](tensor(a), tensor(b), c)
    np.testing.assert_allclose(c.numpy(), a @ b, rtol=1e-4)
    judged(attack, record_property, "deploy")


TRAIN = [
    "train.py", "data.platform=cpu-avx2", "platform=cpu-avx2", "model=tensetmlp",
    "trainer.max_epochs=8",
]  # fmt: skip


def weights(folder: Path) -> dict[str, bytes]:
    """Every tensor of the best checkpoint."""
    from pruner.models.checkpoint.archive import load_archive

    state = load_archive(folder / "best.pt")["state"]
    return {
        f"{part}.{name}": value.numpy().tobytes()
        for part in ("network", "scaler")
        for name, value in state[part].items()
    }


def test_train(attack, record_property):
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

    attacked(attack, words, judge, kills_of("train"), span_s=12)
    judged(attack, record_property, "train")


def arrays(folder: Path) -> dict[str, bytes]:
    """Every array of every archive below a folder."""
    found = {}
    for path in sorted(folder.rglob("*.npz")):
        with np.load(path) as stored:
            for name in stored.files:
                found[f"{path.relative_to(folder)} {name}"] = stored[name].tobytes()
    return found


def test_featurize(attack, record_property):
    words = ["featurize.py", "platform=cpu-avx2", "num_workers=2"]
    whole = attack.folder / "whole"
    attack.finish([*words, f"out={whole}"])

    def judge(result: dict) -> None:
        folder = attack.folder / attack.name
        attack.wrong += [] if arrays(folder) == arrays(whole) else ["other features"]
        attack.wrong += partial_files(folder)

    attacked(
        attack,
        lambda: [*words, f"out={attack.folder / attack.name}"],
        judge,
        kills_of("featurize"),
        span_s=8,
    )
    judged(attack, record_property, "featurize")


# Stands for the Python of the Ansor environment: a worker that copies records, one at a time.
COLLECTS = """#!{python}
import gzip, json, os, sys, time
if sys.argv[1] == "-c":
    sys.exit(0)
sys.path.insert(0, {repository!r})
from pruner.tune.child import end_with_parent
from pruner.tune.collect.layout import read_journal
from pathlib import Path
end_with_parent()
spec = json.loads(sys.argv[3])
journal = Path(spec["journal"])
lines = gzip.decompress(Path({records!r}).read_bytes()).splitlines()
known = read_journal(journal)
count = {{o: sum(e["origin"] == o for e in known) for o in ("random", "evolved")}}
for origin, wanted in (("random", spec["num_random"]), ("evolved", spec["num_evolved"])):
    while count[origin] < wanted:
        entry = {{"origin": origin, "record": json.loads(lines[sum(count.values())])}}
        with journal.open("ab", buffering=0) as file:
            text = json.dumps(entry).encode() + b"\\n"
            file.write(text[:100]); file.write(text[100:])
        count[origin] += 1
        time.sleep(0.1)
"""


def test_collect(attack, record_property):
    from pruner.tune.collect.tasks import BUNDLED_TASKS

    task, number = "matmul_128_128_128", 40
    assert task in {known.name for known in BUNDLED_TASKS}
    records = REPOSITORY / f"datasets/bundled/measure_records/cpu-sse4/{task}.json.gz"
    python = attack.folder / "ansor" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        COLLECTS.format(python=sys.executable, repository=str(REPOSITORY), records=str(records))
    )
    python.chmod(0o755)
    words = [
        "collect.py", f"environment={python.parents[1]}", "platform=cpu-sse4", f"workload={task}",
        f"programs={number}",
    ]  # fmt: skip
    wanted = gzip.decompress(records.read_bytes()).splitlines()[:number]

    def judge(result: dict) -> None:
        out = attack.folder / attack.name
        path = out / "measure_records" / "cpu-sse4" / f"{task}.json.gz"
        found = gzip.decompress(path.read_bytes()).splitlines()
        if [json.loads(line) for line in found] != [json.loads(line) for line in wanted]:
            attack.wrong.append(f"{len(found)} records, or others")
        attack.wrong += partial_files(out)

    attacked(
        attack,
        lambda: [*words, f"out={attack.folder / attack.name}"],
        judge,
        kills_of("collect"),
        span_s=6,
    )
    judged(attack, record_property, "collect")
