"""What fewer repeats save, and how often they change the choice.

    python -m experiments.repeats.run                  recorded repeats of the bundled sets
    python -m experiments.repeats.run runs=DIR/tune    the trials of runs of tune.py, too
    python -m experiments.repeats.run live=true        tune four operators with and without
    python -m experiments.repeats.run networks=DIR/tune    the finalists of tuned networks

Recorded: programs of a task come in random orders, 64 trials each, and the rule of
``measure.stop_above`` decides which of their recorded repeats are made. The program with the least
latency is the choice. Its true latency is a second timing, minutes later, which no choice reads.
With runs= the trials of run folders come in the order of their journal; they have no second timing.
The workloads are halved: the factor is chosen on one half and judged on the other. results.csv has
a row a task and factor, summary.csv the means.

Live: live.csv. A cell is one call of tune.py; both best programs of an operator and seed are then
timed in turns. Finished cells (under work=) are skipped, so the script can be stopped at any
time. Rows of the committed tables that are not made again stay.

Networks: networks.csv has a row a task whose best programs were timed again by
``measure.finalists``. One half of the turns chooses, the other half judges.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from jaxtyping import Bool, Float, Int

from experiments.common.comparison import Comparison, Step
from pruner.cli.shared.output import as_table, say
from pruner.cli.shared.script import keep_tables, run_script
from pruner.data.quarantine import Quarantine
from pruner.data.root import RecordRoot
from pruner.data.tasks import TaskRecords
from pruner.errors import PrunerError
from pruner.files import METRICS_FILE, load_metrics, merged_table, read_table, write_table
from pruner.paths import datasets_folder
from pruner.study.grid import Job, finished, results
from pruner.tune import this_cpu
from pruner.tune.deploy.forms import forms
from pruner.tune.measure.jobs import Timing
from pruner.tune.measure.measurer import DeviceMeasurer, MeasureSettings
from pruner.tune.networks.extraction import read_tasks
from pruner.tune.networks.request import TASKS
from pruner.tune.phases import Phases
from pruner.tune.run.database import Database
from pruner.tune.run.finalists import (
    FINALISTS_FILE,
    best_module,
    chosen_trials,
    paired_medians,
    read_finalists,
)
from pruner.tune.run.journal import JOURNAL_FILE, read_trials
from pruner.tune.workloads import arguments

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SETS = {"bundled": 0.02, "h200": 0.005, "opencl-pocl": 0.02}  # least seconds of a repeat
RUNS, RUNS_REPEAT_S = "runs", 0.03
FACTORS = (1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 2.0, 3.0)
TRIALS, ORDERS, FINALISTS = 64, 200, 4
NEAR = 1.05  # times the best latency, of finalists
RACE_TURNS = 30
EACH, ROUNDS = 1, 16  # trials after which the best known latency is renewed
CHOOSE, JUDGE = "choose", "judge"
# the factor of the largest saving with at most this much regret, as a mean and on any task
MEAN_REGRET, WORST_REGRET = 0.001, 0.01
OPERATORS = {
    "matmul": ["workload=matmul"],
    "conv2d_1x1": [
        "workload=conv2d", "workload.ci=256", "workload.h=28", "workload.w=28", "workload.co=128",
        "workload.kh=1", "workload.kw=1", "workload.padding=0",
    ],
    "depthwise_3x3": ["workload=depthwise_conv2d"],
    "layer_norm": ["workload=layer_norm"],
}  # fmt: skip
ALL, FEWER = "all repeats", "fewer"
SETTINGS = ["policy=pruner_live", "measure.repeats=3", "measure.min_repeat_ms=30", "num_threads=1"]
LIVE_KEY = ("operator", "seed", "way")

Costs = Float[np.ndarray, "program repeat"]


@dataclass(kw_only=True)
class Options:
    """Options of the script, explained above. `factor`: of the live runs."""

    runs: str | None = None
    networks: str | None = None
    live: bool = False
    factor: float = 1.2
    operators: list[str] = field(default_factory=lambda: list(OPERATORS))
    seeds: list[int] = field(default_factory=lambda: [0, 1])
    trials: int = 32
    work: str = str(ROOT / "outputs" / "experiments-repeats")
    out: str = str(HERE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """Trials in several orders under the rule: the choice [order], and who stopped."""

    chosen: Int[np.ndarray, " order"]
    stopped: Bool[np.ndarray, "order trial"]
    known: Bool[np.ndarray, "order trial"]  # a best latency was known


def simulate(
    costs_s: Costs, orders: Int[np.ndarray, "order trial"], factor: float, renewed: int = EACH
) -> Simulated:
    """Tune in the given orders of programs; a program above the limit has one repeat.

    ``renewed``: the limit follows the best latency after every so many trials. All orders advance
    together.
    """
    full_s, count = costs_s.mean(axis=1), len(orders)
    best_s, known_s = np.full(count, np.inf), np.full(count, np.inf)
    chosen = np.zeros(count, np.int64)
    stopped, known = np.zeros(orders.shape, bool), np.zeros(orders.shape, bool)
    for trial in range(orders.shape[1]):
        if trial % renewed == 0:
            known_s = best_s
        program = orders[:, trial]
        known[:, trial] = np.isfinite(known_s)
        stopped[:, trial] = costs_s[program, 0] > factor * known_s
        label_s = np.where(stopped[:, trial], costs_s[program, 0], full_s[program])
        chosen = np.where(label_s < best_s, program, chosen)
        best_s = np.minimum(best_s, label_s)
    return Simulated(chosen=chosen, stopped=stopped, known=known)


def timing_s(
    costs_s: Costs,
    orders: Int[np.ndarray, "order trial"],
    found: Simulated | None,
    repeat_s: float,
) -> float:
    """Seconds of timing, the mean over orders; `found` None: all repeats are made.

    A repeat lasts at least ``repeat_s``. Every call of the timer has a run more, to warm up: all
    repeats are one call, under the rule each is a call of its own.
    """
    each_s = np.maximum(costs_s, repeat_s)
    whole_s = (each_s.sum(axis=1) + costs_s[:, 0])[orders]
    if found is None:
        return float(whole_s.sum(axis=1).mean())
    single_s = (each_s[:, 0] + costs_s[:, 0])[orders]
    calls_s = (each_s + costs_s).sum(axis=1)[orders]
    made_s = np.where(found.stopped, single_s, np.where(found.known, calls_s, whole_s))
    return float(made_s.sum(axis=1).mean())


def task_rows(
    costs_s: Costs,
    true_s: Float[np.ndarray, " program"],
    orders: Int[np.ndarray, "order trial"],
    repeat_s: float,
) -> Iterator[dict[str, Any]]:
    """A row a factor and way of renewing.

    ``regret``: true latency of the choice over that of the choice with all repeats, less 1, mean
    over orders. ``changed``: share of orders with another choice. ``to_gain``: true latency of the
    choice with all repeats over that of the best of the programs within 5 % of it
    (at most four), less 1: the most that timing these again can gain.
    """
    plain = simulate(costs_s, orders, np.inf)
    planned_s = timing_s(costs_s, orders, None, repeat_s)
    to_gain = float(np.mean(gains(costs_s.mean(axis=1)[orders], true_s[orders])))
    for factor, renewed in product(FACTORS, (EACH, ROUNDS)):
        found = simulate(costs_s, orders, factor, renewed)
        regret = true_s[found.chosen] / true_s[plain.chosen] - 1
        left_s = timing_s(costs_s, orders, found, repeat_s)
        yield {
            "factor": factor,
            "renewed": renewed,
            "programs": len(costs_s),
            "trials": orders.shape[1],
            "orders": len(orders),
            "stopped": float(found.stopped.mean()),
            "timing_s": planned_s,
            "saved_s": planned_s - left_s,
            "saved": 1 - left_s / planned_s,
            "changed": float((found.chosen != plain.chosen).mean()),
            "regret": float(regret.mean()),
            "to_gain": to_gain,
        }  # fmt: skip


def gains(
    measured_s: Float[np.ndarray, "order trial"], true_s: Float[np.ndarray, "order trial"]
) -> Float[np.ndarray, " order"]:
    """True latency of the first over the best of the few near it, less 1."""
    first = np.argsort(measured_s, axis=1)[:, :FINALISTS]
    few_s = np.take_along_axis(measured_s, first, axis=1)
    true_few_s = np.take_along_axis(true_s, first, axis=1)
    near = few_s <= NEAR * few_s[:, :1]
    best_s = np.where(near, true_few_s, np.inf).min(axis=1)
    return true_few_s[:, 0] / best_s - 1


def recorded(records: TaskRecords, repeat_s: float) -> list[dict[str, Any]]:
    """All rows of a recorded task: the first timing is the trial, the second the truth."""
    passes = [
        timings
        for timings, valid in zip(records.timings, records.valid, strict=True)
        if valid and len(timings) > 1
    ]
    costs_s = np.array([timings[0] for timings in passes])
    true_s = np.array([np.mean(timings[1]) for timings in passes])
    rng = np.random.default_rng(crc32(records.key.task.encode()))
    trials = min(TRIALS, len(costs_s))
    orders = np.argsort(rng.random((ORDERS, len(costs_s))), axis=1)[:, :trials]
    return list(task_rows(costs_s, true_s, orders, repeat_s))


def of_run(folder: Path) -> list[dict[str, Any]]:
    """Rows of a run with equal repeats; judged by the mean without second timing."""
    costs = [row.costs_s for row in read_trials(folder / JOURNAL_FILE) if row.error is None]
    if {len(one) for one in costs} != {3}:
        return []
    costs_s = np.array(costs)
    rows = task_rows(costs_s, costs_s.mean(axis=1), np.arange(len(costs_s))[None], RUNS_REPEAT_S)
    total_s = float((load_metrics(folder) or {}).get("total_seconds", np.nan))
    return [{**row, "to_gain": np.nan, "run_s": total_s} for row in rows]


def of_platform(
    name: str, root: RecordRoot, platform: str, repeat_s: float
) -> list[dict[str, Any]]:
    """All rows of a platform of a set."""
    say(f"{name}, {platform}")
    return [
        {"set": name, "platform": platform, "task": records.key.task, **row}
        for records in root.read(Quarantine(), platform)
        for row in recorded(records, repeat_s)
    ]


def jobs(options: Options) -> Iterator[Job]:
    """A job a platform of a set, and one for the runs."""
    for name, repeat_s in SETS.items():
        root = RecordRoot(datasets_folder() / name)
        for platform in root.platforms:
            work = partial(of_platform, name, root, platform, repeat_s)
            yield Job(name=f"{name} {platform}", run=work)
    if options.runs is not None:
        folders = sorted(path.parent for path in Path(options.runs).glob(f"*/{JOURNAL_FILE}"))
        yield Job(
            name=RUNS,
            run=lambda: [
                {"set": RUNS, "platform": "", "task": folder.name, **row}
                for folder in folders
                for row in of_run(folder)
            ],
        )


def side(task: str, tasks: Sequence[str]) -> str:
    """The half of a workload: every other one by name."""
    return (CHOOSE, JUDGE)[sorted(set(tasks)).index(task) % 2]


def summary_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means by set, half, factor and way; ``chosen``: the first half's factor."""
    tasks = [row["task"] for row in rows if row["set"] != RUNS]
    halves = {task: side(task, tasks) for task in set(tasks)}
    groups: dict[tuple[str, str, float, int], list[dict[str, Any]]] = {}
    for row in rows:
        half = JUDGE if row["set"] == RUNS else halves[row["task"]]
        every = [] if row["set"] == RUNS else ["all"]
        for name in [*every, row["set"]]:
            key = (name, half, float(row["factor"]), int(row["renewed"]))
            groups.setdefault(key, []).append(row)
    out = []
    for (name, half, factor, renewed), group in sorted(groups.items()):
        values = {
            column: np.array([float(row[column]) for row in group])
            for column in ("stopped", "timing_s", "saved_s", "changed", "regret", "to_gain")
        }  # fmt: skip
        run_s = [float(row["run_s"]) for row in group if row.get("run_s")]
        out.append(
            {
                "set": name,
                "half": half,
                "factor": factor,
                "renewed": renewed,
                "tasks": len(group),
                "stopped": float(values["stopped"].mean()),
                "saved": float(values["saved_s"].sum() / values["timing_s"].sum()),
                "saved_s": float(values["saved_s"].mean()),
                "saved_of_run": float(values["saved_s"].sum() / sum(run_s)) if run_s else None,
                "changed": float(values["changed"].mean()),
                "regret": float(values["regret"].mean()),
                "worst_regret": float(values["regret"].max()),
                "to_gain": float(values["to_gain"].mean()),
            }
        )
    best = chosen_factor(out)
    return [{**row, "chosen": int(row["factor"] == best)} for row in out]


