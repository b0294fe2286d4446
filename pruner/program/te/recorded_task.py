"""Find the operator, arguments and fused operators of a record of Ansor.

Authors of logs order arguments in their own ways: the logged extents of split loops decide.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np

from pruner.data.steps import is_trace
from pruner.data.workload import ARGUMENTS, FUSABLE, parse_workload, workload_key
from pruner.errors import UnsupportedProgram, unforeseen_refused
from pruner.program.dag.operators import dag_for_workload
from pruner.program.te.apply import apply
from pruner.program.te.skeleton import group_programs

log = logging.getLogger(__name__)

# Task functions of others: operator, arguments in their order, operators fused behind it.
_CONV2D = "n h w co ci kh kw stride padding"
OTHERS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    # TVM's tutorials: tune_conv2d_layer_cuda, tune_matmul_x86
    "conv2d_layer": ("conv2d", _CONV2D, ("bias", "relu")),
    "conv2d": ("conv2d", _CONV2D, ()),
    "matmul_add": ("matmul", "m k n dtype", ("add",)),
    # tvm.testing.auto_scheduler
    "matmul_auto_scheduler_test": ("matmul", "m n k", ()),
    "softmax_nm_auto_scheduler_test": ("softmax", "rows columns", ()),
}
_DTYPE = "float32"
_TRIES = 20  # records that contradict all readings before the others of the task are not checked
Task = tuple[str, tuple[str, ...]]  # workload key, fused operators


class TaskReader:
    """Reads the tasks of records; a confirmed reading holds for its workload key."""

    def __init__(self) -> None:
        self._confirmed: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._contradicted: Counter[str] = Counter()

    @unforeseen_refused()  # odd fields of a step cost their record only
    def __call__(self, key: str, steps: list[list[Any]], named: tuple[str, ...]) -> Task:
        """Return a record's workload key (of the table if known) and its fused operators.

        ``named``: operators by the log's name. Raises `UnsupportedProgram`: ``unknown-fusion`` as
        :func:`fused_in_steps`, ``other-arguments`` where the steps contradict every reading.
        """
        if is_trace(steps):
            return key, fused_in_steps(key, steps, named)
        if key not in self._confirmed and self._contradicted[key] < _TRIES:
            self._try(key, steps, named)
        if key in self._confirmed:
            known, behind = self._confirmed[key]
            return known, fused_in_steps(known, steps, named or behind)
        if self._contradicted[key]:
            raise UnsupportedProgram(
                "other-arguments",
                f"{key:.100}: its splits contradict these arguments of the operator: "
                + " or ".join(sorted({" ".join(names) for names, _, _ in _readings(key)})),
            )
        return key, fused_in_steps(key, steps, named)

    def _try(self, key: str, steps: list[list[Any]], named: tuple[str, ...]) -> None:
        contradicted = False
        for _, known, behind in _readings(key):
            try:
                fused = fused_in_steps(known, steps, named or behind)
                agrees = _agrees(known, fused, steps)
            except UnsupportedProgram:  # sizes that no DAG has, or steps that do not fit it
                continue
            if agrees:
                self._confirmed[key] = known, behind
                if known != key:
                    log.warning("%s is read as %s: so its splits are", key, known)
                return
            contradicted |= agrees is False
        self._contradicted[key] += contradicted


def _readings(key: str) -> Iterator[tuple[tuple[str, ...], str, tuple[str, ...]]]:
    """Yield readings of a key: arguments, the table's key, fused operators."""
    parsed = parse_workload(key)
    own = parsed.op.removesuffix("_layer")
    found: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = []
    if own in ARGUMENTS:
        found.append((own, ARGUMENTS[own], ()))
    if parsed.op in OTHERS:
        other, words, behind_it = OTHERS[parsed.op]
        found.append((other, tuple(words.split()), behind_it))
    for operator, names, behind in found:
        arguments = _arguments(operator, names, list(parsed.args))
        if arguments is not None:
            same = (f"{operator}_layer", tuple(arguments)) == (parsed.op, parsed.args)
            yield names, key if same else workload_key(operator, *arguments), behind


