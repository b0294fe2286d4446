"""Check the relaxed scores, and compare gradient search with evolution and random search.

``results/gradient_check.csv``: relaxed scores against integer scores at random programs, and
derivatives against central differences beside these programs, where minima have no ties.

``results/gradient.csv``: the best score of the analyzer (minus the logarithm of the predicted
seconds) that the draft of ``policy=gradient`` finds, against evolution (`select` and `mutate` of
the explorer, 512 programs a generation) and random programs, both until the CPU seconds and until
the candidates of the gradient search. A candidate is a program that is scored or whose derivative
is computed. Nothing is built or measured. The last line is a JSON object.

    python benchmarks/gradient.py
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from pruner.files import write_table
from pruner.models.analyzer.analyzer import load_analyzer
from pruner.program.device import load_device
from pruner.search.decision_search import decision_search
from pruner.search.explorer import select
from pruner.search.gradient import Descent, DescentSettings
from pruner.tune.measure.machine import make_platform
from pruner.tune.phases import Phases
from pruner.tune.run.tune_options import LIVE
from pruner.tune.spaces.design import design_spaces
from pruner.tune.spaces.opening import open_spaces
from pruner.tune.workloads import from_operator

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PLATFORMS = ("cpu-avx2", "a100")
OPERATORS = (
    "matmul", "batch_matmul", "conv2d", "depthwise_conv2d", "pool", "layer_norm", "softmax",
)  # fmt: skip
SEEDS, PROGRAMS, STEP, POPULATION = 3, 1200, 1e-5, 512
SETTINGS = DescentSettings()


def opened(platform: str, operator: str) -> Any:
    """Open the design spaces of an operator of ``conf/workload``."""
    analyzer = load_analyzer(ROOT / "conf", platform)
    target = make_platform(load_device(ROOT / "conf" / "platform" / f"{platform}.yaml")).target
    text = (ROOT / "conf" / "workload" / f"{operator}.yaml").read_text(encoding="utf-8")
    designs = design_spaces(from_operator(yaml.safe_load(text)).module, target)
    return open_spaces(
        designs, name=operator, analyzer=analyzer, learns=False, phases=Phases(),
        log=lambda text: print(text, file=sys.stderr),
    )  # fmt: skip


def checked(platform: str, operator: str, num: int) -> dict[str, object]:
    """Check `num` programs of all spaces of a task."""
    space, rng = opened(platform, operator), np.random.default_rng(0)
    rows = space.sample(num, rng)
    wanted, errors, slopes, kinks = space.draft_score(rows), [0.0], [0.0], 0
    for number, one in enumerate(space.spaces):
        mine = np.flatnonzero(rows[:, 0] == number)
        vectors = rows[mine, 1 : 1 + one.num_slots]
        base = torch.as_tensor(vectors, dtype=torch.float64)
        moves = torch.zeros_like(base)
        for tile in one.tiling(space.analyzer.device).tiles:
            move = torch.as_tensor(rng.normal(size=(len(mine), len(tile.slots))))
            moves[:, tile.slots] = move - move.mean(1, keepdim=True)
        for some, scores in space.relaxed(number, vectors):
            found = scores(base)[0].numpy()
            there = wanted[mine[some]]
            legal = np.isfinite(there)
            errors += abs(found[legal] / there[legal] - 1).tolist()

            def along(length: Any, scores: Any = scores, base: Any = base, m: Any = moves) -> Any:
                return scores(base * torch.exp(length * m))[0]

            length = torch.tensor(0.03, dtype=torch.float64)
            slope = torch.autograd.functional.jvp(along, length, torch.ones_like(length))[1]
            ahead, here, behind = (along(length + d).detach() for d in (STEP, 0, -STEP))
            gap = abs((ahead - here) - (here - behind)) / STEP
            smooth = gap < 1e-2 * (1 + abs(slope))
            kinks += int((~smooth).sum())
            wrong = abs(slope - (ahead - behind) / (2 * STEP)) / (1 + abs(slope))
            slopes += wrong[smooth].tolist()
    return {
        "platform": platform, "operator": operator, "programs": len(slopes) - 1, "kinks": kinks,
        "score_error": max(errors), "derivative_error": max(slopes),
    }  # fmt: skip


def raced(space: Any, seed: int, seconds: float, candidates: int, *, evolve: bool) -> list[float]:
    """Best scores until the seconds are spent, and until the candidates are."""
    rng, start = np.random.default_rng(seed), time.process_time()
    population, best, scored = space.sample(POPULATION, rng), -np.inf, 0
    in_time = at_candidates = None
    while in_time is None or at_candidates is None:
        score = space.draft_score(population)
        left = candidates - scored
        if at_candidates is None and left <= len(score):
            at_candidates = max(best, score[:left].max())
        best, scored = max(best, score.max()), scored + len(score)
        if in_time is None and time.process_time() - start >= seconds:
            in_time = best
        if evolve:
            parents = population[select(score, POPULATION, rng)]
            changed = rng.random(POPULATION) < LIVE.verify.mutation_probability
            population = np.where(changed[:, None], space.mutate(parents, rng), parents)
        else:
            population = space.sample(POPULATION, rng)
    return [in_time, at_candidates]


def proposed(space: Any, policy: Any, seed: int) -> float:
    """CPU seconds of the first batch of 16."""
    search = decision_search(space, policy, space.draft_score, None, np.random.default_rng(seed))
    start = time.process_time()
    search.propose(16)
    return time.process_time() - start


def compared(platform: str, operator: str, seed: int) -> dict[str, object]:
    """Return a row of the table."""
    space, rng = opened(platform, operator), np.random.default_rng(seed)
    assert SETTINGS.draft is not None
    descent = Descent(space, SETTINGS, [one.tiling(space.analyzer.device) for one in space.spaces])
    start = time.process_time()
    first = space.sample(SETTINGS.draft.population, rng)
    found = descent.explore(space.draft_score, SETTINGS.draft, rng, first, np.zeros(0, np.int64))
    seconds = time.process_time() - start
    space.clear_cache()
    evolved = raced(space, seed, seconds, found.scored, evolve=True)
    random = raced(space, seed, seconds, found.scored, evolve=False)
    numbers = {
        "batch_s": proposed(space, SETTINGS, seed), "draft_batch_s": proposed(space, LIVE, seed),
        "seconds": seconds, "gradient": found.score[0], "evolution_in_time": evolved[0],
        "random_in_time": random[0], "evolution_alike": evolved[1], "random_alike": random[1],
    }  # fmt: skip
    return {
        "platform": platform, "operator": operator, "seed": seed, "candidates": found.scored,
        **{name: round(float(number), 4) for name, number in numbers.items()},
    }  # fmt: skip


def main() -> None:
    """Write both tables, after every row."""
    cases = [(platform, operator) for operator in OPERATORS for platform in PLATFORMS]
    # MetaSchedule's spaces of pooling and of row reductions on GPUs have no tiles.
    tiled = [case for case in cases if case[0] != "a100" or case[1] in OPERATORS[:4]]
    checks: list[dict[str, object]] = []
    for case in tiled:
        checks.append(checked(*case, -(-PROGRAMS // len(tiled))))
        write_table(RESULTS / "gradient_check.csv", checks)
    rows: list[dict[str, object]] = []
    for case in cases:
        for seed in range(SEEDS):
            rows.append(compared(*case, seed))
            write_table(RESULTS / "gradient.csv", rows)
    print(json.dumps({"rows": len(rows), "programs": sum(int(str(x["programs"])) for x in checks)}))


if __name__ == "__main__":
    main()
