"""Grids of jobs that leave a file each; an interrupted grid continues.

A `Job` is a call in this process, a `Step` a command. `results` computes the missing jobs, several
at a time. `BoxRunner` runs steps in time slots ("boxes"), and `Times` keeps how long they took.
"""

import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from pruner.commands import Commands
from pruner.errors import PrunerError
from pruner.files import held, read_json, write_json
from pruner.paths import conf_folder
from pruner.processes import in_workers
from pruner.progress import Log, silent
from pruner.tune.run.journal import JOURNAL_FILE, read_trials
from pruner.tune.run.snapshot import SNAPSHOT_FILE

RESUME, COMPILE_ONLY = "resume=", "compile_only=true"
CONFIG_FILE, ANSOR_LOG = "config.yaml", "ansor.json"
PARTLY = 3  # exit code of a command that did its work, except for some part
TAIL = 4096  # bytes at the end of a log that hold its last line
_PLAIN = re.compile(r"[\w./+@-]+")
_NO_OPTIONS = {"defaults", "hydra", "sweep", "experiment"}  # of conf/tune.yaml: no part of a run


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Work that leaves one JSON file; done once the file exists.

    ``run`` returns the content of the file. ``leaves``: None where nothing is stored. ``about``:
    all that decides the result besides the name; it is stored in the file, a JSON object, and a
    result with another ``about`` counts as missing.
    """

    name: str
    run: Callable[[], Any]
    leaves: Path | None = None
    about: Any = None

    @property
    def result(self) -> Any:
        """The job's result, None before it; raises `DataError` for a damaged file."""
        if self.leaves is None or not self.leaves.is_file():
            return None
        found = read_json(self.leaves)
        return found if self.about is None or found.get("about") == self.about else None

    def compute(self) -> Any:
        """Run the job and store its result, unless `run` stored it."""
        found = self.run()
        if self.about is not None:
            found = {**found, "about": self.about}
        if self.leaves is not None and self.result is None:
            self.leaves.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.leaves, found)
        return found


def results(
    jobs: Sequence[Job], *, num_workers: int = 1, log: Log = silent, again: str = "call it again"
) -> Iterator[Any]:
    """Yield the result of every job, in order.

    `num_workers` processes share the missing jobs.

    Raises:
        PrunerError: a process ended without the result of a job; `again` names the way to continue.
            All
            other jobs have ended by then.
    """
    missing = [job for job in jobs if job.leaves is not None and job.result is None]
    number = min(num_workers, len(missing))
    if number < 2:
        for job in jobs:
            found = job.result
            yield job.compute() if found is None else found
        return
    with in_workers(missing, Job.compute, number, log=log) as ended:
        done = ended()
        for job in jobs:
            found = job.compute() if job.leaves is None else job.result
            while found is None and next(done, None):  # another job has ended
                found = job.result
            if found is None:
                raise PrunerError(f"{job.name}: no result; {again}")
            yield found


