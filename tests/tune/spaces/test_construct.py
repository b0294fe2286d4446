"""Constructed programs against the arithmetic of their tiles, TVM's replay and random draws."""

import math

import numpy as np
import pytest

from pruner.errors import PrunerError
from pruner.models.analyzer.analyzer import CpuAnalyzer, load_analyzer
from pruner.search.construct import ConstructSettings
from pruner.search.decision_search import decision_search
from pruner.search.gradient import DescentSettings
from pruner.search.offline.recorded_space import RecordedSpace
from pruner.tune.measure.measurer import Outcome
from pruner.tune.phases import Phases
from pruner.tune.spaces.union import UnionSpace
from tests.paths import CONF
from tests.tune.designs import designs_of
from tests.tune.targets import TARGETS, open_designs

pytestmark = pytest.mark.tvm

MATMUL = {"operator": "matmul", "m": 128, "n": 256, "k": 512}
CONV = {"operator": "conv2d", "n": 1, "ci": 12, "h": 14, "w": 14, "co": 24, "kh": 3, "kw": 3}
CONV |= {"stride": 2, "padding": 1}
SMALLER = MATMUL | {"m": 16, "n": 32, "k": 64}
SLOW = pytest.mark.slow
CONSTRUCT = ConstructSettings()
OF_BOTH = pytest.mark.parametrize("platform", ["cpu-avx512", "a100"])
FAST_CPU = pytest.mark.parametrize("platform", ["cpu-avx512", pytest.param("a100", marks=SLOW)])
SIZES = pytest.mark.parametrize(
    "sizes", [pytest.param(MATMUL, id="matmul"), pytest.param(CONV, marks=SLOW, id="conv2d")]
)


def union(sizes, platform, most=None, **options):
    """The first `most` spaces, else all."""
    designs = designs_of(sizes, TARGETS[platform])[:most]
    return open_designs(designs, load_analyzer(CONF, platform), **options)


def search(space, settings=CONSTRUCT, seed=0):
    rng = np.random.default_rng(seed)
    return decision_search(space, settings, space.draft_score, None, rng)


def proposed(search, num=16):
    candidates = search.propose(num)
    assert all(one.schedule is not None for one in candidates)
    return rows_of(candidates)


def rows_of(candidates):
    return [(one.space, *one.decisions.tolist()) for one in candidates]


def resumed(first, again, candidates):
    """What a search proposes after these candidates, and so does another one with its state."""
    first.observe(candidates, [Outcome(costs_s=(1e-3,))] * len(candidates))
    again.load_state(first.state())
    rest = proposed(first, 8)
    assert proposed(again, 8) == rest
    assert not set(rows_of(candidates)) & set(rest)
    return rest


_FIRST = {}


def first_of(sizes, platform):
    """The first 16 programs, constructed once a process."""
    key = str(sizes), platform
    if key not in _FIRST:
        _FIRST[key] = proposed(search(union(sizes, platform)))
    return _FIRST[key]


@pytest.mark.parametrize(
    ("platform", "lanes"), [("cpu-avx512", 16), pytest.param("cpu-avx2", 8, marks=SLOW)]
)
def test_tiles_of_a_cpu_are_whole_vectors_and_lines_and_stay_in_the_registers(platform, lanes):
    rows = first_of(MATMUL, platform)
    assert len(set(rows)) == 16
    registers = {"cpu-avx512": 32, "cpu-avx2": 16}[platform]
    shares = []
    for _, *row in rows:
        m, n, k = row[0:4], row[4:8], row[8:10]
        assert [math.prod(tile) for tile in (m, n, k)] == [128, 256, 512]
        assert n[3] % lanes == 0
        assert n[2] * n[3] % 16 == 0  # 64 bytes of float32
        # the spatial loops inside the innermost reduction loop
        results = m[3] * n[3] if k[1] > 1 else m[2] * m[3] * n[2] * n[3]
        shares.append(results / lanes / registers)
    assert shares[0] <= 0.75  # operands need registers, too
    assert max(shares) <= 1


def test_tiles_of_a_gpu_are_whole_warps_and_lines_and_stay_in_the_registers_and_shared_memory():
    rows = first_of(MATMUL, "a100")
    assert len(set(rows)) == 16
    for _, *row in rows:
        m, n, k = row[0:5], row[5:10], row[10:13]
        assert [math.prod(tile) for tile in (m, n, k)] == [128, 256, 512]
        threads = m[2] * n[2]
        assert threads % 32 == 0
        assert threads <= 1024
        assert math.prod(n[1:]) % 32 == 0  # 128 bytes of float32
        staged = (math.prod(m[1:]) + math.prod(n[1:])) * k[1] * k[2]
        assert 4 * staged <= 49152
        rows_, columns = m[1] * m[3] * m[4], n[1] * n[3] * n[4]
        assert rows_ * columns + rows_ + columns <= 128


