"""Time our run to a rival's final latency, by building network prefixes.

    python -m experiments.networks.prefixes run=OURS rival=THEIRS drafts=DRAFT

OURS and THEIRS are finished runs of one network, both deployed; DRAFT is a run with effort=draft.
The script writes prefixes.json into OURS. It needs an idle machine. Estimates of different layouts
cannot be compared, because their tasks differ; built networks can.
"""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from pruner.cli.shared.output import say
from pruner.cli.shared.runs import CONFIG_FILE, read_config
from pruner.cli.shared.script import run_script
from pruner.cli.tuning.network import network_platform
from pruner.errors import DataError, PrunerError
from pruner.files import write_json
from pruner.progress import Log, silent
from pruner.tune.compare.baselines import Library, Resources, network_baselines
from pruner.tune.compare.benchmark import SHORT_BENCHMARK, BenchmarkSettings, run_interleaved
from pruner.tune.deploy.build import INPUTS, build_network
from pruner.tune.deploy.built_files import LIBRARY, WORK
from pruner.tune.deploy.network import DRAFTED, MEASURED
from pruner.tune.networks.draft_network import FOLDER as DRAFTS
from pruner.tune.networks.extraction import TASKS, read_tasks
from pruner.tune.networks.network_tasks import NetworkTask
from pruner.tune.networks.request import REQUEST, NetworkRequest
from pruner.tune.run.database import RECORDS, WORKLOADS
from pruner.tune.run.journal import JOURNAL_FILE, Trial, read_trials

PREFIXES_FILE = "prefixes.json"  # of a run folder
OURS, RIVAL = "ours", "rival"
SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2)  # of a run's seconds; its end is its deployed library
_RIVAL_SHARES = (1 / 4, 1 / 2)
_HALVINGS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A network built from the first ``t_s`` seconds of tuning.

    The rival's final network ran in the same race. ``measured`` programs were available by then.
    ``error`` instead of medians where it failed.
    """

    whose: str
    t_s: float
    measured: int
    median_s: float | None = None
    rival_s: float | None = None
    error: str | None = None

    @property
    def over_rival(self) -> float | None:
        """Its latency relative to the rival's final network."""
        if self.median_s is None or self.rival_s is None:
            return None
        return self.median_s / self.rival_s

    @property
    def reached(self) -> bool:
        """Whether it was at least as fast as the rival's final network."""
        return self.over_rival is not None and self.over_rival <= 1.0


class Prefixes:
    """Build and time prefixes of two finished, deployed runs of a network.

    `drafts` is the database of drafted schedules for tasks that ours had not measured; the rival
    has drafts in its own folder, and only prefixes in which every tuned task was measured.
    """

    def __init__(
        self,
        ours: Path,
        rival: Path,
        drafts: Path,
        work: Path,
        *,
        resources: Resources,
        settings: BenchmarkSettings = SHORT_BENCHMARK,
        log: Log = silent,
    ) -> None:
        """Raises `DataError` for a run that is not deployed."""
        for folder in (ours, rival):
            if not (folder / LIBRARY).is_file():
                raise DataError(f"{folder}: no {LIBRARY}; run: pruner deploy run={folder}")
        self._folders = {OURS: ours, RIVAL: rival}
        self._drafts = {OURS: drafts, RIVAL: rival / DRAFTS}
        self._tasks = {name: read_tasks(f / TASKS) for name, f in self._folders.items()}
        self._trials = {n: read_trials(f / JOURNAL_FILE) for n, f in self._folders.items()}
        self._work, self._resources, self._settings, self._log = work, resources, settings, log
        self._source = NetworkRequest.read(ours / REQUEST).source
        self._inputs = ours / WORK / INPUTS

    def points(self) -> list[Point]:
        """The grids of both runs in one race, then ours halved where it won."""
        wanted = [(OURS, t) for t in grid(self._trials[OURS], SHARES, after_s=0.0)]
        complete_s = complete(self._trials[RIVAL], self._tasks[RIVAL])
        if complete_s < float("inf"):
            times = grid(self._trials[RIVAL], _RIVAL_SHARES, after_s=complete_s)
            wanted += [(RIVAL, t) for t in times]
        found = self.run_interleaved(wanted)
        ours = [point for point in found if point.whose == OURS]
        found += halved(
            ours,
            lambda t: self.run_interleaved([(OURS, t)])[0],
            lambda t: known(self._trials[OURS], t),
        )
        return sorted(found, key=lambda point: (point.whose, point.t_s))

    def run_interleaved(self, wanted: Sequence[tuple[str, float]]) -> list[Point]:
        """Points timed in turns with the rival's final library."""
        final = self._folders[RIVAL] / LIBRARY
        libraries = {"final": Library(label="the rival's final network", path=final)}
        for number, (whose, t_s) in enumerate(wanted):
            libraries[f"{whose}-{number}"] = self._library(whose, t_s, f"{whose}-{number}")
        lined = network_baselines(
            self._source, [], libraries, inputs=self._inputs, resources=self._resources
        )
        rows = {
            row.name: row
            for row in run_interleaved(lined, self._work, self._settings, log=self._log)
        }
        rival_s = rows["final"].median_s
        return [
            Point(
                whose=whose,
                t_s=t_s,
                measured=known(self._trials[whose], t_s),
                median_s=rows[f"{whose}-{number}"].median_s,
                rival_s=rival_s,
                error=rows[f"{whose}-{number}"].error,
            )
            for number, (whose, t_s) in enumerate(wanted)
        ]

    def _library(self, whose: str, t_s: float, name: str) -> Library:
        folder, label = self._folders[whose], f"{whose} after {t_s:.0f} s"
        if known(self._trials[whose], t_s) == known(self._trials[whose], float("inf")):
            return Library(label=label, path=folder / LIBRARY)
        self._log(f"building {label}")
        place, drafts = self._work / name, self._drafts[whose]
        shutil.rmtree(place, ignore_errors=True)
        try:
            records, library, log_file = place / "records", place / LIBRARY, place / "build.log"
            sources = {MEASURED: records} if copy_records(folder, t_s, records) else {}
            sources |= {DRAFTED: drafts} if (drafts / RECORDS).is_file() else {}
            threads = self._resources.threads
            built = build_network(
                folder, sources, library, log_file, reference=False, threads=threads
            )
        except PrunerError as error:
            return Library(label=label, missing=str(error))
        return Library(label=label, path=built.library)


