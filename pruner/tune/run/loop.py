"""A live run: the tuning loop with a resumable state on disk."""

import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from pruner.archives import Arrays, read_arrays, write_arrays
from pruner.errors import DataError, PrunerError
from pruner.files import METRICS_FILE, JsonLines, as_written, load_metrics
from pruner.search.loop import Round, RunStopped, TuningLoop, TuningTask
from pruner.search.space import Candidate
from pruner.tune.measure.measurer import Outcome
from pruner.tune.phases import IDLE, PHASES
from pruner.tune.run.database import record_json
from pruner.tune.run.journal import JOURNAL_FILE, SNAPSHOT_FILE, Trial, read_trials
from pruner.tune.run.setup import LiveTask, Prepared
from pruner.tune.run.tune_options import RunContext, TuneOptions

OLD_FILE = "state.pkl"  # of versions that wrote pickles, which are not read any more
_TREE, _ARRAY = "json", "array"
_KINDS = "biuf"  # of arrays: truth values and numbers
_OF_BOTH = ("error", "message", "build_s", "run_s", "checked", "extra")  # outcomes and trials
OnBatch = Callable[[Mapping[str, Any]], None]  # receives a row of numbers after every batch


class TuningRun(TuningLoop):
    """All tasks of a run; another object on its folder continues."""

    tasks: list[LiveTask]  # type: ignore[assignment]

    def __init__(
        self, prepared: Prepared, options: TuneOptions, context: RunContext, report: OnBatch
    ) -> None:
        super().__init__(
            prepared.tasks,
            context.measurer,
            budget=options.budget,
            order=options.order,
            log=context.log,
            # a batch in flight is restored from its decisions: not of other tuners' searches
            lag=context.measurer.lag if prepared.savable else 0,
        )
        folder = context.folder
        self._prepared, self._context, self._phases = prepared, context, context.phases
        self._on_batch = report
        self._journal = JsonLines(folder / JOURNAL_FILE)
        self._rows = read_trials(folder / JOURNAL_FILE, context.log)  # of earlier starts
        self._snapshot = folder / SNAPSHOT_FILE
        self._last_trial = max((row.trial for row in self._rows), default=0)
        self._programs = {task.name: task.workload.fingerprint for task in self.tasks}
        self._done = {(row.batch, row.position): _outcome(row) for row in self._rows}
        self._take_up()

    def end_at(self, limit_s: float) -> None:
        """End the search after `limit_s` seconds of the run."""
        self._budget = replace(self._budget, seconds=limit_s)
        self._prepared.limit_s = limit_s

    def run(self) -> None:
        """Draft if requested, then spend the budget; raises as :meth:`TuningLoop.run`."""
        try:
            self._prepared.draft_all()
            self._since_s, self._phases.check = self._elapsed_s(), self._raise_if_stopped
            super().run()
            self._log_standstill()
        finally:
            self._phases.check = lambda: None

    def _log_standstill(self) -> None:
        """Report why the run ends before its trials are spent."""
        patience, tolerance = self._budget.patience, self._budget.tolerance
        if self._settled and self.trials < self._budget.trials and not self._stopped():
            self._log(
                f"{patience} rounds changed the total time by less than {tolerance:.1%}: the "
                f"run ends after {self.trials} of {self._budget.trials} trials; a larger "
                "budget.patience= continues it"
            )

    def _stopped(self) -> bool:
        return self._context.is_over(self._budget.seconds)

    def _elapsed_s(self) -> float:
        return self._phases.elapsed_s

    def _raise_if_stopped(self) -> None:
        if self._stopped():
            raise RunStopped

    def _begin(self, candidates: list[Candidate], new: Round) -> Any:
        with self._phases.time("instantiate"):
            return super()._begin(candidates, new)

    def _size(self, task: TuningTask, left: int, *, first: bool) -> int:
        size = super()._size(task, left, first=first)
        if first:
            self._log(f"{task.name}: choosing its first {size} programs")
        return size

    def _no_turn(self, outcome: Outcome) -> PrunerError:
        why = f"{outcome.error}: {outcome.message}".rstrip(": ")
        return PrunerError(
            f"no program of the batch could be tried ({why}); after the repair, "
            f"resume={self._context.folder} continues"
        )

    def _record(self, current: Round, position: int, outcome: Outcome) -> None:
        task, candidate = self.tasks[current.task], current.candidates[position]
        module, database, record = task.workload.module, self._context.database, None
        if outcome.error is None:
            target = self._context.platform.target
            record = record_json(module, candidate.schedule, outcome.costs_s, target)
        self._last_trial += 1
        trial = trial_of(
            candidate,
            outcome,
            task=task.name,
            trial=self._last_trial,
            batch=current.number,
            position=position,
            elapsed_s=self._elapsed_s(),
            record=None if record is None else json.dumps(record),
        )
        # the journal first: the database is completed from it after a kill
        self._journal.append(asdict(trial))
        if record is not None:
            database.commit_json(module, record)
        task.note_size(trial.latency_s, trial.size_bytes)
        super()._record(current, position, outcome)

    def _report(self, current: Round, outcomes: Sequence[Outcome]) -> None:
        task = self.tasks[current.task]
        self._on_batch(
            {
                "task": task.name,
                "trials": self.trials,
                "task_trials": task.trials,
                "best_latency_s": task.current_best_s,
                "estimate_s": self.estimate.latency_s,
                "measured_share": self.estimate.measured_share,
                "failures": sum(other.failures.total() for other in self.tasks),
                "failed": sum(outcome.error is not None for outcome in outcomes),
                "seconds": self._elapsed_s(),
                **{f"seconds/{name}": s for name, s in self._phases.seconds().items()},
            }
        )

    def _chose(self, rounds: Sequence[Round]) -> None:
        waiting = [
            {
                "number": r.number,
                "task": self.tasks[r.task].name,
                "space": [c.space for c in r.candidates],
                "decisions": [c.decisions for c in r.candidates],
                # as an array: infinity is no JSON
                "known_s": np.array(r.known_s),
            }
            for r in rounds
            if self._prepared.savable
        ]
        shared = self._prepared.shared
        state = {
            "number": self._number,
            # batches that were chosen and not measured: a resumed run measures these and draws no
            # others
            "waiting": waiting,
            "programs": self._programs,
            "tasks": {
                task.name: {
                    "search": None if task.made is None else task.made.state(),
                    "best_s": np.array(task.best_s),
                    "exhausted": task.exhausted,
                    "alone": task.alone,
                }
                for task in self.tasks
            },
            "model": None if shared is None else shared.state(),
            "estimates_s": np.array(self._estimates_s),
            "pace_s": self._pace_s,
            "seconds": self._phases.seconds(),
        }
        save_state(self._snapshot, state)

    def _take_up(self) -> None:
        """Resume from earlier starts: other files are corrected by the journal."""
        folder, rows = self._context.folder, self._rows
        if (folder / OLD_FILE).is_file() and not self._snapshot.is_file():
            raise DataError(
                f"resume={folder}: a run of an older version, whose {OLD_FILE} is no longer "
                f"read; a new run with warm_start=[{folder}] uses its measurements"
            )
        modules = {task.name: task.workload.module for task in self.tasks}
        strange = sorted({row.task for row in rows} - modules.keys())
        if strange:
            raise DataError(f"resume={folder}: its journal has {strange[0]}, not a task of the run")
        added = self._context.database.catch_up(modules, rows, self._context.log)
        if added:
            self._log(f"{added} records of the journal were not in the database yet")
        # before the journal's rows are counted: only the results of warm_start
        known_s = [task.current_best_s for task in self.tasks]
        for row in rows:
            self._task(row.task).note_size(row.latency_s, row.size_bytes)
            self._task(row.task).count(row.latency_s, row.error)
        if not self._snapshot.is_file() and not rows:
            return
        try:
            self._restore(load_state(self._snapshot))
        except DataError as error:
            self._log(f"{error}; the search starts again with the results of {JOURNAL_FILE}")
            self._rebuild(known_s)

    def _task(self, name: str) -> LiveTask:
        return next(task for task in self.tasks if task.name == name)

    def _restore(self, state: Mapping[str, Any]) -> None:
        """Restore the exact state; refuse other programs, and a state before the journal's."""
        try:
            known = state["programs"]
            other = [name for name in self._programs if known.get(name) != self._programs[name]]
            if other:
                raise self._other_program(other[0])
            # the state is saved before a batch is measured: a later row belongs to a later state
            if any(row.batch > state["number"] for row in self._rows):
                raise DataError(f"{self._snapshot}: older than the journal")
            for task in self.tasks:
                mine = state["tasks"][task.name]
                if mine["search"] is not None:
                    task.made = task.open_search()
                    task.made.load_state(mine["search"])
                task.best_s = mine["best_s"].tolist()
                task.exhausted, task.alone = mine["exhausted"], mine["alone"]
            if self._prepared.shared is not None:
                self._prepared.shared.load_state(state["model"])
            self._number, pace_s = int(state["number"]), state["pace_s"]
            self._pace_s = None if pace_s is None else float(pace_s)
            self._estimates_s = state["estimates_s"].tolist()
            self._restore_waiting(state["waiting"])
            self._add_seconds(state["seconds"])
        except PrunerError:
            raise
        except Exception as error:  # values of another version, or damaged ones
            message = f"{type(error).__name__}: {error}"
            raise DataError(
                f"{self._snapshot}: not a state of this run ({message:.120})"
            ) from error

    def _other_program(self, name: str) -> PrunerError:
        return PrunerError(
            f"resume={self._context.folder}: {name} is not the program that this run was begun "
            "with; start a new run"
        )

    def _restore_waiting(self, waiting: Sequence[Mapping[str, Any]]) -> None:
        indices = {task.name: index for index, task in enumerate(self.tasks)}
        for batch in waiting:
            index = indices[batch["task"]]
            restore = self.tasks[index].search.restore
            places = zip(batch["space"], batch["decisions"], strict=True)
            # schedules are not saved: TVM replays the decisions
            candidates = [restore(space, decisions) for space, decisions in places]
            known_s = float(batch.get("known_s", np.inf))  # earlier versions had none
            number = batch["number"]
            self._waiting.append(
                Round(number=number, task=index, candidates=candidates, known_s=known_s)
            )

    def _rebuild(self, known_s: Sequence[float]) -> None:
        """Continue from the journal alone, with all of its measurements and other draws."""
        known = self._context.database.tvm_database
        for name in {row.task for row in self._rows if row.record is not None}:
            if not known.has_workload(self._task(name).workload.module):
                raise self._other_program(name)
        # the state may be half restored
        self._waiting, self._estimates_s, self._pace_s = [], [], None
        self._prepared.begin_anew()
        for task in self.tasks:
            task.made, task.best_s, task.exhausted, task.alone = None, [], False, False
        best_s = dict(zip((task.name for task in self.tasks), known_s, strict=True))
        rows = sorted(self._rows, key=lambda row: (row.batch, row.position))
        for _, batch in itertools.groupby(rows, key=lambda row: row.batch):
            done = list(batch)
            task, name = self._task(done[0].task), done[0].task
            if self._prepared.savable:
                vectors = [np.array(row.decisions, np.int64) for row in done]
                candidates = [  # their schedules are gone
                    Candidate(space=row.space, decisions=vector, schedule=None)
                    for row, vector in zip(done, vectors, strict=True)
                ]
                task.search.observe(candidates, [_outcome(row) for row in done])
            best_s[name] = min([best_s[name], *(row.latency_s for row in done)])
            task.best_s.append(best_s[name])
        self._number = max((row.batch for row in rows), default=0)
        self._add_seconds(dict.fromkeys((*PHASES, IDLE), 0.0))

    def _add_seconds(self, seconds: Mapping[str, float]) -> None:
        """Add earlier starts' seconds; between their last state and end they were idle.

        The metrics of a start that was not killed have all of its seconds, also those after the
        search.
        """
        folder = self._context.folder
        with as_written(folder / METRICS_FILE):
            ended = dict((load_metrics(folder) or {}).get("seconds", {}))
            if sum(ended.values()) > sum(seconds.values()):
                seconds = {name: float(ended[name]) for name in (*PHASES, IDLE)}
        latest_s = max((row.elapsed_s for row in self._rows), default=0.0)
        idle_s = seconds[IDLE] + max(0.0, latest_s - sum(seconds.values()))
        self._phases.add({**seconds, IDLE: idle_s})


