"""Convert results of TVM's builders, runners and databases to outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pruner.progress import Log
from pruner.search.decision_search import DecisionSearch
from pruner.tune.measure.measurer import Outcome
from pruner.tune.metaschedule.task import MetaScheduleTask
from pruner.tune.run.database import measured_s, records_of
from pruner.tune.spaces.union import Traces


def outcomes(results: Sequence[Any], log: Log) -> list[Outcome]:
    """Convert the runner's results of a round.

    If every program of a round exceeded the builder's time, the workers did: TVM starts them anew
    for every round, and their import of TVM counts. Then no program is blamed.
    """
    found = [_outcome(result) for result in results]
    if len(found) > 1 and all(one.error == "build_timeout" for one in found):
        log(
            f"all {len(found)} candidates of this round timed out in the builder, whose workers "
            "import TVM in that time; give builder=LocalBuilder(initializer=warm_worker)"
        )
        return [replace(one, error="build_no_worker") for one in found]
    return found


def _outcome(result: Any) -> Outcome:
    if result.error_msg is None and result.run_secs:
        return Outcome(costs_s=tuple(float(seconds) for seconds in result.run_secs))
    message = str(result.error_msg)
    # TVM joins the messages of builders and runners to one text
    stage = "build" if "Builder" in message.partition(":")[0] else "run"
    kind = "timeout" if "Timeout" in message else "error"
    return Outcome(error=f"{stage}_{kind}", message=message)


def know_earlier(
    database: Any, task: MetaScheduleTask, search: DecisionSearch, traces: Traces
) -> None:
    """Add a database's measurements on the same target to a search.

    Failures count where something ran; a database of failures alone (workers that never started) is
    ignored. Records of other spaces are counted in one line.
    """
    if database is None:
        return
    records = [r for r in records_of(database, task.module, task.target) if r.run_secs]
    rows, known = traces.rows([record.trace for record in records])
    latency_s = np.array([measured_s(record) for record in records])[known]
    if not known.all():
        task.log(
            f"{task.name}: {int((~known).sum())} of {len(records)} records of the database are of "
            "programs outside these design spaces"
        )
    # all failed: the workers never started, so nothing is learned about the programs
    if np.isfinite(latency_s).any():
        task.log(f"{task.name}: {len(latency_s)} programs of the database count as measured")
        search.know(rows[known], latency_s)
