"""Draws that visit every structure alike; the space is a plain one, without TVM."""

from collections import Counter
from types import SimpleNamespace

import numpy as np

from pruner.search.space import RowKeys
from pruner.tune.phases import Phases
from pruner.tune.pools.drawing import evolved, in_turns, location_slots, stratified, structures
from pruner.tune.spaces.union import UnionSpace

TILE, LOCATION = "SamplePerfectTile", "SampleComputeLocation"


def sampling(*kinds):
    return [SimpleNamespace(kind=SimpleNamespace(name=kind)) for kind in kinds]


class Toy:
    """A tile of `tiles` values and a location that is 0 in nine draws of ten, else 1 to 9."""

    num_slots, can_draft, has_features, affordable = 2, True, True, None
    keys = RowKeys(2)

    def __init__(self, tiles):
        self._tiles = tiles
        self.design = SimpleNamespace(sampling=sampling(TILE, LOCATION), widths=[1, 1])

    def sample(self, num, rng):
        rare = rng.random(num) < 0.1
        location = np.where(rare, rng.integers(1, 10, num), 0)
        return np.stack([rng.integers(0, self._tiles, num), location], axis=1)

    def mutate(self, parents, rng):
        out = parents.copy()
        out[:, 0] = rng.integers(0, self._tiles, len(out))
        return out

    def legal(self, decisions):
        return decisions[:, 0] % 7 != 3

    def clear_cache(self):
        pass


def union(*tiles):
    return UnionSpace([Toy(num) for num in tiles], Phases())


def test_every_structure_has_its_share():
    space, seen = union(1000, 1000), set()
    rows = stratified(space, 80, np.random.default_rng(0), seen)
    assert len(rows) == len(seen) == 80
    assert Counter(rows[:, 0].tolist()) == {0: 40, 1: 40}
    counts = Counter(map(tuple, rows[:, [0, 2]].tolist()))
    assert len(counts) == 20
    assert set(counts.values()) == {4}  # 40 programs of ten structures
    assert (rows[:, 1] % 7 != 3).all()  # illegal ones are no programs


def test_a_small_space_gives_what_it_has_once():
    space, seen = union(3, 500), set()
    rows = stratified(space, 60, np.random.default_rng(0), seen)
    assert len(np.unique(rows, axis=0)) == len(rows) == 60
    assert 10 < np.count_nonzero(rows[:, 0] == 0) <= 30  # of 3 tiles at 10 places
    more = stratified(space, 40, np.random.default_rng(1), seen)
    assert not {tuple(row) for row in more.tolist()} & {tuple(row) for row in rows.tolist()}
    assert len(more) == 40
    assert len(stratified(union(2), 60, np.random.default_rng(0), set())) == 20


def test_evolved_programs_are_new_legal_mutations():
    space, seen = union(1000), set()
    parents = stratified(space, 4, np.random.default_rng(0), seen)
    rows = evolved(space, parents, 20, np.random.default_rng(1), seen)
    assert len(rows) == 20
    assert set(rows[:, 2].tolist()) <= set(parents[:, 2].tolist())  # their mutation keeps it
    assert (rows[:, 1] % 7 != 3).all()
    assert len(seen) == 24


def test_structures_are_spaces_and_locations_and_turns_go_round_spaces_first():
    space = union(10, 10)
    rows = np.array([[0, 1, 0], [0, 2, 0], [0, 1, 4], [1, 1, 0]])
    assert structures(space, rows).tolist() == [0, 0, 1, 2]
    assert location_slots(space.spaces[0]) == [1]
    space = np.array([0, 0, 0, 0, 1])
    structure = np.array([0, 0, 0, 1, 2])
    for seed in range(20):
        order = in_turns(structure, space, np.random.default_rng(seed))
        assert sorted(order.tolist()) == [0, 1, 2, 3, 4]
        assert 4 in order[:2]  # the only one of its space
        assert 3 in order[:3]  # the only one of its structure
