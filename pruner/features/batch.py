"""Compute features into one ragged container, from records, vectors or nests."""

import logging
import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self, TypeVar

import numpy as np
from jaxtyping import Bool, Float32, Int64

from pruner.arrays import Ints, Mask
from pruner.data.tasks import without_cycle_search
from pruner.errors import UnsupportedProgram, unforeseen_refused
from pruner.features.columns import (
    DATAFLOW_COLUMNS,
    STATEMENT_COLUMNS,
    WORKLOAD_COLUMNS,
    text_flags,
)
from pruner.features.dataflow import NUM_ROWS, DataflowKind, dataflow_features
from pruner.features.primitives import PrimitiveTokens, primitive_tokens
from pruner.features.statement.analysis import analyse, statement_features
from pruner.features.statement.touches import NodeKeys
from pruner.features.symbols.official import official_symbols
from pruner.features.symbols.symbol_table import OFFICIAL_COLUMNS
from pruner.processes import Worker
from pruner.program.dag.dag import ComputeDAG, dag_text
from pruner.program.nests import LoopNests
from pruner.program.replay import (
    Definition,
    Definitions,
    alike_groups,
    find_definition,
    replay,
    replay_groups,
    space_of,
)
from pruner.program.te.skeleton import SkeletonGroup, group_programs
from pruner.program.tir.saved import SpaceFolder

logger = logging.getLogger(__name__)
_CHUNK = 4096  # programs at once: enough to pay for Python, few enough for the caches
_WORTH_A_WORKER = 4096  # traces whose features take longer than the start of another process
_Found = TypeVar("_Found")