def known(trials: Sequence[Trial], t_s: float) -> int:
    """Programs that were measured by then."""
    return sum(trial.error is None and trial.elapsed_s <= t_s for trial in trials)


def grid(trials: Sequence[Trial], shares: Sequence[float], *, after_s: float) -> list[float]:
    """Distinct times: `after_s`, later shares of the run, and its end."""
    end_s = max((trial.elapsed_s for trial in trials), default=0.0)
    times = [after_s, *(share * end_s for share in shares if share * end_s > after_s), end_s]
    first: dict[int, float] = {}
    for time_s in times:
        first.setdefault(known(trials, time_s), time_s)
    return list(first.values())


def complete(trials: Sequence[Trial], tasks: Sequence[NetworkTask]) -> float:
    """Seconds until every tuned task had a measured program; infinite: never."""
    first = {task.name: float("inf") for task in tasks if task.tuned}
    for trial in trials:
        if trial.error is None and trial.task in first:
            first[trial.task] = min(first[trial.task], trial.elapsed_s)
    return max(first.values(), default=0.0)


def settled(trials: Sequence[Trial]) -> float:
    """Seconds until the network was final: its last task had its best program."""
    best: dict[str, float] = {}
    last_s = 0.0
    for trial in trials:
        if trial.latency_s < best.get(trial.task, float("inf")):
            best[trial.task], last_s = trial.latency_s, trial.elapsed_s
    return last_s


def halved(
    points: Sequence[Point], measure: Callable[[float], Point], measured: Callable[[float], int]
) -> list[Point]:
    """More points between the first that reached the rival and its predecessor."""
    hit = next((n for n, point in enumerate(points) if point.reached), 0)
    found: list[Point] = []
    if hit == 0:
        return found  # by the draft alone, or never
    low_s, high_s = points[hit - 1].t_s, points[hit].t_s
    for _ in range(_HALVINGS):
        middle_s = (low_s + high_s) / 2
        if measured(middle_s) == measured(low_s):
            low_s = middle_s
        elif measured(middle_s) == measured(high_s):
            high_s = middle_s
        else:
            found.append(measure(middle_s))
            low_s, high_s = (low_s, middle_s) if found[-1].reached else (middle_s, high_s)
    return found


def content(points: Sequence[Point], rival: Path) -> Mapping[str, object]:
    """The content of ``prefixes.json``: points, and when the rival was final."""
    settled_s = settled(read_trials(rival / JOURNAL_FILE))
    return {"rival": rival.name, "settled_s": settled_s, "points": [asdict(p) for p in points]}


def copy_records(folder: Path, until_s: float, place: Path) -> int:
    """Copy a run's first measurements; return how many; raises DataError if damaged."""
    trials = read_trials(folder / JOURNAL_FILE)
    early = [t for t in trials if t.error is None and t.elapsed_s <= until_s]
    wanted = Counter(tuple(trial.costs_s) for trial in early)
    lines = (folder / RECORDS).read_bytes().splitlines(keepends=True) if early else []
    kept = []
    for line in lines:
        costs_s = tuple(json.loads(line)[1][1])
        if wanted[costs_s]:
            wanted[costs_s] -= 1
            kept.append(line)
    if wanted.total():
        raise DataError(f"{folder}: {wanted.total()} measurements of the journal have no record")
    place.mkdir(parents=True, exist_ok=True)
    if kept:
        shutil.copyfile(folder / WORKLOADS, place / WORKLOADS)
    (place / RECORDS).write_bytes(b"".join(kept))
    return len(kept)


@dataclass(kw_only=True)
class Options:
    """Options of the script: run folders."""

    run: str = MISSING
    rival: str = MISSING
    drafts: str = MISSING


def run(options: Options) -> Mapping[str, Any]:
    """Build and time the prefixes; the libraries are removed in the end."""
    ours, rival = Path(options.run).resolve(), Path(options.rival).resolve()
    asked = read_config(ours / CONFIG_FILE)
    work, drafts = ours / "prefixes", Path(options.drafts).resolve() / DRAFTS
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    resources = Resources.of(network_platform(ours, asked))
    points = Prefixes(ours, rival, drafts, work, resources=resources, log=say).points()
    found = content(points, rival)
    write_json(ours / PREFIXES_FILE, found, indent=1)
    shutil.rmtree(work)
    reached = [point.t_s for point in points if point.whose == "ours" and point.reached]
    return {"points": len(points), "reached_s": min(reached, default=None)}


if __name__ == "__main__":
    run_script(Options, run, __doc__)
