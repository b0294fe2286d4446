"""Collect a task on a platform: draw, build, time twice, write."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from pruner.errors import DataError, PrunerError
from pruner.processes import Reply
from pruner.program.device import Device
from pruner.progress import Log, silent
from pruner.search.loop import RunStopped
from pruner.tune.measure.measurer import DeviceMeasurer, Outcome, Platform, never, wait_for
from pruner.tune.measure.numerics import TaskReference
from pruner.tune.phases import Phases
from pruner.tune.pools.conditions import Conditions
from pruner.tune.pools.drawing import evolved, stratified
from pruner.tune.pools.measurement_log import EVOLVED, RANDOM, MeasurementLog, Program
from pruner.tune.pools.records import (
    PoolSettings,
    about_pool,
    header_of,
    records_path,
    save_space,
    task_name,
    write_database,
    write_records,
)
from pruner.tune.spaces.batched.space import BatchedSpace
from pruner.tune.spaces.design import design_spaces
from pruner.tune.spaces.opening import open_spaces
from pruner.tune.spaces.union import UnionSpace
from pruner.tune.workloads import Workload, arguments

REFERENCE = "reference.npz"  # expected results, beside the libraries
_PATIENCE = 32  # failures beside the programs wanted before a task is given up
_PARENTS = 4  # of evolved programs: this part of what ran, the fastest


class Unavailable(PrunerError):
    """A worker or the device is missing, which is no program's fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlatform:
    """A described platform to measure on, and its tasks."""

    platform: Platform
    device: Device
    workloads: Sequence[Workload]


