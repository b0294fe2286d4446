"""Starts a command, kills it at any moment, starts it again, and counts what it finds.

Half of the kills end the whole group of processes, the others the main process alone, one of its
workers, or the main process by SIGTERM. When they come is measured by what the whole command takes
here, so a slow machine is attacked like a fast one.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from experiments.common.comparison import started
from tests.paths import REPOSITORY

TOKEN = "PRUNER_ATTACK"
GONE_S = 60  # until all processes of a killed command have ended
END_S = 1800  # until one that nobody kills has ended
SPAN = 0.6  # of the seconds of the whole command: kills come within them
WAYS = ("group", "group", "group", "main", "worker", "term")
A_BUG = 1  # Python's exit code after a traceback
OF_TORCH = "torchinductor_"  # its cache


@dataclass(slots=True)
class Attack:
    """One command under attack, `kills` times in all; `wrong` says what was found."""

    folder: Path
    temporary: Path  # what the command is told is the place of temporary files
    rng: random.Random
    kills: int
    log: Callable[[str], None]
    record: Callable[[str, object], None]  # a property of the test, for the table
    wrong: list[str] = field(default_factory=list)
    done: int = 0  # kills so far
    starts: int = 0
    round: int = 0  # of a command that ended before it was killed
    whole_s: float = 0.0  # seconds of the last command that nobody killed

    @property
    def name(self) -> str:
        return f"killed-{self.round}"

    def count(self) -> None:
        self.record("tried", max(1, self.done))
        self.record("failed", min(len(self.wrong), max(1, self.done)))

    def start(self, words: Sequence[str]) -> "subprocess.Popen[bytes]":
        self.starts += 1
        environment = os.environ | {
            "TMPDIR": str(self.temporary), TOKEN: str(self.folder), "PYTHONPATH": str(REPOSITORY),
        }  # fmt: skip
        with (self.folder / f"{self.starts}.out").open("wb") as out:
            return subprocess.Popen(
                started(words, REPOSITORY), cwd=REPOSITORY, env=environment, stdout=out,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def processes(self) -> list[int]:
        mark, found = f"{TOKEN}={self.folder}".encode(), []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def workers(self, main: int) -> list[int]:
        names = {pid: name_of(pid) for pid in self.processes() if pid != main}
        return [pid for pid, name in names.items() if name.startswith("python")]

    def kill(self, child: "subprocess.Popen[bytes]") -> None:
        """One kill; waits until what it ended is gone."""
        self.done += 1
        way = self.rng.choice(WAYS)
        workers = self.workers(child.pid) if way == "worker" else []
        if way == "worker" and workers:
            send(self.rng.choice(workers), signal.SIGKILL)
            return
        if way == "main":  # what came of it has to end by itself
            send(child.pid, signal.SIGKILL)
            child.wait()
        if way == "term":
            send(child.pid, signal.SIGTERM)
            wait(child, GONE_S)
            self.wrong += [f"{GONE_S} s after SIGTERM it is there"] if child.poll() is None else []
        if child.poll() is None:
            send(-child.pid, signal.SIGKILL)
        child.wait()
        end = time.monotonic() + GONE_S
        while self.processes() and time.monotonic() < end:
            time.sleep(0.05)
        for pid in self.processes():
            self.wrong.append(f"{way}: {name_of(pid)} left behind")
            send(pid, signal.SIGKILL)

    def finish(self, words: Sequence[str]) -> dict:
        start = time.monotonic()
        child = self.start(words)
        code = child.wait(timeout=END_S)
        self.whole_s = time.monotonic() - start
        text = (self.folder / f"{self.starts}.out").read_text(errors="replace")
        assert code == 0, text[-3000:]
        names = (path.name for path in self.temporary.iterdir())
        left = [name for name in names if not name.startswith(OF_TORCH)]
        self.wrong += [f"temporary {name} left behind" for name in left]
        return json.loads(text.strip().splitlines()[-1])

    def last_line(self) -> dict:
        return json.loads(self.last_words())

    def last_words(self) -> str:
        text = (self.folder / f"{self.starts}.out").read_text(errors="replace")
        return (text.strip().splitlines() or [""])[-1]


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "gone"


def send(pid: int, number: int) -> None:
    try:
        os.killpg(-pid, number) if pid < 0 else os.kill(pid, number)
    except ProcessLookupError:
        return


def wait(child: "subprocess.Popen[bytes]", seconds: float) -> None:
    end = time.monotonic() + seconds
    while child.poll() is None and time.monotonic() < end:
        time.sleep(0.02)


def attacked(
    attack: Attack,
    words: Callable[[], Sequence[str]],
    judge: Callable[[dict], None],
    finished: Callable[[], dict | None] = lambda: None,
) -> None:
    """Kill a command as often as it is to be, at any moment of its first seconds, then let it end.

    `words` says how to start it now; `judge` looks at what came of it. One that has ended before
    its kill is judged, and the next round begins in a new folder. One that a kill of its worker
    made end has to do so in one line. How long the whole command takes is known from
    :meth:`Attack.finish`, which comes before, and from rounds without a kill. `finished` tells the
    results that a command had written before its kill, where it does not go on with such.
    """

    def settled() -> bool:
        if (result := finished()) is None:
            return False
        judge(result)
        attack.round += 1
        return True

    attack.log(f"{attack.whole_s:.0f} s the whole command; {attack.kills} kills")
    fresh = True  # the round begins with this start
    while attack.done < attack.kills and attack.round < attack.kills + 3:
        fresh = settled() or fresh
        child, before, began = attack.start(words()), attack.done, time.monotonic()
        while child.poll() is None and attack.done < attack.kills:
            wait(child, attack.rng.uniform(0, SPAN * attack.whole_s))
            if child.poll() is None:
                attack.kill(child)
                attack.count()
                attack.log(f"{attack.done} of {attack.kills} kills, {len(attack.wrong)} wrong")
        if child.poll() is None:
            child.wait(timeout=END_S)
        if child.returncode == 0:
            if fresh and attack.done == before:  # the machine may have less to do than before
                attack.whole_s = min(attack.whole_s, time.monotonic() - began)
            judge(attack.last_line())
            attack.round += 1
        elif attack.done == before:  # it would do so again, for ever
            attack.wrong.append(f"ended by itself with {child.returncode}")
            break
        elif child.returncode == A_BUG:
            attack.wrong.append(f"a traceback: {attack.last_words()}")
        fresh = child.returncode == 0
    settled()
    judge(attack.finish(words()))
    if attack.done < attack.kills:
        attack.wrong.append(f"only {attack.done} of {attack.kills} kills, it is too quick")
    attack.count()
    assert not attack.wrong


def resumed(folder: Path, fresh: Sequence[str], again: Sequence[str]) -> Sequence[str]:
    """Go on with a run; one that was killed before it had written its options begins anew."""
    if (folder / "config.yaml").is_file():
        return again
    shutil.rmtree(folder, ignore_errors=True)
    return fresh


def partial_files(folder: Path) -> list[str]:
    left = [*folder.rglob("*.part"), *folder.rglob("*.partial")]
    return [str(path.relative_to(folder)) for path in left]
