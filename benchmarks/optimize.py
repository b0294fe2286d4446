"""Measure ``pruner.optimize`` on resnet18: seconds, memory, error, latency.

    python benchmarks/optimize.py                    effort=draft
    python benchmarks/optimize.py effort=quick threads=1

The module is the built-in network with random weights and one image.

* ``total_s``: seconds of the call;
* ``ours_s``, ``eager_s``: median seconds of calls in turns, in this process, with equal threads;
* ``deployed_s``: the latency that the run measured in a process of its own;
* ``error``: the largest difference from eager, divided by the largest output;
* ``self_mb``: the largest memory of this process; ``tree_mb``: of this process and all processes
  that it started, sampled twice a second (resident memory; shared pages count in each process);
* ``load``: processes that need a core, as the mean over a minute, before the call and before the
  end. On an idle machine the first value is near 0.

The last line is one JSON object. ``results/optimize.json`` has it, too, by the options.
"""

import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import Memory, earlier, resident

import pruner
from pruner.files import write_json
from pruner.models.checkpoint.checkpoint import git_commit
from pruner.tune.networks.source import NetworkSource, example_of

HERE = Path(__file__).resolve().parent
KEPT = HERE / "results" / "optimize.json"
CALLS = 30


def measured(effort: str, threads: int) -> dict[str, Any]:
    """Measure a call, and the network against eager torch."""
    module, ((image,), _) = example_of(NetworkSource(name="resnet18"))
    memory, load = Memory(resident, 0.5), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        network = pruner.optimize(
            module, (image,), effort=effort, threads=threads, folder=Path(folder) / "run"
        )
        total_s = time.perf_counter() - start
        tree_mb = memory.end() / 1e6
        torch.set_num_threads(threads)
        seconds: dict[str, list[float]] = {"ours": [], "eager": []}
        with torch.inference_mode():
            found, wanted = network(image), module(image)
            for _ in range(CALLS):
                for name, call in (("ours", network), ("eager", module)):
                    before = time.perf_counter()
                    call(image)
                    seconds[name].append(time.perf_counter() - before)
    return {
        "commit": git_commit(),
        "threads": threads,
        "total_s": total_s,
        "ours_s": float(np.median(seconds["ours"])),
        "eager_s": float(np.median(seconds["eager"])),
        "ours_least_s": min(seconds["ours"]),
        "eager_least_s": min(seconds["eager"]),
        "deployed_s": network.latency_s,
        "error": float((found - wanted).abs().max() / wanted.abs().max()),
        "self_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        "tree_mb": tree_mb,
        "load": [load, os.getloadavg()[0]],
    }


def main() -> None:
    """Measure once and store the result."""
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    effort = given.pop("effort", "draft")
    threads = int(given.pop("threads", len(os.sched_getaffinity(0))))
    if given:
        raise SystemExit(f"{min(given)}= is unknown; there are effort= and threads=")
    found = earlier(KEPT)
    found[f"effort={effort} threads={threads}"] = measured(effort, threads)
    write_json(KEPT, found, indent=1)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
