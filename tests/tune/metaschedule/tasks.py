"""Targets and spaces of the tests; TVM is imported when they are asked for."""

from pruner.tune.metaschedule.session import MetaScheduleSession, MetaScheduleTask
from pruner.tune.tvm_import import load_tvm
from tests.tune.targets import target_of


def cpu(mcpu="haswell"):
    return target_of({"kind": "llvm", "mcpu": mcpu, "num-cores": 2})


def opened(module, target):
    ms = load_tvm().meta_schedule
    context = ms.TuneContext(
        mod=module, target=target, space_generator="post-order-apply", num_threads=1, rand_state=1
    )
    session = MetaScheduleSession(platform=None, analyzer=None, model=None, seed=0)
    task = MetaScheduleTask.of(context)
    return session.open(task, task.designs(context.generate_design_space())), context
