"""Find the definitions of recorded programs; replay them with either engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from pruner.arrays import Decisions, Ints
from pruner.data.steps import is_trace
from pruner.data.tenset.task_pickle import NETWORK_INFO, PATTERN, read_task_pickle
from pruner.errors import (
    DataError,
    PrunerError,
    ReplayFailed,
    UnsupportedProgram,
    unforeseen_refused,
)
from pruner.program.dag.dag import ComputeDAG
from pruner.program.dag.operators import dag_for_workload, read_key
from pruner.program.dag.tenset import dag_from_json
from pruner.program.nests import LoopNests
from pruner.program.te.apply import apply
from pruner.program.te.lower import lower
from pruner.program.te.skeleton import SkeletonGroup, Step, group_programs
from pruner.program.tir.apply_trace import apply_groups
from pruner.program.tir.lower import lower as lower_tree
from pruner.program.tir.regions import buffer_scopes
from pruner.program.tir.saved import FOLDER, SavedSpace, SpaceFolder
from pruner.program.tir.trace import TraceProgram

logger = logging.getLogger(__name__)
UNCERTAIN = "uncertain-region"

Found = TypeVar("Found")
Definition = ComputeDAG | SpaceFolder


class TaskIndex:
    """The tasks of a folder of TenSet's ``*.task.pkl`` files, by workload key.

    Files are read until the requested key is found; of a file read earlier only the keys stay in
    memory. A key has the same DAG in every file.
    """

    def __init__(self, network_info: Path | str) -> None:
        """Raises :class:`DataError` when the folder is missing or has no task file."""
        self.folder = Path(network_info)
        # Reversed because `pop` takes from the end: files are read in the order of their names.
        self._unread = sorted(self.folder.glob(PATTERN), reverse=True)
        self._file_of: dict[str, Path] = {}
        self._dags: dict[str, ComputeDAG] = {}
        if not self._unread:
            raise DataError(f"{self.folder}: no {PATTERN} files; expected TenSet's network_info")

    def dag(self, workload_key: str) -> ComputeDAG:
        """Return the DAG of a key.

        Raises :class:`UnsupportedProgram` (``unknown-task``, or a reason of
        :func:`~pruner.program.dag.tenset.dag_from_json`); :class:`DataError` for a damaged task
        file.
        """
        if workload_key not in self._dags:
            # Converted once: a task has thousands of records.
            self._dags[workload_key] = dag_from_json(self._graph(workload_key))
        return self._dags[workload_key]

    def _read(self, file: Path) -> dict[str, str]:
        graphs = {task.workload_key: task.compute_dag for task in read_task_pickle(file)}
        for key in graphs:
            self._file_of.setdefault(key, file)
        return graphs

    def _graph(self, workload_key: str) -> str:
        while workload_key not in self._file_of and self._unread:
            graphs = self._read(self._unread.pop())
            if workload_key in graphs:
                return graphs[workload_key]
        if workload_key not in self._file_of:
            raise UnsupportedProgram("unknown-task", f"{workload_key} is not in {self.folder}")
        # The file's graphs were dropped after the first read (they are large): read it again.
        return self._read(self._file_of[workload_key])[workload_key]


def find_dag(
    workload_key: str, fused: tuple[str, ...] = (), tasks: TaskIndex | None = None
) -> ComputeDAG:
    """Return a record's DAG: a standard operator with ``fused``, or a task of ``tasks``.

    Raises as :func:`~pruner.program.dag.operators.dag_for_workload` and :meth:`TaskIndex.dag`.
    """
    try:
        if read_key(workload_key).operator is not None:
            return dag_for_workload(workload_key, fused)
        if fused:
            raise UnsupportedProgram("unknown-epilogue", f"{fused} behind the task {workload_key}")
        if tasks is None:
            raise UnsupportedProgram(
                "unknown-task",
                f"{workload_key:.120} is no operator that is defined here: define it "
                "(CONTRIBUTING.md, Add an operator), or give network_info with its definition",
            )
        return tasks.dag(workload_key)
    except (PrunerError, MemoryError):
        raise
    except Exception as error:  # unforeseen arguments cost their task, not the run
        detail = f"{workload_key:.80}: {type(error).__name__} {error}"
        raise UnsupportedProgram("bad-arguments", detail) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Definitions:
    """TenSet's subgraphs and design spaces that lie beside a data root's records."""

    tasks: TaskIndex | None = None
    spaces: SpaceFolder | None = None


def definitions_of(data_root: Path | str) -> Definitions:
    """Read the definitions beside a data root's records; raise `DataError` as TaskIndex."""
    tasks, spaces = Path(data_root) / NETWORK_INFO, Path(data_root) / FOLDER
    return Definitions(
        tasks=TaskIndex(tasks) if tasks.is_dir() else None,
        spaces=SpaceFolder(spaces) if spaces.is_dir() else None,
    )


