"""Time baselines in alternating turns, so that disturbances affect all alike."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from pruner.errors import PrunerError
from pruner.files import as_written, read_json
from pruner.processes import Worker
from pruner.progress import Log, silent
from pruner.tune.compare.baselines import CPU, Baseline, Resources
from pruner.tune.compare.runners import load, rest, run_for, save, thread_limits
from pruner.tune.measure.energy import EnergyMeter, energy_of
from pruner.tune.measure.numerics import gaps, largest, step_of

ROUNDING = 8.0  # units in the last place of the largest term of a sum
MOST_SCALE = 100.0  # larger terms are no normalised values, but stand for infinity perhaps
ROUNDED = 0.02  # share of the elements that may be a step apart where a network rounds
_CALLS = 2  # runs of `save`
REST_S = 2.0  # limit of the wait after a turn, which is usually a tenth of that


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkSettings:
    """How long each baseline runs.

    Before the first turn each runs for ``warm_up_s`` without being counted: for some seconds after
    its start a process was seen to take up to 1.7 times as long. A turn lasts ``turn_s``; each has
    ``rounds`` of them, or, where its runs are longer than a turn, as many as start within
    ``most_s`` (three at least). ``prepare_s`` is the limit for loading, exporting and compiling; up
    to ``num_parallel`` are prepared at a time, if none of them tunes itself meanwhile.
    ``energy_s``: where a meter is given, the energy of ``energy_turns`` more turns of so many
    seconds each is counted.
    """

    warm_up_s: float = 3.0
    rounds: int = 10
    turn_s: float = 0.3
    most_s: float = 5.0
    prepare_s: float = 900.0
    num_parallel: int = 1
    energy_s: float = 0.0
    energy_turns: int = 3

    def seconds(self, run_s: float) -> float:
        """Estimate the seconds of all turns of a baseline whose runs take ``run_s``."""
        turn_s = max(self.turn_s, run_s)
        turns = min(self.rounds, max(3, math.ceil(self.most_s / turn_s)))
        return max(self.warm_up_s, run_s) + turns * turn_s


# for a single library
SHORT_BENCHMARK = BenchmarkSettings(warm_up_s=4.0, rounds=10, turn_s=0.5, most_s=20.0)
FIRST_LOOK = BenchmarkSettings(warm_up_s=1.0, rounds=5, turn_s=0.2, most_s=5.0)  # for a draft


@dataclass(slots=True, kw_only=True)
class BaselineTiming:
    """The result of a baseline: seconds of every run, or its `error`.

    ``relative_error``: of its outputs against the reference's, None without a reference; ``facts``
    are its versions and its preparation time. ``watts``: of every turn with counted energy.
    """

    name: str
    label: str
    latencies_s: list[float] = field(default_factory=list)
    facts: Mapping[str, Any] = field(default_factory=dict)
    relative_error: float | None = None
    error: str | None = None
    watts: list[float] = field(default_factory=list)

    @property
    def median_s(self) -> float | None:
        """Median seconds of all runs."""
        return float(np.median(self.latencies_s)) if self.latencies_s else None

    def row(self) -> dict[str, Any]:
        """Return the results; ``low_s`` and ``high_s`` are the outer deciles."""
        row: dict[str, Any] = {"name": self.name, "label": self.label, "error": self.error}
        if self.median_s is None:
            return row
        row |= timings(self.latencies_s)
        row |= {"relative_error": self.relative_error, "facts": dict(self.facts)}
        if self.watts:
            watts = float(np.median(self.watts))
            row |= {"watts": watts, "joules": watts * self.median_s}
        return row


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide:
    """Baselines timed in turns with equal resources, in rows of :meth:`BaselineTiming.row`.

    Relative errors are against the outputs of ``reference``.
    """

    rows: Sequence[Mapping[str, Any]]
    resources: Resources
    reference: str

    @property
    def ran(self) -> list[Mapping[str, Any]]:
        """The rows without an error, in order."""
        return [row for row in self.rows if row["error"] is None]

    @property
    def by_name(self) -> dict[str, Mapping[str, Any]]:
        """The rows by their baseline's name."""
        return {row["name"]: row for row in self.rows}

    def lines(self) -> list[str]:
        """Format medians, the fastest first, with energy where counted."""
        return [
            f"{row['label']:40s} {1e3 * row['median_s']:10.4g} ms"
            + (f" {row['watts']:8.4g} W {row['joules']:10.4g} J a run" if "watts" in row else "")
            for row in sorted(self.ran, key=lambda row: float(row["median_s"]))
        ]

    def content(self) -> dict[str, Any]:
        """Return the content of ``beside.json``."""
        return {
            **asdict(self.resources),
            "reference": self.reference,
            "contenders": list(self.rows),
        }

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Read the file of a network's comparison; None without it."""
        if not path.is_file():
            return None
        with as_written(path):
            found = read_json(path, dict)
            resources = Resources(threads=found["threads"], device=found.get("device", CPU))
            return cls(rows=found["contenders"], resources=resources, reference=found["reference"])