WorkloadFlags = Float32[np.ndarray, " flag"]
ProgramColumns = Float32[np.ndarray, "program extra"]
Extra = Callable[[Sequence[LoopNests]], Sequence[ProgramColumns]]
"""Computes further columns of the programs of each nest, such as the analyzer's."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProgramFeatures:
    """Features of N programs of one task, without padding.

    ``statement[row_start[n]:row_start[n + 1]]``, or ``statement[rows(n)]``, are the rows of program
    n, ``psa`` the official analyzer's symbols of the same rows. ``dataflow`` has :data:`NUM_ROWS`
    rows of one kind for every program, ``workload`` the flags common to all. A program that is not
    ``valid`` has no row, zeros elsewhere, and a reason in ``failures`` (by its number). ``tokens``:
    the schedule primitives, None where no skeleton was replayed; ``extra``: further columns. The
    last axes are the tables of :mod:`pruner.features.columns`. Raises `ValueError` for lengths that
    do not belong together.
    """

    statement: Float32[np.ndarray, "row column"]
    row_start: Int64[np.ndarray, " boundary"]
    dataflow: Float32[np.ndarray, "program slot flow"]
    workload: WorkloadFlags
    valid: Bool[np.ndarray, " program"]
    failures: Mapping[int, str] = field(default_factory=dict)
    psa: Float32[np.ndarray, "row symbol"] | None = None
    tokens: PrimitiveTokens | None = None
    extra: ProgramColumns | None = None

    def __post_init__(self) -> None:
        num, rows = len(self.valid), len(self.statement)
        lengths = {
            "row_start": (len(self.row_start), num + 1),
            "its last entry": (int(self.row_start[-1]) if len(self.row_start) else -1, rows),
            "dataflow": (len(self.dataflow), num),
            "statement columns": (self.statement.shape[1], len(STATEMENT_COLUMNS)),
            "dataflow columns": (self.dataflow.shape[2], len(DATAFLOW_COLUMNS)),
            "workload": (len(self.workload), len(WORKLOAD_COLUMNS)),
            "psa": (rows if self.psa is None else len(self.psa), rows),
            "tokens": (num if self.tokens is None else len(self.tokens.skeleton), num),
            "extra": (num if self.extra is None else len(self.extra), num),
        }
        wrong = [f"{name} {a} instead of {b}" for name, (a, b) in lengths.items() if a != b]
        if wrong:
            raise ValueError(f"features of {num} programs: {', '.join(wrong)}")

    def __len__(self) -> int:
        return len(self.valid)

    def rows(self, program: int) -> slice:
        """Return the slice of one program's statement rows."""
        return slice(int(self.row_start[program]), int(self.row_start[program + 1]))

    @property
    def num_statements(self) -> Int64[np.ndarray, " program"]:
        """Statement rows of each program."""
        return np.diff(self.row_start)

    @classmethod
    def empty(
        cls,
        num: int,
        spec: "FeatureSpec | None" = None,
        *,
        workload: WorkloadFlags | None = None,
        failures: Mapping[int, str] | None = None,
    ) -> Self:
        """Return ``num`` invalid programs."""
        spec = spec or DEFAULT
        no_flags = np.zeros(len(WORKLOAD_COLUMNS), np.float32)
        return cls(
            statement=np.zeros((0, len(STATEMENT_COLUMNS)), np.float32),
            row_start=np.zeros(num + 1, np.int64),
            dataflow=np.zeros((num, NUM_ROWS[spec.dataflow], len(DATAFLOW_COLUMNS)), np.float32),
            workload=no_flags if workload is None else workload,
            valid=np.zeros(num, bool),
            failures=failures or {},
            psa=np.zeros((0, len(OFFICIAL_COLUMNS)), np.float32) if spec.psa else None,
        )

    def scatter(self, parts: Sequence[tuple[Ints, Self]]) -> Self:
        """Put ``parts`` at their places int64 [n]; other programs stay, tokens are left out."""
        if len(parts) == 1 and np.array_equal(parts[0][0], np.arange(len(self))):
            # The usual case, one skeleton without failures: the task has the part's rows, no copy.
            part = parts[0][1]
            failures = {**self.failures, **part.failures}
            return replace(part, workload=self.workload, failures=failures, tokens=None)
        every = self.concatenate([self, *(part for _, part in parts)])
        index, end = np.arange(len(self)), len(self)
        for places, part in parts:
            index[places] = np.arange(end, end + len(part))
            end += len(part)
        return every.take(index)

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """Join the programs of all parts (at least one) of one task."""
        first, starts = parts[0], np.cumsum([0, *(len(part) for part in parts)])
        tokens = [part.tokens for part in parts if part.tokens is not None]
        psa = [part.psa for part in parts if part.psa is not None]
        return cls(
            statement=np.concatenate([part.statement for part in parts]),
            row_start=_boundaries(np.concatenate([part.num_statements for part in parts])),
            dataflow=np.concatenate([part.dataflow for part in parts]),
            workload=first.workload,
            valid=np.concatenate([part.valid for part in parts]),
            failures={
                int(start) + n: reason
                for start, part in zip(starts, parts, strict=False)
                for n, reason in part.failures.items()
            },
            psa=np.concatenate(psa) if len(psa) == len(parts) else None,
            tokens=PrimitiveTokens.join(tokens) if len(tokens) == len(parts) else None,
            extra=_joined_extra(parts),
        )

    def take(self, chosen: Ints | Mask) -> Self:
        """Return the chosen programs (Boolean mask or numbers), in that order."""
        index = np.flatnonzero(chosen) if chosen.dtype == bool else chosen
        # All in order is the common case of a selection without failures: no copy of the rows.
        if len(index) == len(self) and np.array_equal(index, np.arange(len(self))):
            return self
        counts = self.num_statements[index]
        rows = _rows(self.row_start[index], counts)
        return replace(
            self,
            statement=self.statement[rows],
            row_start=_boundaries(counts),
            dataflow=self.dataflow[index],
            valid=self.valid[index],
            failures={
                place: self.failures[n] for place, n in enumerate(index) if n in self.failures
            },
            psa=None if self.psa is None else self.psa[rows],
            tokens=None if self.tokens is None else self.tokens.select(index),
            extra=None if self.extra is None else self.extra[index],
        )


def _joined_extra(parts: Sequence[ProgramFeatures]) -> ProgramColumns | None:
    """Join extra columns (zeros for invalid programs); None where valid programs lack them."""
    every = [part.extra for part in parts]
    found = [part.extra for part in parts if part.valid.any()] or every
    columns = {0 if extra is None else extra.shape[1] for extra in found}
    if 0 in columns:
        return None
    nothing = [np.zeros((len(part), *columns), np.float32) for part in parts]
    return np.concatenate([z if x is None else x for x, z in zip(every, nothing, strict=True)])