def find_definition(
    workload_key: str,
    fused: tuple[str, ...],
    steps_list: Sequence[list[list[Any]]],
    known: Definitions | None = None,
) -> Definition:
    """Return the definition of most records of a task; others fail singly.

    Raises `UnsupportedProgram` as :func:`find_dag`; ``no-design-spaces`` where traces have none.
    """
    known = known or Definitions()
    if not mostly_traces(steps_list):
        return find_dag(workload_key, fused, known.tasks)
    if known.spaces is None:
        raise UnsupportedProgram("no-design-spaces", f"no folder {FOLDER} next to measure_records")
    return known.spaces


def mostly_traces(steps_list: Sequence[list[list[Any]]]) -> bool:
    """Return whether a task with records of both kinds counts as one of traces."""
    return 2 * sum(map(is_trace, steps_list)) > len(steps_list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed(Generic[Found]):
    """Replayed programs in parts: (rows, result), reasons by row, and skeleton groups."""

    parts: list[tuple[Ints, Found]] = field(default_factory=list)
    failures: dict[int, str] = field(default_factory=dict)
    groups: list[SkeletonGroup] = field(default_factory=list)


def replay(
    definition: Definition,
    steps_list: Sequence[list[list[Any]]],
    compute: Callable[[LoopNests], Found],
    chunk: int | None = None,
) -> Replayed[Found]:
    """Apply `compute` to the programs' loop nests, `chunk` at a time."""
    groups, unreadable = group_programs(steps_list)
    found = replay_groups(definition, groups, compute, chunk)
    found.failures.update({row: error.reason for row, error in unreadable.items()})
    return found


def replay_groups(
    definition: Definition,
    groups: Sequence[SkeletonGroup],
    compute: Callable[[LoopNests], Found],
    chunk: int | None = None,
) -> Replayed[Found]:
    """Apply `compute` like :func:`replay`, to programs that are decision vectors already."""
    out: Replayed[Found] = Replayed(groups=list(groups))
    if not isinstance(definition, ComputeDAG):
        for members in alike_groups(definition, groups, out.failures):
            program, group = _joined(members)
            for some in group.chunks(chunk or len(group.rows)):
                found = _trees(program, some.rows, some.decisions, compute, out.failures)
                out.parts.extend(found)
        return out
    steps = _StepReplay(definition, compute, out.failures)
    for group in groups:
        for some in group.chunks(chunk or len(group.rows)):
            # Per chunk: a chunk in which every program fails does not affect the next.
            steps.patience = _PATIENCE
            out.parts.extend(steps.parts(some))
    return out


def space_of(spaces: SpaceFolder, group: SkeletonGroup) -> SavedSpace:
    """Return the space of traces; raise `UnsupportedProgram` without, or for no traces."""
    match group.skeleton:
        case (Step(tag="MS", fields=(name, _)),):
            space = spaces.space(name)
        case _:
            raise UnsupportedProgram("no-trace", "steps of Ansor's among traces")
    # A vector of another length indexes other decisions of the space: a record of another version.
    if group.decisions.shape[1] != space.program.num_slots:
        raise UnsupportedProgram("malformed-step", f"{name} takes {space.program.num_slots}")
    return space


def alike_groups(
    spaces: SpaceFolder, groups: Sequence[SkeletonGroup], failures: dict[int, str]
) -> list[list[tuple[TraceProgram, SkeletonGroup]]]:
    """Return programs and groups, those together that share their trees (reasons else)."""
    alike: dict[bytes, list[tuple[TraceProgram, SkeletonGroup]]] = {}
    for group in groups:
        try:
            with unforeseen_refused():  # a damaged space concerns its own programs alone
                space = space_of(spaces, group)
                structure = space.structure
        except UnsupportedProgram as error:
            failures.update(dict.fromkeys(group.rows.tolist(), error.reason))
            continue
        alike.setdefault(structure, []).append((space.program, group))
    return list(alike.values())


def _joined(
    members: Sequence[tuple[TraceProgram, SkeletonGroup]],
) -> tuple[TraceProgram, SkeletonGroup]:
    program, first = members[0]
    if len(members) == 1:
        return program, first
    numbers = [[one.numbers] * len(group.rows) for one, group in members]
    decisions = np.concatenate([group.decisions for _, group in members])
    return program.with_open_numbers(), replace(
        first,
        rows=np.concatenate([group.rows for _, group in members]),
        decisions=np.hstack([decisions, np.concatenate(numbers).astype(np.int64)]),
        extents=None,
    )


def _trees(
    program: TraceProgram,
    rows: Ints,
    decisions: Decisions,
    compute: Callable[[LoopNests], Found],
    failures: dict[int, str],
) -> Iterator[tuple[Ints, Found]]:
    # ``strict``: a decision outside the space is an error of the record, never clamped.
    found, refused = apply_groups(program, decisions, strict=True)
    failures.update({int(rows[n]): reason for n, reason in refused.items()})
    for places, tree in found:
        made: list[Found] = []
        try:
            with unforeseen_refused():
                buffer_scopes(tree)  # sets tree.uncertain: regions are exact only after this
                unsure = np.broadcast_to(tree.uncertain, len(places))
                if not unsure.any():
                    made.append(compute(lower_tree(tree)))
        except UnsupportedProgram as error:
            failures.update(dict.fromkeys(rows[places].tolist(), error.reason))
            logger.debug("%d programs not replayed: %s", len(places), error)
            continue
        # One program with an uncertain region spoils the whole batch: repeat with the certain rest,
        # whose number shrinks at every level, so the recursion ends.
        if made:
            yield rows[places], made[0]
            continue
        failures.update(dict.fromkeys(rows[places[unsure]].tolist(), UNCERTAIN))  # not guessed
        sure = places[~unsure]
        yield from _trees(program, rows[sure], decisions[sure], compute, failures)


_PATIENCE = 32  # give up on a chunk after this many consecutive failures


@dataclass(slots=True, eq=False)
class _StepReplay(Generic[Found]):
    """Apply `compute` to programs of Ansor's steps; on failure, bisect."""

    dag: ComputeDAG
    compute: Callable[[LoopNests], Found]
    failures: dict[int, str]  # reasons by row
    patience: int = _PATIENCE

    def parts(self, group: SkeletonGroup) -> list[tuple[Ints, Found]]:
        """Return (rows, result) of a chunk in as few parts as possible."""
        num = len(group.rows)
        if not num:
            return []
        try:
            with unforeseen_refused():  # an error of any kind costs its program only
                schedule = apply(self.dag, group.skeleton, group.decisions, group.extents)
                wrong = np.broadcast_to(schedule.contradicted, num)
                if not wrong.any():
                    found = self.compute(lower(schedule))
        except ReplayFailed as error:
            if num > 1 and self.patience:
                halves = group.select(slice(0, num // 2)), group.select(slice(num // 2, num))
                return [part for half in halves for part in self.parts(half)]
            # Bisecting a chunk in which all fail costs N applications; patience ends it early.
            self.patience -= num == 1
            return self._failed(group.rows, error)
        except UnsupportedProgram as error:
            return self._failed(group.rows, error)
        if wrong.any():
            # Steps that contradict their own log are a damaged record; the rest is repeated.
            self._failed(group.rows[wrong], UnsupportedProgram("contradicting-extent"))
            return self.parts(replace(group.select(~wrong), extents=None))
        self.patience = _PATIENCE
        return [(group.rows, found)]

    def _failed(self, rows: Ints, error: UnsupportedProgram) -> list[tuple[Ints, Found]]:
        self.failures.update(dict.fromkeys(rows.tolist(), error.reason))
        logger.debug("%d programs not replayed: %s", len(rows), error)
        return []