def timings(latencies_s: Sequence[float]) -> dict[str, Any]:
    """Summarise runs: median, minimum, first and ninth decile; nothing without runs."""
    if not len(latencies_s):
        return {}
    low_s, median_s, high_s = np.quantile(latencies_s, [0.1, 0.5, 0.9]).tolist()
    return {
        "median_s": median_s,
        "min_s": min(latencies_s),
        "low_s": low_s,
        "high_s": high_s,
        "runs": len(latencies_s),
    }


def run_interleaved(
    baselines: Sequence[Baseline],
    folder: Path,
    settings: BenchmarkSettings = BenchmarkSettings(),  # frozen
    *,
    reference: str | None = None,
    meter: EnergyMeter | None = None,
    log: Log = silent,
) -> list[BaselineTiming]:
    """Prepare the baselines, then time each in alternating turns.

    `folder` keeps their logs and outputs. The outputs of `reference` are compared with all others.
    A baseline that fails affects no other.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = {one.name: BaselineTiming(name=one.name, label=one.label) for one in baselines}
    race = _Race(folder, settings, log, found)
    with ExitStack() as stack:
        for group in _groups(baselines, settings.num_parallel):
            race.prepare(group, stack)
        about_s = sum(settings.seconds(run_s) for run_s in race.run_s.values())
        log(f"timing {len(race.running)} in turns, about {about_s:.0f} s")
        race.take_turns()
        if meter is not None and settings.energy_s > 0:
            log(f"counting energy ({meter.name}) in turns of {settings.energy_s:g} s")
            race.count_energy(meter)
    ran = {name: row for name, row in found.items() if row.error is None}
    wanted = None if reference not in ran else race.outputs(str(reference))
    for name, row in ran.items():
        if wanted is not None and name != reference:
            row.relative_error, _ = worst_output(race.outputs(name), wanted)
    return list(found.values())


def _groups(baselines: Sequence[Baseline], num_parallel: int) -> list[list[Baseline]]:
    """Group baselines to prepare together; self-tuning baselines are prepared alone."""
    groups: list[list[Baseline]] = []
    for one in baselines:
        last = groups[-1] if groups else []
        if last and len(last) < num_parallel and not (one.tunes or last[0].tunes):
            last.append(one)
        else:
            groups.append([one])
    return groups


@dataclass(slots=True)
class _Race:
    """Results of all baselines, and the workers that have not failed."""

    folder: Path
    settings: BenchmarkSettings
    log: Log
    found: Mapping[str, BaselineTiming]
    running: dict[str, _BaselineWorker] = field(default_factory=dict)
    run_s: dict[str, float] = field(default_factory=dict)  # estimates, of the running baselines

    def outputs(self, name: str) -> Path:
        return self.folder / f"{name}-outputs.npz"

    def prepare(self, group: Sequence[Baseline], stack: ExitStack) -> None:
        started = []
        for one in group:
            self.log(f"{one.label}: getting ready")
            with self._dropped_if_it_fails(one.name):
                process = _BaselineWorker(one, self.folder / f"{one.name}.log")
                stack.callback(process.close)
                started.append((one, process))
        for one, process in started:
            with self._dropped_if_it_fails(one.name) as row:
                facts = process.answer(self.settings.prepare_s)
                # outputs before any timing; this is also the run that allocates memory
                start_s = time.monotonic()
                process.ask(save.__name__, self.outputs(one.name), self.settings.prepare_s)
                self.run_s[one.name] = (time.monotonic() - start_s) / _CALLS
                row.facts = {**one.facts, **facts}
                self.running[one.name] = process

    def take_turns(self) -> None:
        settings = self.settings
        # turn -1 warms up
        for turn in range(-1, settings.rounds):
            turn_s = settings.warm_up_s if turn < 0 else settings.turn_s
            for name, process in list(self.running.items()):
                with self._dropped_if_it_fails(name) as row:
                    is_due = turn < min(3, settings.rounds)
                    if is_due or sum(row.latencies_s) < settings.most_s:
                        latencies_s = process.ask(run_for.__name__, turn_s, settings.prepare_s)
                        self._rest(process)
                        row.latencies_s += latencies_s if turn >= 0 else []

    def count_energy(self, meter: EnergyMeter) -> None:
        """Measure watts in alternating turns: a warm device uses more."""
        settings, job = self.settings, run_for.__name__
        for _ in range(settings.energy_turns):
            for name, process in list(self.running.items()):
                try:
                    with self._dropped_if_it_fails(name) as row:
                        # around the complete turn, with its uncounted first run: both are work of
                        # the same kind
                        turn = partial(process.ask, job, settings.energy_s, settings.prepare_s)
                        used_j, seconds, _ = energy_of(meter, turn)
                        row.watts.append(used_j / seconds)
                        self._rest(process)
                except OSError as error:
                    self.log(f"no energy: {error}")
                    return

    def _rest(self, process: _BaselineWorker) -> None:
        if len(self.running) > 1:  # the next turn is another's
            process.ask(rest.__name__, REST_S, self.settings.prepare_s)

    @contextmanager
    def _dropped_if_it_fails(self, name: str) -> Iterator[BaselineTiming]:
        row = self.found[name]
        try:
            yield row
        except PrunerError as error:
            self.running.pop(name, None)
            # a median of fewer turns than the others had would not be comparable
            row.latencies_s, row.watts, row.error = [], [], str(error)
            self.log(f"{row.label}: left out, {error}")


class _BaselineWorker:
    """The worker of a baseline, which loads at once and logs output."""

    def __init__(self, baseline: Baseline, log_file: Path) -> None:
        if baseline.missing is not None:
            raise PrunerError(baseline.missing)
        log_file.write_bytes(b"")
        environment = {**thread_limits(baseline.threads), **baseline.environment}
        # spawned: libraries read their limits of threads when they are imported
        self._worker = Worker(baseline.jobs, method="spawn", environment=environment)
        self._log = log_file
        self.close = self._worker.stop
        arguments = (baseline.runner, baseline.arguments, baseline.threads)
        # sent without waiting: several baselines may load at the same time
        self._worker.send(load.__name__, *arguments, log_file=log_file)

    def ask(self, job: str, argument: Any, timeout_s: float) -> Any:
        with suppress(OSError):  # the process has ended, which `answer` reports
            self._worker.send(job, argument, log_file=self._log)
        return self.answer(timeout_s)

    def answer(self, timeout_s: float) -> Any:
        """Return the value of the last job."""
        reply = self._worker.receive(timeout_s)
        if reply.error is not None:
            raise PrunerError(reply.line)
        return reply.value


def worst_output(
    found: Path,
    wanted: Path,
    *,
    names: Sequence[str] = (),
    rounds: bool = False,
    scales: Sequence[float] = (),
) -> tuple[float, str]:
    """Compute the largest relative error of any output, and describe where it is.

    It is infinite where the number of outputs, their shapes or the kinds of their types differ, and
    for integers that differ. ``rounds``: a small share of the values that the network rounds may be
    a step apart. ``scales``: of the numbers that each output sums (`last_scales`); their rounding
    counts as right.
    """
    with np.load(found) as ours, np.load(wanted) as theirs:
        if len(ours.files) != len(theirs.files):
            return float("inf"), f"{len(ours.files)} outputs, not {len(theirs.files)}"
        worst = 0.0, ""
        for mine, name in zip(ours.files, theirs.files, strict=True):
            call, number = name.split("_")
            label = names[int(number)] if names else number
            label = f"output {label}{' of the second call' if call == 'again' else ''}"
            scale = scales[int(number)] if len(scales) > int(number) else 0.0
            errors = _output_error(label, ours[mine], theirs[name], scale, rounds=rounds)
            worst = max(worst, errors)
        return worst


def _output_error(
    label: str,
    found: NDArray[Any],
    wanted: NDArray[Any],
    scale: float,
    *,
    rounds: bool,
) -> tuple[float, str]:
    kinds = ["integer" if a.dtype.kind in "iu" else a.dtype.name.rstrip("0123456789")
             for a in (found, wanted)]  # fmt: skip
    if found.shape != wanted.shape or kinds[0] != kinds[1]:
        ours, theirs = (f"{a.dtype} {'x'.join(map(str, a.shape))}" for a in (found, wanted))
        return float("inf"), f"{label} is {ours}, not {theirs}"
    if wanted.dtype.kind == "f" and wanted.size and np.isnan(wanted).all():
        return float("inf"), f"{label} is nothing but NaN: give inputs with numbers as outputs"
    apart = gaps(found, wanted)
    if rounds:
        near = (apart > 0) & (apart <= 1.001 * step_of(wanted))
        if near.sum() <= max(1, ROUNDED * wanted.size):
            apart[near] = 0.0
    if wanted.dtype.kind == "f":
        apart[apart <= ROUNDING * np.finfo(wanted.dtype).eps * min(scale, MOST_SCALE)] = 0.0
    if not apart.any():
        return 0.0, ""
    place = np.unravel_index(int(apart.argmax()), apart.shape)
    error = float(apart[place]) / largest(wanted) if wanted.dtype.kind == "f" else float("inf")
    where = f" at {', '.join(map(str, place))}" if place else ""
    return error, f"{label}{where} is {found[place]}, not {wanted[place]}"
