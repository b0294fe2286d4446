"""The child process that measures finished records once more, to see how well they repeat.

Runs inside the Ansor environment as ``python -m pruner.tune.collect.remeasure SPEC`` with a JSON
list of records on stdin; writes a JSON list with the new costs in seconds of each to stdout.
"""

from __future__ import annotations

import json
import logging
import sys

import numpy as np

from pruner.tune.collect.spec import WorkerSpec
from pruner.tune.collect.worker import make_task, measure, resume


def main() -> None:
    """Measure the given records in the given order."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    spec = WorkerSpec.from_json(sys.argv[1])
    task = make_task(spec)
    entries = [{"origin": "random", "record": record} for record in json.load(sys.stdin)]
    rng = np.random.default_rng(spec.seed)
    costs = [
        [float(cost.value) for cost in measure(spec, task, known.state, rng).costs]
        for known in resume(task, entries).inputs
    ]
    sys.stdout.write(json.dumps(costs) + "\n")


if __name__ == "__main__":
    main()
