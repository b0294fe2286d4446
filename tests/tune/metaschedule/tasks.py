"""Targets and spaces of the tests; TVM is imported when they are asked for."""

from pruner.tune.metaschedule.session import MetaScheduleSession, MetaScheduleTask
from pruner.tune.tvm_import import load_tvm


def cpu(mcpu="haswell"):
    return load_tvm().tvm.target.Target({"kind": "llvm", "mcpu": mcpu, "num-cores": 2})


def opened(module, target):
    from tests.tune.metaschedule.fakes import ms

    context = ms.TuneContext(
        mod=module, target=target, space_generator="post-order-apply", num_threads=1, rand_state=1
    )
    session = MetaScheduleSession(platform=None, analyzer=None, model=None, seed=0)
    task = MetaScheduleTask.of(context)
    return session.open(task, task.designs(context.generate_design_space())), context
