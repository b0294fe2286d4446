"""A run that ends at every one of its writes: nothing lost, nothing twice, and it goes on exactly.

The run is real but for its measurer. It happens in a process of its own, which Python's audit hook
follows: whatever it opens to write, names, removes or syncs in its folder is one event, at which
the process ends at once, in the middle of a line where it appends one; or from which on the disk is
full.
"""

import errno
import multiprocessing
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from pruner.tune.run.journal import JOURNAL_FILE, Journal, read_trials
from tests.attack.sizes import FAULTS
from tests.tune.run.test_loop import FakeMeasurer, measured, run

pytestmark = [pytest.mark.tvm, pytest.mark.slow]

DIED, FULL = 9, 28
TRIALS = 12
CONTEXT = multiprocessing.get_context("forkserver")
PRELOADED = (  # some hundred starts need not import TVM and torch each
    "pruner.tune.measure.loaded",
    "pruner.tune.run.database",
    "pruner.models.analyzer.analyzer",
)
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
NAMED = {"os.rename": 1, "os.remove": 0, "os.mkdir": 0, "os.truncate": 0}


class Fault:
    """Counts what the process does to its folder; acts at event number `at`."""

    def __init__(self, folder: Path, at: int | None, kind: str) -> None:
        self.folder, self.at, self.kind = str(folder), at, kind
        self.events: list[str] = []
        self.resting = False

    def __call__(self, event: str, given: tuple) -> None:
        """The audit hook."""
        if event == "open":
            path, _, flags = given
            if isinstance(flags, int) and flags & WRITES:
                self.happens(f"open {Path(str(path)).name}", path)
        elif event in NAMED:
            path = given[NAMED[event]]
            self.happens(f"{event} {Path(str(path)).name}", path)

    def happens(self, what: str, path: object) -> None:
        """One event; those outside the folder do not count."""
        if self.resting or not str(path).startswith(self.folder):
            return
        self.events.append(what)
        if self.at is None or len(self.events) < self.at:
            return
        if self.kind == "killed":
            os._exit(DIED)
        raise OSError(errno.ENOSPC, "No space left on device", str(path))


def faulty(folder: Path, at: int | None, kind: str, out: Path) -> None:
    """The process: one start of the run."""
    from pruner.tune.measure.measurer import Platform
    from pruner.tune.run.database import RECORDS, Database
    from pruner.tune.tvm_import import load_tvm

    target = load_tvm().tvm.target.Target({"kind": "llvm", "num-cores": 1})
    platform = Platform(target=target, device="cpu", cores=1, name="cpu-avx2")
    fault, fsync, append = Fault(folder, at, kind), os.fsync, Journal.append
    commit = Database.commit_json

    def synced(descriptor: int) -> None:
        fault.happens("fsync", Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    def torn(path: Path, line: bytes) -> None:
        """Only half of the line that comes now."""
        if at is not None and len(fault.events) + 1 == at:
            fault.resting = True
            with path.open("ab") as file:
                file.write(line[: len(line) // 2])
            fault.resting = False
        fault.happens(f"append {path.name}", path)

    def appended(self: Journal, trial: object) -> None:
        torn(folder / JOURNAL_FILE, b'{"task":"matmul_64_64_64","trial":1,')
        append(self, trial)

    def committed(self: Database, module: object, record: object) -> None:
        torn(folder / RECORDS, b'[0,[[[["GetSBlock",[],["C","main"]')
        commit(self, module, record)

    os.fsync, Journal.append, Database.commit_json = synced, appended, committed
    folder.mkdir(exist_ok=True)
    sys.addaudithook(fault)
    ending = 0
    try:
        run(folder, platform, FakeMeasurer(), trials=TRIALS, batch_size=4)
    except OSError:
        ending = FULL
    sys.stdout.flush()
    out.write_text("\n".join(fault.events))
    os._exit(ending)


def started(folder: Path, at: int | None, kind: str, out: Path) -> int:
    process = CONTEXT.Process(target=faulty, args=(folder, at, kind, out))
    process.start()
    process.join(600)
    assert process.exitcode is not None
    return process.exitcode


def recorded(folder: Path) -> Counter:
    from pruner.tune.run.database import Database

    records = Database.read(folder).tvm_database.get_all_tuning_records()
    return Counter(tuple(float(cost) for cost in record.run_secs) for record in records)


@pytest.mark.parametrize("kind", ["killed", "full"])
def test_a_run_that_ends_at_any_write_goes_on_exactly(tmp_path, kind, record_property, tell):
    CONTEXT.set_forkserver_preload([__name__, *PRELOADED])
    whole, out = tmp_path / "whole", tmp_path / "events"
    assert started(whole, None, kind, out) == 0
    events = out.read_text().splitlines()
    expected = Counter(
        tuple(row.costs_s) for row in read_trials(whole / JOURNAL_FILE) if row.error is None
    )
    assert len(measured(whole)) == TRIALS
    assert recorded(whole) == expected
    kinds = Counter(event.split()[0] for event in events)
    assert kinds["append"] == TRIALS + expected.total()  # rows, and records of those that ran
    assert kinds["os.rename"] >= 3  # snapshots
    wrong: dict[str, str] = {}
    walked = chosen(len(events))
    for done, at in enumerate(walked, start=1):
        event, folder = events[at - 1], tmp_path / f"{kind}-{at}"
        ending = started(folder, at, kind, out)
        again = started(folder, None, kind, out)
        rows = measured(folder)
        parts = [path.name for path in folder.glob(".*.part")]
        if (ending, again) != (DIED if kind == "killed" else FULL, 0):
            wrong[f"{at} {event}"] = f"endings {ending}, {again}"
        elif rows != measured(whole) or recorded(folder) != expected:
            wrong[f"{at} {event}"] = f"{len(rows)} rows, {recorded(folder).total()} records"
        elif parts:
            wrong[f"{at} {event}"] = f"left {parts}"
        record_property("tried", done)
        record_property("failed", len(wrong))
        if done % 10 == 0:
            tell(f"{done} of {len(walked)} writes, {len(wrong)} wrong")
    assert not wrong


def chosen(events: int) -> list[int]:
    """Which of them fail, counted from 1: all, or as many as there shall be, evenly."""
    number = min(FAULTS or events, events)
    return [1 + place * events // number for place in range(number)]
