"""Compare the construction with the draft: predicted time and CPU seconds of the first batch.

For operators of ``conf/workload`` on a CPU and on a GPU, ``policy=construct`` and the draft of
``policy=pruner_live`` propose 16 programs. Nothing is built or measured: the times of the programs
are the analyzer's predictions, so they compare the two searches, not the programs. The table is
written to ``results/construct.csv``; the last line is a JSON object.

    python benchmarks/construct.py
"""

import csv
import json
import time
from pathlib import Path

import numpy as np
import yaml

from pruner.models.analyzer.analyzer import load_analyzer
from pruner.program.device import load_device
from pruner.search.construct import ConstructSettings
from pruner.search.decision_search import decision_search
from pruner.tune.measure.machine import make_platform
from pruner.tune.phases import Phases
from pruner.tune.run.tune_options import LIVE
from pruner.tune.spaces.design import design_spaces
from pruner.tune.spaces.opening import open_spaces
from pruner.tune.workloads import from_operator

CONF = Path(__file__).resolve().parents[1] / "conf"
OPERATORS = (
    "matmul", "batch_matmul", "conv2d", "depthwise_conv2d", "grouped_conv2d", "pool", "softmax",
    "layer_norm",
)  # fmt: skip
POLICIES = {"construct": ConstructSettings(), "draft": LIVE}


def compared(platform: str, operator: str) -> dict[str, object]:
    """Return a row of the table."""
    analyzer = load_analyzer(CONF, platform)
    target = make_platform(load_device(CONF / "platform" / f"{platform}.yaml")).target
    text = (CONF / "workload" / f"{operator}.yaml").read_text(encoding="utf-8")
    designs = design_spaces(from_operator(yaml.safe_load(text)).module, target)
    space = open_spaces(
        designs, name=operator, analyzer=analyzer, learns=False, phases=Phases(), log=print
    )
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
    path = Path(__file__).parent / "results" / "construct.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(json.dumps({"rows": len(rows)}))


if __name__ == "__main__":
    main()
