"""Run Ansor's search on an operator, in TVM 0.19, measured as ours.

Builder and runner fork this process, so that the search is compared and not its imports.
"""

import importlib
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from pruner.files import JsonLines
from pruner.processes import Worker, end_with_parent
from pruner.program.dag.operators.task_options import tensors
from pruner.tune.measure.numerics import (
    inputs,
    load_reference,
    tolerance,
    undisturbed,
    worst_error,
)
from pruner.tune.phases import counted
from pruner.tune.run.journal import Trial, read_trials

tvm: Any = importlib.import_module("tvm")
ansor: Any = importlib.import_module("tvm.auto_scheduler")
te, topi = importlib.import_module("tvm.te"), importlib.import_module("tvm.topi")

FAILED_S = 1e10  # Ansor's cost of a program that could not be measured
# MeasureErrorNo of Ansor by the kind of failure
ERROR_NO = {"build": 2, "run": 4, "build_timeout": 6, "run_timeout": 7}
BUILD, RUN, TRAIN = "build", "run", "train"


def forked(job: Callable[[], Any]) -> Worker:
    """Fork a job, as Ansor does: no pipe takes Ansor's objects."""
    worker = Worker(SimpleNamespace(job=job), method="fork")
    worker.send("job")
    return worker


def result_of(worker: Worker, timeout_s: float) -> dict[str, Any]:
    """Wait for a job; return ``value``, or ``error`` and ``message``, and ``seconds``."""
    with worker:
        reply = worker.receive(timeout_s)
    kind = "crash" if reply.error == "killed" else reply.error
    found = {"value": reply.value} if kind is None else {"error": kind, "message": reply.message}
    return {**found, "seconds": reply.seconds}


