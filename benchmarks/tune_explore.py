"""Time an exploration round: draft-then-verify against TVM's own search.

The round is for an A100 or a CPU. Both searches have 64 measured programs (made-up latencies),
consider the same number of candidates (a population of 512 and four generations), choose 64
programs and instantiate them. TVM scores with its XGBoost model; this project drafts with the
analyzer and verifies with PaCM. The time of fitting does not count. Times are CPU seconds on one
core, so other work on the machine does not count; no GPU is needed. The last line is a JSON object.
``ratio_min`` is the smallest ratio of TVM's seconds to ours.

    python benchmarks/tune_explore.py [a100/matmul] [cpu-avx512/conv2d] ...

Results of cases that are not named stay in the results file.
"""

import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pruner.data.tasks import TaskKey
from pruner.files import write_json
from pruner.models.adaptation.base import Setting
from pruner.models.adaptation.warm import Scratch
from pruner.models.analyzer.analyzer import load_analyzer
from pruner.models.networks.pacm import PaCM
from pruner.program.device import load_device
from pruner.search.decision_search import DecisionSearch
from pruner.search.explorer import ExplorerSettings
from pruner.search.policy import DraftThenVerify, RoundSettings
from pruner.search.space import History
from pruner.tune.measure.machine import make_platform
from pruner.tune.measure.measurer import Outcome
from pruner.tune.phases import Phases
from pruner.tune.run.learning import AdaptedModel, LiveLearner, SharedModel
from pruner.tune.spaces.batched.space import BatchedSpace
from pruner.tune.spaces.design import design_spaces
from pruner.tune.spaces.union import UnionSpace
from pruner.tune.tvm_import import load_tvm
from pruner.tune.workloads import Workload, from_operator

CONF = Path(__file__).resolve().parents[1] / "conf"
OPERATORS: dict[str, dict[str, Any]] = {
    "matmul": {"operator": "matmul", "m": 1024, "n": 1024, "k": 1024, "epilogue": ["relu"]},
    "conv2d": {
        "operator": "conv2d", "n": 1, "ci": 64, "h": 56, "w": 56, "co": 64, "kh": 3, "kw": 3,
        "stride": 1, "padding": 1,
    },
    "layer_norm": {"operator": "layer_norm", "rows": 128, "columns": 768},
    "matmul_half": {
        "operator": "matmul", "m": 1024, "n": 1024, "k": 1024, "epilogue": ["relu"],
        "dtype": "float16",
    },
    "batch_matmul_half": {
        "operator": "batch_matmul", "batch": 12, "m": 128, "n": 128, "k": 64, "dtype": "float16",
    },
}  # fmt: skip
FLOORS = {"a100": 50, "cpu-avx512": 20}
CASES = [f"a100/{name}" for name in OPERATORS]  # halves on its tensor cores
CASES += [f"cpu-avx512/{name}" for name in OPERATORS if not name.endswith("half")]
GOAL = 100
POPULATION, GENERATIONS, CHOSEN = 512, 4, 64
CONSIDERED = POPULATION * (1 + GENERATIONS)
ROUND = RoundSettings(
    draft=ExplorerSettings(population=POPULATION, generations=GENERATIONS, keep=512),
    random_sample=CHOSEN,
    redraft_period=1,
    verify=ExplorerSettings(population=1536, generations=0, keep=64),
)
KEPT = Path(__file__).parent / "results" / "tune_explore.json"


def made_up_latency_s(rng: np.random.Generator, num: int) -> np.ndarray:
    """Random latencies [num] (seconds), on which the timed work does not depend."""
    return 1e-3 * rng.uniform(1, 10, num)


def ours(workload: Workload, target: Any, platform: str) -> dict[str, float]:
    """CPU seconds of a round after the first batch, and of preparation.

    Preparation happens once a task.
    """
    phases, rng = Phases(), np.random.default_rng(0)
    start = time.process_time()
    spaces = [BatchedSpace(design) for design in design_spaces(workload.module, target)]
    space = UnionSpace(spaces, phases, load_analyzer(CONF, platform))
    prepared_s = time.process_time() - start
    model = AdaptedModel(Scratch(Setting(make_network=partial(PaCM))))
    key = TaskKey(platform=platform, task=workload.name, workload_key="[]", target="")
    learner = LiveLearner(key, space, SharedModel(model), phases, rng)
    policy = DraftThenVerify(space, space.draft_score, learner, ROUND, rng)
    search = DecisionSearch(space, policy, History(space))
    first = search.propose(CHOSEN)
    latency_s = made_up_latency_s(rng, len(first))
    search.observe(first, [Outcome(costs_s=(float(value),)) for value in latency_s])
    search.propose(1)  # fits the model; without news the next proposal does not
    start = time.process_time()
    chosen = search.propose(CHOSEN)
    seconds = time.process_time() - start
    return {"cpu_s": seconds, "prepare_s": prepared_s, "chosen": len(chosen)}


def theirs(workload: Workload, target: Any) -> dict[str, float]:
    """CPU seconds of TVM's round after a first batch."""
    ms, rng = load_tvm().meta_schedule, np.random.default_rng(0)
    search = ms.search_strategy.EvolutionarySearch(
        population_size=POPULATION, genetic_num_iters=GENERATIONS
    )
    model = ms.cost_model.XGBModel(num_warmup_samples=1, num_tuning_cores=1)
    context = ms.TuneContext(
        mod=workload.module, target=target, space_generator="post-order-apply",
        search_strategy=search, num_threads=1, rand_state=1,
    )  # fmt: skip
    designs = context.generate_design_space()
    strategy = context.search_strategy
    strategy.pre_tuning(10 * CHOSEN, CHOSEN, designs, ms.database.MemoryDatabase(), model)
    first = strategy.generate_measure_candidates()
    result = ms.runner.RunnerResult
    results = [result([float(value)], None) for value in made_up_latency_s(rng, len(first))]
    strategy.notify_runner_results(first, results)
    model.update(context, first, results)
    start = time.process_time()
    chosen = strategy.generate_measure_candidates()
    return {"cpu_s": time.process_time() - start, "chosen": len(chosen)}


def main() -> None:
    """Run the cases that are named, or all."""
    torch.set_num_threads(1)
    cases = json.loads(KEPT.read_text(encoding="utf-8"))["cases"] if KEPT.is_file() else {}
    asked = sys.argv[1:] or CASES
    if unknown := set(asked) - set(CASES):
        raise SystemExit(f"nothing is called {min(unknown)}; there are {', '.join(CASES)}")
    for name in asked:
        platform, _, operator = name.partition("/")
        target = make_platform(load_device(CONF / "platform" / f"{platform}.yaml")).target
        workload = from_operator(OPERATORS[operator])
        mine, tvm = ours(workload, target, platform), theirs(workload, target)
        ratio, floor = tvm["cpu_s"] / mine["cpu_s"], FLOORS[platform]
        cases[name] = {"ours": mine, "metaschedule": tvm, "ratio": ratio, "floor": floor}
        print(name, cases[name], file=sys.stderr, flush=True)
        ratios = [case["ratio"] for case in cases.values()]
        line = {"cases": cases, "considered": CONSIDERED, "goal": GOAL, "ratio_min": min(ratios)}
        write_json(KEPT, line, indent=1)
    print(json.dumps(line))


if __name__ == "__main__":
    main()
