"""The child process: sample, evolve, build and measure the schedules of one task on one target.

Runs inside the Ansor environment as ``python -m pruner.tune.collect.worker SPEC`` where SPEC is the
JSON form of ``WorkerSpec``. Every finished measurement is one line of the journal file,
``{"origin": "random" | "evolved", "record": <TenSet record>}``, written by a single append.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import random
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from pruner.files import append_line, sealed
from pruner.processes import end_with_parent
from pruner.program.dag.operators import te_tensors
from pruner.tune.collect.layout import read_journal
from pruner.tune.collect.spec import SLOW_PROGRAM_EXIT, WorkerSpec
from pruner.tune.measure.priority import undisturbed

logger = logging.getLogger(__name__)

# by name, because type checkers see the TVM of the main environment, which has no Ansor any more
tvm: Any = importlib.import_module("tvm")
ansor: Any = importlib.import_module("tvm.auto_scheduler")
te, topi = importlib.import_module("tvm.te"), importlib.import_module("tvm.topi")

FAILED_COST_S = 1e10  # what Ansor writes for a program that could not be measured
# MeasureErrorNo of Ansor: COMPILE_HOST, RUNTIME_DEVICE, BUILD_TIMEOUT
ERROR_BUILD, ERROR_RUN, ERROR_TIMEOUT = 2, 4, 6
ROUNDS_WITHOUT_NEWS = 8  # give up when the space has no unseen program left


@dataclass(slots=True, kw_only=True)
class Collected:
    """What the journal already holds: step lists seen, states and latencies to learn from."""

    seen: set[str]
    inputs: list[Any]
    results: list[Any]
    valid: dict[str, int]


def make_task(spec: WorkerSpec) -> Any:
    """Build Ansor's search task with explicit hardware parameters."""
    return ansor.SearchTask(
        compute_dag=ansor.ComputeDAG(te_tensors(te, topi, spec.workload_key, spec.fused)),
        workload_key=spec.workload_key,
        target=tvm.target.Target(spec.target),
        hardware_params=ansor.HardwareParams(*spec.hardware_params),
        layout_rewrite_option=ansor.LayoutRewriteOption.NO_REWRITE,
    )


def steps_key(record: dict[str, Any]) -> str:
    """Identify a program of a task by its transform steps."""
    return json.dumps(record["i"][1][1])


def record_of(task: Any, state: Any, result: Any) -> dict[str, Any]:
    """Write a measurement as Ansor writes it."""
    line = ansor.measure_record.dump_record_to_string(ansor.MeasureInput(task, state), result)
    record: dict[str, Any] = json.loads(line)
    return record


def resume(task: Any, entries: Iterable[dict[str, Any]]) -> Collected:
    """Rebuild the states of earlier measurements, so that the cost model can learn from them."""
    progress = Collected(seen=set(), inputs=[], results=[], valid={"random": 0, "evolved": 0})
    for entry in entries:
        if entry["record"]["r"][1] != 0:  # its bounds may not even be inferable
            progress.seen.add(steps_key(entry["record"]))
            continue
        line = json.dumps(entry["record"])
        loaded, result = ansor.measure_record.load_record_from_string(line)
        state = task.compute_dag.infer_bound_from_state(loaded.state)
        note(progress, task, state, result, entry)
    return progress


def note(progress: Collected, task: Any, state: Any, result: Any, entry: dict[str, Any]) -> None:
    """Add one measurement to what is known."""
    progress.seen.add(steps_key(entry["record"]))
    progress.inputs.append(ansor.MeasureInput(task, state))
    progress.results.append(result)
    progress.valid[entry["origin"]] += int(result.error_no == 0)


def timed(spec: WorkerSpec, module: Any, arrays: list[Any]) -> list[float]:
    """Return the repeats in seconds, each the mean over at least ``min_repeat_ms`` of runs.

    A set of repeats that spreads more than ``max_spread`` of its median was disturbed by
    other work on the machine: it is taken again, at most twice, and the tightest set is kept.
    """
    evaluator = module.time_evaluator(
        module.entry_name,
        tvm.cpu(0),
        number=1,
        repeat=spec.repeats,
        min_repeat_ms=spec.min_repeat_ms,
    )
    best: list[float] = []
    best_spread = float("inf")
    for _ in range(3):
        with undisturbed():
            costs = list(evaluator(*arrays).results)
        spread = (max(costs) - min(costs)) / float(np.median(costs))
        if spread < best_spread:
            best, best_spread = costs, spread
        if best_spread <= spec.max_spread:
            break
    return best


def measure(spec: WorkerSpec, task: Any, state: Any, rng: np.random.Generator) -> Any:
    """Build and run one program in this process; a failure becomes a record with its error."""
    start = time.time()
    error_no, message, costs = ERROR_BUILD, None, [FAILED_COST_S]
    try:
        schedule, args = task.compute_dag.apply_steps_from_state(state)
        module = tvm.build(schedule, args, target=task.target)
        error_no = ERROR_RUN
        shapes = [[int(extent) for extent in arg.shape] for arg in args]
        arrays = [tvm.nd.array(rng.random(shape, dtype=np.float32)) for shape in shapes]
        costs = timed(spec, module, arrays)
        error_no = 0
    except Exception as error:  # whatever the compiler raises: the record says that it failed
        message = repr(error)
        logger.warning("program failed: %s", message.splitlines()[-1][:200])
    end = time.time()
    return ansor.MeasureResult(costs, error_no, message, end - start, end)


