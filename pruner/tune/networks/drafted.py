"""A schedule for every task without a measurement: the best that the analyzer finds.

The records lie in a database of their own, ``drafted/``, with a cost that no program has
(:data:`~pruner.tune.run.database.NEVER_MEASURED_S`), so that they cannot be taken for measured
ones; ``drafted.json`` beside them says what each task was given and the latency that the analyzer
estimates. Tasks are drafted in worker processes, a core each; what comes of one depends on its
name, its share of the network's time and the seed, not on the processes.
"""

from __future__ import annotations

import itertools
import math
import os
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from pruner.arrays import dtype_bytes
from pruner.files import as_written, held, read_json, write_json
from pruner.models.analyzer.analyzer import Analyzer
from pruner.processes import Pool, Reply, preload
from pruner.progress import Tell, silent
from pruner.tune.measure.jobs import LOADED
from pruner.tune.measure.measurer import GIB, Platform, never, wait_for
from pruner.tune.networks import drafting
from pruner.tune.networks.coverage import Replayed
from pruner.tune.networks.drafting import NONE, Depth, Draft, Drafted, DraftJob
from pruner.tune.run.database import Database, open_database, records_of
from pruner.tune.tvm_import import load_tvm
from pruner.tune.workloads import Workload, arguments, flops

FOLDER, SUMMARY = "drafted", "drafted.json"
_LIMIT_S, _MEMORY_BYTES = 600.0, 8 * GIB  # of one task
_FLOPS_PER_BYTE = 10.0  # of a machine: what moves more than it computes takes time by its bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSummary:
    """What came of drafting; ``folder`` holds the database, ``seconds`` all of it took."""

    drafts: Sequence[Draft]
    folder: Path
    seconds: float
    counts: Counter[str] = field(init=False)

    def __post_init__(self) -> None:
        """Count."""
        object.__setattr__(self, "counts", Counter(draft.how for draft in self.drafts))

    def estimate_s(self, tasks: Sequence[Workload]) -> float:
        """The analyzer's estimate of all calls together, of those tasks that it drafted."""
        weight = {task.name: task.weight for task in tasks}
        return sum(weight[d.task] * d.estimate_s for d in self.drafts if d.estimate_s is not None)

    def replayed(self, tasks: Sequence[Workload]) -> Replayed:
        """The tasks with design spaces that TVM replays."""
        spaces = {draft.task: draft.replayed for draft in self.drafts}
        return Replayed.of(
            (task.name, task.weight * flops(task.module), spaces.get(task.name)) for task in tasks
        )


class DraftWorkers:
    """Processes that draft, one a core by default; they start at once and import what they need
    while the tasks are being found. To be closed."""

    def __init__(self, size: int | None = None) -> None:
        preload(LOADED, drafting.__name__)
        environment = {"OMP_NUM_THREADS": "1", "TVM_NUM_THREADS": "1"}
        size = size or len(os.sched_getaffinity(0))
        self._pool = Pool(
            size,
            drafting.__name__,
            environment=environment,
            timeout_s=_LIMIT_S,
            memory_bytes=_MEMORY_BYTES,
        )
        self._pool.warm_up(wait=False)

    def __enter__(self) -> Self:
        """Nothing: they run already."""
        return self

    def __exit__(self, *_: object) -> None:
        """End them."""
        self.close()

    def submit(self, job: DraftJob) -> Future[Reply]:
        """Have a task drafted."""
        return self._pool.submit(drafting.draft.__name__, job)

    def close(self) -> None:
        """End them."""
        self._pool.close()