def finished(path: Path) -> bool:
    """Whether a command left `path` without being interrupted.

    An interrupted run leaves its numbers, too, marked as interrupted.
    """
    return path.is_file() and not read_json(path, dict).get("interrupted", False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A command: done once ``leaves``, a JSON file, exists.

    It begins once all steps in ``needs`` are done. ``words``: see `started`. ``kind`` and ``size``
    determine its expected time (`Times`). ``budget``: the option that takes the seconds it may use,
    for commands that can end in time with a result; "": none. ``spent_s`` of these were used by an
    earlier start. ``start_s`` are the seconds of the command before and after the work that its
    size describes. ``made``: the file that the command writes, where another step's command writes
    the same file; it is copied to ``leaves``.
    """

    name: str
    words: Sequence[str]
    leaves: Path
    kind: str
    size: float = 1.0
    needs: Sequence["Step"] = ()
    budget: str = ""
    spent_s: float = 0.0
    start_s: float = 0.0
    made: Path | None = None

    @property
    def done(self) -> bool:
        """Whether it has ended well."""
        return finished(self.leaves)

    @property
    def lacks(self) -> list[str]:
        """Names of the needed steps that are not done."""
        return [step.name for step in self.needs if not step.done]

    @property
    def reached(self) -> float:
        """The size that it did; trials for a run ended by time.

        Counted as complete, such runs would make all of their kind look quicker than they are.
        """
        if not (self.budget and self.leaves.is_file()):
            return self.size
        found = read_json(self.leaves, dict)
        trials = found.get("trials", self.size) or found.get("compiled", 0)
        return float(min(self.size, trials))

    def within(self, seconds: float) -> list[str]:
        """Its words, with `seconds` more as budget.

        Without a budget option, or for infinite seconds, its words alone.
        """
        if not self.budget or seconds == float("inf"):
            return list(self.words)
        return [*self.words, f"{self.budget}={max(1, int(self.spent_s + seconds))}"]

    def keep(self) -> None:
        """Copy the file of its command to ``leaves``; call it after success."""
        if self.made is not None:
            self.leaves.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.leaves, read_json(self.made), indent=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The end of a command: exit code and the log's last line.

    The code is None where the time limit ended the command.
    """

    code: int | None
    line: str

    @property
    def well(self) -> bool:
        """Whether its result counts."""
        return self.code in (0, PARTLY)


def quoted(path: Path) -> str:
    """A path as the value of an option, in quotes where necessary.

    >>> quoted(Path("a/b-1.json")), quoted(Path("my runs, new"))
    ('a/b-1.json', "'my runs, new'")
    """
    text = str(path)
    if _PLAIN.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def started(words: Sequence[str], place: Path) -> list[str]:
    """The command line for a step's words, with this Python.

    ``FILE.py`` is a script below `place`; any other first word is a command of the installed
    project.
    """
    first, *options = words
    if first.endswith(".py"):
        return [sys.executable, str(place / first), *options]
    return [sys.executable, "-m", "pruner.cli", first, *options]


def run_command(
    words: Sequence[str],
    log_file: Path,
    *,
    place: Path,
    limit_s: float = float("inf"),
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """Run a program in `place` for at most `limit_s` seconds.

    Its output and errors go to `log_file`.
    """
    code = Commands(place, environment).run(words, log_file, limit_s=limit_s)
    with log_file.open("rb") as content:
        content.seek(max(0, log_file.stat().st_size - TAIL))
        lines = content.read().decode("utf-8", "replace").split("\n")
    last_lines = (line.strip() for line in reversed(lines) if line.strip())
    return Ended(code=code, line=next(last_lines, "no reason given"))


class Times:
    """A file of the seconds that steps took.

    ``guesses``: seconds of a kind and size 1 before any step of it ended. `path` is a JSON list, an
    object a step: name, kind, size, seconds.
    """

    def __init__(self, path: Path, guesses: Mapping[str, float]) -> None:
        self._path = path
        self._guesses = guesses

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All stored rows, in order."""
        if not self._path.is_file():
            return []
        return read_json(self._path, list)

    def keep(self, step: Step, seconds: float) -> None:
        """Add a step's seconds, for the size that it did."""
        row = {"name": step.name, "kind": step.kind, "size": step.reached, "seconds": seconds}
        write_json(self._path, [*self.rows, row], indent=1)

    def last_s(self, step: Step) -> float | None:
        """Seconds of this step the last time; None if it never ended."""
        took: list[float] = [row["seconds"] for row in self.rows if row["name"] == step.name]
        return took[-1] if took else None

    def expected_s(self, step: Step) -> float:
        """Expected seconds: start-up, and size at the pace of its kind.

        Before any step of the kind ended, the pace is the guess.
        """
        known = [
            (max(0.0, row["seconds"] - step.start_s), row["size"])
            for row in self.rows
            if row["kind"] == step.kind and row["size"] > 0
        ]
        if known:
            each_s = sum(s for s, _ in known) / sum(size for _, size in known)
        else:
            each_s = self._guesses[step.kind]
        return step.start_s + step.size * each_s


# a step, the seconds it may use, the seconds until it is ended
Run = Callable[[Step, float, float], Ended]
Clock = Callable[[], float]
CUT = 0.5  # a step with a budget gets this share of its expected time, if its slot can give it


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """Steps that share ``seconds``; with less than ``least_s`` left, none begins.

    Steps may depend on the results of earlier steps, so they are made when the slot needs them.
    """

    name: str
    steps: Callable[[], Iterable[Step]]
    seconds: float = float("inf")
    least_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class BoxRunner:
    """Run time slots ("boxes") with deadlines: later slots get unused time.

    A step with a budget gets its share of the time left (`fair_share_s`), and every step is ended
    at the end of its slot. A step that fails, or lacks an input, is reported; the others run.
    ``after`` is called after every box.
    """

    run: Run
    times: Times
    log: Log
    clock: Clock = field(default=time.monotonic)
    after: Callable[[Box], None] = silent

    def run_all(self, boxes: Iterable[Box]) -> None:
        """Run the steps that are not done."""
        spare_s = 0.0
        for box in boxes:
            ends = self.clock() + box.seconds + spare_s
            self._run_box(box, ends)
            self.after(box)
            # Negative after an overrun: the next slot ends at its own deadline all the same.
            spare_s = 0.0 if box.seconds == float("inf") else ends - self.clock()

    def _run_box(self, box: Box, ends: float) -> None:
        tried: set[str] = set()
        while True:
            left = [step for step in box.steps() if not step.done and step.name not in tried]
            if not left:
                return
            step, left_s = left[0], ends - self.clock()
            if left_s < box.least_s:
                names = ", ".join(one.name for one in left)
                self.log(f"{box.name}: {max(0.0, left_s):.0f} s left, not begun: {names}")
                return
            tried.add(step.name)
            if step.lacks:
                self.log(f"{step.name}: left out, not done: {', '.join(step.lacks)}")
                continue
            self._run_step(step, fair_share_s(left, self.times, left_s), left_s)

    def _run_step(self, step: Step, share_s: float, left_s: float) -> None:
        start = self.clock()
        self.log(f"{step.name}: about {min(left_s, self.times.expected_s(step)) / 60:.1f} minutes")
        ended = self.run(step, share_s, left_s)
        seconds = self.clock() - start
        self.log(f"{step.name}: {_ending(ended)}, {seconds:.0f} s")
        if ended.well:
            step.keep()
            # its size includes the work of earlier starts
            self.times.keep(step, step.spent_s + seconds)


def _ending(ended: Ended) -> str:
    if ended.code is None:
        return "ended, its box is over"
    if ended.well:
        return "done, but parts of it came to nothing" if ended.code else "done"
    return f"exit code {ended.code}: {ended.line}"


def fair_share_s(steps: Sequence[Step], times: Times, left_s: float) -> float:
    """Seconds of `left_s` for the first unfinished step of a slot.

    Steps without a budget are not limited. The others share the rest in proportion to their
    expected times. A step is shortened to at most `CUT` of its expected time; if that is not
    enough, the last steps are dropped.
    """
    first, *others = steps
    if left_s == float("inf") or not first.budget:
        return left_s
    fixed_s, shared_s = 0.0, times.expected_s(first)
    for step in others:
        needed_s = times.expected_s(step)
        more = (0.0, needed_s) if step.budget else (needed_s, 0.0)
        if fixed_s + more[0] + CUT * (shared_s + more[1]) > left_s:
            break
        fixed_s, shared_s = fixed_s + more[0], shared_s + more[1]
    return (left_s - fixed_s) * times.expected_s(first) / shared_s


def plan(boxes: Iterable[Box], times: Times) -> list[dict[str, Any]]:
    """The work to do: a row a step, with its expected minutes."""
    rows: list[dict[str, Any]] = []
    seen: set[str] = set()
    for box in boxes:
        for step in box.steps():
            if step.name not in seen and not step.done:
                minutes = times.expected_s(step) / 60
                rows.append({"box": box.name, "step": step.name, "minutes": minutes})
            seen.add(step.name)
    return rows


def taken_up(step: Step) -> Step:
    """The step as it must start now: an ended run resumes.

    A run resumes with a budget of its own, which leaves its file in its run folder. A run of a
    version without an option of today would be refused every time; it begins anew. A run with a
    budget of seconds has used the seconds in its journal. A run that only compiles has nothing but
    its journal to continue from, and counts its seconds anew.
    """
    folder, compiles = step.leaves.parent, COMPILE_ONLY in step.words
    kept = (JOURNAL_FILE,) if compiles else (SNAPSHOT_FILE, ANSOR_LOG)
    begun = any((folder / name).is_file() for name in kept)
    if step.done or not begun or _lacks_options(folder):
        return step
    trials = [] if compiles else read_trials(folder / JOURNAL_FILE)
    spent_s = max((trial.elapsed_s for trial in trials), default=0.0)
    return replace(step, words=[step.words[0], f"{RESUME}{quoted(folder)}"], spent_s=spent_s)


def _lacks_options(folder: Path) -> bool:
    """Whether the run was begun before ``tune.py`` had all present options."""
    path, command = folder / CONFIG_FILE, conf_folder() / "tune.yaml"
    if not path.is_file():
        return False
    known = yaml.safe_load(command.read_text(encoding="utf-8"))
    groups = {name for one in known["defaults"] if isinstance(one, dict) for name in one}
    options = {name for name in groups | known.keys() if " " not in name} - _NO_OPTIONS
    try:
        return bool(options - set(yaml.safe_load(path.read_text(encoding="utf-8"))))
    except (TypeError, yaml.YAMLError):  # damaged
        return True


def archive_broken(step: Step) -> None:
    """Rename the folder of a broken start where the step begins anew.

    Raises:
        PrunerError: a process still works in it, as after a killed campaign.
    """
    folder = step.leaves.parent
    begins = f"run_id={folder.name}" in step.words
    if begins and folder.exists():
        with held(folder):
            folder.rename(folder.with_name(f"{folder.name}-broken-{int(time.time())}"))


def run_step(
    step: Step,
    share_s: float,
    limit_s: float,
    *,
    root: Path,
    logs: Path,
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """Run the command of a step in `root`, with a log.

    The folder of a broken earlier start is renamed.
    """
    archive_broken(step)
    log_file = logs / f"{step.name.replace(', ', '-')}.log"
    words = started(step.within(share_s), root)
    return run_command(words, log_file, place=root, limit_s=limit_s, environment=environment)