class AnsorSession:
    """The state of builder, runner and model: specification, journal, seconds."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.seconds = dict.fromkeys((BUILD, RUN, TRAIN), 0.0)
        self.best_s = float("inf")
        self.folder = tempfile.TemporaryDirectory()
        self.journal = JsonLines(Path(spec["journal"]))
        self.trial = self.batch = 0

    def build(self, batch: Any, timeout: int, parallel: int, *_: Any) -> list[Any]:
        """Build a batch in ``parallel`` forks (Ansor's builder)."""
        with counted(self.seconds, BUILD):
            self.batch += 1
            waiting: list[tuple[str, Worker]] = []
            done: list[Any] = []
            for number, given in enumerate(batch):
                # results are awaited in order: Ansor expects those of the batch's order
                if len(waiting) == parallel:
                    done.append(self._built(*waiting.pop(0), timeout))
                path = f"{self.folder.name}/{self.batch}-{number}.so"
                waiting.append((path, forked(partial(compiled, given, path))))
            return done + [self._built(*entry, timeout) for entry in waiting]

    def _built(self, path: str, job: Worker, timeout_s: float) -> Any:
        found = result_of(job, timeout_s)
        kind = found.get("error")
        number = 0 if kind is None else ERROR_NO.get(f"build_{kind}", ERROR_NO["build"])
        message = "" if kind is None else json.dumps([f"build_{kind}", found["message"]])
        return ansor.measure.BuildResult(path, [], number, message, found["seconds"])

    def run(self, batch: Any, built: Any, timeout: int, *_: Any) -> list[Any]:
        """Run a batch, each program in its fork (Ansor's runner)."""
        return [self._ran(position, one, timeout) for position, one in enumerate(built)]

    def _ran(self, position: int, built: Any, timeout: int) -> Any:
        found: dict[str, Any] = {"seconds": 0.0}
        path = str(built.filename)
        if built.error_no:
            # Ansor passes only a number and a text from builder to runner: the text carries our
            # kind
            kind, found["message"] = json.loads(str(built.error_msg))
        else:
            with counted(self.seconds, RUN):
                best_s = self.best_s
                found = result_of(forked(partial(timed, self.spec, path, best_s)), timeout)
            kind = f"run_{found['error']}" if "error" in found else None
            if kind is None and found["value"]["wrong"]:
                kind, found["message"] = "wrong_result", found["value"]["wrong"]
            Path(path).unlink(missing_ok=True)
        costs = found["value"]["costs_s"] if kind is None else []
        self._write(position, costs, kind, found, float(built.time_cost))
        number = 0 if kind is None else int(built.error_no) or ERROR_NO.get(kind, ERROR_NO["run"])
        seconds = float(built.time_cost) + found["seconds"]
        return ansor.MeasureResult(costs or [FAILED_S], number, kind, seconds, time.time())

    def _write(
        self, position: int, costs: list[float], kind: str | None, found: Any, build_s: float
    ) -> None:
        self.trial += 1
        if costs:
            self.best_s = min(self.best_s, float(np.mean(costs)))
        trial = Trial(
            task=self.spec["task"],
            trial=self.trial,
            batch=self.batch,
            position=position,
            space=-1,
            decisions=[],
            costs_s=costs,
            error=kind,
            message=found.get("message", ""),
            build_s=build_s,
            run_s=found["seconds"],
            elapsed_s=time.time() - self.spec["started"],
            timestamp=time.time(),
            extra={"seconds": dict(self.seconds)},
            checked=kind is None and found["value"]["checked"],
        )
        self.journal.append(asdict(trial))


def compiled(given: Any, path: str) -> bool:
    """Compile a program into a shared library."""
    task = given.task
    schedule, args = task.compute_dag.apply_steps_from_state(given.state)
    tvm.build(schedule, args, target=task.target).export_library(path)
    return True


def timed(spec: dict[str, Any], path: str, best_s: float) -> dict[str, Any]:
    """Time a program, in seconds; check the results of a best program."""
    module = tvm.runtime.load_module(path)
    values = inputs(spec["arguments"])
    arrays = [tvm.nd.array(value) for value in values]
    evaluator = module.time_evaluator(
        module.entry_name,
        tvm.cpu(0),
        number=spec["number"],
        repeat=spec["repeats"],
        min_repeat_ms=spec["min_repeat_ms"],
        f_preproc="cache_flush_cpu_non_first_arg" if spec["flush_cache"] else "",
    )
    with undisturbed():
        costs = [float(cost) for cost in evaluator(*arrays).results]
    wrong, checked = "", False
    if spec["reference"] and np.mean(costs) < best_s:
        for kind, wanted in load_reference(spec["reference"]).items():
            arrays = [tvm.nd.array(value) for value in inputs(spec["arguments"], kind=kind)]
            module[module.entry_name](*arrays)
            error = worst_error(arrays[-1].numpy(), wanted[-1])
            if not error <= tolerance(spec["arguments"]):
                wrong = f"an element differs from the reference by {error:.3g}"
        checked = not wrong
    return {"costs_s": costs, "wrong": wrong, "checked": checked}


def make_task(spec: dict[str, Any]) -> Any:
    """Make Ansor's search task with explicit hardware parameters."""
    made = tensors(te, topi, spec["operator"])
    # a record has only the key: without this the model finds no program for it
    ansor.workload_registry.register_workload_tensors(spec["key"], made)
    return ansor.SearchTask(
        compute_dag=ansor.ComputeDAG(made),
        workload_key=spec["key"],
        target=tvm.target.Target(spec["target"]),
        hardware_params=ansor.HardwareParams(*spec["hardware_params"]),
        # NO_REWRITE: rewritten weights are another program than the reference's
        layout_rewrite_option=ansor.LayoutRewriteOption.NO_REWRITE,
    )


def make_model(session: AnsorSession) -> Any:
    """Make Ansor's XGBoost model, with its training time counted."""
    spec = session.spec

    class Model(ansor.cost_model.XGBModel):
        def update(self, measured: Any, results: Any) -> None:
            with counted(session.seconds, TRAIN):
                super().update(measured, results)

    return Model(
        verbose_eval=0, num_warmup_sample=spec["num_warmup_samples"], seed=spec["seed"] + 1
    )


def main() -> None:
    """Spend the budget, less the journal's trials, from the states of Ansor's log."""
    end_with_parent()
    spec = json.loads(sys.argv[1])
    session = AnsorSession(spec)
    # the journal has programs that the log lacks: Ansor logs a batch at its end
    rows = read_trials(session.journal.path)
    if rows:
        session.seconds |= rows[-1].extra.get("seconds", {})  # of all earlier starts
    # of damaged rows, too: their numbers are not given again
    session.trial = max((row.trial for row in rows), default=0)
    session.batch = max((row.batch for row in rows), default=0)
    session.best_s = min((row.latency_s for row in rows), default=np.inf)
    left = spec["trials"] - session.trial
    if left < 1:  # TVM would search a round, and measure nothing
        return
    log = Path(spec["log"])
    task, model = make_task(spec), make_model(session)
    callbacks = []
    if log.exists():
        model.update_from_file(str(log))
        callbacks.append(ansor.PreloadMeasuredStates(str(log)))
    register = importlib.import_module("tvm._ffi").register_func
    # Ansor calls its builder and runner by these global names
    register("auto_scheduler.local_builder.build", session.build, override=True)
    register("auto_scheduler.local_runner.run", session.run, override=True)
    params = {
        "evolutionary_search_population": spec["population"],
        "evolutionary_search_num_iters": spec["generations"],
    }
    policy = ansor.SketchPolicy(
        task,
        model,
        params=params,
        seed=spec["seed"] + 1,
        verbose=0,
        init_search_callbacks=callbacks,
    )
    how = {
        "builder": ansor.LocalBuilder(
            timeout=int(spec["build_timeout_s"]), n_parallel=spec["builders"]
        ),
        "runner": ansor.LocalRunner(timeout=int(spec["run_timeout_s"])),
        "verbose": 0,
    }
    records = [ansor.RecordToFile(str(log))]
    if left == 1:  # `tune` would measure nothing
        measurer = ansor.measure.ProgramMeasurer(callbacks=records, **how)
        policy.continue_search_one_round(1, measurer)
        return
    options = ansor.TuningOptions(
        num_measure_trials=left,
        num_measures_per_round=spec["batch"],
        measure_callbacks=records,
        **how,
    )
    task.tune(options, search_policy=policy)


if __name__ == "__main__":
    main()