class MeasuredSet:
    """A task's programs on a platform, in the state of its log."""

    def __init__(
        self,
        workload: Workload,
        place: PoolPlatform,
        out: Path,
        settings: PoolSettings,
        *,
        checks: bool = True,
        log: Log = silent,
        stopped: Callable[[], bool] = never,
    ) -> None:
        """Read the log; with ``checks`` results are compared with the unscheduled program's."""
        self.workload, self.place, self.out, self.settings = workload, place, out, settings
        self._checks, self._log, self._stopped = checks, log, stopped
        self.platform, self.task = place.platform.name, task_name(workload)
        self.records = records_path(out, self.platform, self.task)
        path = out / "pools" / self.platform / f"{self.task}.jsonl"
        self.measurement_log = MeasurementLog(path)
        # of libraries and reference, until the pool is finished
        self.work = path.with_suffix("")
        self._arguments = arguments(workload.module)
        self._space: UnionSpace | None = None
        self._reference: TaskReference | None = None
        self._building: dict[int, Future[Reply]] = {}  # by the number of the program

    def measure_with(
        self, measurer: DeviceMeasurer, phases: Phases, conditions: Conditions
    ) -> None:
        """Use a measurer of the platform from now on."""
        self._measurer, self._phases, self._conditions = measurer, phases, conditions

    @property
    def name(self) -> str:
        """The name of platform and task, for people."""
        return f"{self.platform} {self.task}"

    def valid(self, origin: str | None = None) -> list[Program]:
        """List the programs that ran, of an origin or of all."""
        found = (p for p in self.measurement_log.programs if p.valid)
        return [p for p in found if origin in (None, p.origin)]

    @property
    def unchecked(self) -> int:
        """Number of programs that ran without a check of their results."""
        return sum(p.checked is False for p in self.valid())

    @property
    def all_failed(self) -> bool:
        """True if no program ran, and none waits for its timing."""
        log = self.measurement_log
        tried = bool(log.ended) or any(p.failed for p in log.programs)
        return tried and not self.valid() and not self.built

    @property
    def built(self) -> int:
        """Number of programs with a library and without a timing."""
        return sum(
            p.built and not p.tries and self._library(p).is_file()
            for p in self.measurement_log.programs
        )

    @property
    def missing(self) -> int:
        """Number of programs that still need a first timing."""
        return sum(map(self._missing, (RANDOM, EVOLVED)))

    def _wanted(self, origin: str) -> int:
        evolved = self.settings.num_evolved
        return self.settings.programs - evolved if origin == RANDOM else evolved

    def _missing(self, origin: str) -> int:
        if origin in self.measurement_log.ended:
            return 0
        return max(0, self._wanted(origin) - len(self.valid(origin)))

    @property
    def doubted(self) -> list[Program]:
        """List programs without a second timing, or whose timings disagree."""
        return [
            p
            for p in self.valid()
            if p.tries < self.settings.most
            and (len(p.passes) < 2 or p.disagreement > self.settings.agree)
        ]

    @property
    def ready_at(self) -> float:
        """Unix seconds from which all doubted programs may be timed again."""
        return max((p.last_at for p in self.doubted), default=0.0) + self.settings.apart_s

    @property
    def is_finished(self) -> bool:
        """True if nothing is left to measure and the records are written."""
        return self.records.is_file() and not (self.missing or self.doubted)

    @property
    def is_open(self) -> bool:
        """True if its design spaces are in memory."""
        return self._space is not None

    def prepare(self) -> None:
        """Open the spaces and compute the reference; raises as `open`."""
        self.open()
        self._check()

    def open(self) -> UnionSpace:
        """Open the design spaces; write their files once.

        Raises `PrunerError` without programs to read back, `DataError` for a log of other spaces.
        """
        if self._space is not None:
            return self._space
        self._log(f"{self.name}: opening its design spaces")
        platform = self.place.platform
        opened = open_spaces(
            design_spaces(self.workload.module, platform.target),
            name=self.name,
            # drawn evenly, not by a draft, which would leave slow programs out
            analyzer=None,
            learns=False,
            phases=self._phases,
            log=self._log,
        )
        batched = [space for space in opened.spaces if isinstance(space, BatchedSpace)]
        if not batched:
            raise PrunerError(f"{self.name}: no design space that records can be replayed in")
        if len(batched) < len(opened.spaces):
            self._log(
                f"{self.name}: {len(opened.spaces) - len(batched)} design spaces are left out, "
                "records of their programs would have no features"
            )
        names = [save_space(self.out, space.design, space.program) for space in batched]
        if not self.measurement_log.spaces:
            self.measurement_log.open_spaces(names)
        # names are hashes of content: a row of the measurement log means nothing in another space
        elif self.measurement_log.spaces != names:
            raise DataError(
                f"{self.measurement_log.path}: begun with other design spaces (another TVM or "
                "target?); choose another out="
            )
        self._space = UnionSpace(batched, self._phases)
        return self._space

    def first(self, limit: int | None = None) -> Iterator[Program]:
        """Draw, build and time programs until enough ran, or `limit` more; yield each.

        Raises `RunStopped`, `Unavailable` without worker or device, `PrunerError` without
        programs.
        """
        left = self.missing if limit is None else min(limit, self.missing)
        for origin in (RANDOM, EVOLVED):
            while left > 0 and (chunk := self._next(origin, left)):
                # A GPU is timed while this CPU builds; on a CPU builds would disturb the timings.
                overlaps = limit is None and not self.place.platform.shares_cpu
                ahead = 2 * self.settings.chunk if overlaps else 0
                following = self._pending(origin)[len(chunk) :][:ahead]
                for program in self._timed(chunk, check=True, following=following):
                    left -= program.valid
                    yield program

    def build(self) -> Iterator[int]:
        """Draw and build random programs to be timed later; yield counts of chunks.

        Raises `RunStopped`, `Unavailable` without a worker, `PrunerError` without programs.
        """
        lacking = self._missing(RANDOM) - len(self._pending(RANDOM))
        if lacking > 0:
            self._draw(RANDOM, lacking)
        pending = self._pending(RANDOM)
        size = 4 * self.settings.chunk  # the slowest program of a chunk holds up the next chunk
        for start in range(0, len(pending), size):
            if self._stopped():
                raise RunStopped
            chunk = pending[start : start + size]
            self._build(chunk)
            yield len(chunk)

    def _next(self, origin: str, left: int) -> list[Program]:
        """Choose the next programs to time first; none at the end."""
        if not (missing := min(left, self._missing(origin))):
            return []
        failed = [p for p in self._of(origin) if p.failed]
        if len(failed) > self._wanted(origin) + _PATIENCE:
            self._end(origin, f"most programs fail, the last with {failed[-1].error}")
            return []
        if not self._pending(origin):
            self._draw(origin, self._missing(origin))
        pending = self._pending(origin)
        if not pending:
            self._end(origin, "its design spaces have no more programs")
        return pending[: min(self.settings.chunk, missing)]

    def _of(self, origin: str) -> list[Program]:
        return [p for p in self.measurement_log.programs if p.origin == origin]

    def _pending(self, origin: str) -> list[Program]:
        """List the programs of an origin that were drawn and not tried."""
        return [p for p in self._of(origin) if not p.tries and p.error is None]

    def _end(self, origin: str, reason: str) -> None:
        self.measurement_log.end(origin, reason)
        self._log(f"{self.name}: {len(self.valid(origin))} {origin} programs, {reason}")

    def _draw(self, origin: str, num: int) -> None:
        space, known = self.open(), self.measurement_log.programs
        seen = set(space.keys(self._rows(known)).tolist()) if known else set()
        task = crc32(self.task.encode())
        # seeded by the state of the measurement log: a resumed collection draws what it would have
        # drawn
        rng = np.random.default_rng([self.settings.seed, task, len(known)])
        if origin == RANDOM:
            self.measurement_log.draw(stratified(space, num, rng, seen), origin)
            return
        best = sorted(self.valid(RANDOM), key=lambda p: p.passes[0].latency_s)
        parents = best[: max(1, len(best) // _PARENTS)]
        if parents:
            self.measurement_log.draw(evolved(space, self._rows(parents), num, rng, seen), origin)

    @staticmethod
    def _rows(programs: Sequence[Program]) -> np.ndarray:
        return np.array([program.row for program in programs], np.int64)

    def again(self) -> Iterator[Program]:
        """Time the doubted programs again, in another order; yield each."""
        doubted = self.doubted
        passes = max(len(program.passes) for program in doubted)
        task = crc32(self.task.encode())
        # another order: what disturbs neighbours in time must not disturb the same programs twice
        order = np.random.default_rng([self.settings.seed, task, passes]).permutation(len(doubted))
        size = self.settings.chunk
        for start in range(0, len(order), size):
            yield from self._timed([doubted[n] for n in order[start : start + size]])

    def _timed(
        self,
        programs: Sequence[Program],
        *,
        check: bool = False,
        following: Sequence[Program] = (),
    ) -> Iterator[Program]:
        """Build missing libraries, then time the programs in turn while `following` are built."""
        self._build(programs)
        self._begin(following)
        compared = self._check() if check else None
        self.measurement_log.note(self._conditions.read())
        for program in programs:
            if self._stopped():
                raise RunStopped
            if program.built:
                outcome = self._measurer.time_library(
                    self._library(program), self._arguments, compared
                )
                self._note(program, outcome)
            yield program

    def _note(self, program: Program, outcome: Outcome) -> None:
        if outcome.error is not None and self._stopped():
            raise RunStopped  # a signal to the process group may have ended the program, too
        if not outcome.concerns_program:
            raise Unavailable(f"{self.name}: {outcome.message}; the same command continues")
        self.measurement_log.timed(program.number, outcome)
        if program.failed:
            self._library(program).unlink(missing_ok=True)

    def _build(self, programs: Sequence[Program]) -> None:
        self._begin(programs)
        for program in programs:
            if (job := self._building.pop(program.number, None)) is None:
                continue
            wait_for(job, self._stopped)
            if not job.done():
                job.cancel()
                raise RunStopped
            reply = job.result()
            if reply.error == "no_worker":
                raise Unavailable(f"{self.name}: {reply.message}; the same command continues")
            self.measurement_log.built(program.number, reply)

    def _begin(self, programs: Sequence[Program]) -> None:
        lacking = [
            p
            for p in programs
            if p.number not in self._building and not (p.built and self._library(p).is_file())
        ]
        if not lacking:
            return
        self.work.mkdir(parents=True, exist_ok=True)
        made = self.open().instantiate(self._rows(lacking))
        for program, schedule in zip(lacking, made, strict=True):
            if schedule is None:
                self.measurement_log.refused(program.number)
            else:
                job = self._measurer.begin_build(schedule.mod, self._library(program))
                self._building[program.number] = job

    def _library(self, program: Program) -> Path:
        return self.work / f"{program.number}.so"

    def begin_check(self) -> None:
        """Begin to compute the reference in the background."""
        if self._checks:
            self._task_reference().begin()

    def _task_reference(self) -> TaskReference:
        if self._reference is None:
            path, module = self.work / REFERENCE, self.workload.module
            what = self.name, module, self._arguments, path, self._measurer, self._log
            self._reference = TaskReference(*what)
        return self._reference

    def _check(self) -> Path | None:
        return self._task_reference().check(lambda job: job.result()) if self._checks else None

    def finish(self) -> None:
        """Write records and database, and remove the libraries."""
        space = self.open()
        if not self.valid():
            raise PrunerError(
                f"{self.name}: no program ran; {self.measurement_log.path} has the reasons"
            )
        header = header_of(self.workload, self.place.platform, self.place.device)
        database = self.out / "metaschedule" / self.platform / self.task
        write_database(database, self.workload, self.place.platform, space, self.measurement_log)
        write_records(self.records, self.measurement_log, space.widths, header)
        self.clear()
        self.close()

    def clear(self) -> None:
        """Remove the libraries."""
        shutil.rmtree(self.work, ignore_errors=True)

    def about(self) -> dict[str, Any]:
        """Return the counts for ``about.json``."""
        identity = {
            "platform": self.platform,
            "task": self.task,
            "key": self.workload.key,
        }
        return about_pool(self.measurement_log, identity)

    def close(self) -> None:
        """Release the design spaces, which are large."""
        self._space = self._reference = None
        for job in self._building.values():
            job.cancel()
        self._building.clear()
