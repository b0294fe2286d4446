"""Searches of live design spaces: constructed, by gradients, and by a model of proposals."""

import math
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from pruner.errors import PrunerError
from pruner.models.analyzer.analyzer import SymbolAnalyzer, load_analyzer
from pruner.models.proposals.decision_tokens import encode
from pruner.models.proposals.proposal_model import ProposalModel, ProposalNetwork
from pruner.search.construct import ConstructSettings
from pruner.search.decision_search import decision_search
from pruner.search.explorer import ExplorerSettings
from pruner.search.gradient import DescentSettings
from pruner.search.offline.recorded_run import RecordedSpace
from pruner.search.propose_lm import ProposeLmSettings, Proposer
from pruner.tune.measure.measurer import Outcome
from pruner.tune.phases import Phases
from pruner.tune.spaces.union import UnionSpace
from tests.paths import CONF
from tests.tune.designs import designs_of
from tests.tune.some_slow import some_slow
from tests.tune.targets import TARGETS, open_designs

pytestmark = pytest.mark.tvm

MATMUL = {"operator": "matmul", "m": 128, "n": 256, "k": 512}
CONV = {"operator": "conv2d", "n": 1, "ci": 12, "h": 14, "w": 14, "co": 24, "kh": 3, "kw": 3}
CONV |= {"stride": 2, "padding": 1}
SMALLER = MATMUL | {"m": 16, "n": 32, "k": 64}
CONSTRUCT = ConstructSettings()
OF_BOTH = pytest.mark.parametrize("platform", ["cpu-avx512", "a100"])
FAST_CPU = some_slow("platform", ["cpu-avx512"], ["a100"])
SIZES = some_slow("sizes", [MATMUL], [CONV])


_OPENED = {}


def union(sizes, platform, most=None, **options):
    """The first `most` spaces of a task, else all, opened once for all tests."""
    key = str((sizes, platform, most, options))
    if key not in _OPENED:
        designs = designs_of(sizes, TARGETS[platform])[:most]
        _OPENED[key] = open_designs(designs, load_analyzer(CONF, platform), **options)
    return _OPENED[key]


def search(space, settings=CONSTRUCT, seed=0):
    rng = np.random.default_rng(seed)
    return decision_search(space, settings, space.draft_score, None, rng)


def rows_of(candidates):
    assert all(one.schedule is not None for one in candidates)  # TVM accepts them
    return [(one.space, *one.decisions.tolist()) for one in candidates]


def proposed(search, num=16):
    return rows_of(search.propose(num))


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


@some_slow(("platform", "lanes"), [("cpu-avx512", 16)], [("cpu-avx2", 8)])
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
    # a new space: nothing that the first search has kept
    fresh = open_designs(designs_of(SMALLER, TARGETS[platform]), load_analyzer(CONF, platform))
    rest = resumed(first, search(fresh, seed=2), candidates)
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


@some_slow(
    ("platform", "operator", "most"),
    [("a100", "softmax", None), ("a100", "layer_norm", None)],
    [("cpu-avx512", *one) for one in (("softmax", 2), ("softmax", None), ("layer_norm", None))],
)
def test_spaces_without_register_tiles_are_enumerated(platform, operator, most):
    sizes = {"operator": operator, "rows": 32, "columns": 96}
    rows = proposed(search(union(sizes, platform, most)), 8)
    assert len(set(rows)) == 8


def test_a_small_space_ends_and_a_line_says_that_no_program_has_a_score(monkeypatch):
    found = search(union({**MATMUL, "m": 2, "n": 2, "k": 2}, "cpu-avx512"))
    seen = []
    while batch := proposed(found, 64):
        seen += batch
    assert seen
    assert len(seen) == len(set(seen))
    broken = Mock(side_effect=IndexError("a fault of the formula"))
    found = search(union({**MATMUL, "m": 2, "n": 2, "k": 2}, "cpu-avx512"))
    monkeypatch.setattr(SymbolAnalyzer, "latency_s", broken)
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


SQUARE = {"operator": "matmul", "m": 64, "n": 128, "k": 64}
POOL = {"operator": "pool", "n": 1, "c": 8, "h": 12, "w": 12, "kh": 2, "kw": 2}
POOL |= {"stride": 2, "padding": 0, "kind": "max"}
SMALL = DescentSettings(
    draft=ExplorerSettings(population=64, generations=0, keep=64), starts=32, anchors=2
)


def vectors(space, candidates):
    out = np.zeros((len(candidates), space.num_slots), np.int64)
    for row, one in zip(out, candidates, strict=True):
        row[0], row[1 : 1 + len(one.decisions)] = one.space, one.decisions
    return out