def draft_tasks(
    tasks: Sequence[Workload],
    platform: Platform,
    analyzer: Analyzer | None,
    folder: Path,
    *,
    seed: int = 0,
    workers: DraftWorkers | None = None,
    tell: Tell = silent,
    stopped: Callable[[], bool] = never,
) -> DraftSummary:
    """Draft every task into the database in `folder`; nothing is built or run.

    A task that has its draft there keeps it. ``analyzer=None``: each gets its first legal random
    program. `folder` must not be that of measured records. ``workers=None``: they are started where
    there are several tasks and cores. Once `stopped` says so it ends with the tasks that it has;
    another call goes on.

    Raises:
        PrunerError: another process drafts into `folder`.
    """
    start = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    with held(folder):
        database = open_database(folder, own=True, tell=tell)
        known = read_drafts(folder)
        kept = {
            task.name: known[task.name]
            for task in tasks
            if task.name in known and database.tvm_database.has_workload(task.module)
        }
        shares = dict(zip([task.name for task in tasks], time_shares(tasks), strict=True))
        rest = [task for task in tasks if task.name not in kept]
        jobs = [_job(task, platform, analyzer, shares[task.name], seed) for task in rest]
        told = {task.name: number for number, task in enumerate(tasks, start=1)}
        # in this order: `_done` comes to its end, and its processes, before the lock is given up
        drafted = zip(_done(jobs, workers, stopped), rest, strict=False)
        for finished, (done, task) in enumerate(drafted, start=1):
            if done.record is not None:
                database.commit_json(task.module, done.record)
            known[task.name] = kept[task.name] = done.draft
            write_json(folder / SUMMARY, [asdict(one) for one in known.values()], indent=1)
            left_s = (time.perf_counter() - start) / finished * (len(rest) - finished)
            left = f"; about {left_s:.0f} s left" if finished < len(rest) else ""
            tell(f"drafted {told[task.name]}/{len(tasks)}: {_line(done.draft)}{left}")
    drafts = [kept[task.name] for task in tasks if task.name in kept]
    return DraftSummary(drafts=drafts, folder=folder, seconds=time.perf_counter() - start)


def time_shares(tasks: Sequence[Workload]) -> list[float]:
    """About which share of the time of all calls each task takes: by its arithmetic, or by the
    bytes of its arguments where those take longer."""
    work = [
        task.weight * max(flops(task.module), _FLOPS_PER_BYTE * _num_bytes(task)) for task in tasks
    ]
    return [one / (sum(work) or 1.0) for one in work]


def _num_bytes(task: Workload) -> float:
    return float(
        sum(math.prod(shape) * dtype_bytes(dtype) for shape, dtype in arguments(task.module))
    )


def _job(
    task: Workload, platform: Platform, analyzer: Analyzer | None, share: float, seed: int
) -> DraftJob:
    return DraftJob(
        task=task.name,
        module=load_tvm().tvm.ir.save_json(task.module),
        target=platform.target_json,
        analyzer=analyzer,
        depth=Depth.of_share(share),
        seed=(seed, zlib.crc32(task.name.encode())),
    )


def _done(
    jobs: Sequence[DraftJob], workers: DraftWorkers | None, stopped: Callable[[], bool]
) -> Iterator[Drafted]:
    """What comes of the jobs, in their order; of fewer once `stopped` says so."""
    if stopped():
        return
    if workers is None and min(len(jobs), len(os.sched_getaffinity(0))) < 2:
        yield from map(drafting.draft, itertools.takewhile(lambda _: not stopped(), jobs))
        return
    with nullcontext(workers) if workers else closing(DraftWorkers()) as found:
        waiting = [(job, found.submit(job)) for job in jobs]
        for job, future in waiting:
            wait_for(future, stopped)
            if not future.done():
                return
            yield _answer(job, future.result())


def _answer(job: DraftJob, reply: Reply) -> Drafted:
    if reply.error is None:
        answer: Drafted = reply.value
        return answer
    reason = f"drafting it ended with {reply.error}: {reply.message}".rstrip(": ")
    return Drafted(draft=Draft(task=job.task, how=NONE, reason=reason))


def read_drafts(folder: Path) -> dict[str, Draft]:
    """What the tasks in the database of `folder` were given, by name; empty where there is none."""
    path = folder / SUMMARY
    with as_written(path):
        rows = read_json(path, list) if path.is_file() else []
        return {row["task"]: Draft(**row) for row in rows}


def drafted_traces(folder: Path, tasks: Sequence[Workload], target: Any) -> dict[str, Any]:
    """TVM's traces of the drafted programs in the database of `folder`, by the task's name."""
    database = Database.read(folder).tvm_database
    found = {task.name: records_of(database, task.module, target) for task in tasks}
    return {name: records[-1].trace for name, records in found.items() if records}


def _line(draft: Draft) -> str:
    if draft.estimate_s is not None:
        found = f"estimate {1e3 * draft.estimate_s:.3g} ms"
    else:
        found = draft.how
    return f"{draft.task}, {found}" + (f" ({draft.reason})" if draft.reason else "")
