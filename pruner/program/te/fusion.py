"""Find the operators that a record has fused, from its steps.

Ansor's workload key names the main operator only. But steps name stages by number, and the last
stage of a program, its result, is always scheduled. So the highest stage that the steps of a
program name, without stages that caching and rfactor insert, counts the stages of its compute DAG,
and each epilogue adds its own.
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
    """Count the stages of the compute DAG up to the last named.

    ``CHW`` and ``RF`` insert a stage before the stage they name, ``CHR`` one behind it; numbers in
    later steps include inserted stages.
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
                # Translate the step's number back to the DAG's: subtract the inserted stages below
                # it.
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

    ``named`` (by the log's name) where it fits the number of stages. Where it does not, the
    epilogue with as many stages as the steps reach; a bias is then taken for a sum (``add``), which
    has as many. Programs of other workloads keep ``named``, as do programs whose steps do not reach
    the operator's own result.

    Raises `UnsupportedProgram` (``unknown-fusion``) where the program has more stages than the
    operator with any epilogue.
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
    """Map the number of stages to its epilogues, likeliest (no bias) first."""
    found: dict[int, FromSteps] = {}
    for length in range(len(FUSABLE) + 1):
        for fused in sorted(combinations(FUSABLE, length), key=lambda names: "bias" in names):
            stages = len(dag_for_workload(workload_key, fused).stages)
            found[stages] = (*found.get(stages, ()), fused)
    return found
