"""Collect all pools: first timings task by task, second timings minutes later."""

import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from pruner.errors import PrunerError
from pruner.files import as_written, hold, read_json, write_json
from pruner.progress import Log, silent
from pruner.search.loop import RunStopped
from pruner.tune.measure.measurer import (
    BUILDS,
    KERNELS,
    DeviceMeasurer,
    MeasureSettings,
    never,
)
from pruner.tune.phases import Phases
from pruner.tune.pools.conditions import Conditions, about_machine
from pruner.tune.pools.measured_set import (
    MeasuredSet,
    PoolPlatform,
    Unavailable,
)
from pruner.tune.pools.records import ABOUT, PoolSettings

PROBED = 4  # programs of every pool that are timed to estimate the total time
_LOG_PERIOD_S = 15.0  # least seconds between two lines of progress


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """The platforms, output folder and settings of a collection."""

    platforms: Sequence[PoolPlatform]
    out: Path
    settings: PoolSettings = field(default_factory=PoolSettings)
    measure: MeasureSettings = field(default_factory=MeasureSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """The counts of a collection: ``records`` ran; ``pools`` are finished, of ``of``.

    ``unsuccessful`` lists the pools that have unchecked programs although a check was requested,
    pools without a program that ran, and pools that could not be opened or continued.
    """

    records: int
    failed: int
    seconds: float
    pools: int
    of: int
    short: tuple[str, ...] = ()  # reasons of the other pools
    left_s: float = 0.0  # estimated
    built: int = 0  # programs that wait for their first timing
    interrupted: bool = False
    unchecked: int = 0
    unsuccessful: tuple[str, ...] = ()


_Kind = Literal["open", "first", "again"]


class Collector:
    """Fills the pools of a plan; another collector on its folder continues."""

    def __init__(
        self, plan: PoolPlan, log: Log = silent, stopped: Callable[[], bool] = never
    ) -> None:
        self._plan, self._log, self._stopped = plan, log, stopped
        # seconds to open a pool, to time a program first, and again
        self._spent_s: defaultdict[tuple[str, _Kind], list[float]] = defaultdict(list)
        self._last_logged = 0.0
        self.short: dict[str, str] = {}  # why a pool is unfinished, by its name
        plan.out.mkdir(parents=True, exist_ok=True)
        hold(plan.out)  # before measurement logs are read, which cuts off an incomplete last line
        how: Any = {"checks": plan.measure.check, "log": log, "stopped": stopped}
        self.pools = [
            MeasuredSet(workload, place, plan.out, plan.settings, **how)
            for place in plan.platforms
            for workload in place.workloads
        ]
        names = [pool.name for pool in self.pools]
        if doubled := sorted({name for name in names if names.count(name) > 1}):
            raise PrunerError(f"the task {doubled[0]} is there twice; leave one out")
        for pool in self.pools:
            if pool.is_finished:  # by a session that was killed before it cleared up
                pool.clear()

    def collect(self) -> Collected:
        """Measure the missing programs; raise `Unavailable` without a device."""
        return self._over_all(self._fill)

    def estimate(self) -> Collected:
        """Measure a few programs of every pool, which count, to estimate the time."""
        return self._over_all(self._probe)

    def prepare(self) -> Collected:
        """Choose and build the programs of all pools, to be timed elsewhere."""
        return self._over_all(self._prepare)

    def _over_all(self, work: Callable[[list[MeasuredSet]], None]) -> Collected:
        start, interrupted, out = time.monotonic(), False, self._plan.out
        try:
            for place in self._plan.platforms:
                pools = [p for p in self.pools if p.place is place and not p.is_finished]
                if not pools:
                    continue
                name, phases, where = place.platform.name, Phases(), (out / BUILDS, out / KERNELS)
                self._log(f"{name}: starting the processes that build and run programs")
                with DeviceMeasurer(place.platform, self._plan.measure, phases, *where) as measurer:
                    conditions = Conditions(place.platform.device)
                    for pool in pools:
                        pool.measure_with(measurer, phases, conditions)
                    work(pools)
                if all(pool.is_finished for pool in pools):
                    shutil.rmtree(out / KERNELS, ignore_errors=True)
        except RunStopped:
            interrupted = True
        finally:
            # after an interruption, too: the finished pools are complete
            self._write_about(time.monotonic() - start)
        return self._found(time.monotonic() - start, interrupted=interrupted)

    def _fill(self, pools: list[MeasuredSet]) -> None:
        waiting: list[MeasuredSet] = []
        for pool in pools:
            # this CPU is free while the device times programs
            if pool.missing and not pool.place.platform.shares_cpu:
                pool.begin_check()
        for pool in pools:
            if self._first(pool, None):
                waiting.append(pool)
            while waiting and min(p.ready_at for p in waiting) <= time.time():
                self._again(waiting)
        while waiting:
            self._wait(min(pool.ready_at for pool in waiting))
            self._again(waiting)

    def _probe(self, pools: list[MeasuredSet]) -> None:
        for pool in pools:
            probed = max(0, PROBED - len(pool.valid()))
            if probed and self._first(pool, probed):
                each_s = self._each_s(pool.platform, "first")
                self._log(f"{pool.name}: {each_s:.2f} s a program so far")
            pool.close()

    def _prepare(self, pools: list[MeasuredSet]) -> None:
        for pool in pools:
            try:
                pool.prepare()
                number = sum(pool.build())
                self._log(f"{pool.name}: {number} programs built, {pool.built} are there")
            except Unavailable:
                raise
            except PrunerError as error:
                self.short[pool.name] = str(error)
                self._log(f"left out: {error}")
            pool.close()

    def _first(self, pool: MeasuredSet, limit: int | None) -> bool:
        """Time a pool first; return whether second timings are due."""
        try:
            start = time.monotonic()
            if pool.missing:
                # opening takes seconds that the pace counts apart from timing
                pool.prepare()
                self._add(pool.platform, "open", time.monotonic() - start)
            since = time.monotonic()
            for _ in pool.first(limit):
                since = self._passed(pool, since, "first")
        except Unavailable:
            raise
        except PrunerError as error:
            self.short[pool.name] = str(error)
            self._log(f"left out: {error}")
            return False
        return bool(pool.valid())

    def _again(self, waiting: list[MeasuredSet]) -> None:
        pool = min(waiting, key=lambda one: one.ready_at)
        since = time.monotonic()
        if pool.doubted:
            for _ in pool.again():
                since = self._passed(pool, since, "again")
        if not pool.doubted:
            pool.finish()
            waiting.remove(pool)
            self._log(self._line(pool, "finished"))

    def _wait(self, until: float) -> None:
        left = until - time.time()
        if left > 1:
            self._log(f"waiting {left:.0f} s, so that timings are minutes apart")
        while time.time() < until:
            if self._stopped():
                raise RunStopped
            time.sleep(min(0.5, max(0.0, until - time.time())))

    def _passed(self, pool: MeasuredSet, since: float, kind: _Kind) -> float:
        now = time.monotonic()
        self._add(pool.platform, kind, now - since)
        if now - self._last_logged > _LOG_PERIOD_S:
            self._last_logged = now
            doing = "timing" if kind == "first" else "timing again"
            self._log(self._line(pool, doing))
        return now

    def _line(self, pool: MeasuredSet, doing: str) -> str:
        number = self.pools.index(pool) + 1
        return (
            f"[{number}/{len(self.pools)}] {pool.name}: {doing}, {len(pool.valid())} of "
            f"{self._plan.settings.programs} programs; about {hours(self.left_s)} left in all"
        )

    def _add(self, platform: str, kind: _Kind, seconds: float) -> None:
        for name in (platform, ""):
            self._spent_s[name, kind].append(seconds)

    def _each_s(self, platform: str, kind: _Kind) -> float:
        """Return the mean of a platform, else of all; half a first without."""
        found = self._spent_s[platform, kind] or self._spent_s["", kind]
        if found:
            return fmean(found)
        return self._each_s(platform, "first") / 2 if kind == "again" else 0.0

    @property
    def left_s(self) -> float:
        """Estimate the seconds that opening and timing will still take."""
        total = 0.0
        for pool in self.pools:
            if pool.name in self.short:
                continue
            name, missing = pool.platform, pool.missing
            total += missing * self._each_s(name, "first")
            total += (missing + len(pool.doubted)) * self._each_s(name, "again")
            if missing and not pool.is_open:
                total += self._each_s(name, "open")
        return total

    def _found(self, seconds: float, *, interrupted: bool) -> Collected:
        pools = self.pools
        unfinished = [pool for pool in pools if not pool.is_finished]
        return Collected(
            records=sum(len(pool.valid()) for pool in pools),
            failed=sum(
                p.failed and p.has_record for q in pools for p in q.measurement_log.programs
            ),
            seconds=seconds,
            pools=len(pools) - len(unfinished),
            of=len(pools),
            short=tuple(
                self.short.get(p.name, f"{p.name}: {len(p.valid())} programs") for p in unfinished
            ),
            left_s=self.left_s,
            built=sum(pool.built for pool in pools),
            interrupted=interrupted,
            unchecked=sum(pool.unchecked for pool in pools),
            unsuccessful=tuple(
                pool.name
                for pool in pools
                if pool.all_failed
                or pool.name in self.short
                or (self._plan.measure.check and pool.unchecked)
            ),
        )

    def _write_about(self, seconds: float) -> None:
        path = self._plan.out / ABOUT
        path.parent.mkdir(parents=True, exist_ok=True)
        mine = [pool.about() for pool in self.pools if pool.valid()]
        names = {(about["platform"], about["task"]) for about in mine}
        with as_written(path):
            before = read_json(path, dict) if path.is_file() else {}
            # pools of earlier sessions with other plans stay
            others = [p for p in before.get("pools", []) if (p["platform"], p["task"]) not in names]
            targets = dict(before.get("targets", {}))
            earlier_s = float(before.get("seconds", 0.0))
        about = {
            "machine": about_machine(),
            "targets": targets
            | {p.platform.name: p.platform.target_json for p in self._plan.platforms},
            "settings": asdict(self._plan.settings),
            "timing": asdict(self._plan.measure.timing),
            "seconds": round(seconds + earlier_s, 1),
            "pools": sorted([*others, *mine], key=lambda p: (p["platform"], p["task"])),
        }
        write_json(path, about, indent=1)


def hours(seconds: float) -> str:
    """Format seconds for people.

    >>> hours(59), hours(3725), hours(600)
    ('59 s', '1 h 02 min', '10 min')
    """
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
