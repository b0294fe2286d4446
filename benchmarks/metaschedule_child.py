"""Time MetaSchedule's per-store features, with TVM 0.27 installed.

``python metaschedule_child.py M OPERATOR-JSON``: samples M candidates of the operator's design
space for an NVIDIA V100, then times for each what scoring it costs: replaying its trace with the
postprocessors (``replay_s``) and extracting its features (``extract_s``), in CPU seconds. One JSON
line for each candidate.
"""

import importlib
import inspect
import json
import os
import sys
import time
from typing import Any

TARGET = "nvidia/nvidia-v100"
TRIES = 40  # random decisions that may fail for every candidate wanted


def quick_import(name: str) -> Any:
    """Import a module without the slow stacks of its decorators.

    They request the whole stack with source lines, which costs minutes; they use only file, line
    and function.
    """
    original = inspect.stack

    def stack(*_: object) -> list[inspect.FrameInfo]:
        frames, frame = [], sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            known = (code.co_filename, frame.f_lineno, code.co_name, None, None)
            frames.append(inspect.FrameInfo(frame, *known))
            frame = frame.f_back
        return frames

    inspect.stack = stack
    try:
        return importlib.import_module(name)
    finally:
        inspect.stack = original


def operator(tvm: Any, op: str, args: list[Any]) -> Any:
    """The operator as a module, defined as in the records (float32, NCHW)."""
    te = importlib.import_module("tvm.te")
    if op == "matmul_layer":
        m, k, n = args
        a, b = te.placeholder((m, k), name="A"), te.placeholder((k, n), name="B")
        r = te.reduce_axis((0, k), name="k")
        out = te.compute((m, n), lambda x, y: te.sum(a[x, r] * b[r, y], axis=r), name="C")
        tensors = [a, b, out]
    else:
        n, ci, h, w, co, kh, kw, stride, top = args
        data = te.placeholder((n, ci, h, w), name="data")
        kernel = te.placeholder((co, ci, kh, kw), name="kernel")
        shape = (n, ci, h + 2 * top, w + 2 * top)

        def inside(b: Any, c: Any, y: Any, x: Any) -> Any:
            tir = importlib.import_module("tvm.tirx")
            ok = tir.all(y >= top, y - top < h, x >= top, x - top < w)
            return tir.if_then_else(ok, data[b, c, y - top, x - top], tir.const(0.0, "float32"))

        padded = te.compute(shape, inside, name="pad") if top else data
        rc, ry, rx = (te.reduce_axis((0, e), name=f"r{e}") for e in (ci, kh, kw))
        oh, ow = ((s + 2 * top - k) // stride + 1 for s, k in ((h, kh), (w, kw)))
        out = te.compute(
            (n, co, oh, ow),
            lambda b, f, y, x: te.sum(
                padded[b, rc, y * stride + ry, x * stride + rx] * kernel[f, rc, ry, rx],
                axis=[rc, ry, rx],
            ),
            name="conv",
        )
        tensors = [data, kernel, out]
    return tvm.IRModule({"main": te.create_prim_func(tensors)})


def main() -> None:
    """Sample, then time."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    number, (op, *args) = int(sys.argv[1]), json.loads(sys.argv[2])
    tvm: Any = quick_import("tvm")
    quick_import("tvm.s_tir.tensor_intrin")
    ms: Any = quick_import("tvm.s_tir.meta_schedule")
    schedules: Any = importlib.import_module("tvm.s_tir")
    mod = operator(tvm, op, args)
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