def chosen_factor(rows: Sequence[dict[str, Any]]) -> float | None:
    """The factor with the largest saving whose regret is small on the half for choosing."""
    good = [
        row
        for row in rows
        if (row["set"], row["half"], row["renewed"]) == ("all", CHOOSE, EACH)
        and row["regret"] <= MEAN_REGRET
        and row["worst_regret"] <= WORST_REGRET
    ]
    return max(good, key=lambda row: float(row["saved"]))["factor"] if good else None


class LiveRuns(Comparison):
    """Tune every operator both ways."""

    def __init__(self, options: Options) -> None:
        self.options = options
        super().__init__(Path(options.work).resolve(), ROOT, {"run": 30.0})

    def steps(self) -> Iterator[Step]:
        """Both runs of an operator and seed, one after the other; the first one alternates."""
        options = self.options
        for seed, operator in product(options.seeds, options.operators):
            for way in (ALL, FEWER) if seed % 2 == 0 else (FEWER, ALL):
                rule = [f"measure.stop_above={options.factor:g}", f"measure.finalists={FINALISTS}"]
                yield self.tuned(
                    cell(options, operator, way, seed),
                    [*OPERATORS[operator], *SETTINGS, *(rule if way == FEWER else ()),
                     f"budget.trials={options.trials}", f"seed={seed}"],
                    kind="run",
                )  # fmt: skip

    def races(self) -> Iterator[Job]:
        """A job a pair of finished runs: both best programs in turns."""
        options = self.options
        for seed, operator in product(options.seeds, options.operators):
            folders = [self.folder(operator, way, seed) for way in (ALL, FEWER)]
            if all(finished(folder / METRICS_FILE) for folder in folders):
                yield Job(
                    name=f"{operator} {seed}",
                    run=partial(race, folders),
                    leaves=self.runs / "races" / f"{operator}-{seed}.json",
                    about={
                        "operator": operator,
                        "seed": seed,
                        "trials": options.trials,
                        "factor": options.factor,
                    },
                )

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row a run; runs whose other run or race is missing have none."""
        for found in results(list(self.races())):
            operator, seed = found["about"]["operator"], found["about"]["seed"]
            costs_s = np.array(found["costs_s"])
            relative = paired_medians(costs_s)
            for number, way in enumerate((ALL, FEWER)):
                yield {
                    "operator": operator,
                    "seed": seed,
                    "way": way,
                    **live_row(self.folder(operator, way, seed)),
                    **replayed(self.folder(operator, way, seed), self.options.factor),
                    "raced_s": float(np.median(costs_s[number])),
                    "over_all": float(relative[number] / relative[0]),
                }

    def folder(self, operator: str, way: str, seed: int) -> Path:
        """The run folder of a cell."""
        return self.runs / "tune" / cell(self.options, operator, way, seed)


def cell(options: Options, operator: str, way: str, seed: int) -> str:
    """Name of a run, by all options that its command has."""
    factor = "" if way == ALL else f"-{options.factor:g}"
    return f"{operator}-{way.split()[0]}{factor}-{options.trials}-{seed}"


def replayed(folder: Path, factor: float) -> dict[str, Any]:
    """What the rule would have saved of a full run, and its choice."""
    rows = [row for row in of_run(folder) if (row["factor"], row["renewed"]) == (factor, EACH)]
    return {name: rows[0][column] if rows else None
            for name, column in (("rule_saves", "saved"), ("rule_changes", "changed"))}  # fmt: skip


def race(folders: Sequence[Path]) -> dict[str, Any]:
    """Time the best programs in turns; raises PrunerError if one did not run."""
    settings = MeasureSettings(timing=Timing(min_repeat_ms=30))
    platform, modules = this_cpu().platform, []
    for folder in folders:
        database = Database.read(folder)
        record, *_ = database.tvm_database.get_all_tuning_records()
        module = record.workload.mod
        (chosen,) = chosen_trials(folder, read_trials(folder / JOURNAL_FILE)).values() or [None]
        modules.append(best_module(database, module, platform.target, chosen))
    with DeviceMeasurer(platform, settings, Phases()) as measurer:
        outcomes = measurer.in_turns(modules, arguments(module), None, RACE_TURNS)
    if any(outcome.error is not None for outcome in outcomes):
        raise PrunerError(f"{folders[0]}: a best program of this run or its pair did not run")
    return {"costs_s": [list(outcome.costs_s) for outcome in outcomes]}


def live_row(folder: Path) -> dict[str, Any]:
    """Seconds and repeats of a run, and what its finalists changed.

    ``finalists_gain``: paired median of the best program of the search over that of the winner,
    less 1; 0 where the best program stays.
    """
    trials, metrics = read_trials(folder / JOURNAL_FILE), load_metrics(folder) or {}
    made = [len(row.costs_s) for row in trials if row.error is None]
    row: dict[str, Any] = {
        "trials": len(trials),
        "repeats": sum(made),
        "stopped": sum(number == 1 for number in made),
        "job_s": sum(row.run_s for row in trials),
        "timing_phase_s": metrics["seconds"]["run"],
        "total_s": metrics["total_seconds"],
        "search_best_s": min(row.latency_s for row in trials),
        "final_latency_s": metrics["best_latency_s"],
    }
    for finalists in read_finalists(folder).values():
        medians = paired_medians(np.array(finalists.costs_s))
        first = finalists.tried[0]
        kept = finalists.trials.index(first) if first in finalists.trials else None
        gain = 0.0 if kept is None else float(medians[kept] / medians[finalists.place] - 1)
        row |= {"finalists": len(finalists.trials), "finalists_gain": gain}
    return row


def network_rows(folder: Path) -> Iterator[dict[str, Any]]:
    """A row a task of a run with finalists whose best program of the search ran in the turns.

    ``search_ms``: the best latency of the search; ``again_ms``: the same program in the turns.
    """
    # of a run with variants, both forms have tasks
    places = forms(folder).values()
    weights = {task.name: task.weight for place in places for task in read_tasks(place / TASKS)}
    trials = {trial.trial: trial for trial in read_trials(folder / JOURNAL_FILE)}
    for name, found in read_finalists(folder).items():
        if found.tried[0] not in found.trials or name not in weights:  # an operator has no weight
            continue
        costs_s, first = np.array(found.costs_s), found.trials.index(found.tried[0])
        yield {
            "run": folder.name,
            "task": name,
            "weight": weights[name],
            "measured": sum(trial.task == name for trial in trials.values()),
            "programs": len(costs_s),
            "turns": costs_s.shape[1],
            "search_ms": 1e3 * trials[found.tried[0]].latency_s,
            "again_ms": 1e3 * float(np.median(costs_s[first])),
            "chosen": found.trials[found.place],
            "first": found.tried[0],
            "over_first": held_out(costs_s, first),
        }


def held_out(costs_s: Float[np.ndarray, "program turn"], first: int) -> float:
    """Latency of a choice over that of program `first`, in turns that did not choose.

    Every other turn chooses and the others judge, then the other way round: the geometric mean.
    """
    relative = costs_s / costs_s.mean(axis=0)
    halves = [np.median(relative[:, side::2], axis=1) for side in (0, 1)]
    ratios = [
        judge[np.argmin(choose)] / judge[first]
        for choose, judge in (halves, halves[::-1])
    ]  # fmt: skip
    return float(np.exp(np.mean(np.log(ratios))))


def run(options: Options) -> dict[str, Any]:
    """Write the tables that are asked for."""
    out = Path(options.out)
    if options.networks is not None:
        if options.live or options.runs is not None:
            raise PrunerError("networks= is a part of its own: leave live= and runs= out")
        found = sorted(path.parent for path in Path(options.networks).glob(f"*/{FINALISTS_FILE}"))
        rows = [row for folder in found for row in network_rows(folder)]
        if not rows:
            raise PrunerError(
                f"networks={options.networks}: no run in this folder has finalists of a network; "
                "tune networks with measure.finalists=6"
            )
        merged = merged_table(out / "networks.csv", rows, ("run", "task"))
        write_table(out / "networks.csv", merged, floats=".4g")
        say(as_table(rows))
        return {"tasks": len(rows), "out": str(out)}
    if options.live:
        if options.factor not in FACTORS:
            known = ", ".join(f"{factor:g}" for factor in FACTORS)
            raise PrunerError(f"factor={options.factor:g}: not in the tables; known: {known}")
        keep_tables(options, HERE, "factor", "trials")
        runs = LiveRuns(options)
        runs.run_all()
        rows = list(runs.rows())
        write_table(out / "live.csv", merged_table(out / "live.csv", rows, LIVE_KEY), floats=".5g")
        say(as_table(rows))
        return {"live": len(rows), "out": str(out)}
    fresh = [row for found in results(list(jobs(options))) for row in found]
    made = {row["task"] for row in fresh if row["set"] == RUNS}
    fresh += [  # rows of runs whose folders are not here
        row
        for row in read_table(out / "results.csv")
        if row["set"] == RUNS and row["task"] not in made
    ]
    write_table(out / "results.csv", fresh, floats=".4g")
    summary = summary_rows(fresh)
    write_table(out / "summary.csv", summary, floats=".4g")
    say(as_table([row for row in summary if row["renewed"] == EACH]))
    return {"rows": len(fresh), "factor": chosen_factor(summary), "out": str(out)}


if __name__ == "__main__":
    run_script(Options, run, __doc__)