def _boundaries(counts: Ints) -> Ints:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def _rows(start: Ints, counts: Ints) -> Ints:
    """Return ``counts[i]`` consecutive row numbers from each ``start[i]``."""
    # One arange over all rows, shifted per program: no Python loop over programs.
    offset = np.repeat(start - (np.cumsum(counts) - counts), counts)
    return offset + np.arange(len(offset))


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureSpec:
    """The features to compute: kind of dataflow rows, ``psa`` symbols, ``extra`` columns."""

    dataflow: DataflowKind = "paper"
    psa: bool = False
    extra: Extra | None = None


DEFAULT = FeatureSpec()


def featurize_records(
    workload_key: str,
    fused: tuple[str, ...],
    steps_list: Sequence[list[list[Any]]],
    spec: FeatureSpec = DEFAULT,
    *,
    tasks: Definitions | None = None,
) -> ProgramFeatures:
    """Compute features of a task's records; ``tasks``: the definitions beside them.

    Raises `UnsupportedProgram` where the operator is unknown, or traces have no design spaces.
    """
    return featurize(find_definition(workload_key, fused, steps_list, tasks), steps_list, spec)


def featurize(
    definition: Definition, steps_list: Sequence[list[list[Any]]], spec: FeatureSpec = DEFAULT
) -> ProgramFeatures:
    """Compute features of recorded programs of one task, in the order given.

    ``definition``: the operator of Ansor's step lists, or the design spaces of traces. Programs
    that cannot be replayed have ``valid`` False, and a reason; only step lists have tokens.
    """
    if not isinstance(definition, ComputeDAG):
        return featurize_traces(definition, [steps_list], spec)[0]
    flags = text_flags(dag_text(definition))

    def compute(nests: LoopNests) -> ProgramFeatures:
        # Records of Ansor get its extractor's reuse of loop nodes, see `number_loops`.
        return next(_of_nests([nests], flags, spec, "recycled"))

    done = replay(definition, steps_list, compute, _CHUNK)
    nothing = ProgramFeatures.empty(len(steps_list), spec, workload=flags, failures=done.failures)
    # Only step lists have tokens, not traces of MetaSchedule.
    tokens = primitive_tokens(done.groups, len(steps_list))
    return _reported(replace(nothing.scatter(done.parts), tokens=tokens))


def featurize_traces(
    spaces: SpaceFolder,
    tasks: Sequence[Sequence[list[list[Any]]]],
    spec: FeatureSpec = DEFAULT,
    extras: Sequence[Extra] = (),
) -> list[ProgramFeatures]:
    """Compute features of several tasks' traces together, as :func:`featurize` of each.

    Many small tasks cost little more than one; of thousands of programs a second process computes a
    half. ``extras``: ``extra`` of each task, in place of that of the ``spec``.
    """
    steps_list = [steps for task in tasks for steps in task]
    task_of = np.repeat(np.arange(len(tasks)), [len(task) for task in tasks])
    kinds = list(dict.fromkeys(extras))
    extra_of = np.array([kinds.index(extra) for extra in extras] or [0] * len(tasks))[task_of]
    shared = len(steps_list) >= _WORTH_A_WORKER and not multiprocessing.current_process().daemon
    with nullcontext() if not shared or len(os.sched_getaffinity(0)) < 2 else _worker() as worker:
        groups, unreadable = group_programs(steps_list)
        job = (spec, kinds, extra_of)
        if worker is None:
            parts = [featurize_groups(spaces, groups, *job)]
        else:
            ours, theirs = _halves(spaces, groups)
            with suppress(OSError):  # it has ended: seen by `receive`
                worker.send(featurize_groups.__name__, SpaceFolder(spaces.folder), theirs, *job)
            parts = [featurize_groups(spaces, ours, *job)]
            reply = worker.receive()
            # A worker that was killed costs only time.
            alone = reply.error is not None
            parts.append(featurize_groups(spaces, theirs, *job) if alone else reply.value)
    failures = {row: error.reason for row, error in unreadable.items()}
    nothing = ProgramFeatures.empty(len(steps_list), spec, failures=failures)
    every = nothing.scatter(parts)
    flags = _flags_of_traces(spaces, groups, task_of)
    return [
        _reported(replace(every.take(task_of == task), workload=flags.get(task, nothing.workload)))
        for task in range(len(tasks))
    ]