def trial_of(candidate: Candidate, outcome: Outcome, **known: Any) -> Trial:
    """Make the row of a candidate; `known` are all other fields."""
    shared = {name: getattr(outcome, name) for name in _OF_BOTH}
    return Trial(
        space=candidate.space,
        decisions=candidate.decisions.tolist(),
        costs_s=list(outcome.costs_s),
        timestamp=time.time(),
        **shared,
        **known,
    )


def _outcome(row: Trial) -> Outcome:
    shared = {name: getattr(row, name) for name in _OF_BOTH}
    return Outcome(costs_s=tuple(row.costs_s), **shared)


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write mappings, lists, arrays, text, finite numbers atomically, or raise `TypeError`."""
    arrays: Arrays = {}
    # NaN and infinity are no JSON; as elements of arrays they are allowed
    tree = json.dumps(_plain(state, arrays), allow_nan=False)
    # as bytes: NumPy's text arrays take four bytes a character
    arrays[_TREE] = np.frombuffer(tree.encode(), np.uint8)
    write_arrays(path, **arrays)


def load_state(path: Path) -> dict[str, Any]:
    """Read the file of `save_state`; raise `DataError` where it is damaged."""
    try:
        arrays = read_arrays(path)

        def with_array(one: dict[str, Any]) -> Any:
            return arrays[one[_ARRAY]] if one.keys() == {_ARRAY} else one

        found = json.loads(arrays.pop(_TREE).tobytes(), object_hook=with_array)
        if not isinstance(found, dict):
            raise TypeError("no mapping")
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    except (KeyError, TypeError, ValueError, RecursionError) as error:  # no tree of ours in it
        message = " ".join(str(error).split())[:120]
        raise DataError(f"{path}: damaged ({type(error).__name__}: {message})") from error
    return found


def _plain(value: Any, arrays: Arrays) -> Any:
    match value:
        case np.ndarray():
            if value.dtype.kind not in _KINDS:
                raise TypeError(f"an array of {value.dtype} is neither truth values nor numbers")
            name = str(len(arrays))
            arrays[name] = value
            return {_ARRAY: name}
        case Mapping():
            if _ARRAY in value or not all(isinstance(key, str) for key in value):
                raise TypeError(f"keys {sorted(map(str, value))} are no text, or reserved")
            return {key: _plain(item, arrays) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item, arrays) for item in value]
        case np.generic():
            return value.item()
        case None | bool() | int() | float() | str():
            return value
        case _:
            raise TypeError(f"{type(value).__name__} is neither an array nor a plain value")