@pytest.mark.parametrize("platform", ["cpu-avx2", "a100"])
def test_a_batch_is_legal_better_than_chance_and_repeats_after_a_resume(platform):
    space = union(SQUARE, platform)
    first = search(space, SMALL)
    candidates = first.propose(8)
    found = vectors(space, candidates)
    assert len(np.unique(found, axis=0)) == 8
    # as many random programs as the search scored at most
    drawn = space.sample(64 + 2 * 32 * 8, np.random.default_rng(1))
    assert space.draft_score(found)[0] > space.draft_score(drawn).max()
    resumed(first, search(space, SMALL, seed=5), candidates)


def test_a_task_without_tiles_is_searched_by_mutations_and_a_line_says_so(caplog):
    space = union(POOL, "a100")
    candidates = search(space, SMALL).propose(4)
    assert len(candidates) == 4
    assert "no design space of this task has tiles" in caplog.text


SOFTMAX = {"operator": "softmax", "rows": 32, "columns": 96}
SPACES = [(MATMUL, "cpu-avx2", None), (SOFTMAX, "cpu-avx2", 2), (MATMUL, "a100", None)]


def model_of(spaces, *, trained):
    """An untrained model that counts these spaces as known, or one of random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = ProposalNetwork(num_space=len(spaces[0].columns), width=16).eval()
        if trained:
            torch.nn.init.normal_(network.score.weight, std=1.0)
    return ProposalModel(network=network, kinds=frozenset(s.kind for s in spaces), about={})


@pytest.mark.parametrize(("sizes", "platform", "most"), SPACES)
def test_every_legal_program_is_a_sequence_of_tokens_and_draws_are_programs(sizes, platform, most):
    space = union(sizes, platform, most)
    tokens = space.token_spaces()
    model, legal = model_of(tokens, trained=True), []
    for one, listed in zip(space.spaces, tokens, strict=True):
        drawn = one.sample(32, np.random.default_rng(0))
        assert encode(listed, drawn)[1].all()
        rows, ratio = model.draw(listed, 64, np.random.default_rng(0))
        assert np.allclose(model.log_ratio(listed, rows), ratio, atol=1e-3)
        legal += [one.design.replay(row, 1) for row in rows[one.allowed(rows)][:2]]
    assert legal
    assert None not in legal


def test_an_untrained_model_draws_as_metaschedule_does():
    space = union(MATMUL, "cpu-avx2")
    proposer = Proposer(space, model_of(space.token_spaces(), trained=False))
    rows, ratio = proposer.sample(1500, np.random.default_rng(0))
    assert np.allclose(ratio, 0, atol=1e-4)
    theirs = space.sample(1500, np.random.default_rng(1))
    for column in range(rows.shape[1]):
        known = np.unique(theirs[:, column])
        shares = [(found[:, column][:, None] == known).mean(axis=0) for found in (rows, theirs)]
        assert np.abs(shares[0] - shares[1]).max() < 0.06


def test_threads_of_a_block_are_in_the_range_of_the_target():
    space = union(MATMUL, "a100")
    (tokens,) = space.token_spaces()[:1]
    rows, _ = model_of([tokens], trained=False).draw(tokens, 256, np.random.default_rng(0))
    threads = rows[:, 2] * rows[:, 7]
    assert threads.max() <= 1024
    drawn = space.spaces[0].sample_any(256, np.random.default_rng(0))
    loose = drawn[:, 2] * drawn[:, 7]
    assert (threads >= 32).mean() > 2 * (loose >= 32).mean()


@some_slow("platform", ["cpu-avx2"], ["a100"])
def test_a_resumed_search_proposes_the_same_programs_and_nothing_twice(tmp_path, platform):
    space, path = union(MATMUL, platform), tmp_path / "weights.safetensors"
    model_of(space.token_spaces(), trained=True).save(path)
    settings = ProposeLmSettings(weights=str(path), draws=24)
    first, again, other = (search(space, settings, seed) for seed in (0, 0, 5))
    candidates = first.propose(8)
    assert proposed(again, 8) == rows_of(candidates)
    resumed(first, other, candidates)


def test_spaces_of_kinds_without_training_are_drawn_at_random_and_a_line_reports_it(caplog):
    space = union(MATMUL, "a100")
    other = union(MATMUL, "cpu-avx2").token_spaces()
    rows, _ = Proposer(space, model_of(other, trained=True)).sample(16, np.random.default_rng(0))
    assert "trained on none of their kind (gpu: " in caplog.messages[0]
    assert np.isfinite(space.draft_score(rows)).any()
    caplog.clear()
    replayed = union(MATMUL, "cpu-avx2", replay_only=True)
    Proposer(replayed, model_of(other, trained=True))
    assert "no tokens" in caplog.messages[0]
