"""What TVM's builders, runners and databases say of programs, as outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pruner.progress import Tell
from pruner.search.history import Candidate
from pruner.tune.measure.measurer import Outcome
from pruner.tune.metaschedule.task import Task
from pruner.tune.run.database import measured_s, records_of
from pruner.tune.spaces.traces import Traces


def outcomes(results: Sequence[Any], tell: Tell) -> list[Outcome]:
    """Of the runner's results.

    Where every program of a round ran out of the builder's time, its workers did: TVM starts them
    anew for every round, and their import of TVM counts. Then no program is to blame.
    """
    found = [_outcome(result) for result in results]
    if len(found) > 1 and all(one.error == "build_timeout" for one in found):
        tell(
            f"all {len(found)} candidates of this round timed out in the builder, whose workers "
            "import TVM in that time; give builder=LocalBuilder(initializer=warm_worker)"
        )
        return [replace(one, error="build_no_worker") for one in found]
    return found


def _outcome(result: Any) -> Outcome:
    if result.error_msg is None and result.run_secs:
        return Outcome(costs_s=tuple(float(seconds) for seconds in result.run_secs))
    message = str(result.error_msg)
    # TVM joins what builders and runners say to one text
    stage = "build" if "Builder" in message.partition(":")[0] else "run"
    kind = "timeout" if "Timeout" in message else "error"
    return Outcome(error=f"{stage}_{kind}", message=message)


def earlier(database: Any, task: Task, traces: Traces) -> tuple[list[Candidate], list[Outcome]]:
    """Programs of a task that a database has a measurement of, on the same target.

    Failures count where something ran; a database of failures alone (workers that never started)
    tells nothing. Records of other spaces are counted in one line.
    """
    if database is None:
        return [], []
    records = [r for r in records_of(database, task.module, task.target) if r.run_secs]
    if not records:
        return [], []
    rows, known = traces.rows([record.trace for record in records])
    found = [_recorded(record) for record, mine in zip(records, known, strict=True) if mine]
    if not known.all():
        task.tell(
            f"{task.name}: {int((~known).sum())} of {len(records)} records of the database are of "
            "programs outside these design spaces"
        )
    if not any(one.error is None for one in found):
        return [], []
    task.tell(f"{task.name}: {len(found)} programs of the database count as measured")
    return [Candidate(space=int(r[0]), decisions=r[1:], schedule=None) for r in rows[known]], found


def _recorded(record: Any) -> Outcome:
    if measured_s(record) == float("inf"):
        return Outcome(error="run_error", message="failed in an earlier run")
    return Outcome(costs_s=tuple(float(seconds) for seconds in record.run_secs))
