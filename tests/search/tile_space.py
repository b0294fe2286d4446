"""Tilings of a matrix product by powers of two as a space, and the analyzer's scores of them."""

import numpy as np

from pruner.models.analyzer.analyzer import load_analyzer
from pruner.program.te.apply import apply
from pruner.program.te.lower import lower
from pruner.program.te.skeleton import group_programs
from pruner.search.space import RowKeys
from tests.features.matmul_skeleton import matmul_dag, matmul_steps
from tests.paths import CONF

SIZE = 512
AXES = (slice(0, 4), slice(4, 8), slice(8, 10))  # lengths of the row, column and reduction tiles
NUM_SLOTS = 13  # two vector lengths and an unroll depth behind them


class TileSpace:
    """Decision vectors of :func:`matmul_steps`; the product of an axis' tiles divides its size."""

    num_slots = NUM_SLOTS

    def __init__(self) -> None:
        self.keys = RowKeys(NUM_SLOTS)

    def sample(self, num, rng):
        return np.concatenate([*(self._tiles(a, num, rng) for a in AXES), self._rest(num, rng)], 1)

    def mutate(self, parents, rng):
        """Draw one axis anew."""
        out, which = parents.copy(), rng.integers(0, len(AXES), len(parents))
        for number, axis in enumerate(AXES):
            rows = np.flatnonzero(which == number)
            out[rows, axis] = self._tiles(axis, len(rows), rng)
        return out

    @staticmethod
    def _tiles(axis, num, rng):
        """Each factor of two goes to one of the tiles, or to the loop outside of them."""
        parts = axis.stop - axis.start
        twos = int(np.log2(SIZE))
        return 2 ** rng.multinomial(twos, np.full(parts + 1, 1 / (parts + 1)), num)[:, :parts]

    @staticmethod
    def _rest(num, rng):
        vectors = rng.choice([1, 2, 4], (num, 2))
        return np.concatenate([vectors, rng.choice([0, 64, 512], (num, 1))], axis=1)


class TileScore:
    """The analyzer's score of decision vectors on a V100; minus infinity where it cannot run."""

    def __init__(self, form="hardware") -> None:
        tiles = ((1, 1, 1, 1), (1, 1, 1, 1), (1, 1))
        steps = matmul_steps(SIZE, SIZE, SIZE, *tiles)
        self._skeleton = group_programs([steps])[0][0].skeleton
        self._dag = matmul_dag(SIZE, SIZE, SIZE)
        self._analyzer = load_analyzer(CONF, "v100", form=form)

    def __call__(self, decisions):
        return self._analyzer.score_nests(lower(apply(self._dag, self._skeleton, decisions)))
