"""Collect records: one isolated child process for each (task, target), resumed where it stopped."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pruner.commands import Commands
from pruner.errors import PrunerError
from pruner.files import hold
from pruner.places import sources_folder
from pruner.progress import Tell
from pruner.tune.collect.layout import (
    TaskPaths,
    count_valid,
    finish_journal,
    open_journal,
    read_journal,
    write_sums,
)
from pruner.tune.collect.spec import SLOW_PROGRAM_EXIT, WorkerSpec
from pruner.tune.collect.tasks import CollectTask
from pruner.tune.measure.targets import CpuTarget
from pruner.tune.rivals.ansor_environment import child_environment

ATTEMPTS = 2  # a crash in Ansor's feature extraction costs a child; another seed may avoid it
MAX_SLOW_PROGRAMS = 20
SEED_STRIDE = 7919  # so that the second attempt does not repeat the first


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectPlan:
    """What to collect. Half of ``num_programs`` is random, half evolved; all must be valid."""

    tasks: Sequence[CollectTask]
    targets: Sequence[CpuTarget]
    python: Path
    out: Path
    num_programs: int
    seed: int
    repeats: int
    min_repeat_ms: int
    max_spread: float
    program_timeout_s: float
    child_timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectReport:
    """``records`` are valid and ``failed`` invalid records measured now; ``short`` lists (platform,
    task) pairs with fewer valid records than asked for, ``skipped`` counts those complete before.
    """

    records: int
    failed: int
    seconds: float
    skipped: int
    short: tuple[str, ...]


def collect(plan: CollectPlan, tell: Tell) -> CollectReport:
    """Measure every task on every target; targets are the inner loop, so partial results balance.

    Raises:
        PrunerError: nothing could be measured at all, or another process collects into the folder.
    """
    start = time.monotonic()
    plan.out.mkdir(parents=True, exist_ok=True)
    hold(plan.out)
    records = failed = skipped = 0
    short: list[str] = []
    pairs = [(task, target) for task in plan.tasks for target in plan.targets]
    for number, (task, target) in enumerate(pairs, start=1):
        paths = TaskPaths(out=plan.out, platform=target.platform, task=task.name)
        before = open_journal(paths)
        done_before = is_complete(plan, count_valid(before))
        if not done_before:
            measure_pair(plan, task, target, paths)
        entries = finish_journal(paths)
        valid = sum(count_valid(entries).values())
        new = entries[len(before) :]
        new_valid = sum(count_valid(new).values())
        records, failed = records + new_valid, failed + len(new) - new_valid
        skipped += int(done_before)
        if not is_complete(plan, count_valid(entries)):
            short.append(f"{target.platform}/{task.name}: {valid} of {plan.num_programs}")
        tell(f"[{number}/{len(pairs)}] {target.platform} {task.name}: {valid} valid records")
    write_sums(plan.out)
    if not (records or skipped):
        raise PrunerError(f"no program could be measured; see {plan.out / 'journal'}/*/*.log")
    seconds = time.monotonic() - start
    return CollectReport(
        records=records, failed=failed, seconds=seconds, skipped=skipped, short=tuple(short)
    )


def is_complete(plan: CollectPlan, valid: dict[str, int]) -> bool:
    """Whether both halves have their valid records."""
    num_random, num_evolved = halves(plan.num_programs)
    return valid["random"] >= num_random and valid["evolved"] >= num_evolved


def halves(num_programs: int) -> tuple[int, int]:
    """Return the number of random and of evolved programs."""
    return num_programs - num_programs // 2, num_programs // 2


def measure_pair(plan: CollectPlan, task: CollectTask, target: CpuTarget, paths: TaskPaths) -> None:
    """Run children until the journal is complete or the attempts are used up.

    A child that stopped at a slow program has noted it and made progress: that is no attempt.
    """
    attempt = slow_programs = 0
    while attempt < ATTEMPTS and slow_programs < MAX_SLOW_PROGRAMS:
        spec = worker_spec(plan, task, target, paths, attempt)
        if run_child(plan, spec, target, paths) == SLOW_PROGRAM_EXIT:
            slow_programs += 1
            continue
        attempt += 1
        if is_complete(plan, count_valid(read_journal(paths.journal))):
            paths.log.unlink(missing_ok=True)
            return


def worker_spec(
    plan: CollectPlan, task: CollectTask, target: CpuTarget, paths: TaskPaths, attempt: int
) -> WorkerSpec:
    """Return what the child is told."""
    num_random, num_evolved = halves(plan.num_programs)
    return WorkerSpec(
        workload_key=task.workload_key,
        fused=list(task.fused),
        target=target.target,
        hardware_params=target.hardware_params,
        journal=str(paths.journal.resolve()),
        num_random=num_random,
        num_evolved=num_evolved,
        seed=plan.seed + SEED_STRIDE * attempt,
        repeats=plan.repeats,
        min_repeat_ms=plan.min_repeat_ms,
        max_spread=plan.max_spread,
        program_timeout_s=plan.program_timeout_s,
    )


def run_child(
    plan: CollectPlan, spec: WorkerSpec, target: CpuTarget, paths: TaskPaths
) -> int | None:
    """Run one child and return its exit status, None after a timeout.

    A crash or a timeout costs the child's remaining records only.
    """
    words = [str(plan.python), "-m", "pruner.tune.collect.worker", spec.to_json()]
    commands = Commands(sources_folder(), child_environment(target.cores))
    limit_s = plan.child_timeout_s
    code = commands.run(words, paths.log, append=True, limit_s=limit_s, patience_s=0.0)
    with paths.log.open("a", encoding="utf-8") as log:
        log.write(f"stopped after {limit_s:g} s\n" if code is None else f"exit status {code}\n")
    return code
