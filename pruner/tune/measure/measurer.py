"""Build and run candidates in worker processes; a failure is an outcome."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pruner.errors import PrunerError
from pruner.processes import NO_REFERENCE, NOT_TRIED, TIMEOUT, Reply, WorkerPool, preload
from pruner.search.space import Candidate
from pruner.tune.kinds import OPENCL
from pruner.tune.measure.jobs import JOBS, PRELOADED, RpcAddress, Timing
from pruner.tune.measure.numerics import CODE, FLOOR, SCRATCH, Arguments, are_timings, tolerance
from pruner.tune.measure.targets import reference_target
from pruner.tune.phases import Phases

GIB = 1 << 30
KERNELS = "kernels"  # PoCL's cache of compiled kernels
BUILDS = "builds"  # folder with the libraries in work; cleared by the next start
_BUILDERS_A_REFERENCE = 4  # one builder in four may compute a reference, the others build
MOST_LAG = 8
_POLL_S = 0.2  # how soon a wait notices that the run was asked to end


def never() -> bool:
    """Return False: no request to end."""
    return False


def unknown() -> float:
    """Return infinity: no program of the task is known."""
    return float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureSettings:
    """Settings to build and run candidates.

    ``exclusive``: no other work of ours runs while a program is timed. On a CPU, exploration and
    compilation take the cores and the caches that the program is measured on, so there it is the
    default; a GPU or a remote device is not disturbed. ``lag`` batches (0 to 8) are proposed, and
    without ``exclusive`` built, before the results of the previous batch arrive: exploration then
    overlaps with building and measuring, but lacks the results of these batches. Default: 0 if
    programs run alone, else 1. ``finalists``: how many of a task's best programs are timed again,
    in turns, at the end of a run; 0: none.
    """

    timing: Timing = field(default_factory=Timing)
    builders: int | None = None  # None: one a core
    build_timeout_s: float = 30.0
    run_timeout_s: float = 20.0
    reference_timeout_s: float = 120.0  # of a program without schedule, on one core
    memory_gib: float = 8.0
    exclusive: bool | None = None
    lag: int | None = None
    check: bool = True  # results of every best program against the unscheduled one
    baseline: bool = True  # the unscheduled program is timed once, on CPUs
    finalists: int = 0
    sizes: bool = False  # code and scratch memory of every built program are read, on CPUs

    def __post_init__(self) -> None:
        limits_s = (self.build_timeout_s, self.run_timeout_s, self.reference_timeout_s)
        if (
            min(*limits_s, self.memory_gib) <= 0
            or self.lag not in (None, *range(MOST_LAG + 1))
            or (self.builders or 1) < 1
        ):
            raise PrunerError(
                "measure: timeouts and memory above 0, lag 0 to 8, builders 1 or more"
            )
        if self.finalists < 0 or self.finalists == 1:
            raise PrunerError(
                f"measure.finalists={self.finalists}: one program is compared with none; give 0, "
                "or 2 or more"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The repeats of a measured candidate in seconds, or a failure's kind.

    Kinds: ``refused`` by TVM's postprocessors; ``wrong_result``; and ``build_``, ``run_`` or
    ``check_`` with ``error``, ``timeout``, ``crash``, ``illegal_access``, ``out_of_memory``,
    ``no_worker`` (ours could not start) or ``no_device`` (a remote one that is not there).
    ``extra``: as in the journal (`Trial`).
    """

    costs_s: tuple[float, ...] = ()
    error: str | None = None
    message: str = ""
    build_s: float = 0.0
    run_s: float = 0.0
    checked: bool = False  # the results were compared with the reference, and are right
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def latency_s(self) -> float:
        """Average the repeats, in seconds; infinite for a failure."""
        return float(np.mean(self.costs_s)) if self.error is None else float("inf")

    @property
    def concerns_program(self) -> bool:
        """True if the program was tried; False without a worker or device."""
        return self.error is None or not self.error.endswith(NOT_TRIED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """A TVM target, the kind of its device, and its remote address.

    ``on_cpu``: an OpenCL device that is this machine's CPU. ``name`` is the described platform of
    the target, ``peak_flops_per_s`` its float32 peak on ``cores``, ``half_peak_flops_per_s`` the
    float16 peak of a GPU. ``environments``: variables of the process of each device that measures.
    """

    target: Any
    device: str  # cpu, cuda or opencl
    cores: int = 1
    address: RpcAddress | None = None
    name: str = ""
    peak_flops_per_s: float | None = None
    half_peak_flops_per_s: float | None = None
    environments: Sequence[Mapping[str, str]] = field(default=({},), compare=False)
    on_cpu: bool = False

    @property
    def on_gpu(self) -> bool:
        """True if programs run on a GPU; an OpenCL device may be a CPU."""
        return self.device != "cpu" and not self.on_cpu

    @property
    def shares_cpu(self) -> bool:
        """True if programs run on the CPU of this process."""
        return self.address is None and (self.device == "cpu" or self.on_cpu)

    @property
    def target_json(self) -> str:
        """Return the target as text, for worker processes."""
        return str(self.target)


class DeviceMeasurer:
    """A pool of builders and a runner for every device."""

    def __init__(
        self,
        platform: Platform,
        settings: MeasureSettings,
        phases: Phases,
        folder: Path | None = None,
        kernels: Path | None = None,
    ) -> None:
        """Create the pools; start no worker yet.

        `folder` holds built libraries: it is emptied now and removed at the end. None: a temporary
        folder. ``kernels``: PoCL's cache, which stays; None: inside `folder`.
        """
        self._platform, self._settings, self._phases = platform, settings, phases
        self.exclusive = settings.exclusive
        if self.exclusive is None:
            self.exclusive = platform.shares_cpu
        self.lag = int(not self.exclusive) if settings.lag is None else settings.lag
        preload(*PRELOADED)
        memory_bytes = int(settings.memory_gib * GIB)
        if folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="pruner-build-"))
        else:
            shutil.rmtree(folder, ignore_errors=True)
            # libraries in it are loaded and executed: nobody else may put files there
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._folder = folder.resolve()
        # TVM would bind threads to fixed cores, where other work may disturb them for the complete
        # run
        threads = {"TVM_NUM_THREADS": str(platform.cores), "TVM_BIND_THREADS": "0"}
        threads |= {"TMPDIR": str(self._folder)}
        size = settings.builders or os.cpu_count() or 1
        if platform.device == OPENCL:  # builders have the driver compile, too
            cache = (kernels or self._folder / KERNELS).resolve()
            threads |= {**platform.environments[0], "POCL_CACHE_DIR": str(cache)}
        self._builders = WorkerPool(
            size,
            JOBS,
            timeout_s=settings.build_timeout_s,
            memory_bytes=memory_bytes,
            environment=threads | {"OMP_NUM_THREADS": "1"},
        )
        # no memory limit: a GPU's driver reserves host addresses by the size of the device
        own = not platform.shares_cpu and platform.address is None
        devices = len(platform.environments)
        self._runner = WorkerPool(
            devices,
            JOBS,
            timeout_s=settings.run_timeout_s,
            memory_bytes=None if own else memory_bytes,
            environment=threads,
            environments=platform.environments,
        )
        self._runs = ThreadPoolExecutor(devices)
        # the first results of a task wait for its reference, of which some take many seconds
        at_once = 1 if self.exclusive else max(1, size // _BUILDERS_A_REFERENCE)
        self._references = ThreadPoolExecutor(at_once)
        self._number = 0
        # references, and builds that were cancelled too late; some of them are at work
        self._begun: list[Future[Any]] = []

    def __enter__(self) -> DeviceMeasurer:
        self._builders.warm_up()
        self._runner.warm_up()
        return self

    def __exit__(self, *_: object) -> None:
        for waiting in (self._runs, self._references):
            # queued jobs first, so that none starts while the pools close
            waiting.shutdown(wait=False, cancel_futures=True)
        self._builders.close()
        self._runner.close()
        self._runs.shutdown()
        shutil.rmtree(self._folder, ignore_errors=True)

    def begin(
        self,
        candidates: Sequence[Candidate],
        arguments: Arguments,
        known_s: Callable[[], float] = unknown,
    ) -> list[_Job]:
        """Queue the builds of a batch; on a separate device, runs follow."""
        return [self._begin(one.schedule.mod, arguments, known_s) for one in candidates]

    def cancel(self, batch: Sequence[_Job]) -> None:
        """Cancel the builds that have not begun; the next timings wait for the others."""
        for job in batch:
            if not job.built.cancel() and not job.built.done():
                self._begun.append(job.built)

    def _begin(
        self,
        module: Any,
        arguments: Arguments,
        known_s: Callable[[], float] = unknown,
        *,
        run: bool = True,
    ) -> _Job:
        path = self._new_library()
        text = importlib.import_module("tvm").ir.save_json(module)
        remote = self._platform.address is not None
        what = text, self._platform.target_json, path, False, remote, self._settings.sizes
        built = self._builders.submit("build", *what)
        job = _Job(path=path, arguments=arguments, built=built, known_s=known_s)
        if run and not self.exclusive:
            job.ran = self._runs.submit(self._run, job)
        return job

    def _new_library(self) -> str:
        # a process that opened a library returns it again for a new file of the same path
        self._number += 1
        return str(self._folder / f"{self._number}.so")

    def _run(self, job: _Job) -> Reply:
        """Run a program once it is built; return an empty reply otherwise."""
        if job.built.result().error is not None:
            return Reply()
        timing = job.timing or self._settings.timing
        return self._timed(job.path, job.arguments, timing, job.known_s())

    def _timed(
        self, path: str, arguments: Arguments, timing: Timing, known_s: float = float("inf")
    ) -> Reply:
        """Run a library on the device, with priority on this CPU."""
        timing = replace(timing, priority=timing.priority and self._platform.shares_cpu)
        where = self._platform.device, arguments, timing, self._platform.address, known_s
        return self._runner.submit("run", path, *where).result()

    def results(
        self,
        batch: Sequence[_Job],
        accept: Callable[[int, Outcome], bool],
        check: Path | None,
        stopped: Callable[[], bool] = never,
    ) -> Iterator[tuple[int, Outcome]]:
        """Yield outcomes in batch order; end early once `stopped` returns True.

        ``accept(position, outcome)`` returns True if a program would be the best so far: only such
        programs are compared with the results in the file `check`.
        """
        if self.exclusive:
            with self._phases.time("build"):
                # all builds first: a compiler at work would disturb the first timings
                for job in batch:
                    wait_for(job.built, stopped)
            self._wait_for_builders(stopped)
        for position, job in enumerate(batch):
            with self._phases.time("build"):
                wait_for(job.built, stopped)
            if stopped():
                self.cancel(batch)
                return
            outcome = self._outcome(job)
            if check is not None and outcome.error is None and accept(position, outcome):
                outcome = self._checked(job, outcome, check)
            if outcome.error is not None and stopped():
                self.cancel(batch)  # a signal to the process group may have ended the program, too
                return
            # thousands of libraries of a long run would fill the folder; the best is built again at
            # the end
            Path(job.path).unlink(missing_ok=True)
            yield position, outcome

    def _wait_for_builders(self, stopped: Callable[[], bool] = never) -> None:
        """Wait for the work of builders, which run on the cores that time programs."""
        with self._phases.time("build"):
            for work in self._begun:
                wait_for(work, stopped)
        self._begun = [work for work in self._begun if not work.done()]

    def build_only(
        self,
        candidates: Sequence[Candidate],
        arguments: Arguments,
        stopped: Callable[[], bool] = never,
    ) -> list[Outcome]:
        """Compile without running; the last outcomes are missing once `stopped`."""
        batch = [self._begin(one.schedule.mod, arguments, run=False) for one in candidates]
        found = list[Outcome]()
        for job in batch:
            with self._phases.time("build"):
                wait_for(job.built, stopped)
            if stopped():
                self.cancel(batch)
                break
            reply = job.built.result()
            failed = reply.error is not None
            built = Outcome(build_s=reply.seconds)
            found.append(_failure("build", reply, build_s=reply.seconds) if failed else built)
        return found

    def _outcome(self, job: _Job) -> Outcome:
        with self._phases.time("build"):
            built = job.built.result()
        if built.error is not None:
            return _failure("build", built, build_s=built.seconds)
        with self._phases.time("run"):
            ran = self._run(job) if job.ran is None else job.ran.result()
        if ran.error is not None:
            return _failure("run", ran, build_s=built.seconds, run_s=ran.seconds)
        costs_s = tuple(ran.value)
        if not are_timings(costs_s):
            message = f"the timings {costs_s!r:.80} are no seconds above 0"
            untimed = Reply(error="error", message=message, seconds=ran.seconds)
            return _failure("run", untimed, build_s=built.seconds, run_s=ran.seconds)
        sizes = (built.value if self._settings.sizes else None) or ()
        return Outcome(
            costs_s=costs_s,
            build_s=built.seconds,
            run_s=ran.seconds,
            extra=dict(zip((CODE, SCRATCH), sizes, strict=False)),
        )

    def _checked(self, job: _Job, outcome: Outcome, check: Path) -> Outcome:
        where = self._platform.device, job.arguments, str(check), self._platform.address
        with self._phases.time("run"):
            reply = self._runner.submit("check", job.path, *where).result()
        run_s = outcome.run_s + reply.seconds
        if reply.error == NO_REFERENCE:  # measured, but its correctness is unknown
            return replace(outcome, message=f"not checked: {reply.message}", run_s=run_s)
        if reply.error is not None:
            return _failure("check", reply, build_s=outcome.build_s, run_s=run_s)
        most = tolerance(job.arguments)
        # written so that a NaN counts as wrong
        if not reply.value <= most:
            message = (
                f"an element differs from the reference by {reply.value:.3g} of its value and "
                f"{FLOOR:g} usual ones, more than {most:g}"
            )
            return replace(outcome, costs_s=(), error="wrong_result", message=message, run_s=run_s)
        return replace(outcome, run_s=run_s, checked=True)

    def begin_reference(self, module: Any, arguments: Arguments, path: Path) -> Future[str | None]:
        """Begin to compute the results of ``main`` without schedule; None, or an error text."""
        text = importlib.import_module("tvm").ir.save_json(module)
        library = self._new_library()
        begun = self._references.submit(self._reference, text, arguments, path, library)
        self._begun.append(begun)
        return begun

    def _reference(self, text: str, arguments: Arguments, path: Path, library: str) -> str | None:
        host = json.dumps(reference_target(dtype for _, dtype in arguments))
        limit_s = self._settings.reference_timeout_s
        done = self._builders.submit("build", text, host, library, True, timeout_s=limit_s).result()
        if done.error is None:
            what = library, arguments, str(path)
            done = self._builders.submit("reference", *what, timeout_s=limit_s).result()
        longer = "; measure.reference_timeout_s= gives it longer" if done.error == TIMEOUT else ""
        return None if done.error is None else f"{done.error}: {done.message}{longer}"

    def untuned_s(self, module: Any, arguments: Arguments) -> float | None:
        """Time ``main`` without schedule on a CPU, in seconds; None if it fails."""
        if self._platform.device != "cpu":
            return None
        once = Timing(number=1, repeats=1, min_repeat_ms=0)
        outcome = self.unscheduled(module, arguments, timing=once)
        return outcome.latency_s if outcome.error is None else None

    def unscheduled(
        self,
        module: Any,
        arguments: Arguments,
        check: Path | None = None,
        timing: Timing | None = None,
    ) -> Outcome:
        """Time and check ``main`` without schedule as any other program, or by `timing`."""
        path = Path(self._new_library())
        reason = self.export(module, path)
        if reason is not None:
            return Outcome(error="build_error", message=reason)
        if self.exclusive:
            self._wait_for_builders()
        try:
            return self.time_library(path, arguments, check, timing)
        finally:
            path.unlink(missing_ok=True)

    def in_turns(
        self,
        modules: Sequence[Any],
        arguments: Arguments,
        check: Path | None,
        turns: int,
        stopped: Callable[[], bool] = never,
        is_late: Callable[[], bool] = never,
        fewest: int = 1,
    ) -> list[Outcome]:
        """Time scheduled modules in turns, so that disturbances affect all alike.

        ``costs_s`` has a repeat for each of the `turns`; a program that fails has none. With
        `check` the results of all are compared. The list is empty once `stopped` returns True. Once
        `is_late` does, only complete turns count. Results are not compared below `fewest` turns.
        """

        def ended() -> bool:
            return stopped() or is_late()

        jobs = [self._begin(module, arguments, run=False) for module in modules]
        with self._phases.time("build"):
            for job in jobs:
                wait_for(job.built, ended)
        if self.exclusive:
            self._wait_for_builders(ended)
        outcomes = [] if ended() else self._in_turns(jobs, turns, ended)
        done = min((len(one.costs_s) for one in outcomes if one.error is None), default=0)
        if check is not None and done >= fewest and not stopped():
            outcomes = [
                outcome if outcome.error is not None else self._checked(job, outcome, check)
                for job, outcome in zip(jobs, outcomes, strict=False)
            ]
        self.cancel(jobs)
        for job in jobs:
            Path(job.path).unlink(missing_ok=True)
        # a signal to the process group may have ended a program, too
        return [] if stopped() else outcomes

    def _in_turns(self, jobs: list[_Job], turns: int, ended: Callable[[], bool]) -> list[Outcome]:
        """Time built programs; the turns that were complete before the end, if any."""
        failed = [job.built.result().error is not None for job in jobs]
        once = replace(self._settings.timing, repeats=1, cv_limit=None, stop_above=None)
        costs_s: list[list[float]] = [[] for _ in jobs]
        with self._phases.time("run"):
            for turn in range(turns):
                # another program begins each turn, so that no program is always the first
                for number in np.roll(np.arange(len(jobs)), -turn):
                    if failed[number] or ended():
                        continue
                    reply = self._timed(jobs[number].path, jobs[number].arguments, once)
                    failed[number] = reply.error is not None or not are_timings(reply.value)
                    costs_s[number] += [] if failed[number] else reply.value
        found = list(zip(failed, costs_s, strict=True))
        complete = min((len(costs) for bad, costs in found if not bad), default=turns)
        return [
            Outcome(error="run_error") if bad else Outcome(costs_s=tuple(costs[:complete]))
            for bad, costs in found
            if complete
        ]

    def export(self, module: Any, path: Path) -> str | None:
        """Build a scheduled module into a permanent library; return any error."""
        with self._phases.time("build"):
            done = self.begin_build(module, path).result()
        return None if done.error is None else f"{done.error}: {done.message}"

    def begin_build(self, module: Any, path: Path) -> Future[Reply]:
        """Queue the build of a scheduled module into a permanent library."""
        text = importlib.import_module("tvm").ir.save_json(module)
        return self._builders.submit("build", text, self._platform.target_json, str(path))

    def hold(
        self, path: Path, arguments: Arguments, seconds: float, latency_s: float
    ) -> int | None:
        """Run a permanent library for `seconds`; return its runs, None on failure."""
        what = str(path), self._platform.device, arguments, seconds, latency_s
        limit_s = seconds + self._settings.run_timeout_s
        with self._phases.time("run"):
            reply = self._runner.submit("hold", *what, timeout_s=limit_s).result()
        return reply.value if reply.error is None else None

    def time_library(
        self,
        path: Path,
        arguments: Arguments,
        check: Path | None = None,
        timing: Timing | None = None,
    ) -> Outcome:
        """Time a permanent library, perhaps by another `timing`, and `check` it."""
        built: Future[Reply] = Future()
        built.set_result(Reply())
        job = _Job(path=str(path), arguments=arguments, built=built, timing=timing)
        outcome = self._outcome(job)
        if check is None or outcome.error is not None:
            return outcome
        return self._checked(job, outcome, check)


@dataclass(slots=True, kw_only=True)
class _Job:
    path: str
    arguments: Arguments
    built: Future[Reply]
    ran: Future[Reply] | None = None
    known_s: Callable[[], float] = unknown
    timing: Timing | None = None  # None: that of the settings


def wait_for(future: Future[Any], stopped: Callable[[], bool]) -> None:
    """Wait for a future until it is done or `stopped` returns True."""
    while not stopped():
        try:
            future.result(_POLL_S)
        except TimeoutError:
            continue
        return


def _failure(stage: str, reply: Reply, *, build_s: float, run_s: float = 0.0) -> Outcome:
    return Outcome(
        error=f"{stage}_{reply.error}", message=reply.message, build_s=build_s, run_s=run_s
    )
