"""Count what a database of MetaSchedule has, search by search, to see its order.

    python -m experiments.recorded_course.order logs=DIR/metaschedule-a100/resnet34

A search begins where all tasks come in turn. Output: order.csv here, or in out=DIR: a row per
search and task, with the records in the order of the file.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import MISSING

from pruner.cli.shared.script import run_script
from pruner.data.metaschedule import StoredRecord, find_databases, read_records
from pruner.data.quarantine import Quarantine
from pruner.errors import PrunerError
from pruner.files import write_table

HERE = Path(__file__).resolve().parent
ROUND = 64  # records of a task that MetaSchedule measures together


@dataclass(kw_only=True)
class Options:
    """Options of the script, explained above."""

    logs: str = MISSING
    out: str = str(HERE)


def searches(workloads: Sequence[int]) -> list[range]:
    """Return the records of each search, from the numbers of their tasks.

    >>> searches([0, 0, 1, 2, 2, 1, 0, 1, 2, 2])
    [range(0, 6), range(6, 10)]
    """
    turn, at = sorted(set(workloads)), 0
    order, places = list[int](), list[int]()
    for task, group in groupby(workloads):
        order.append(task)
        places.append(at)
        at += len(list(group))
    num = len(turn)
    found = [n for n in range(len(order) - num + 1) if order[n : n + num] == turn]
    starts = sorted({0, *(places[n] for n in found)})
    return [range(*ends) for ends in zip(starts, [*starts[1:], at], strict=True)]


def order_rows(records: Sequence[StoredRecord]) -> Iterator[dict[str, Any]]:
    """Yield a row a search and task; medians are of the first and last 64 programs that ran."""
    seen: set[tuple[int, bytes, str]] = set()
    for number, places in enumerate(searches([record.workload for record in records]), 1):
        tasks: dict[int, list[StoredRecord]] = {}
        for place in places:
            tasks.setdefault(records[place].workload, []).append(records[place])
        for task, found in sorted(tasks.items()):
            programs = [(task, one.skeleton, str(one.trace[1])) for one in found]
            fresh = {program for program in programs if program not in seen}
            seen |= fresh
            latency_s = [float(np.mean(one.costs_s)) for one in found if one.costs_s]
            yield {
                "search": number, "task": task, "records": len(found),
                "measured": len(latency_s), "repeated": len(found) - len(fresh),
                "first_median_s": float(np.median(latency_s[:ROUND])) if latency_s else None,
                "last_median_s": float(np.median(latency_s[-ROUND:])) if latency_s else None,
                "best_s": min(latency_s, default=None),
            }  # fmt: skip


def run(options: Options) -> dict[str, Any]:
    """Write the table."""
    databases, _ = find_databases(Path(options.logs))
    if len(databases) != 1:
        raise PrunerError(f"logs={options.logs}: {len(databases)} databases; one is needed")
    records = list(read_records(databases[0][1], Quarantine()))
    rows = list(order_rows(records))
    write_table(Path(options.out) / "order.csv", rows, floats=".4g")
    return {"records": len(records), "searches": max((row["search"] for row in rows), default=0)}


if __name__ == "__main__":
    run_script(Options, run, __doc__)
