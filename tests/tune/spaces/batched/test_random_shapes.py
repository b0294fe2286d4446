"""Products and convolutions of shapes nobody chose: programs and verdicts are those of TVM."""

import numpy as np
import pytest

from pruner.errors import PrunerError
from pruner.tune.spaces.batched.space import BatchedSpace
from tests.tune import tir_truth as truth
from tests.tune.designs import designs_of, kind_of
from tests.tune.targets import A100, AVX512

pytestmark = pytest.mark.tvm


def product(rng):
    """Any extents; half of the time such as spaces of ``mma`` take."""
    m, n, k = (int(size) for size in rng.integers(17, 300, 3))
    if rng.random() < 0.5:
        m, n = 32 * (1 + m // 32), 32 * (1 + n // 32)
    epilogue = [[], ["relu"], ["bias"]][rng.integers(3)]
    return {"operator": "matmul", "m": m, "n": n, "k": k, "epilogue": epilogue}


def window(rng):
    """A square image under a square window."""
    size, stride = int(rng.integers(7, 30)), int(rng.integers(1, 3))
    width = int(rng.choice([1, 3]))
    ci, co = (int(channels) for channels in rng.integers(3, 80, 2))
    return {
        "operator": "conv2d", "n": 1, "ci": ci, "h": size, "w": size, "co": co, "kh": width,
        "kw": width, "stride": stride, "padding": width // 2,
        "epilogue": [[], ["relu"], ["bias", "relu"]][rng.integers(3)],
    }  # fmt: skip


def designs(rng, target, dtype, operator):
    """One space of each kind of a drawn operator."""
    found = designs_of({**operator(rng), "dtype": dtype}, target)
    kinds = [kind_of(one) for one in found]
    return [
        found[rng.choice([place for place, other in enumerate(kinds) if other == kind])]
        for kind in dict.fromkeys(kinds)
    ]


def compare(tvm, design, rng):
    """Two random programs of a space, and two legal ones where there are any."""
    space = BatchedSpace(design)
    draws = space.sample_any(2, rng)
    try:
        draws = np.concatenate([draws, space.sample(2, rng)])
    except PrunerError:  # none is legal: of convolutions whose vectors all step
        assert kind_of(design) != "lanes"
    truth.assert_programs_are_tvms(tvm, design, space, draws)


FORMS = [(A100, "float16"), (A100, "float32"), (AVX512, "float32")]
SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 16))]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("target", "dtype"), FORMS, ids=["tensor_cores", "lanes", "cpu"])
@pytest.mark.parametrize("operator", [product, window])
def test_programs_of_random_shapes_are_those_of_tvm(tvm, operator, target, dtype, seed):
    rng = np.random.default_rng(seed)
    for design in designs(rng, target, dtype, operator):
        compare(tvm, design, rng)
