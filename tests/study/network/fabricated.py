"""A run folder of a network as commands leave it, without TVM."""

import json

TASKS = {"conv_a": (2, 3.0e6, 0.6), "dense_b": (1, 4.0e6, 0.4), "copy_c": (3, 0.0, 0.0)}


def trial(number, task, latency_s, elapsed_s, error=None):
    return {
        "task": task, "trial": number, "batch": 1, "position": number, "space": 0,
        "decisions": [1], "costs_s": [] if error else [latency_s], "error": error, "message": "",
        "build_s": 0.1, "run_s": 0.1, "elapsed_s": elapsed_s, "timestamp": 0.0,
    }  # fmt: skip


def fabricate(folder, trials, *, contenders=None, total_s=40.0):
    """`trials`: (task, latency_s, elapsed_s) each; `contenders` go into ``beside.json``."""
    folder.mkdir(parents=True)
    rows = [trial(n, *row) for n, row in enumerate(trials, 1)]
    (folder / "trials.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tasks = [
        {"name": name, "key": "0", "weight": weight, "flops": flops, "share": share,
         "shapes": [[[1, 3, 8, 8], "float32"], [[8], "float32"]], "module": "unread"}
        for name, (weight, flops, share) in TASKS.items()
    ]  # fmt: skip
    (folder / "tasks.json").write_text(json.dumps(tasks))
    best = {task: min(row[1] for row in trials if row[0] == task) for task, *_ in trials}
    metrics = {
        "trials": len(trials),
        "failed": 0,
        "total_seconds": total_s,
        "seconds": {"build": 0.75 * total_s, "run": 0.25 * total_s},
        "tasks": {
            name: {
                "best_latency_s": best_s,
                "untuned_latency_s": 9e-3,
                "weight": TASKS[name][0],
                "trials": sum(row[0] == name for row in trials),
                "failures": {},
            }
            for name, best_s in best.items()
        },
    }
    (folder / "metrics.json").write_text(json.dumps(metrics))
    (folder / "config.yaml").write_text(
        "# tune.py network=tiny seed=7\nnetwork: tiny\nseed: 7\nplatform: {name: cpu-avx2}\n"
    )
    if contenders is not None:
        beside = {"threads": 2, "reference": "eager", "contenders": contenders}
        (folder / "beside.json").write_text(json.dumps(beside))
    return folder


def contender(name, median_s, **more):
    row = {"name": name, "label": name, "error": None, "median_s": median_s, "min_s": median_s / 2,
           "low_s": median_s * 0.75, "high_s": median_s * 2, "runs": 5, "relative_error": 1e-6,
           "facts": {"ready_s": 3.0}}  # fmt: skip
    return {**row, **more}
