"""Which operators a record's program has fused behind its main one, told by its steps.

Ansor's records do not say it: the workload key names the main operator only. But steps name stages
by number, and the last stage of a program, its result, is always scheduled. So the highest stage
that the steps of a program name, without those that caching and rfactor insert, counts the stages
of its compute DAG, and each epilogue adds its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any

from pruner.data.steps import is_trace
from pruner.data.workload import FUSABLE, parse_workload
from pruner.errors import UnsupportedProgram
from pruner.program.dag.operators import dag_for_workload

FromSteps = tuple[tuple[str, ...], ...]


def stages_reached(steps: Sequence[Sequence[Any]]) -> int:
    """Stages of the compute DAG up to the last one that a step names.

    ``CHW`` and ``RF`` insert a stage before the one they name, ``CHR`` one behind it; numbers in
    later steps count inserted stages in.
    """
    named = ((s[0], s[1], s[2]) if s[0] == "CA" else (s[0], s[1]) for s in steps)
    return _reached(tuple(named))


@lru_cache(maxsize=1024)  # the programs of a log mostly differ in numbers that are no stages
def _reached(named: tuple[tuple[Any, ...], ...]) -> int:
    """The same for (tag, stage, and where it is computed) of every step."""
    inserted: list[int] = []  # current numbers of stages that are not of the DAG
    last = -1
    for tag, stage, *place_of in named:
        for number in (stage, *place_of):
            if number not in inserted:
                last = max(last, number - sum(other < number for other in inserted))
        if tag in ("CHW", "RF", "CHR"):
            place = stage + 1 if tag == "CHR" else stage
            inserted = [other + (other >= place) for other in inserted] + [place]
    return last + 1


def fused_in_steps(
    workload_key: str, steps: Sequence[Sequence[Any]], named: tuple[str, ...]
) -> tuple[str, ...]:
    """What is fused behind a standard operator: ``named`` (by the log's name) where it fits.

    Where it does not, the epilogue with as many stages as the steps reach; a bias is then taken for
    a sum (``add``), which has as many. Programs of other workloads keep ``named``, as do those
    whose steps do not even reach the operator's own result.

    Raises:
        UnsupportedProgram: ``unknown-fusion``, the program has more stages than the operator with
            any epilogue.
    """
    if parse_workload(workload_key).operator is None or is_trace(steps):
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
    """Number of stages to the epilogues that give it, the likeliest (no bias) first."""
    found: dict[int, FromSteps] = {}
    for length in range(len(FUSABLE) + 1):
        for fused in sorted(combinations(FUSABLE, length), key=lambda names: "bias" in names):
            stages = len(dag_for_workload(workload_key, fused).stages)
            found[stages] = (*found.get(stages, ()), fused)
    return found
