"""Speed of the draft on one core: candidates scored per CPU second, and one whole round.

Cases are skeletons of record files. A family round also moves the fetches and checks the 512
programs that leave it in full. The last line is a JSON object; ``ratio_min`` is the slowest case
against the floor of 50,000 a second.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

from pruner.data.quarantine import Quarantine
from pruner.data.tasks import read_tasks
from pruner.models.analyzer.analyzer import load_analyzer
from pruner.program.dag.task_index import find_dag
from pruner.program.te.skeleton import group_programs
from pruner.search.ansor_space.family import Family
from pruner.search.ansor_space.scores import DraftScore, FamilyScore, LegalPrograms
from pruner.search.explorer import ExplorerSettings, explore
from pruner.search.space import DecisionSpace

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT.parent / "shared" / "data" / "gpu-records" / "measure_records" / "v100"
CASES = {
    "conv2d": "conv2d_128_128_28_28_128_3_3_1_SAME",
    "conv2d_add_relu": "conv2d_add_relu_128_128_28_28_128_3_3_1_SAME",
    "matmul": "matmul_65536_1024_1024",
    "depthwise_conv2d": "depthwise_conv2d_128_168_42_42_3_3_1_SAME",
}
FLOOR_PER_S = 50_000
POPULATION, GENERATIONS = 2048, 10


def measure(path: Path) -> dict[str, float]:
    """Candidates per second (best of five) and seconds of a round, one case."""
    task = read_tasks(path, Quarantine())[0]
    dag = find_dag(task.workload_key, task.fused)
    skeleton = group_programs(task.steps)[0][0].skeleton
    start = time.process_time()
    space = DecisionSpace(dag, skeleton)
    score = DraftScore(dag, skeleton, load_analyzer(ROOT / "conf", "v100"))
    prepared_s = time.process_time() - start
    rng = np.random.default_rng(0)
    candidates = space.sample(POPULATION * 4, rng)
    score(candidates)
    best_s, round_s = np.inf, np.inf
    settings = ExplorerSettings(population=POPULATION, generations=GENERATIONS, keep=512)
    for _ in range(5):
        start = time.process_time()
        score(candidates)
        best_s = min(best_s, time.process_time() - start)
        start = time.process_time()
        explore(space, score, settings, rng)
        round_s = min(round_s, time.process_time() - start)
    family = Family(dag, skeleton)
    whole = DecisionSpace(dag, skeleton, family=family)
    members = FamilyScore(family, load_analyzer(ROOT / "conf", "v100"))
    check = LegalPrograms(family, load_analyzer(ROOT / "conf", "v100").device)
    explore(whole, members, settings, rng, legal=check)  # plans of members are made once
    start = time.process_time()
    explore(whole, members, settings, rng, legal=check)
    family_s = time.process_time() - start
    return {
        "scored_per_s": round(len(candidates) / best_s),
        "round_s": round(round_s, 4),
        "explored_per_s": round(POPULATION * (GENERATIONS + 1) / round_s),
        "family_round_s": round(family_s, 4),
        "prepare_s": round(prepared_s, 4),
    }


def main() -> None:
    """Run all cases."""
    results = {}
    for name, stem in CASES.items():
        path = RECORDS / f"{stem}.json.gz"
        if path.is_file():
            results[name] = measure(path)
            print(name, results[name], file=sys.stderr)
    slowest = min((r["scored_per_s"] for r in results.values()), default=0)
    line = {"cases": results, "floor_per_s": FLOOR_PER_S, "ratio_min": slowest / FLOOR_PER_S}
    print(json.dumps(line))


if __name__ == "__main__":
    main()