@OF_BOTH
@SIZES
def test_tvm_replays_the_programs_and_accepts_them(platform, sizes):
    space = union(sizes, platform)
    for number, *row in first_of(sizes, platform)[:4]:
        one = space.spaces[number]
        vector = np.array(row[: one.num_slots])
        assert one.legal(vector[None]).all()
        assert one.design.replay(vector, 1) is not None


def test_where_a_unit_does_not_divide_the_loop_its_largest_part_counts():
    for _, *row in proposed(search(union({**MATMUL, "m": 49, "n": 60, "k": 7}, "cpu-avx512"))):
        assert row[7] % 4 == 0  # gcd(60, 16)
    for _, *row in proposed(search(union({**MATMUL, "m": 49, "n": 60, "k": 7}, "a100"))):
        assert row[2] * row[7] >= 32  # TVM's rule accepts no fewer threads ...
        assert row[2] * row[7] % 4 == 0  # ... and gcd(49 * 60, 32) is 4


@FAST_CPU
def test_proposals_depend_on_the_space_alone_and_go_on_after_the_measured_ones(platform):
    first, whole = search(union(SMALLER, platform), seed=1), first_of(SMALLER, platform)
    candidates = first.propose(8)
    assert whole[:8] == rows_of(candidates)
    rest = resumed(first, search(union(SMALLER, platform), seed=2), candidates)
    assert set(whole) == set(whole[:8]) | set(rest)


@FAST_CPU
def test_where_every_program_fails_the_search_goes_on(platform):
    found, seen = search(union(SMALLER, platform)), []
    for _ in range(3):
        candidates = found.propose(16)
        assert candidates
        seen += rows_of(candidates)
        found.observe(candidates, [Outcome(error="run_crash")] * len(candidates))
    assert len(set(seen)) == len(seen)


@OF_BOTH
@SIZES
def test_its_first_program_scores_higher_than_random_ones(platform, sizes):
    space = union(sizes, platform)
    (number, *row), *_ = first_of(sizes, platform)
    vector = np.zeros((1, space.num_slots), np.int64)
    vector[0, : 1 + len(row)] = [number, *row]
    drawn = space.sample(256, np.random.default_rng(0))
    assert space.draft_score(vector)[0] >= space.draft_score(drawn).max()


@pytest.mark.parametrize(
    ("platform", "operator", "most"),
    [
        *(("a100", "softmax", None), ("a100", "layer_norm", None)),
        pytest.param("cpu-avx512", "softmax", 2, marks=SLOW),
        *(pytest.param("cpu-avx512", one, None, marks=SLOW) for one in ("softmax", "layer_norm")),
    ],
)
def test_spaces_without_register_tiles_are_enumerated(platform, operator, most):
    sizes = {"operator": operator, "rows": 32, "columns": 96}
    rows = proposed(search(union(sizes, platform, most)), 8)
    assert len(set(rows)) == 8


def test_a_small_space_ends():
    found = search(union({**MATMUL, "m": 2, "n": 2, "k": 2}, "cpu-avx512"))
    seen = []
    while batch := proposed(found, 64):
        seen += batch
    assert seen
    assert len(seen) == len(set(seen))


def test_where_no_program_has_a_score_a_line_says_so(monkeypatch):
    def broken(self, symbols):
        raise IndexError("a fault of the formula")

    found = search(union({**MATMUL, "m": 2, "n": 2, "k": 2}, "cpu-avx512"))
    monkeypatch.setattr(CpuAnalyzer, "latency_s", broken)
    with pytest.raises(PrunerError, match=r"no aligned program that is legal.*pruner_live"):
        found.propose(16)


@pytest.mark.parametrize("settings", [ConstructSettings(), DescentSettings()])
def test_a_line_names_what_a_space_lacks(settings):
    with pytest.raises(PrunerError, match=r"TVM replays all design spaces .*policy=pruner_live"):
        search(union(MATMUL, "cpu-avx512", replay_only=True), settings)
    batched = union(MATMUL, "a100").spaces
    official = UnionSpace(batched, Phases(), load_analyzer(CONF, "a100", form="official"))
    with pytest.raises(PrunerError, match=r"draft\.form=hardware"):
        search(official, settings)


def test_recorded_programs_and_an_empty_beam_are_refused():
    recorded = RecordedSpace(np.array([[1, 2], [2, 1]]))
    with pytest.raises(PrunerError, match="recorded programs have none"):
        ConstructSettings().make(recorded, None, None, np.random.default_rng(0))
    with pytest.raises(PrunerError, match="at least 1"):
        ConstructSettings(beam=0)
