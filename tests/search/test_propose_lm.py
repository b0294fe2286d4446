"""The proposals of a language model as a policy, on tiny recorded pools."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest

from experiments.proposals.fit import ProposalRecipe, TaskSequences, fit_proposals
from pruner.errors import PrunerError
from pruner.models.proposals.decision_tokens import encode
from pruner.search.explorer import ExplorerSettings, NoneFound
from pruner.search.offline.recorded_run import Clock, RecordedMeasurer, RecordedSpace, run_session
from pruner.search.policy import RandomDraws, RoundSettings
from pruner.search.propose_lm import ProposeLmSettings, Proposer
from pruner.search.space import History
from tests.models.proposals.tiny import factorisations, tiny_space


def pool(extent):
    """All tilings of a loop, column 0 for the design space, and the seconds of each."""
    rows = np.array([[0, *tile] for tile in factorisations(extent, 3, 64)])
    return rows, 1e-3 * (1 + np.abs(np.log2(rows[:, 3] / 8)) + (rows[:, 2] != 1))


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A model that learned from pools of other extents, as a file."""
    tasks = []
    for extent in (16, 32, 64, 48):
        rows, latency_s = pool(extent)
        part = encode(tiny_space([(extent, 3, 64)]), rows[:, 1:])[0]
        tasks.append(TaskSequences(parts=(part,), latency_s=(latency_s,)))
    recipe = ProposalRecipe(epochs=15, width=16, batch=1, lr=1e-2, dropout=0.0)
    path = tmp_path_factory.mktemp("weights") / "weights.safetensors"
    fit_proposals(tasks, (), recipe, seed=0).save(path)
    return str(path)


def space_of(extent, *, with_tokens=True):
    rows, latency_s = pool(extent)
    tokens = [tiny_space([(extent, 3, 64)]) if with_tokens else None]
    return RecordedSpace(rows, tokens), latency_s


def policy_of(space, weights, seed=0):
    settings = ProposeLmSettings(weights=weights)
    return settings.make(space, None, None, np.random.default_rng(seed))


def best_after(policy, space, latency_s, trials):
    measurer = RecordedMeasurer(space, latency_s, np.zeros(len(latency_s)), Clock())
    return run_session(policy, measurer, trials=trials, batch=2).best_s[-1]


def test_on_an_extent_never_seen_it_beats_random_search(weights):
    space, latency_s = space_of(240)
    ours = best_after(policy_of(space, weights), space, latency_s, 4)
    chance = [
        best_after(
            RandomDraws(draws=512).make(space, None, None, np.random.default_rng(seed)),
            space,
            latency_s,
            4,
        )
        for seed in range(20)
    ]
    assert ours == latency_s.min()
    assert np.mean(chance) > 1.2 * ours


def test_a_pool_is_proposed_completely_and_nothing_twice(weights):
    space, latency_s = space_of(96)
    policy, history, seen = policy_of(space, weights), History(space), []
    while len(rows := policy.propose(7, history)):
        history.add(rows, latency_s[space.rows(rows)])
        seen += rows.tolist()
    assert sorted(seen) == sorted(space.decisions.tolist())


def test_records_without_tokens_are_drawn_at_random_and_a_line_reports_it(weights, caplog):
    space, _ = space_of(96, with_tokens=False)
    with caplog.at_level(logging.WARNING):
        policy = policy_of(space, weights)
    (line,) = caplog.messages
    assert "1 of 1 design spaces are drawn at random" in line
    first = policy.propose(4, History(space))
    state = policy.state()
    second = policy.propose(4, History(space))
    resumed = policy_of(space, weights, seed=9)
    resumed.load_state(state)
    assert np.array_equal(resumed.propose(4, History(space)), second)
    assert len(first) == 4


def test_the_draft_may_start_from_the_models_programs(weights, monkeypatch):
    from pruner.search import propose_lm

    model = propose_lm.proposal_model(weights)
    monkeypatch.setattr(propose_lm, "proposal_model", lambda _: model)
    space, latency_s = space_of(240)
    how = ExplorerSettings(population=8, generations=0, keep=8)
    found = {}
    for first in ("random", "lm"):
        settings = RoundSettings(
            draft=how, first=first, random_sample=1, measured_share=0, epsilon=0, draft_leads=True
        )
        drafted = []
        for seed in range(10):
            # a draft that scores all programs alike keeps its first population
            made = settings.make(
                space, lambda rows: np.zeros(len(rows)), None, np.random.default_rng(seed)
            )
            rows = made.propose(4, History(space))
            drafted.append(latency_s[space.rows(rows)].min())
        found[first] = np.mean(drafted)
    assert found["lm"] < 0.8 * found["random"]


def test_random_programs_stand_in_where_the_model_draws_no_legal_one(monkeypatch):
    space, _ = space_of(240)
    how = ExplorerSettings(population=8, generations=0, keep=8)
    settings = RoundSettings(draft=how, random_sample=1, measured_share=0, epsilon=0)
    rng = np.random.default_rng(0)
    policy = settings.make(space, lambda rows: np.zeros(len(rows)), None, rng)
    nothing = SimpleNamespace(sample=lambda num, rng: (space.decisions[:0], np.zeros(0)))
    monkeypatch.setattr(policy, "_proposer", nothing)
    assert len(policy.propose(4, History(space))) == 4


def test_a_design_space_that_draws_nothing_ends_no_proposal():
    def nothing(num, rng):
        raise NoneFound("no program")

    proposer = object.__new__(Proposer)
    proposer._space = SimpleNamespace(num_slots=3, spaces=[SimpleNamespace(sample=nothing)])
    proposer._spaces, proposer._log_probs = [None], np.zeros(1)
    rows, ratio = proposer._drawn(0, 4, np.random.default_rng(0))
    assert (rows.shape, ratio.shape) == ((0, 3), (0,))


def test_settings_that_cannot_work_are_refused():
    with pytest.raises(PrunerError, match=r"policy\.draws must be at least 1"):
        ProposeLmSettings(draws=0)
    with pytest.raises(PrunerError, match=r"policy\.first=best: it must be random or lm"):
        RoundSettings(first="best")
    with pytest.raises(PrunerError, match=r"policy\.first=lm .* has no draft"):
        RoundSettings(first="lm", draft=None)
    space, _ = space_of(96)
    with pytest.raises(PrunerError, match="no trained weights"):
        policy_of(space, "/nowhere/weights.safetensors")
