"""Time MetaSchedule's per-store features, with TVM 0.27 installed.

``python metaschedule_child.py M OPERATOR-JSON``: samples M candidates of the operator's design
space for an NVIDIA V100, then times for each what scoring it costs: replaying its trace with the
postprocessors (``replay_s``) and extracting its features (``extract_s``), in CPU seconds. One JSON
line for each candidate.
"""

import importlib
import json
import os
import sys
import time
from typing import Any

from pruner.program.dag.operators import te_tensors
from pruner.tune.tvm_import import quick_stacks

TARGET = "nvidia/nvidia-v100"
TRIES = 40  # random decisions that may fail for every candidate wanted


def main() -> None:
    """Sample, then time."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    number = int(sys.argv[1])
    with quick_stacks():
        tvm: Any = importlib.import_module("tvm")
        importlib.import_module("tvm.s_tir.tensor_intrin")
        ms: Any = importlib.import_module("tvm.s_tir.meta_schedule")
    schedules: Any = importlib.import_module("tvm.s_tir")
    te, topi = importlib.import_module("tvm.te"), importlib.import_module("tvm.topi")
    mod = tvm.IRModule({"main": te.create_prim_func(te_tensors(te, topi, sys.argv[2]))})
    context = ms.TuneContext(
        mod=mod, target=tvm.target.Target(TARGET), space_generator="post-order-apply", num_threads=1
    )
    spaces = context.generate_design_space()
    postprocs = list(context.space_generator.postprocs)
    extractor = ms.feature_extractor.PerStoreFeature()

    def replay(trace: Any, seed: int) -> Any:
        schedule = schedules.Schedule(mod, seed=seed, debug_mask=0, error_render_level="none")
        trace.apply_to_schedule(schedule, remove_postproc=True)
        schedule.enter_postproc()
        # The GPU check comes last. It refuses nearly all random conv2d schedules, and features
        # cost the same for those, so its time counts and its verdict does not.
        *rewrites, check = postprocs
        kept = all(p.apply(schedule) for p in rewrites)
        check.apply(schedule)
        return schedule if kept else None

    found: list[Any] = []
    for seed in range(1, number * TRIES):
        space = spaces[seed % len(spaces)].trace
        fresh = schedules.Trace(space.insts, {})
        try:
            schedule = replay(fresh, seed)
        except Exception:  # decisions that cannot be applied; TVM raises many kinds
            continue
        if schedule is not None:
            found.append(schedule.trace)
        if len(found) == number:
            break
    for seed, trace in enumerate(found, start=1):
        start = time.process_time()
        schedule = replay(trace, seed)
        replayed = time.process_time()
        candidate = ms.MeasureCandidate(schedule, [])
        (rows,) = extractor.extract_from(context, [candidate])
        done = time.process_time()
        times = {"replay_s": replayed - start, "extract_s": done - replayed}
        print(json.dumps(times | {"rows": int(rows.shape[0])}), file=out, flush=True)


if __name__ == "__main__":
    main()
