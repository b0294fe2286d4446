"""What failed is avoided: spaces where a simple rule says what fails."""

import numpy as np
import pytest

from pruner.search.explorer import ExplorerSettings
from pruner.search.failures import FailureModel
from pruner.search.policy import DraftThenVerify, RandomDraws, RoundSettings
from pruner.search.space import History

POWERS = 2 ** np.arange(7)


class Tiles:
    """Two kinds of programs with six powers of two and a choice of four each."""

    num_slots = 8

    def sample(self, num, rng):
        kinds, choices = rng.integers(0, 2, num), rng.integers(0, 4, num)
        return np.column_stack([kinds, rng.choice(POWERS, (num, 6)), choices])

    def mutate(self, parents, rng):
        out, other = parents.copy(), self.sample(len(parents), rng)
        slot = rng.integers(1, self.num_slots, len(parents))
        rows = np.arange(len(parents))
        out[rows, slot] = other[rows, slot]
        return out

    def keys(self, decisions):
        return (decisions * 131 ** np.arange(self.num_slots)).sum(axis=1)


def large(rows):
    """Better and better with size, as a draft sees it."""
    return np.log2(rows[:, 1:4]).sum(axis=1)


RULES = {  # a limit of a product, one value of a choice, one kind of program only
    "product": lambda rows: np.log2(rows[:, 1:4]).sum(axis=1) > 10,
    "choice": lambda rows: rows[:, 7] == 2,
    "kind": lambda rows: (rows[:, 0] == 1) & (rows[:, 4] >= 8),
}


def policies(space, score, rng):
    small = ExplorerSettings(population=128, generations=1, keep=64)
    rounds = RoundSettings(draft=small, verify=small, random_sample=64)
    return {
        "draft": DraftThenVerify(space, score, None, rounds, rng),
        "random": RandomDraws().make(space, score, None, rng),
        "unlearned": DraftThenVerify(space, score, lambda *_: None, rounds, rng),
    }


def seconds(failed):
    """A second of every program that did not fail."""
    return np.where(failed, np.inf, 1.0)


def taught(space, rows, failed):
    history = History(space)
    history.add(rows, seconds(failed))
    return FailureModel(history, large)


def failing_shares(policy, rule, rounds=10, *, aware=True, seed=0):
    """Share of failures in every round of 16 proposals, and the proposals."""
    space = Tiles()
    history = History(space)
    score = FailureModel(history, large) if aware else large
    chosen = policies(space, score, np.random.default_rng(seed))[policy]
    shares, proposals = [], []
    for _ in range(rounds):
        rows = chosen.propose(16, history)
        failed = rule(rows)
        shares.append(failed.mean())
        proposals.append(rows)
        history.add(rows, np.where(failed, np.inf, 2.0 ** -large(rows)))
    return np.array(shares), np.concatenate(proposals)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("policy", ["random", "unlearned"])
def test_failing_proposals_become_rare(policy, rule):
    seeds = range(3)
    aware = np.mean([failing_shares(policy, RULES[rule], seed=s)[0] for s in seeds], axis=0)
    blind = np.mean([failing_shares(policy, RULES[rule], aware=False, seed=s)[0] for s in seeds])
    assert blind > 0.1
    assert aware[5:].mean() < 0.4 * blind


def test_a_draft_that_likes_what_fails_gives_in():
    """The harder case: what is drafted best is what fails."""
    aware, _ = failing_shares("draft", RULES["product"], rounds=14)
    blind, _ = failing_shares("draft", RULES["product"], rounds=14, aware=False)
    assert blind.min() > 0.9
    assert aware[10:].mean() < 0.5 * blind[10:].mean()


@pytest.mark.parametrize("policy", ["draft", "random", "unlearned"])
def test_without_failures_nothing_changes(policy):
    def never(rows):
        return np.zeros(len(rows), bool)

    _, aware = failing_shares(policy, never, rounds=4)
    _, blind = failing_shares(policy, never, rounds=4, aware=False)
    np.testing.assert_array_equal(aware, blind)


@pytest.mark.parametrize("policy", ["draft", "random", "unlearned"])
def test_where_everything_fails_the_search_goes_on(policy):
    shares, rows = failing_shares(policy, lambda rows: np.ones(len(rows), bool))
    assert (shares == 1).all()
    assert len(np.unique(Tiles().keys(rows))) == len(rows)
    assert len(rows) > 144  # of 160: a round of few draws may leave less than a batch


def test_probabilities_follow_what_was_seen():
    space, rng = Tiles(), np.random.default_rng(0)
    history = History(space)
    failure_model, rows = FailureModel(history, large), space.sample(400, rng)
    assert (failure_model.probability(rows) == 0).all()
    history.add(rows, seconds(RULES["kind"](rows)))
    new = space.sample(400, rng)
    failing, risk = RULES["kind"](new), failure_model.probability(new)
    assert risk[failing].min() > 0.5 > risk[~failing].max()
    assert (risk[new[:, 0] == 0] == 0).all()  # no program of that space failed


@pytest.mark.parametrize("share", [0.2, 0.95])
def test_a_verdict_does_not_depend_on_what_else_is_asked_for(share):
    space, rng = Tiles(), np.random.default_rng(0)
    rows = space.sample(200, rng)
    failed = large(rows) > np.quantile(large(rows), 1 - share)
    cautious, new = taught(space, rows, failed), space.sample(100, rng)
    together = cautious(new)
    assert 0.1 < np.isfinite(together).mean() < 0.9
    np.testing.assert_array_equal(together, [cautious(new[i : i + 1])[0] for i in range(100)])
    # another start of the run: asked in another order, from the same history
    again = taught(space, rows, failed)
    np.testing.assert_array_equal(again(new[::-1])[::-1], together)


def test_one_failure_condemns_its_neighbours_only():
    one = np.array([[0, 8, 8, 8, 8, 8, 8, 1]])
    near, far = one.copy(), np.array([[0, 1, 2, 1, 2, 1, 2, 3]])
    near[0, 6] = 4
    failure_model = taught(Tiles(), np.concatenate([one, far]), np.array([True, False]))
    risk = failure_model.probability(np.concatenate([one, near, far]))
    assert risk[0] > risk[1] > 0.3 > 0.1 > risk[2]


def test_the_weights_are_the_most_probable_ones():
    """Newton's result against scipy's minimiser of the same density."""
    optimize = pytest.importorskip("scipy.optimize")
    from pruner.search.failures import _PRIOR_LOG_ODDS, _newton

    rng = np.random.default_rng(3)
    columns, failed = rng.normal(size=(40, 12)), (rng.random(40) < 0.4).astype(float)

    def loss(weight):
        odds = _PRIOR_LOG_ODDS + columns @ weight
        return (np.log1p(np.exp(odds)) - failed * odds).sum() + 0.5 * (weight**2).sum()

    wanted = optimize.minimize(loss, np.zeros(12), tol=1e-10).x
    np.testing.assert_allclose(_newton(columns, failed), wanted, atol=1e-4)
