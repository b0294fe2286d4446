"""Tune workloads in a single call, in a folder of the run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from pruner.errors import PrunerError
from pruner.files import JsonLines, held
from pruner.models.analyzer.analyzer import Analyzer
from pruner.models.forecast import Forecast, forecast_of
from pruner.progress import Log, silent
from pruner.search.decision_search import DecisionSearch
from pruner.search.space import Candidate
from pruner.tune.measure.measurer import BUILDS, DeviceMeasurer, never
from pruner.tune.phases import Phases
from pruner.tune.rivals.ansor import Ansor
from pruner.tune.run.database import Database, foreign_target, open_database
from pruner.tune.run.final_choice import (
    FinalChoice,
    choose_programs,
    export_front,
    remove_front,
    run_meter,
)
from pruner.tune.run.finalists import (
    Finalists,
    best_module,
    chosen_trials,
    present,
    read_finalists,
    retime,
    search_s,
)
from pruner.tune.run.journal import JOURNAL_FILE, Trial, read_trials
from pruner.tune.run.loop import OnBatch, TuningRun, trial_of
from pruner.tune.run.result import TaskOutcome, Tuned
from pruner.tune.run.setup import LiveTask, Prepared
from pruner.tune.run.tune_options import RunContext, TuneOptions
from pruner.tune.spaces.union import UnionSpace
from pruner.tune.tvm_import import load_tvm
from pruner.tune.workloads import Workload

CANDIDATES = "candidates"  # programs of a run that only compiles
# TVM prints these as comments; with them workload.path= can read the file.
_IMPORTS = "from tvm.script import ir as I\nfrom tvm.script import tirx as T\n\n"


def tune(
    workloads: Workload | Sequence[Workload],
    options: TuneOptions,
    folder: Path,
    *,
    log: Log = silent,
    report: OnBatch = silent,
    interrupted: Callable[[], bool] = never,
) -> Tuned:
    """Tune the workloads within the budget; write all results to `folder`.

    If `folder` has an earlier run with the same options, the call continues that run.

    Args:
        workloads: one workload, or several that share the budget.
        options: platform, policy, budget and measurement; see `this_cpu`.
        folder: the run folder; its parent may be absent.
        log: receives lines of text for people.
        report: receives a row of numbers after every batch.
        interrupted: if it returns True, the run ends with its results so far; a later call
            continues it.

    Raises:
        PrunerError: this platform cannot tune a workload, the device does not respond, or another
            process works in `folder` or in ``work_dir``.
    """
    tasks = [workloads] if isinstance(workloads, Workload) else list(workloads)
    work_dir = options.work_dir or folder
    for place in (folder, work_dir):
        place.mkdir(parents=True, exist_ok=True)
    with held(folder, work_dir):  # TVM's records name programs by their line: one writer at a time
        if isinstance(options.policy, Ansor):
            return _by_ansor(options.policy, tasks, options, folder, report, interrupted)
        return _tuned(tasks, options, folder, work_dir, log, report, interrupted)


def _tuned(
    tasks: Sequence[Workload],
    options: TuneOptions,
    folder: Path,
    work_dir: Path,
    log: Log,
    report: OnBatch,
    interrupted: Callable[[], bool],
) -> Tuned:
    read_finalists(folder)  # a damaged file ends the run now, not after its search
    meter = run_meter(options)
    phases, own = Phases(), work_dir.resolve() == folder.resolve()
    database = Database(None) if options.compile_only else open_database(work_dir, own=own, log=log)
    if not own and not read_trials(folder / JOURNAL_FILE):
        records = database.tvm_database.get_all_tuning_records()
        other = foreign_target(records, options.platform.target)
        if other is not None and not options.compile_only:
            raise PrunerError(
                f"work_dir={work_dir}: holds records of another target, {other}; give each target "
                "its own folder"
            )
    log("starting the processes that build and run programs")
    with DeviceMeasurer(options.platform, options.measure, phases, folder / BUILDS) as measurer:
        context = RunContext(
            platform=options.platform,
            measurer=measurer,
            phases=phases,
            database=database,
            folder=folder,
            log=log,
            interrupted=interrupted,
        )
        prepared = Prepared(tasks, options, context)
        models: Mapping[str, Path] = {}
        if options.compile_only:
            _compile(prepared.tasks, options, context)
            found = prepared.tasks
        else:
            budget, limit_s = options.budget, options.budget.seconds
            run = TuningRun(prepared, options, context, report)
            if options.measure.finalists and limit_s is not None:
                run.end_at(search_s(limit_s, len(tasks), budget.trials, phases.elapsed_s))
            if options.objective.has_front:  # a continuation that was refused keeps it
                remove_front(folder)
            run.run()
            if not context.interrupted():
                prepared.keep_unscheduled()
                if options.measure.finalists:
                    retime(run.tasks, context, options.measure.finalists, limit_s)
            found = run.tasks
            if prepared.shared is not None and not context.interrupted():  # it will not be resumed
                in_time = limit_s is None or phases.elapsed_s < limit_s
                with phases.time("train"):
                    models = prepared.shared.keep(folder, learn=in_time)
        final = FinalChoice(
            objective=options.objective, counter="" if meter is None else meter.name
        )
        if not (options.compile_only or context.interrupted()):
            final = replace(final, programs=choose_programs(prepared, options, context, meter))
        keep = options.kernels and not options.compile_only
        trials = read_trials(folder / JOURNAL_FILE)
        kernels = _export(found, context, trials) if keep else {}
        if keep and options.objective.has_front and final.programs:
            export_front(prepared, final.programs, context)
    tuned = _result(prepared, options, context, work_dir, kernels, trials)
    if tuned.replayed.tasks:
        log(str(tuned.replayed))
    return replace(tuned, models=models, final=final)


def _export(
    tasks: Sequence[LiveTask], context: RunContext, trials: Sequence[Trial]
) -> dict[str, Path]:
    out: dict[str, Path] = {}
    chosen, target = chosen_trials(context.folder, trials), context.platform.target
    for task in tasks:
        if task.current_best_s == float("inf"):
            continue
        name = task.workload.name
        module = best_module(context.database, task.workload.module, target, chosen.get(name))
        path = kernel_path(context.folder, name)
        path.parent.mkdir(exist_ok=True)
        reason = "TVM's database has no record of it"
        if module is not None:
            reason = context.measurer.export(module, path) or ""
        if reason:
            context.log(f"{name}: its best program was not kept as a library ({reason})")
        else:
            out[name] = path
    return out


def kernel_path(folder: Path, task: str) -> Path:
    """Return the path of the library of a task's best program."""
    return folder / "kernels" / f"{task}.so"


