"""Features of programs in one ragged container, from records, decision vectors or loop nests."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from jaxtyping import Bool, Float32, Int64

from pruner.arrays import Decisions, Ints, Mask
from pruner.errors import UnsupportedProgram, unforeseen_refused
from pruner.features.caches import cpu_rows_together
from pruner.features.columns import (
    DATAFLOW_COLUMNS,
    OFFICIAL_COLUMNS,
    STATEMENT_COLUMNS,
    WORKLOAD_COLUMNS,
)
from pruner.features.dataflow import NUM_ROWS, DataflowKind, dataflow_features
from pruner.features.primitives import PrimitiveTokens, primitive_tokens
from pruner.features.statement.analysis import analyse_stores
from pruner.features.statement.features import statement_features
from pruner.features.statement.together import StoresTogether
from pruner.features.statement.touches import NodeKeys
from pruner.features.symbols.official import official_symbols
from pruner.features.workload import text_flags, workload_flags
from pruner.program.dag.dag import ComputeDAG
from pruner.program.nests import LoopNests
from pruner.program.replay import (
    Definition,
    Definitions,
    Replayed,
    find_definition,
    replay_groups,
    space_of,
)
from pruner.program.te.apply import apply
from pruner.program.te.lower import lower
from pruner.program.te.skeleton import SkeletonGroup, group_programs
from pruner.program.te.steps import Primitive
from pruner.program.tir.saved import SpaceFolder

logger = logging.getLogger(__name__)
_CHUNK = 4096  # programs at once: enough to pay for Python, few enough for the caches

WorkloadFlags = Float32[np.ndarray, " flag"]
ProgramColumns = Float32[np.ndarray, "program extra"]
Extra = Callable[[LoopNests], ProgramColumns]
"""Further columns of programs, from their loop nests, such as what the analyzer makes of them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProgramFeatures:
    """Features of N programs of one task, without padding.

    Statement rows of all programs lie one after another; those of program n are
    ``statement[row_start[n]:row_start[n + 1]]``, or ``statement[rows(n)]``. ``psa``: the official
    analyzer's symbols of the same rows, where asked for. ``dataflow`` has the rows of one kind
    (:data:`NUM_ROWS`) for every program, ``workload`` the flags that all of them share. A program
    that could not be replayed is not ``valid``: it has no row, zero dataflow, and a reason in
    ``failures`` (by its number). ``tokens``: the schedule primitives, None where no skeleton was
    replayed. ``extra``: further columns of every program, where asked for; zeros of those that are
    not valid. The last axes are the column tables of :mod:`pruner.features.columns`.

    Raises:
        ValueError: lengths that do not belong together.
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
        """Where the statement rows of one program are."""
        return slice(int(self.row_start[program]), int(self.row_start[program + 1]))

    @property
    def num_statements(self) -> Int64[np.ndarray, " program"]:
        """Statement rows of each program."""
        return np.diff(self.row_start)

    @classmethod
    def empty(
        cls,
        num: int,
        *,
        workload: WorkloadFlags | None = None,
        dataflow: DataflowKind = "paper",
        failures: Mapping[int, str] | None = None,
        psa: bool = False,
    ) -> Self:
        """``num`` programs, none of them valid."""
        no_flags = np.zeros(len(WORKLOAD_COLUMNS), np.float32)
        return cls(
            statement=np.zeros((0, len(STATEMENT_COLUMNS)), np.float32),
            row_start=np.zeros(num + 1, np.int64),
            dataflow=np.zeros((num, NUM_ROWS[dataflow], len(DATAFLOW_COLUMNS)), np.float32),
            workload=no_flags if workload is None else workload,
            valid=np.zeros(num, bool),
            failures=failures or {},
            psa=np.zeros((0, len(OFFICIAL_COLUMNS)), np.float32) if psa else None,
        )

    def scatter(self, parts: Sequence[tuple[Ints, Self]]) -> Self:
        """These invalid programs with those of ``parts`` at the given places, [n] each.

        What no part names stays invalid. Tokens are left out.
        """
        if len(parts) == 1 and np.array_equal(parts[0][0], np.arange(len(self))):
            return self._all_of(parts[0][1])
        counts = np.zeros(len(self), np.int64)
        for places, part in parts:
            counts[places] = part.num_statements
        row_start = _boundaries(counts)
        num_rows = int(row_start[-1])
        statement = np.empty((num_rows, self.statement.shape[1]), np.float32)
        psa = None if self.psa is None else np.empty((num_rows, self.psa.shape[1]), np.float32)
        dataflow, valid, failures = self.dataflow.copy(), self.valid.copy(), dict(self.failures)
        extra = _no_extra(len(self), [part for _, part in parts])
        for places, part in parts:
            rows = _rows(row_start[places], part.num_statements)
            statement[rows] = part.statement
            if psa is not None and part.psa is not None:
                psa[rows] = part.psa
            dataflow[places], valid[places] = part.dataflow, part.valid
            if extra is not None and part.extra is not None:
                extra[places] = part.extra
            failures |= {int(places[n]): reason for n, reason in part.failures.items()}
        return replace(
            self,
            statement=statement,
            row_start=row_start,
            dataflow=dataflow,
            valid=valid,
            failures=failures,
            psa=psa,
            extra=extra,
        )

    def _all_of(self, part: Self) -> Self:
        """:meth:`scatter` of one part with all programs in their order: nothing is copied."""
        return replace(
            part,
            workload=self.workload,
            failures={**self.failures, **part.failures},
            psa=None if self.psa is None else part.psa,
            extra=part.extra if part.valid.any() else None,
            tokens=None,
        )

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """The programs of all parts, which belong to one task; at least one part."""
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
        """The chosen programs (Boolean mask or numbers), in that order."""
        index = np.flatnonzero(chosen) if chosen.dtype == bool else chosen
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


def _no_extra(num: int, parts: Sequence[ProgramFeatures]) -> ProgramColumns | None:
    """Zeros for the further columns of `num` programs; None where valid ones have none."""
    found = [part.extra for part in parts if part.valid.any()]
    if not found or any(extra is None for extra in found):
        return None
    assert found[0] is not None, found
    return np.zeros((num, found[0].shape[1]), np.float32)


def _joined_extra(parts: Sequence[ProgramFeatures]) -> ProgramColumns | None:
    """Further columns of all parts; those of invalid programs alone may lack them."""
    made = [_no_extra(len(part), parts) if part.extra is None else part.extra for part in parts]
    known = [extra for extra in made if extra is not None]
    return np.concatenate(known) if known and len(known) == len(parts) else None


def _boundaries(counts: Ints) -> Ints:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def _rows(start: Ints, counts: Ints) -> Ints:
    """``start[0], start[0] + 1, ..`` (``counts[0]`` of them), then those of the next, and so on."""
    offset = np.repeat(start - (np.cumsum(counts) - counts), counts)
    return offset + np.arange(len(offset))


def featurize_records(
    workload_key: str,
    fused: tuple[str, ...],
    steps_list: Sequence[list[list[Any]]],
    *,
    tasks: Definitions | None = None,
    dataflow: DataflowKind = "paper",
    psa: bool = False,
    extra: Extra | None = None,
) -> ProgramFeatures:
    """Features of a task's records; ``tasks`` is what lies beside them: TenSet's operators, spaces.

    ``extra`` makes further columns of the programs.

    Raises:
        UnsupportedProgram: the operator is unknown, or records of traces have no design spaces.
    """
    found = find_definition(workload_key, fused, steps_list, tasks)
    return _of_step_lists(found, steps_list, dataflow, psa, extra)


def featurize_vectors(
    dag: ComputeDAG,
    skeleton: tuple[Primitive, ...],
    decisions: Decisions,
    *,
    dataflow: DataflowKind = "paper",
    psa: bool = False,
) -> ProgramFeatures:
    """Features straight from decision vectors int64 [N, d] of one skeleton.

    Raises:
        UnsupportedProgram: the skeleton cannot be replayed.
    """
    everything = np.arange(len(decisions))
    group = SkeletonGroup(skeleton=skeleton, rows=everything, decisions=decisions)
    flags = workload_flags(dag)
    nothing = ProgramFeatures.empty(len(decisions), workload=flags, dataflow=dataflow, psa=psa)
    parts = [
        (some.rows, _of_nests(lower(apply(dag, skeleton, some.decisions)), flags, dataflow, psa))
        for some in group.chunks(_CHUNK)
    ]
    return replace(nothing.scatter(parts), tokens=primitive_tokens([group], len(decisions)))


def featurize_groups(
    definition: Definition,
    groups: Sequence[SkeletonGroup],
    num: int,
    *,
    dataflow: DataflowKind = "paper",
    psa: bool = False,
    extra: Extra | None = None,
    tokens: bool = True,
) -> ProgramFeatures:
    """Features of ``num`` programs of one task, given as decision vectors of their skeletons.

    The same as of their step lists (:func:`featurize_steps`, :func:`featurize_traces`), which need
    not be read again. Programs in no group are invalid. Without ``tokens`` primitives are left out.
    """
    return _of_groups(definition, groups, {}, num, dataflow, psa, extra, tokens)


def featurize_steps(
    dag: ComputeDAG,
    steps_list: Sequence[list[list[Any]]],
    *,
    dataflow: DataflowKind = "paper",
    psa: bool = False,
    extra: Extra | None = None,
) -> ProgramFeatures:
    """Features of Ansor step lists of one operator, in the order given.

    Args:
        dag: the operator.
        steps_list: one step list a program; any mix of skeletons.
        dataflow: ``paper`` (with the epilogue) or ``official`` rows.
        psa: also compute the official analyzer's symbols.
        extra: makes further columns of the programs from their loop nests.

    Returns:
        Features with ``valid`` False, and a reason, for programs that cannot be replayed.
    """
    return _of_step_lists(dag, steps_list, dataflow, psa, extra)


def featurize_traces(
    spaces: SpaceFolder,
    steps_list: Sequence[list[list[Any]]],
    *,
    dataflow: DataflowKind = "paper",
    psa: bool = False,
    extra: Extra | None = None,
) -> ProgramFeatures:
    """Features of recorded programs of MetaSchedule, as those of a live space.

    Arguments and result as of :func:`featurize_steps`; there are no tokens.
    """
    return _of_step_lists(spaces, steps_list, dataflow, psa, extra)


def _of_step_lists(
    definition: Definition,
    steps_list: Sequence[list[list[Any]]],
    dataflow: DataflowKind,
    psa: bool,
    extra: Extra | None,
) -> ProgramFeatures:
    groups, unreadable = group_programs(steps_list)
    failures = {row: error.reason for row, error in unreadable.items()}
    num = len(steps_list)
    return _of_groups(definition, groups, failures, num, dataflow, psa, extra, tokens=True)


def _of_groups(
    definition: Definition,
    groups: Sequence[SkeletonGroup],
    failures: dict[int, str],
    num: int,
    dataflow: DataflowKind,
    psa: bool,
    extra: Extra | None,
    tokens: bool,
) -> ProgramFeatures:
    """Features of groups; what ``failures`` names is in none of them."""
    node_keys: NodeKeys
    if isinstance(definition, ComputeDAG):
        flags, node_keys = workload_flags(definition), "recycled"
    else:
        flags, node_keys, tokens = _flags_of_traces(definition, groups), "unique", False

    def compute(nests: LoopNests) -> ProgramFeatures:
        return _of_nests(nests, flags, dataflow, psa, node_keys, extra)

    done = replay_groups(definition, groups, compute, _CHUNK)
    done.failures.update(failures)
    found = _scattered(done, num, flags, dataflow, psa)
    return replace(found, tokens=primitive_tokens(groups, num) if tokens else None)


def _flags_of_traces(spaces: SpaceFolder, groups: Sequence[SkeletonGroup]) -> WorkloadFlags:
    for group in groups:  # the largest first
        with suppress(UnsupportedProgram):  # counted by the replay
            return text_flags(space_of(spaces, group).text)  # the same in all spaces of a task
    return np.zeros(len(WORKLOAD_COLUMNS), np.float32)


def _scattered(
    done: Replayed[ProgramFeatures],
    num: int,
    flags: WorkloadFlags,
    dataflow: DataflowKind,
    psa: bool,
) -> ProgramFeatures:
    """All programs in the order given."""
    nothing = ProgramFeatures.empty(
        num, workload=flags, dataflow=dataflow, failures=done.failures, psa=psa
    )
    found = nothing.scatter(done.parts)
    if found.failures:
        logger.info("programs not featurised: %s", dict(Counter(found.failures.values())))
    return found


def featurize_nests(
    groups: Iterable[tuple[Ints, LoopNests]],
    num: int,
    *,
    workload: WorkloadFlags,
    failures: Mapping[int, str],
    dataflow: DataflowKind = "paper",
    extra: Extra | None = None,
) -> ProgramFeatures:
    """Features of ``num`` programs given as groups (numbers of programs, their nests).

    Programs in no group, and those that ``failures`` names with a reason, are invalid, and so are
    groups whose features cannot be computed. ``extra`` makes further columns of the programs.
    """
    bad, refused = np.array(sorted(failures), np.int64), dict(failures)
    every = list(groups)
    parts = []
    for (rows, _), found in zip(
        every, _of_each([nests for _, nests in every], workload, dataflow, extra), strict=True
    ):
        known = ~np.isin(rows, bad)
        if isinstance(found, UnsupportedProgram):
            refused |= dict.fromkeys(rows[known].tolist(), found.reason)
        else:
            parts.append((rows[known], found.take(known)))
    nothing = ProgramFeatures.empty(num, workload=workload, dataflow=dataflow, failures=refused)
    return nothing.scatter(parts)


def _of_each(
    nests: Sequence[LoopNests],
    workload: WorkloadFlags,
    dataflow: DataflowKind,
    extra: Extra | None,
) -> list[ProgramFeatures | UnsupportedProgram]:
    """Features of every one, or why there are none: at once where that is cheaper.

    Where that fails for all together, those that fail cost themselves.
    """
    if dataflow == "paper" and not any(_is_gpu(one) for one in nests):
        with suppress(UnsupportedProgram), unforeseen_refused():
            return [*_together(nests, workload, dataflow, extra)]
    out: list[ProgramFeatures | UnsupportedProgram] = []
    for one in nests:
        try:
            with unforeseen_refused():
                found = _of_nests(
                    one, workload, dataflow, psa=False, node_keys="unique", extra=extra
                )
                out.append(found)
        except UnsupportedProgram as error:
            out.append(error)
    return out


def _is_gpu(nests: LoopNests) -> bool:
    return any(loop.is_bound for store in nests.stores for loop in store.loops)


def _together(
    nests: Sequence[LoopNests],
    workload: WorkloadFlags,
    dataflow: DataflowKind,
    extra: Extra | None,
) -> Iterator[ProgramFeatures]:
    """Features of CPU programs: what their stores have in common is computed once."""
    stores = StoresTogether.of(nests)
    rows = cpu_rows_together(stores, NUM_ROWS[dataflow])
    for one, statement, crossings in zip(nests, stores.statement_rows(), rows, strict=True):
        yield _resolved(one, statement, crossings, workload, dataflow, extra=extra)


def _of_nests(
    nests: LoopNests,
    workload: WorkloadFlags,
    dataflow: DataflowKind,
    psa: bool,
    node_keys: NodeKeys = "recycled",
    extra: Extra | None = None,
) -> ProgramFeatures:
    """Features of programs with one shape of nests: all have the same number of statements.

    ``node_keys``: records are measured as Ansor's extractor does, with its defect.
    """
    analyses = analyse_stores(nests, node_keys)
    statement = statement_features(nests, analyses)
    rows = dataflow_features(nests, analyses, dataflow)
    symbols = official_symbols(nests, analyses) if psa else None
    return _resolved(nests, statement, rows, workload, dataflow, symbols, extra)


def _resolved(
    nests: LoopNests,
    statement: Float32[np.ndarray, "program statement column"],
    rows: Float32[np.ndarray, "program slot flow"],
    workload: WorkloadFlags,
    dataflow: DataflowKind,
    symbols: Float32[np.ndarray, "program statement symbol"] | None = None,
    extra: Extra | None = None,
) -> ProgramFeatures:
    """Features of programs with one shape of nests; without those of unknown sizes."""
    num, width = statement.shape[:2]
    found = ProgramFeatures(
        statement=statement.reshape(num * width, statement.shape[2]),
        row_start=np.arange(num + 1) * width,
        dataflow=rows,
        workload=workload,
        valid=np.ones(num, bool),
        psa=None if symbols is None else symbols.reshape(num * width, symbols.shape[2]),
        extra=None if extra is None else extra(nests),
    )
    resolved = np.broadcast_to(nests.resolved, num)
    if resolved.all():
        return found
    kept = np.flatnonzero(resolved)
    unknown = np.flatnonzero(~resolved).tolist()
    nothing = ProgramFeatures.empty(
        num,
        workload=workload,
        dataflow=dataflow,
        failures=dict.fromkeys(unknown, "unresolved-size"),
        psa=symbols is not None,
    )
    return nothing.scatter([(kept, found.take(kept))])


def padded(
    values: Float32[np.ndarray, "row column"], row_start: Int64[np.ndarray, " boundary"], width: int
) -> Float32[np.ndarray, "program width column"]:
    """Ragged rows as one block with zeros behind each program's own, for files of that form."""
    counts = np.diff(row_start)
    if (counts == width).all():
        return values.reshape(len(counts), width, values.shape[1])
    out = np.zeros((len(counts), width, values.shape[1]), np.float32)
    out[np.arange(width) < counts[:, None]] = values
    return out
