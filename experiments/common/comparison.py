"""Run the steps of a long comparison in time slots ("boxes"), then make its tables.

A `Step` is a command that leaves a file; an interrupted comparison continues. `Times` keeps how
long steps took.
"""

import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from omegaconf import MISSING

from pruner.cli.shared.known import command_file, groups_of
from pruner.cli.shared.output import as_table, say
from pruner.cli.shared.runs import CONFIG_FILE
from pruner.commands import Commands
from pruner.files import METRICS_FILE, held, read_json, write_json
from pruner.progress import Log
from pruner.study.grid import finished
from pruner.tune.run.journal import JOURNAL_FILE, SNAPSHOT_FILE, read_trials

RESUME, COMPILE_ONLY = "resume=", "compile_only=true"
ANSOR_LOG, SECONDS_FILE = "ansor.json", "seconds.json"
PARTLY = 3  # exit code of a command that did its work, except for some part
TAIL = 4096  # bytes at the end of a log that hold its last line
CUT = 0.5  # a step with a budget gets this share of its expected time, if its slot can give it
_PLAIN = re.compile(r"[\w./+@-]+")
_NO_OPTIONS = {"defaults", "hydra", "sweep", "experiment"}  # of conf/tune.yaml: no part of a run


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
        """The size that it did: the trials of a run that time ended."""
        if not (self.budget and self.leaves.is_file()):
            return self.size
        found = read_json(self.leaves, dict)
        trials = found.get("trials", self.size) or found.get("compiled", 0)
        return float(min(self.size, trials))

    def within(self, seconds: float) -> list[str]:
        """Its words, with a budget of `seconds` if it takes one."""
        if not self.budget or seconds == float("inf"):
            return list(self.words)
        return [*self.words, f"{self.budget}={max(1, int(self.spent_s + seconds))}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Exit code of a command (None: the limit ended it), last line of its log."""

    code: int | None
    line: str

    @property
    def well(self) -> bool:
        """Whether its result counts."""
        return self.code in (0, PARTLY)

    @property
    def how(self) -> str:
        """The end in words."""
        if self.code is None:
            return "ended, its box is over"
        if self.well:
            return "done, but parts of it came to nothing" if self.code else "done"
        return f"exit code {self.code}: {self.line}"


def quoted(path: Path) -> str:
    """A path as the value of an option, in quotes where necessary."""
    text = str(path)
    if _PLAIN.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def started(words: Sequence[str], place: Path) -> list[str]:
    """The command line for a step's words; ``FILE.py`` is a script below `place`."""
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
    """Run a program in `place`; its output and errors go to `log_file`."""
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
        """Expected seconds: start-up, and size at its kind's pace, or the guess."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """Steps that share ``seconds``; with less than ``least_s`` left, none begins."""

    name: str
    steps: Callable[[], Iterable[Step]]
    seconds: float = float("inf")
    least_s: float = 0.0


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
    path, options = folder / CONFIG_FILE, {*groups_of("tune"), *command_file("tune")} - _NO_OPTIONS
    if not path.is_file():
        return False
    try:
        return bool(options - set(yaml.safe_load(path.read_text(encoding="utf-8"))))
    except (TypeError, yaml.YAMLError):  # damaged
        return True


def archive_broken(step: Step) -> None:
    """Rename the folder of a broken start; raises PrunerError for a busy one."""
    folder = step.leaves.parent
    begins = f"run_id={folder.name}" in step.words
    if begins and folder.exists():
        with held(folder):
            folder.rename(folder.with_name(f"{folder.name}-broken-{int(time.time())}"))


@dataclass(kw_only=True)
class ComparisonOptions:
    """``plan``: list the work; ``summary``: only make the tables in ``results``."""

    plan: bool = False
    summary: bool = False
    out: str = MISSING
    results: str = MISSING

    @property
    def folder(self) -> Path:
        """Folder of the tables."""
        return Path(self.results).resolve()

    @property
    def runs(self) -> Path:
        """Folder of the cells."""
        return Path(self.out).resolve()


def places(out: str, here: Path, runs: str) -> tuple[Path, Path]:
    """The folders of tables and of runs; those of `here` are in ``outputs``, called `runs`."""
    folder = Path(out).resolve()
    return folder, here.parents[1] / "outputs" / runs if folder == here else folder


class Comparison:
    """Run steps in time slots ("boxes") with deadlines; cells go to the folder `runs`.

    Later slots get unused time. A step with a budget gets its share of the time left
    (`fair_share_s`), and every step is ended at the end of its slot. A step that fails, or lacks an
    input, is reported; the others run.

    Commands run in `root`, the repository. ``guesses``: seconds of kinds of steps that have not
    been run; ``seconds``: then it ends. A subclass has ``steps``, or ``boxes`` where several share
    the seconds. ``environment`` is added to that of every command. Times are stored in `times`, by
    default in ``seconds.json`` of `runs`.
    """

    def __init__(
        self,
        runs: Path,
        root: Path,
        guesses: Mapping[str, float],
        *,
        seconds: float = float("inf"),
        times: Path | None = None,
        environment: Mapping[str, str] | None = None,
        log: Log = say,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.runs, self.root, self.seconds, self.log = runs, root, seconds, log
        self.times = Times(times or runs / SECONDS_FILE, guesses)
        self._environment, self._clock = environment, clock

    def steps(self) -> Iterator[Step]:
        """All steps, each after the steps that it needs."""
        raise NotImplementedError

    @property
    def boxes(self) -> list[Box]:
        """The time slots: by default a single slot of all steps."""
        return [Box(name=self.runs.name, steps=self.steps, seconds=self.seconds)]

    def tuned(
        self,
        name: str,
        words: Sequence[str],
        *,
        kind: str,
        size: float = 1.0,
        needs: Sequence[Step] = (),
        command: str = "tune",
        resumes: bool = True,
    ) -> Step:
        """A run of ``tune.py`` called `name`; `resumes`: its continuation."""
        leaves = self.runs / command / name / METRICS_FILE
        told = [f"{command}.py", *words, f"outputs={quoted(self.runs)}", f"run_id={name}"]
        step = Step(name=name, words=told, leaves=leaves, kind=kind, size=size, needs=needs)
        return taken_up(step) if resumes else step

    def plan(self) -> list[dict[str, Any]]:
        """The work to do: a row a step, with its expected minutes."""
        rows: list[dict[str, Any]] = []
        seen: set[str] = set()
        for box in self.boxes:
            for step in box.steps():
                if step.name not in seen and not step.done:
                    minutes = self.times.expected_s(step) / 60
                    rows.append({"box": box.name, "step": step.name, "minutes": minutes})
                seen.add(step.name)
        return rows

    def show_plan(self) -> dict[str, Any]:
        """Print the work to do with its duration; returns the sums."""
        rows = self.plan()
        self.log(as_table(rows) if rows else "nothing is left to do")
        return {"steps": len(rows), "hours": round(sum(row["minutes"] for row in rows) / 60, 2)}

    def run_all(self) -> None:
        """Run the steps that are not done."""
        spare_s = 0.0
        for box in self.boxes:
            ends = self._clock() + box.seconds + spare_s
            self._run_box(box, ends)
            self.after(box)
            # Negative after an overrun: the next slot ends at its own deadline all the same.
            spare_s = 0.0 if box.seconds == float("inf") else ends - self._clock()

    def _run_box(self, box: Box, ends: float) -> None:
        tried: set[str] = set()
        while left := [step for step in box.steps() if not step.done and step.name not in tried]:
            step, left_s = left[0], ends - self._clock()
            if left_s < box.least_s:
                names = ", ".join(one.name for one in left)
                self.log(f"{box.name}: {max(0.0, left_s):.0f} s left, not begun: {names}")
                return
            tried.add(step.name)
            if step.lacks:
                self.log(f"{step.name}: left out, not done: {', '.join(step.lacks)}")
            else:
                self._run_step(step, fair_share_s(left, self.times, left_s), left_s)

    def _run_step(self, step: Step, share_s: float, left_s: float) -> None:
        start = self._clock()
        self.log(f"{step.name}: about {min(left_s, self.times.expected_s(step)) / 60:.1f} minutes")
        ended = self.run(step, share_s, left_s)
        seconds = self._clock() - start
        self.log(f"{step.name}: {ended.how}, {seconds:.0f} s")
        if ended.well:
            if step.made is not None and step.made.is_file():
                step.leaves.parent.mkdir(parents=True, exist_ok=True)
                write_json(step.leaves, read_json(step.made), indent=1)
            # its size includes the work of earlier starts
            self.times.keep(step, step.spent_s + seconds)

    def run(self, step: Step, share_s: float, limit_s: float) -> Ended:
        """Run a step's command in `root`, with a log; at ``limit_s`` it is ended."""
        archive_broken(step)
        log_file = self.runs / "logs" / f"{step.name.replace(', ', '-')}.log"
        words = started(step.within(share_s), self.root)
        return run_command(
            words, log_file, place=self.root, limit_s=limit_s, environment=self._environment
        )

    def after(self, box: Box) -> None:
        """Do nothing after a time slot."""


class Tunings(Comparison):
    """Runs of ``tune.py`` one after another; `cells`: words by name."""

    def __init__(self, runs: Path, root: Path, cells: Mapping[str, Sequence[str]]) -> None:
        super().__init__(runs, root, {"run": 60.0})
        self._cells = cells

    def steps(self) -> Iterator[Step]:
        """A step a cell."""
        for name, words in self._cells.items():
            yield self.tuned(name, words, kind="run")
