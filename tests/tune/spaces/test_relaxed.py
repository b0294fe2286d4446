"""Relaxed scores against integer scores, at and beside the anchors, and finite differences."""

from itertools import product

import numpy as np
import pytest
import torch

from pruner.models.analyzer.analyzer import load_analyzer
from pruner.models.analyzer.derivatives import relaxed_scores
from pruner.program.relaxed import FormulaNode, RelaxedDecisions, in_order
from pruner.program.tir.apply_trace import apply_groups
from pruner.program.tir.lower import lower
from pruner.tune.spaces.batched.space import BatchedSpace
from tests.paths import CONF
from tests.tune.designs import designs_of
from tests.tune.some_slow import some_slow
from tests.tune.targets import TARGETS

pytestmark = pytest.mark.tvm

IMAGE = {"n": 1, "h": 16, "w": 16, "kh": 3, "kw": 3, "stride": 1, "padding": 1}
SIZES = {
    "matmul": {"m": 64, "n": 128, "k": 64},
    "batch_matmul": {"batch": 4, "m": 32, "n": 32, "k": 64},
    "conv2d": IMAGE | {"ci": 16, "co": 32},
    "depthwise_conv2d": IMAGE | {"c": 32},
    "grouped_conv2d": IMAGE | {"ci": 16, "co": 32, "groups": 2},
    "softmax": {"rows": 32, "columns": 64},
    "half": {"operator": "matmul", "m": 64, "n": 128, "k": 64, "dtype": "float16"},
}
BANKS = {0, 1, 2, 4, 8, 16, 32}
# MetaSchedule's spaces of row reductions on GPUs have no tiles; half: on tensor cores
LEFT_OUT = {("a100", "softmax"), ("cpu-avx2", "half")}
# each operator with one of the platforms, matmul with both
SLOW = {("cpu-avx2", "grouped_conv2d"), ("cpu-avx2", "depthwise_conv2d")}
SLOW |= {("a100", "batch_matmul"), ("a100", "conv2d")}
CASES = set(product(("cpu-avx2", "a100"), SIZES)) - LEFT_OUT - SLOW


def opened(platform, operator):
    designs = designs_of({"operator": operator} | SIZES[operator], TARGETS[platform])
    return BatchedSpace(designs[0], probes=1), load_analyzer(CONF, platform)


@some_slow(("platform", "operator"), sorted(CASES), sorted(SLOW))
def test_scores_equal_the_integer_scores_and_derivatives_the_finite_differences(platform, operator):
    space, analyzer = opened(platform, operator)
    rng = np.random.default_rng(0)
    rows = space.sample(8, rng)
    wanted = space.draft_score(rows, analyzer)
    tiles = space.tiling(analyzer.device).tiles
    base = torch.as_tensor(rows, dtype=torch.float64)
    checked = kinks = 0
    groups = space.relaxed(rows, analyzer)
    assert sum(len(some) for some, _ in groups) == len(rows)
    for some, scores in groups:
        found, _ = scores(base)
        legal = np.isfinite(wanted[some])
        np.testing.assert_allclose(found.numpy()[legal], wanted[some][legal], rtol=1e-12)

        # beside the anchors, where minima have no ties: a loop's factors move, not their product
        moves = torch.zeros_like(base)
        for tile in tiles:
            step = torch.as_tensor(rng.normal(size=(len(rows), len(tile.slots))))
            moves[:, tile.slots] = step - step.mean(1, keepdim=True)

        def along(length, moves=moves, scores=scores):
            return scores(base * torch.exp(length * moves))[0]

        length = torch.tensor(0.03, dtype=torch.float64)
        _, slope = torch.autograd.functional.jvp(along, length, torch.ones_like(length))
        step = 1e-5
        ahead, here, behind = (along(length + d) for d in (step, 0, -step))
        sides = torch.stack([(ahead - here) / step, (here - behind) / step])
        smooth = (sides[0] - sides[1]).abs() < 1e-2 * (1 + slope.abs())
        kinks += int((~smooth).sum())
        wrong = (slope - (ahead - behind) / (2 * step)).abs() / (1 + slope.abs())
        assert wrong[smooth].max() < 1e-6
        checked += int(smooth.sum())
    assert checked > 3 * kinks


def moved(rows, tiles, rng):
    """Move a prime factor inside a tile of every row, where no factor is or becomes 1."""
    out = rows.copy()
    for row in out:
        for number in rng.permutation(len(tiles)):
            tile = tiles[number]
            factors = row[tile.slots]
            give, take = rng.permutation(len(factors))[:2] if len(factors) > 1 else (0, 0)
            if give != take and factors[give] % 4 == 0 and factors[take] > 1:
                row[tile.slots[give]] //= 2
                row[tile.slots[take]] *= 2
                break
    return out


@some_slow(
    ("operator", "platform"),
    [("matmul", "cpu-avx2"), ("matmul", "a100"), ("conv2d", "a100")],
    [("conv2d", "cpu-avx2")],
)
def test_formulas_follow_every_number_that_depends_on_tiles(platform, operator):
    """No number is a constant that differs between two programs of one structure."""
    space, analyzer = opened(platform, operator)
    rng = np.random.default_rng(1)
    tiles = space.tiling(analyzer.device).tiles
    first = space.sample(256, rng)
    second = moved(first, tiles, rng)
    changed = np.flatnonzero((first != second).any(axis=1))[:32]
    rows = np.concatenate([first[changed], second[changed]])
    slots = {slot for tile in tiles for slot in tile.slots}
    exact = 0
    for some, tree in apply_groups(space.program, RelaxedDecisions.of(rows, slots))[0]:
        place = {row: number for number, row in enumerate(some.tolist())}
        pairs = [(place[r], place[r + len(changed)]) for r in place if r + len(changed) in place]
        from_, to = np.array(pairs, np.int64).reshape(-1, 2).T
        nests = lower(tree)
        score = -np.log(analyzer.latency_s(analyzer.symbols(nests)))
        nodes = [node for node in in_order([score.formula]) if node.operation != "round"]
        for node in nodes:
            for constant in node.arguments:
                if isinstance(constant, FormulaNode) or constant.shape[-1:] != some.shape:
                    continue
                # lanes whose banks collide: the greatest common divisor of a step and 32
                if analyzer.device.kind == "gpu" and set(np.unique(constant)) <= BANKS:
                    continue
                one, other = constant[..., from_], constant[..., to]
                masked = (one == 0) | (other == 0)  # where only one program has the term
                np.testing.assert_array_equal(one[~masked], other[~masked], node.operation)
        there = np.array(rows, np.float64)
        there[some[from_]] = rows[some[to]]
        scores = relaxed_scores(nests, analyzer)(torch.as_tensor(there))[0].numpy()
        exact += int((abs(scores[from_] - np.asarray(score)[to]) < 1e-9).sum())
    # many pairs have the same structure: then the formula of one gives the score of the other
    assert exact >= len(changed) // 8