def append(journal: IO[bytes], task: Any, state: Any, origin: str, result: Any) -> dict[str, Any]:
    """Add one line to the journal. Raises `OSError` where that is not possible."""
    entry = {"origin": origin, "record": record_of(task, state, result)}
    append_line(journal, sealed(json.dumps(entry).encode()), Path(journal.name))
    return entry


@contextmanager
def deadline(
    spec: WorkerSpec, task: Any, state: Any, origin: str, journal: IO[bytes]
) -> Iterator[None]:
    """End this process when one program takes too long, noting that program as failed.

    LLVM needs minutes for a few fully unrolled programs and cannot be interrupted. The parent
    starts a new child, which goes on after the noted program.
    """
    only_one = threading.Lock()

    def give_up() -> None:
        if only_one.acquire(blocking=False):
            seconds = spec.program_timeout_s
            result = ansor.MeasureResult([FAILED_COST_S], ERROR_TIMEOUT, None, seconds, time.time())
            append(journal, task, state, origin, result)
            os._exit(SLOW_PROGRAM_EXIT)

    timer = threading.Timer(spec.program_timeout_s, give_up)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        only_one.acquire()  # waits for the end where give_up was faster


def measure_all(
    spec: WorkerSpec,
    task: Any,
    states: Iterable[Any],
    origin: str,
    limit: int,
    progress: Collected,
) -> int:
    """Measure unseen states until ``limit`` valid ones are in the journal; return the new ones."""
    rng = np.random.default_rng(spec.seed)
    done = 0
    blank = ansor.MeasureResult([FAILED_COST_S], 0, None, 0.0, 0.0)
    with Path(spec.journal).open("ab", buffering=0) as journal:
        for state in states:
            if progress.valid[origin] >= limit:
                break
            if steps_key(record_of(task, state, blank)) in progress.seen:
                continue
            with deadline(spec, task, state, origin, journal):
                result = measure(spec, task, state, rng)
            entry = append(journal, task, state, origin, result)
            note(progress, task, state, result, entry)
            done += 1
    return done


def random_phase(spec: WorkerSpec, task: Any, progress: Collected) -> None:
    """Measure programs that Ansor samples from its sketches, without evolution."""
    rng = random.Random(spec.seed)
    fruitless = 0
    while progress.valid["random"] < spec.num_random and fruitless < ROUNDS_WITHOUT_NEWS:
        policy = make_policy(spec, task, ansor.cost_model.RandomModel(), rng, population=256)
        states = list(policy.sample_initial_population())
        # the population is ordered by sketch and thread: choose from all of it alike
        rng.shuffle(states)
        done = measure_all(spec, task, states, "random", spec.num_random, progress)
        fruitless = 0 if done else fruitless + 1


def evolved_phase(spec: WorkerSpec, task: Any, progress: Collected) -> None:
    """Measure what Ansor's evolutionary search proposes, its XGB model retrained each round."""
    rng = random.Random(spec.seed + 1)
    model = ansor.cost_model.XGBModel(verbose_eval=0, num_warmup_sample=1, seed=spec.seed)
    share = -(-spec.num_evolved // spec.evolution_rounds)
    trained = fruitless = 0
    while progress.valid["evolved"] < spec.num_evolved and fruitless < ROUNDS_WITHOUT_NEWS:
        model.update(progress.inputs[trained:], progress.results[trained:])
        trained = len(progress.inputs)
        policy = make_policy(spec, task, model, rng, population=spec.population)
        order = np.argsort([float(r.costs[0].value) for r in progress.results])
        parents = [progress.inputs[i].state for i in order[: spec.num_random // 4]]
        population = [*policy.sample_initial_population(), *parents]
        wanted = share + len(progress.seen)  # some proposals were measured before
        states = policy.evolutionary_search(population, wanted)
        limit = min(spec.num_evolved, progress.valid["evolved"] + share)
        done = measure_all(spec, task, states, "evolved", limit, progress)
        fruitless = 0 if done else fruitless + 1


def make_policy(
    spec: WorkerSpec, task: Any, model: Any, rng: random.Random, *, population: int
) -> Any:
    """Return a sketch policy with a small population: budgets here are tens of programs."""
    params = {
        "sample_init_min_population": population // 2,
        "evolutionary_search_population": spec.population,
        "evolutionary_search_num_iters": spec.generations,
    }
    seed = rng.randrange(1, 1 << 30)
    return ansor.SketchPolicy(task, model, params=params, seed=seed, verbose=0)


def main() -> None:
    """Measure what is missing from the journal of the given specification."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    end_with_parent()
    spec = WorkerSpec.from_json(sys.argv[1])
    task = make_task(spec)
    progress = resume(task, read_journal(Path(spec.journal)))
    random_phase(spec, task, progress)
    evolved_phase(spec, task, progress)


if __name__ == "__main__":
    main()
