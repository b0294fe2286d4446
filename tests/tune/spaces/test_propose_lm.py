"""Tokens and proposals of live design spaces against TVM and MetaSchedule's own draws."""

import numpy as np
import pytest
import torch

from pruner.models.proposals.decision_tokens import encode
from pruner.models.proposals.proposal_model import ProposalModel, ProposalNetwork
from pruner.search.propose_lm import ProposeLmSettings, Proposer
from tests.tune.spaces import test_construct
from tests.tune.spaces.test_construct import MATMUL, proposed, resumed, rows_of

pytestmark = pytest.mark.tvm

SOFTMAX = {"operator": "softmax", "rows": 32, "columns": 96}
SPACES = [
    pytest.param(MATMUL, "cpu-avx2", id="matmul-cpu"),
    pytest.param(SOFTMAX, "cpu-avx2", id="softmax-cpu"),
    pytest.param(MATMUL, "a100", id="matmul-gpu"),
]

_OPENED = {}


def union(sizes, platform):
    """The spaces of a task, opened once for all tests; of a softmax two."""
    key = (*sizes.values(), platform)
    if key not in _OPENED:
        most = 2 if sizes is SOFTMAX else None
        _OPENED[key] = test_construct.union(sizes, platform, most)
    return _OPENED[key]


def model_of(spaces, *, trained):
    """An untrained model that counts these spaces as known, or one of random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = ProposalNetwork(num_space=len(spaces[0].columns), width=16).eval()
        if trained:
            torch.nn.init.normal_(network.score.weight, std=1.0)
    return ProposalModel(network=network, kinds=frozenset(s.kind for s in spaces), about={})


@pytest.mark.parametrize(("sizes", "platform"), SPACES)
def test_every_legal_program_is_a_sequence_of_tokens_and_draws_are_programs(sizes, platform):
    space = union(sizes, platform)
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


@pytest.mark.parametrize("platform", ["cpu-avx2", pytest.param("a100", marks=pytest.mark.slow)])
def test_a_resumed_search_proposes_the_same_programs_and_nothing_twice(tmp_path, platform):
    space, path = union(MATMUL, platform), tmp_path / "weights.safetensors"
    model_of(space.token_spaces(), trained=True).save(path)
    settings = ProposeLmSettings(weights=str(path), draws=24)
    first, again, other = (test_construct.search(space, settings, seed) for seed in (0, 0, 5))
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
    replayed = test_construct.union(MATMUL, "cpu-avx2", replay_only=True)
    Proposer(replayed, model_of(other, trained=True))
    assert "no tokens" in caplog.messages[0]
