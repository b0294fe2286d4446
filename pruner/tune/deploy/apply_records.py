"""Apply records to a lowered network, measured before drafted, and count.

TVM looks a function up by its structural hash and silently leaves it unchanged without a record;
and it accepts records of any target. So applied records are counted here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pruner.errors import PrunerError
from pruner.tune.networks.lowering import REDUCTION
from pruner.tune.networks.network_tasks import task_key
from pruner.tune.networks.rewrites.operators import functions_of
from pruner.tune.run.database import RECORDS, Database, foreign_target
from pruner.tune.tvm_import import load_intrinsics, load_tvm
from pruner.tune.workloads import normalised

_THREADS = 256  # of a block that no rule schedules
_ALONE = ("global_symbol", "main")  # as TVM extracts a function


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """Counts of scheduled tasks by source, and unscheduled functions.

    ``by_rules``: tasks with a schedule of TVM's rules, on GPUs only. A task is a distinct function,
    however often it is called.
    """

    by_source: Mapping[str, int]
    by_rules: int
    untouched: Sequence[str]


def recorded_keys(folder: Path, target: Any) -> set[str]:
    """List the keys of tasks with records; raise `PrunerError` for another target's."""
    if not (folder / RECORDS).is_file():
        return set()
    records = Database.read(folder).tvm_database.get_all_tuning_records()
    other = foreign_target(records, target)
    if other is not None:
        raise PrunerError(
            f"{folder}: holds records of another target, {other}; the network is built for "
            f"{target}; give each target its own folder"
        )
    return {task_key(record.workload.mod) for record in records}


def keys_of(module: Any) -> dict[str, str]:
    """Compute the task key of every TIR function of a network."""
    tvm = load_tvm().tvm
    return {
        name: task_key(normalised(tvm.IRModule({"main": function.with_attr(*_ALONE)})))
        for name, function in _functions(module).items()
    }


def check_tasks(found: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Check that keys `found`, by function, equal the keys of tuned tasks, by task.

    Raises `PrunerError`: they differ, so records would be lost; the message names them.
    """
    lost = sorted(name for name, key in wanted.items() if key not in found.values())
    new = sorted(name for name, key in found.items() if key not in wanted.values())
    if lost or new:
        what = [f"{len(lost)} tuned tasks are gone ({', '.join(lost[:3])})"] if lost else []
        what += [f"{len(new)} functions are new ({', '.join(new[:3])})"] if new else []
        raise PrunerError(
            f"the network is not the one that was tuned: {'; '.join(what)}; its definition, or the "
            "versions of torch or TVM, have changed since: tune it again"
        )


def apply_records(
    module: Any, target: Any, sources: Mapping[str, Path], *, by_rules: bool
) -> tuple[Any, Applied]:
    """Schedule by the databases of `sources`; the first has precedence.

    ``by_rules``: use TVM's rules for the rest, without which no GPU builds it. Raises
    `PrunerError`: a record was not applied, or is of another target.
    """
    keys, counts, done = keys_of(module), dict[str, int](), set[str]()
    for name, folder in sources.items():
        recorded = recorded_keys(folder, target) & set(keys.values())
        if recorded:
            module = _applied(module, target, folder)
        # a scheduled function has another hash: no later database finds it
        scheduled = {keys[function] for function in _scheduled(module)}
        if recorded - scheduled:
            lost = sorted(f for f, key in keys.items() if key in recorded - scheduled)
            raise PrunerError(
                f"{folder}: TVM did not apply the records of {', '.join(lost[:3])} "
                f"({len(recorded - scheduled)} of {len(recorded)} tasks); "
                "the database is damaged or of another version of TVM"
            )
        counts[name], done = len(scheduled - done), scheduled
    if by_rules:
        module = _by_rules(module, target)
    now = set(_scheduled(module))
    others = len({keys[function] for function in now} - done)
    untouched = sorted(set(keys) - now)
    return module, Applied(by_source=counts, by_rules=others, untouched=untouched)


def _applied(module: Any, target: Any, folder: Path) -> Any:
    tvm = load_tvm().tvm
    passes = load_tvm().relax.transform
    database = Database.read(folder).tvm_database
    load_intrinsics(target)
    with target, database, tvm.transform.PassContext(opt_level=3):
        return passes.MetaScheduleApplyDatabase()(module)


def _by_rules(module: Any, target: Any) -> Any:
    """Schedule the remaining functions by DLight, or by threads only where no rule fits."""
    tvm, dlight = load_tvm().tvm, load_tvm().s_tir.dlight
    passes, rules = load_tvm().relax.transform, dlight.gpu
    kinds = (rules.Matmul, rules.GEMV, rules.Reduction, rules.GeneralReduction, rules.Fallback)
    steps = [
        passes.RewriteDataflowReshape(),  # views need no schedule
        passes.DeadCodeElimination(),
        dlight.ApplyDefaultSchedule(*[kind() for kind in kinds]),
    ]
    with target:
        module = tvm.transform.Sequential(steps)(module)
    for name in set(_functions(module)) - set(_scheduled(module)):
        module[name] = _threaded(module[name])
    return module


def _threaded(function: Any) -> Any:
    """Make every block a kernel, with spatial loops shared among threads.

    TVM's pass for it, ``DefaultGPUSchedule``, fails on any function with a root block in 0.27, and
    DLight leaves out blocks that simplification bound to constants.
    """
    tvm, s_tir = load_tvm().tvm, load_tvm().s_tir
    schedule = s_tir.Schedule(tvm.IRModule({"main": function}))
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        kinds = [int(axis.iter_type) for axis in schedule.get(block).iter_vars]
        spatial = kinds.index(REDUCTION) if REDUCTION in kinds else len(kinds)
        # reductions stay serial in a thread: correct for any block, which is all that is needed
        # here
        loops = schedule.get_loops(block)[:spatial] or [schedule.add_unit_loop(block)]
        outer, inner = schedule.split(schedule.fuse(*loops), [None, _THREADS])
        schedule.bind(outer, "blockIdx.x")
        schedule.bind(inner, "threadIdx.x")
    # otherwise later passes take the function for an unscheduled one
    return schedule.mod["main"].with_attr("tirx.is_scheduled", True)


def _functions(module: Any) -> dict[str, Any]:
    return {var.name_hint: function for var, function in functions_of(module).items()}


def _scheduled(module: Any) -> list[str]:
    return [
        name
        for name, function in _functions(module).items()
        if function.attrs is not None and "tirx.is_scheduled" in function.attrs
    ]
