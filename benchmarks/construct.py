"""Compare the construction with the draft: predicted time and CPU seconds of the first batch.

For operators of ``conf/workload`` on a CPU and on a GPU, ``policy=construct`` and the draft of
``policy=pruner_live`` propose 16 programs. Nothing is built or measured: the times of the programs
are the analyzer's predictions, so they compare the two searches, not the programs. The table is
written to ``results/construct.csv``; the last line is a JSON object.

    python benchmarks/construct.py
"""

import json
import time

import numpy as np
from gradient import RESULTS, opened

from pruner.files import write_table
from pruner.search.construct import ConstructSettings
from pruner.search.decision_search import decision_search
from pruner.tune.run.tune_options import LIVE

OPERATORS = (
    "matmul", "batch_matmul", "conv2d", "depthwise_conv2d", "grouped_conv2d", "pool", "softmax",
    "layer_norm",
)  # fmt: skip
POLICIES = {"construct": ConstructSettings(), "draft": LIVE}


def compared(platform: str, operator: str) -> dict[str, object]:
    """Return a row of the table."""
    space = opened(platform, operator)
    row: dict[str, object] = {"platform": platform, "operator": operator}
    for name, policy in POLICIES.items():
        search = decision_search(space, policy, space.draft_score, None, np.random.default_rng(0))
        start = time.process_time()
        candidates = search.propose(16)
        row[f"{name}_cpu_s"] = round(time.process_time() - start, 2)
        first = np.zeros((1, space.num_slots), np.int64)
        first[0, 0] = candidates[0].space
        first[0, 1 : 1 + len(candidates[0].decisions)] = candidates[0].decisions
        row[f"{name}_predicted_us"] = round(1e6 * float(np.exp(-space.draft_score(first)[0])), 2)
        space.clear_cache()
    return row


def main() -> None:
    """Write the table."""
    rows = [compared(platform, name) for platform in ("cpu-avx512", "a100") for name in OPERATORS]
    write_table(RESULTS / "construct.csv", rows)
    print(json.dumps({"rows": len(rows)}))


if __name__ == "__main__":
    main()