def _worker() -> AbstractContextManager[Worker | None]:
    """Start a process for :func:`featurize_groups`; None where memory lacks."""
    worker = Worker(__name__, method="spawn", environment={"OMP_NUM_THREADS": "1"})
    try:
        worker.start()
    except OSError:
        worker.stop()
        return nullcontext()
    return worker


def _halves(
    spaces: SpaceFolder, groups: Sequence[SkeletonGroup]
) -> tuple[list[SkeletonGroup], list[SkeletonGroup]]:
    """Deal groups into halves of about equal work; common trees stay together."""
    failures: dict[int, str] = {}
    alike = alike_groups(spaces, groups, failures)
    # Many blocks have many locations, each a tree of its own, and a tree costs by its blocks.
    alike.sort(key=lambda members: -sum(1 for _ in members[0][0].tree.blocks()))
    halves: tuple[list[SkeletonGroup], list[SkeletonGroup]] = ([], [])
    for place, members in enumerate(alike):
        halves[place % 4 in (1, 2)].extend(group for _, group in members)
    halves[0].extend(group for group in groups if int(group.rows[0]) in failures)
    return halves


@without_cycle_search()
def featurize_groups(
    spaces: SpaceFolder,
    groups: Sequence[SkeletonGroup],
    spec: FeatureSpec,
    extras: Sequence[Extra],
    extra_of: Ints,
) -> tuple[Ints, ProgramFeatures]:
    """Compute features of grouped traces; return the programs' numbers, too."""
    rows = np.sort(np.concatenate([np.zeros(0, np.int64), *(group.rows for group in groups)]))
    replayed = replay_groups(spaces, groups, lambda nests: nests, _CHUNK)
    num, nothing = len(extra_of), np.zeros(len(WORKLOAD_COLUMNS), np.float32)
    columns: ProgramColumns | None = None
    for number, extra in enumerate(extras):
        some = [(of, nests) for of, nests in replayed.parts if (extra_of[of] == number).any()]
        found = _of_each([nests for _, nests in some], extra, together=True)
        for (of, _), values in zip(some, found, strict=True):
            here = extra_of[of] == number
            if isinstance(values, UnsupportedProgram):
                replayed.failures.update(dict.fromkeys(of[here].tolist(), values.reason))
                continue
            if columns is None:
                columns = np.zeros((num, values.shape[1]), np.float32)
            columns[of[here]] = values[here]
    failures = replayed.failures
    every = featurize_nests(replayed.parts, num, spec, workload=nothing, failures=failures)
    if columns is not None:
        columns[~every.valid] = 0
        every = replace(every, extra=columns)
    return rows, every.take(rows)


def _flags_of_traces(
    spaces: SpaceFolder, groups: Sequence[SkeletonGroup], task_of: Ints
) -> dict[int, WorkloadFlags]:
    """Return the flags by task, of the space of most of its programs."""
    spaces_of: dict[int, list[tuple[int, int, SkeletonGroup]]] = {}
    for group in groups:
        rows = np.sort(group.rows)
        tasks, first, counts = np.unique(task_of[rows], return_index=True, return_counts=True)
        for task, row, count in zip(tasks.tolist(), first, counts, strict=True):
            spaces_of.setdefault(task, []).append((-int(count), int(rows[row]), group))
    flags: dict[int, WorkloadFlags] = {}
    for task, found in spaces_of.items():
        for _, _, group in sorted(found, key=lambda one: one[:2]):
            with suppress(UnsupportedProgram):  # the replay counts these failures
                flags[task] = text_flags(space_of(spaces, group).text)
                break
    return flags


def _reported(found: ProgramFeatures) -> ProgramFeatures:
    if found.failures:
        logger.info("programs not featurised: %s", dict(Counter(found.failures.values())))
    return found


