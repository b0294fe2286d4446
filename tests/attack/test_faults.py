"""A run that ends at every one of its writes: nothing lost, nothing twice, and it goes on exactly.

The run is real but for its measurer. Where it appends a line, it ends in the middle of it.
"""

from collections import Counter
from pathlib import Path

import pytest

from pruner.files import JsonLines
from pruner.tune.run.journal import JOURNAL_FILE, read_trials
from tests.attack.faults import DIED, FULL, PRELOADED, Fault, forked_from, spread, started
from tests.attack.sizes import FAULTS
from tests.tune.run.test_loop import FakeMeasurer, measured, run
from tests.tune.run.test_resume import recorded

pytestmark = [pytest.mark.tvm, pytest.mark.slow]

TRIALS = 12


def tuned(folder: Path, fault: Fault) -> None:
    """The run; rows of its journal and lines of its database are events, too."""
    from pruner.tune.measure.measurer import Platform
    from pruner.tune.run.database import RECORDS, Database
    from pruner.tune.tvm_import import load_tvm

    target = load_tvm().tvm.target.Target({"kind": "llvm", "num-cores": 1})
    platform = Platform(target=target, device="cpu", cores=1, name="cpu-avx2")
    append, commit = JsonLines.append, Database.commit_json

    def torn(path: Path, line: bytes) -> None:
        if fault.comes_now:
            with fault.at_rest(), path.open("ab") as file:
                file.write(line[: len(line) // 2])
        fault.happens(f"append {path.name}", path)

    def appended(self: JsonLines, trial: dict) -> None:
        torn(folder / JOURNAL_FILE, b'{"task":"matmul_64_64_64","trial":1,')
        append(self, trial)

    def committed(self: Database, module: object, record: object) -> None:
        torn(folder / RECORDS, b'[0,[[[["GetSBlock",[],["C","main"]')
        commit(self, module, record)

    JsonLines.append, Database.commit_json = appended, committed
    run(folder, platform, FakeMeasurer(), trials=TRIALS, batch_size=4)


@pytest.mark.parametrize("kind", ["killed", "full"])
def test_a_run_that_ends_at_any_write_goes_on_exactly(tmp_path, kind, record_property, log):
    with forked_from([__name__, *PRELOADED]):
        walk(tmp_path, kind, record_property, log)


def walk(tmp_path, kind, record_property, log):
    whole, out = tmp_path / "whole", tmp_path / "events"
    assert started(tuned, whole, None, kind, out) == 0
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
    walked = spread(range(1, len(events) + 1), FAULTS or len(events))
    for done, at in enumerate(walked, start=1):
        event, folder = events[at - 1], tmp_path / f"{kind}-{at}"
        ending = started(tuned, folder, at, kind, out)
        again = started(tuned, folder, None, kind, out)
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
            log(f"{done} of {len(walked)} writes, {len(wrong)} wrong")
    assert not wrong
