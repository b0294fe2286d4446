"""Draft a schedule for every task without a measurement.

The records lie in a database of their own, ``drafted/``, with a cost that no program has
(:data:`~pruner.tune.run.database.NEVER_MEASURED_S`), so that they cannot be taken for measured
records; ``drafted.json`` beside them has the result of each task and the latency that the analyzer
estimates. Tasks are drafted in worker processes, a core each; the draft of a task depends on its
name, its share of the network's time and the seed, not on the processes.
"""

import itertools
import math
import os
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pruner.arrays import dtype_bytes
from pruner.data.metaschedule import DRAFT_FOLDER, DRAFTS
from pruner.files import as_written, held, read_json, write_json
from pruner.models.analyzer.analyzer import Analyzer
from pruner.processes import Reply, WorkerPool, preload
from pruner.progress import Log, silent
from pruner.tune.measure.jobs import LOADED
from pruner.tune.measure.measurer import GIB, Platform, never, wait_for
from pruner.tune.networks import draft_task
from pruner.tune.networks.coverage import ReplayShare
from pruner.tune.networks.draft_task import NONE, Depth, Draft, Drafted, DraftJob
from pruner.tune.run.database import Database, open_database, records_of
from pruner.tune.tvm_import import load_tvm
from pruner.tune.workloads import Workload, arguments, flops

FOLDER, SUMMARY = DRAFT_FOLDER, DRAFTS
DRAFTING = (LOADED, draft_task.__name__)  # modules that the workers' server imports
_LIMIT_S, _MEMORY_BYTES = 600.0, 8 * GIB  # of one task
_FLOPS_PER_BYTE = 10.0  # of a machine: below this intensity, bytes determine the time


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSummary:
    """The drafts of a network; ``folder`` holds the database.

    ``seconds`` is the time of all drafts.
    """

    drafts: Sequence[Draft]
    folder: Path
    seconds: float

    @property
    def counts(self) -> Counter[str]:
        """The drafts by kind."""
        return Counter(draft.how for draft in self.drafts)

    def estimate_s(self, tasks: Sequence[Workload]) -> float:
        """Sum the analyzer's estimates over all calls of drafted tasks."""
        weight = {task.name: task.weight for task in tasks}
        return sum(weight[d.task] * d.estimate_s for d in self.drafts if d.estimate_s is not None)

    def replayed(self, tasks: Sequence[Workload]) -> ReplayShare:
        """The tasks with design spaces that TVM replays."""
        spaces = {draft.task: draft.replayed for draft in self.drafts}
        return ReplayShare.of(
            (task.name, task.weight * flops(task.module), spaces.get(task.name)) for task in tasks
        )


class DraftWorkers(WorkerPool):
    """Processes that draft, by default as many as cores.

    They start at once and import their modules while the tasks are being found. They must be
    closed.
    """

    def __init__(self, size: int | None = None) -> None:
        preload(*DRAFTING)
        environment = {"OMP_NUM_THREADS": "1", "TVM_NUM_THREADS": "1"}
        size = size or len(os.sched_getaffinity(0))
        super().__init__(
            size,
            draft_task.__name__,
            environment=environment,
            timeout_s=_LIMIT_S,
            memory_bytes=_MEMORY_BYTES,
        )
        self.warm_up(wait=False)

    def draft(self, job: DraftJob) -> Future[Reply]:
        """Queue the draft of a task."""
        return self.submit(draft_task.draft.__name__, job)