def featurize_nests(
    groups: Iterable[tuple[Ints, LoopNests]],
    num: int,
    spec: FeatureSpec = DEFAULT,
    *,
    workload: WorkloadFlags,
    failures: Mapping[int, str],
) -> ProgramFeatures:
    """Compute features of ``num`` programs of a live space, given in groups.

    ``groups``: (numbers of programs, nests). Programs in no group, programs that ``failures`` names
    with a reason, and groups whose features cannot be computed are invalid.
    """
    # A group may hold programs that a later check has refused: they are dropped here.
    bad, refused = np.array(sorted(failures), np.int64), dict(failures)
    every = list(groups)
    parts = []
    alike = [nests for _, nests in every]
    # Only CPU programs are analysed together, and only their paper rows need a single statement.
    stores = (store for nests in alike for store in nests.stores)
    is_gpu = any(loop.is_bound for store in stores for loop in store.loops)
    together = spec.dataflow == "paper" and not spec.psa and not is_gpu
    compute = partial(_of_nests, workload=workload, spec=spec, node_keys="unique")
    each = _of_each(alike, compute, together=together)
    for (rows, _), found in zip(every, each, strict=True):
        known = ~np.isin(rows, bad)
        if isinstance(found, UnsupportedProgram):
            refused |= dict.fromkeys(rows[known].tolist(), found.reason)
        else:
            parts.append((rows[known], found.take(known)))
    return ProgramFeatures.empty(num, spec, workload=workload, failures=refused).scatter(parts)


def _of_each(
    nests: Sequence[LoopNests],
    compute: Callable[[Sequence[LoopNests]], Iterable[_Found]],
    *,
    together: bool,
) -> list[_Found | UnsupportedProgram]:
    """Apply `compute` to each nest, or to all ``together``; errors of faulty nests alone."""
    if together:
        with suppress(UnsupportedProgram), unforeseen_refused():
            return [*compute(nests)]
    out: list[_Found | UnsupportedProgram] = []
    for one in nests:
        try:
            with unforeseen_refused():
                out += compute([one])
        except UnsupportedProgram as error:
            out.append(error)
    return out


def _of_nests(
    nests: Sequence[LoopNests], workload: WorkloadFlags, spec: FeatureSpec, node_keys: NodeKeys
) -> Iterator[ProgramFeatures]:
    """Compute features of each of several nests; shared statements are computed once."""
    extras = [None] * len(nests) if spec.extra is None else spec.extra(nests)
    for one, stores, extra in zip(nests, analyse(nests, node_keys), extras, strict=True):
        statement = statement_features(one, stores)
        num, width = statement.shape[:2]
        psa = official_symbols(one, stores) if spec.psa else None
        found = ProgramFeatures(
            statement=statement.reshape(num * width, statement.shape[2]),
            row_start=np.arange(num + 1) * width,
            dataflow=dataflow_features(one, stores, spec.dataflow),
            workload=workload,
            valid=np.ones(num, bool),
            psa=None if psa is None else psa.reshape(num * width, psa.shape[2]),
            extra=extra,
        )
        resolved = np.broadcast_to(one.resolved, num)
        if not resolved.all():
            kept, lost = np.flatnonzero(resolved), np.flatnonzero(~resolved)
            # TVM fails on such programs (InferBound finds no constant size): never rank them.
            unknown = dict.fromkeys(lost.tolist(), "unresolved-size")
            nothing = ProgramFeatures.empty(num, spec, workload=workload, failures=unknown)
            found = nothing.scatter([(kept, found.take(kept))])
        yield found


def padded(
    values: Float32[np.ndarray, "row column"], row_start: Int64[np.ndarray, " boundary"], width: int
) -> Float32[np.ndarray, "program width column"]:
    """Pad ragged rows with zeros to ``width`` rows a program."""
    # Programs of one shape need no padding: a view.
    counts = np.diff(row_start)
    if (counts == width).all():
        return values.reshape(len(counts), width, values.shape[1])
    out = np.zeros((len(counts), width, values.shape[1]), np.float32)
    out[np.arange(width) < counts[:, None]] = values
    return out
