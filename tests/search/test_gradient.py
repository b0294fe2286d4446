"""Projection and rounding of tile sizes against their definitions."""

import logging
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pruner.errors import PrunerError
from pruner.search.construct import Tile
from pruner.search.explorer import ExplorerSettings, NoneFound
from pruner.search.gradient import Descent, DescentSettings, _TileTable
from pruner.search.offline.recorded_run import RecordedSpace
from pruner.search.space import RowKeys

TILES = (
    Tile(slots=range(0, 4), extent=48, levels=("",) * 4, primes=(2, 3), limit=4),
    Tile(slots=range(5, 7), extent=7, levels=("",) * 2, primes=(7,), limit=7),
    Tile(slots=range(7, 10), extent=64, levels=("",) * 3, primes=(2,), limit=64, least=8),
)
ANCHORS = np.array([[4, 3, 2, 2, 9, 7, 1, 2, 2, 16], [48, 1, 1, 1, 9, 1, 7, 1, 8, 8]])


@pytest.fixture
def table():
    return _TileTable(TILES)


def legal(rows):
    for tile in TILES:
        factors = rows[:, tile.slots]
        assert (factors.prod(axis=1) == tile.extent).all()
        assert (factors[:, -1] <= tile.limit).all()
        assert (factors[:, -1] % tile.least == 0).all()
    assert (rows[:, 4] == 9).all()  # no tile


def test_rounding_returns_programs_and_keeps_a_program(table):
    logs = table.gather(torch.as_tensor(ANCHORS, dtype=torch.float64)).log()
    np.testing.assert_array_equal(table.rounded(logs.numpy(), ANCHORS), ANCHORS)
    rng = np.random.default_rng(0)
    anchors = np.repeat(ANCHORS, 100, axis=0)
    sizes = torch.as_tensor(rng.normal(1, 2, (200, 3, 4)))
    legal(table.rounded(table.project(sizes).numpy(), anchors))


def test_the_projection_is_the_nearest_point_of_the_simplex(table):
    rng = np.random.default_rng(0)
    sizes = torch.as_tensor(rng.normal(1, 2, (50, 3, 4)))
    found = table.project(sizes)
    for place, tile in enumerate(TILES):
        parts, total = len(tile.slots), math.log(tile.extent)
        point, own = found[:, place, :parts], sizes[:, place, :parts]
        assert (point >= 0).all()
        assert torch.allclose(point.sum(-1), torch.tensor(total, dtype=torch.float64))
        # of a convex set: the way from the nearest point leads away from all others
        for corner in torch.eye(parts, dtype=torch.float64) * total:
            assert ((own - point) * (corner - point)).sum(-1).max() < 1e-9


def test_the_best_single_moves_are_those_of_an_exhaustive_search(table):
    slope = np.random.default_rng(1).normal(size=(2, 3, 4))
    found = np.stack(table.neighbours(slope, ANCHORS, 3))  # [move, program, slot]
    legal(found.reshape(-1, 10))
    for row, anchor in enumerate(ANCHORS):
        gains = []
        for place, tile in enumerate(TILES):
            for give in range(len(tile.slots)):
                for take in range(len(tile.slots)):
                    for prime in tile.primes:
                        moved = anchor.copy()
                        if give == take or moved[tile.slots[give]] % prime:
                            continue
                        moved[tile.slots[give]] //= prime
                        moved[tile.slots[take]] *= prime
                        last = moved[tile.slots[-1]]
                        if last <= tile.limit and last % tile.least == 0:
                            gain = slope[row, place, take] - slope[row, place, give]
                            gains.append((-math.log(prime) * gain, tuple(moved)))
        best = [moved for _, moved in sorted(gains)[:3]]
        assert [tuple(moved) for moved in found[:, row]] == best


def test_recorded_programs_and_settings_that_cannot_work_are_refused():
    recorded = RecordedSpace(np.array([[1, 2], [2, 1]]))
    with pytest.raises(PrunerError, match=r"recorded programs have none.*policy=pool"):
        DescentSettings().make(recorded, None, None, np.random.default_rng(0))
    for wrong in ({"starts": 1}, {"anchors": 0}, {"rate": 0}, {"draft": None}):
        with pytest.raises(PrunerError, match=r"policy\."):
            DescentSettings(**wrong)
    for unused in ({"generations": 1}, {"noise": 0.1}, {"mutation_probability": 0.5}):
        with pytest.raises(PrunerError, match="drafts without evolution"):
            DescentSettings(draft=replace(DescentSettings().draft, **unused))
    undescribed = SimpleNamespace(spaces=[], analyzer=None, symbols=max, options=max, relaxed=max)
    with pytest.raises(PrunerError, match="needs a description of the device"):
        DescentSettings().make(undescribed, None, None, np.random.default_rng(0))
    fewer = DescentSettings().limited(64, can_draft=True)
    assert fewer.draft == ExplorerSettings(population=64, generations=0, keep=256)
    assert fewer.starts == 64
    assert DescentSettings().limited(1, can_draft=True).starts == 2
    assert DescentSettings().limited(4096, can_draft=True).starts == 256


def test_lost_derivatives_are_reported_once(table, caplog):
    space = SimpleNamespace(relaxed=lambda number, rows: [])
    descent = Descent(space, DescentSettings(), [SimpleNamespace(tiles=TILES)])
    with caplog.at_level(logging.WARNING):
        legal(descent.followed(0, table, ANCHORS))
        descent.followed(0, table, ANCHORS)
    (line,) = caplog.messages
    assert "design space 0 have no derivatives" in line


def test_a_space_without_a_legal_program_has_no_turn():
    """Two spaces with tiles, of which only the first was drawn; then none is legal."""
    space = SimpleNamespace(
        spaces=[SimpleNamespace(num_slots=10)] * 2,
        relaxed=lambda number, rows: [],
        mutate=lambda rows, rng: rows,
        keys=RowKeys(11),
    )
    descent = Descent(space, DescentSettings(starts=4), [SimpleNamespace(tiles=TILES)] * 2)
    start = np.column_stack([np.zeros(2, np.int64), ANCHORS])
    rest = ExplorerSettings(population=2, generations=0, keep=8), np.random.default_rng(0), start
    found = descent.explore(lambda rows: np.zeros(len(rows)), *rest, space.keys(start[:0]))
    assert (found.decisions[:, 0] == 0).all()
    assert len(found.decisions) == 8
    legal(found.decisions[:, 1:])
    with pytest.raises(NoneFound):
        descent.explore(lambda rows: np.full(len(rows), -np.inf), *rest, space.keys(start[:0]))