def draft_tasks(
    tasks: Sequence[Workload],
    platform: Platform,
    analyzer: Analyzer | None,
    folder: Path,
    *,
    seed: int = 0,
    workers: DraftWorkers | None = None,
    log: Log = silent,
    stopped: Callable[[], bool] = never,
) -> DraftSummary:
    """Draft every task into the database in `folder`; measure nothing.

    A task that has its draft there keeps it. ``analyzer=None``: each gets its first legal random
    program. `folder` must not be that of measured records. ``workers=None``: they are started where
    there are several tasks and cores. It ends early once `stopped` returns True; another call
    continues. Raises `PrunerError`: another process drafts into `folder`.
    """
    start = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    with held(folder):
        database = open_database(folder, own=True, log=log)
        known = read_drafts(folder)
        kept = {
            task.name: known[task.name]
            for task in tasks
            if task.name in known and database.tvm_database.has_workload(task.module)
        }
        shares = dict(zip([task.name for task in tasks], time_shares(tasks), strict=True))
        rest = [task for task in tasks if task.name not in kept]
        save = load_tvm().tvm.ir.save_json
        jobs = [
            DraftJob(
                task=task.name,
                module=save(task.module),
                target=platform.target_json,
                analyzer=analyzer,
                depth=Depth.of_share(shares[task.name]),
                seed=seed_of(task.name, seed),
            )
            for task in rest
        ]
        numbers = {task.name: number for number, task in enumerate(tasks, start=1)}
        # jobs first: zip exhausts `_done`, which ends its processes before the lock is released
        drafted = zip(_done(jobs, workers, stopped), rest, strict=False)
        for finished, (done, task) in enumerate(drafted, start=1):
            if done.record is not None:
                database.commit_json(task.module, done.record)
            known[task.name] = kept[task.name] = done.draft
            # after every task, so that an interrupted draft continues
            write_json(folder / SUMMARY, [asdict(one) for one in known.values()], indent=1)
            left_s = (time.perf_counter() - start) / finished * (len(rest) - finished)
            left = f"; about {left_s:.0f} s left" if finished < len(rest) else ""
            log(f"drafted {numbers[task.name]}/{len(tasks)}: {_line(done.draft)}{left}")
    drafts = [kept[task.name] for task in tasks if task.name in kept]
    return DraftSummary(drafts=drafts, folder=folder, seconds=time.perf_counter() - start)


def time_shares(tasks: Sequence[Workload]) -> list[float]:
    """Estimate each task's share of the time of all calls.

    It follows the arithmetic, or the bytes of the arguments where those take longer.
    """
    work = []
    for task in tasks:
        num_bytes = sum(math.prod(shape) * dtype_bytes(t) for shape, t in arguments(task.module))
        work.append(task.weight * max(flops(task.module), _FLOPS_PER_BYTE * num_bytes))
    return [one / (sum(work) or 1.0) for one in work]


def seed_of(task: str, seed: int) -> tuple[int, int]:
    """Return the seed of a draft, by the name of its task."""
    return seed, zlib.crc32(task.encode())


def _done(
    jobs: Sequence[DraftJob], workers: DraftWorkers | None, stopped: Callable[[], bool]
) -> Iterator[Drafted]:
    """Yield the results of jobs, in order; end early once `stopped`."""
    if stopped():
        return
    if workers is None and min(len(jobs), len(os.sched_getaffinity(0))) < 2:
        yield from map(draft_task.draft, itertools.takewhile(lambda _: not stopped(), jobs))
        return
    with nullcontext(workers) if workers else closing(DraftWorkers()) as found:
        waiting = [(job, found.draft(job)) for job in jobs]
        for job, future in waiting:
            wait_for(future, stopped)
            if not future.done():
                return
            yield answer_of(job, future.result())


def answer_of(job: DraftJob, reply: Reply) -> Drafted:
    """Return the draft of a worker's reply; a failed job has no program."""
    if reply.error is None:
        return reply.value
    reason = f"drafting it ended with {reply.error}: {reply.message}".rstrip(": ")
    return Drafted(draft=Draft(task=job.task, how=NONE, reason=reason))


def read_drafts(folder: Path) -> dict[str, Draft]:
    """Read the drafts of a database's folder by task, if any."""
    path = folder / SUMMARY
    with as_written(path):
        rows = read_json(path, list) if path.is_file() else []
        return {row["task"]: Draft(**row) for row in rows}


def drafted_traces(folder: Path, tasks: Sequence[Workload], target: Any) -> dict[str, Any]:
    """Read TVM's traces of the drafted programs, by task name."""
    database = Database.read(folder).tvm_database
    found = {task.name: records_of(database, task.module, target) for task in tasks}
    return {name: records[-1].trace for name, records in found.items() if records}


def _line(draft: Draft) -> str:
    if draft.estimate_s is not None:
        found = f"estimate {1e3 * draft.estimate_s:.3g} ms"
    else:
        found = draft.how
    return f"{draft.task}, {found}" + (f" ({draft.reason})" if draft.reason else "")