def _arguments(operator: str, names: tuple[str, ...], given: list[Any]) -> list[Any] | None:
    """Return the table's arguments of an operator (float32, one stride), or None."""
    if len(given) > len(names) and given[-1] == _DTYPE:
        given = given[:-1]
    if names[0].startswith("*"):
        return given
    named = dict(zip(names, given, strict=False))
    if len(named) != len(given) or len(given) != len(names) or named.get("dtype", _DTYPE) != _DTYPE:
        return None
    match named.get("stride"):
        case [int(first), int(second)] if first == second:
            named["stride"] = first
    return [named[name] for name in ARGUMENTS[operator]]


def _agrees(key: str, fused: tuple[str, ...], steps: list[list[Any]]) -> bool | None:
    """Compare logged extents of splits with the DAG's; None without any."""
    if not any(step[0] == "SP" and step[3] for step in steps):
        return None
    dag = dag_for_workload(key, fused)
    groups, unread = group_programs([steps])
    if not groups:
        raise unread[0]
    schedule = apply(dag, groups[0].skeleton, groups[0].decisions, groups[0].extents)
    return not np.any(schedule.contradicted)


FromSteps = tuple[tuple[str, ...], ...]


def stages_reached(steps: Sequence[Sequence[Any]]) -> int:
    """Count the stages of the compute DAG up to the last named, the result.

    ``CHW`` and ``RF`` insert a stage before the one they name, ``CHR`` one behind it.
    """
    named = ((s[0], s[1], s[2]) if s[0] == "CA" else (s[0], s[1]) for s in steps)
    return _reached(tuple(named))


@lru_cache(maxsize=1024)  # the programs of a log mostly differ in numbers that are no stages
def _reached(named: tuple[tuple[Any, ...], ...]) -> int:
    """Count like :func:`stages_reached`, given (tag, stage, attach stage) of steps."""
    inserted: list[int] = []  # current numbers of stages that are not of the DAG
    last = -1
    for tag, stage, *place_of in named:
        for number in (stage, *place_of):
            if number not in inserted:
                # From the step's number to the DAG's: subtract the inserted stages below it.
                last = max(last, number - sum(other < number for other in inserted))
        if tag in ("CHW", "RF", "CHR"):
            place = stage + 1 if tag == "CHR" else stage
            # Every insertion shifts the stages behind it.
            inserted = [other + (other >= place) for other in inserted] + [place]
    return last + 1


def fused_in_steps(
    workload_key: str, steps: Sequence[Sequence[Any]], named: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the operators fused behind a standard operator, judged by steps.

    ``named`` where it fits the number of stages, else the epilogue with as many stages as the steps
    reach (of equals the sum, ``add``); steps that do not reach the result keep ``named``. None
    behind other operators. Raises `UnsupportedProgram` (``unknown-fusion``) where no epilogue has
    enough.
    """
    if parse_workload(workload_key).operator is None:
        return ()  # the name is the operator's own: foo_relu has no relu behind it
    if is_trace(steps):
        return named  # a trace schedules the function with all that is fused into it
    try:
        known = _epilogues_by_stages(workload_key)
    except UnsupportedProgram:  # an operator without a compute DAG, or sizes that no DAG has
        return named
    reached = stages_reached(steps)
    fitting = known.get(reached, ())
    if named in fitting or reached < min(known):
        return named
    if not fitting:
        raise UnsupportedProgram(
            "unknown-fusion",
            f"its steps name {reached} stages; {workload_key} has {min(known)}, and {max(known)} "
            f"with {', '.join(FUSABLE)} fused behind it",
        )
    return fitting[0]


@lru_cache(maxsize=4096)
def _epilogues_by_stages(workload_key: str) -> dict[int, FromSteps]:
    """Map the number of stages to its epilogues, likeliest (no bias) first."""
    found: dict[int, FromSteps] = {}
    for length in range(len(FUSABLE) + 1):
        for fused in sorted(combinations(FUSABLE, length), key=lambda names: "bias" in names):
            stages = len(dag_for_workload(workload_key, fused).stages)
            found[stages] = (*found.get(stages, ()), fused)
    return found