def tuned_module(folder: Path, task: str | None = None) -> Any:
    """Load the best program of a run's task, or of its only task.

    ``module["main"](*tensors)`` calls it: inputs first, then outputs. Raises `PrunerError`:
    `folder` has no library of this task.
    """
    known = {path.stem: path for path in sorted((folder / "kernels").glob("*.so"))}
    name = next(iter(known)) if task is None and len(known) == 1 else task
    if name not in known:
        raise PrunerError(f"{folder}: no kernel {name}; it holds {', '.join(known) or 'none'}")
    return load_tvm().tvm.runtime.load_module(str(known[name]))


def _result(
    prepared: Prepared,
    options: TuneOptions,
    context: RunContext,
    work_dir: Path,
    kernels: Mapping[str, Path],
    rows: Sequence[Trial],
) -> Tuned:
    finalists = present(context.folder, rows)
    outcomes = [
        TaskOutcome.of(
            task.workload,
            rows,
            check=options.measure.check,
            platform=context.platform,
            known_s=task.current_best_s,
            refused=0 if task.made is None else task.made.refused,
            exhausted=task.exhausted,
            untuned_s=task.untuned_s,
            unscheduled=task.unscheduled,
            kernel=kernels.get(task.workload.name),
            replayed=prepared.replayed.get(task.workload.name),
            forecast=_forecast(task, rows, options.analyzer, finalists.get(task.workload.name)),
            finalists=finalists.get(task.workload.name),
        )
        for task in prepared.tasks
    ]
    return Tuned(
        tasks=outcomes,
        seconds=context.phases.seconds(),
        folder=context.folder,
        work_dir=work_dir,
        compile_only=options.compile_only,
    )


def _forecast(
    task: LiveTask,
    trials: Sequence[Trial],
    analyzer: Analyzer | None,
    finalists: Finalists | None,
) -> Forecast | None:
    """Forecast the best program of a task, if this run measured it."""
    mine = [trial for trial in trials if trial.task == task.workload.name]
    best = min(mine, key=lambda trial: trial.latency_s, default=None)
    if best is None or analyzer is None or task.unscheduled is not None:
        return None
    if not best.latency_s <= task.current_best_s < float("inf"):  # of an earlier run, or compiled
        return None
    if not isinstance(task.made, DecisionSearch) or not isinstance(task.made.space, UnionSpace):
        return None
    if finalists is not None:
        best = next(trial for trial in mine if trial.trial == finalists.trial)
    columns = task.made.space.columns(task.made.row(best.space, best.decisions))
    return None if columns is None else forecast_of([columns], [1.0], analyzer.device)


def _compile(tasks: Sequence[LiveTask], options: TuneOptions, context: RunContext) -> None:
    """Build the first proposals of each task's search; run nothing."""
    path, done = context.folder / JOURNAL_FILE, 0
    journal = JsonLines(path)
    known = {(row.batch, row.position): row for row in read_trials(path, context.log)}
    # rounded up: the last tasks may get fewer, no trial is left over
    trials, share = options.budget.trials, -(-options.budget.trials // len(tasks))
    is_over = partial(context.is_over, options.budget.seconds)
    for number, task in enumerate(tasks, start=1):
        if is_over() or done >= trials:
            break
        chosen = task.search.propose(min(share, trials - done))
        rest = [n for n, one in enumerate(chosen) if not _is_known(known.get((number, n)), one)]
        outcomes = context.measurer.build_only(
            [chosen[place] for place in rest], task.arguments, is_over
        )
        # fewer outcomes than programs where the run was asked to end
        for place, outcome in zip(rest, outcomes, strict=False):
            known_of = {"task": task.workload.name, "trial": done + place + 1, "batch": number}
            _write_candidate(context.folder, done + place + 1, chosen[place])
            known_of |= {"position": place, "elapsed_s": context.phases.elapsed_s}
            row = trial_of(chosen[place], outcome, compiled_only=True, **known_of)
            journal.append(asdict(row))
        done += len(chosen)
        built = sum(outcome.error is None for outcome in outcomes)
        if rest or not chosen:
            context.log(f"{task.workload.name}: {built} of {len(outcomes)} programs compile")


def _is_known(row: Trial | None, candidate: Candidate) -> bool:
    if row is None:
        return False
    if (row.space, row.decisions) != (candidate.space, candidate.decisions.tolist()):
        raise PrunerError(f"{row.task}: an earlier start chose other programs; start a new run")
    return True


def _write_candidate(folder: Path, trial: int, candidate: Candidate) -> None:
    path, module = candidate_path(folder, trial), candidate.schedule.mod
    path.parent.mkdir(exist_ok=True)
    path.write_text(load_tvm().tvm.ir.save_json(module), encoding="utf-8")
    path.with_suffix(".py").write_text(_IMPORTS + module.script(), encoding="utf-8")


def candidate_path(folder: Path, trial: int) -> Path:
    """Return the path of a program of a run that only compiles."""
    return folder / CANDIDATES / f"{trial}.json"


def _by_ansor(
    policy: Ansor,
    workloads: Sequence[Workload],
    options: TuneOptions,
    folder: Path,
    report: OnBatch,
    interrupted: Callable[[], bool],
) -> Tuned:
    earlier = read_trials(folder / JOURNAL_FILE)
    best_s = min((trial.latency_s for trial in earlier), default=float("inf"))
    budget, failed = options.budget, 0  # since the last report

    def each(trial: Trial) -> None:
        nonlocal best_s, failed
        best_s, failed = min(best_s, trial.latency_s), failed + (trial.error is not None)
        if trial.trial % budget.batch == 0 or trial.trial == budget.trials:
            row = {"best_latency_s": best_s, "seconds": trial.elapsed_s, "failed": failed}
            report({"task": trial.task, "trials": trial.trial, **row})
            failed = 0

    seconds = policy.run(workloads, options, folder, report=each, interrupted=interrupted)
    rows = read_trials(folder / JOURNAL_FILE)
    check, platform = options.measure.check, options.platform
    outcomes = [TaskOutcome.of(w, rows, check=check, platform=platform) for w in workloads]
    return Tuned(tasks=outcomes, seconds=seconds, folder=folder, work_dir=folder)
