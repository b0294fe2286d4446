"""Explorer, policies and replay on spaces whose answer is known."""

import numpy as np
import pytest

from pruner.errors import PrunerError
from pruner.search.explorer import ExplorerSettings, Memoised, ScoreFunction, explore, select
from pruner.search.offline.recorded import table
from pruner.search.offline.recorded_run import Clock, RecordedMeasurer, RecordedSpace, run_session
from pruner.search.policy import (
    DraftThenVerify,
    RandomDraws,
    RoundSettings,
    weighed,
)
from pruner.search.space import History
from tests.search.tile_space import NUM_SLOTS, TileScore, TileSpace

SMALL = ExplorerSettings(population=256, generations=4, keep=64)


@pytest.fixture(scope="module")
def space() -> TileSpace:
    return TileSpace()


@pytest.fixture(scope="module")
def draft() -> TileScore:
    return TileScore()


def test_drafts_are_distinct_legal_sorted_and_better_than_chance(space, draft):
    rng = np.random.default_rng(0)
    found = explore(space, draft, SMALL, rng)
    assert len(found.decisions) == SMALL.keep
    assert len(np.unique(space.keys(found.decisions))) == SMALL.keep
    assert np.all(np.diff(found.score) <= 0)
    assert np.allclose(draft(found.decisions), found.score)
    chance = np.sort(draft(space.sample(found.scored, rng)))[::-1][: SMALL.keep]
    assert found.score.mean() > chance.mean()
    assert found.scored == 256 * 5


def test_illegal_programs_get_minus_infinity(draft):
    rows = np.ones((2, NUM_SLOTS), np.int64)
    rows[0, [1, 5]] = 64  # 4,096 threads
    rows[1, [1, 5]] = 8
    assert np.isfinite(draft(rows)).tolist() == [False, True]


def test_excluded_programs_do_not_come_back(space, draft):
    first = explore(space, draft, SMALL, np.random.default_rng(1))
    seen = space.keys(first.decisions)
    second = explore(space, draft, SMALL, np.random.default_rng(1), exclude=seen)
    assert not np.isin(space.keys(second.decisions), seen).any()


def test_selection_is_proportional_to_throughput():
    latency_s = np.array([1.0, 2.0, 4.0, np.inf])
    score = -np.log(latency_s)
    picked = np.bincount(select(score, 70_000, np.random.default_rng(0)), minlength=4)
    assert picked / 70_000 == pytest.approx([4 / 7, 2 / 7, 1 / 7, 0], abs=0.01)


def test_no_legal_program_is_one_clear_line(space):
    with pytest.raises(PrunerError, match="limits"):
        explore(space, lambda d: np.full(len(d), -np.inf), SMALL, np.random.default_rng(0))


def pool_of(
    space: TileSpace, draft: TileScore, seed: int
) -> tuple[RecordedSpace, np.ndarray, ScoreFunction]:
    """Programs whose true latency is the draft's with noise that the draft cannot know."""
    rng = np.random.default_rng(seed)
    drawn = space.sample(2500, rng)
    _, first = np.unique(space.keys(drawn), return_index=True)
    drawn = drawn[first]
    scores = draft(drawn)
    drawn, scores = drawn[np.isfinite(scores)], scores[np.isfinite(scores)]
    pool = RecordedSpace(drawn[:1000])
    latency_s = np.exp(-scores[:1000] + rng.normal(0, 0.3, len(pool)))
    return pool, latency_s, table(pool, scores[:1000])


def test_replay_charges_recorded_costs_and_never_measures_twice(space, draft):
    pool, latency_s, _ = pool_of(space, draft, 0)
    clock = Clock()
    measured: list[int] = []

    class Spy(RecordedMeasurer):
        def measure(self, decisions):
            measured.extend(pool.rows(decisions).tolist())
            return super().measure(decisions)

    measurer = Spy(pool, latency_s, np.full(len(pool), 2.0), clock)
    curve = run_session(
        RandomDraws(draws=512).make(pool, None, None, np.random.default_rng(0)),
        measurer,
        trials=200,
    )
    assert len(set(measured)) == len(measured) == 200
    assert clock.measuring_s == 400.0
    assert 0 < clock.thinking_s < 10
    assert np.all(np.diff(curve.best_s) <= 0)
    assert curve.best_s[-1] == latency_s[measured].min()


def test_drafting_beats_chance_when_the_draft_is_informed(space, draft):
    """One-sided sign test: wins in at least 15 of 20 seeds (p = 0.021)."""
    settings = RoundSettings(
        draft=ExplorerSettings(population=256, generations=2, keep=64), random_sample=64,
        verify=ExplorerSettings(population=128, generations=1, keep=32),
    )  # fmt: skip
    wins = 0
    for seed in range(20):
        pool, latency_s, known = pool_of(space, draft, seed)
        costs = np.ones(len(pool))
        ours = DraftThenVerify(pool, known, None, settings, np.random.default_rng(seed))
        chance = RandomDraws(draws=512).make(pool, None, None, np.random.default_rng(seed))
        results = [
            run_session(p, RecordedMeasurer(pool, latency_s, costs, Clock()), trials=30).best_s[-1]
            for p in (ours, chance)
        ]
        wins += results[0] < results[1]
    assert wins >= 15


def test_an_empty_pool_and_a_foreign_program_are_refused(space, draft):
    with pytest.raises(PrunerError, match="empty pool"):
        RecordedSpace(np.zeros((0, NUM_SLOTS), np.int64))
    pool, _, _ = pool_of(space, draft, 0)
    with pytest.raises(PrunerError, match="outside the recorded pool"):
        pool.rows(np.full((1, NUM_SLOTS), 3, np.int64))


@pytest.mark.parametrize(
    ("prior", "trials", "failed", "best"),
    [(0, 10, 0, 0), (30, 0, 0, 199), (30, 10, 0, 199), (30, 90, 0, 0), (30, 90, 80, 199)],
)
def test_the_draft_counts_like_as_many_measurements_as_its_prior(prior, trials, failed, best):
    """Draft and model disagree about everything: weights 30/40 and 30/120 decide."""
    pool = RecordedSpace(np.arange(200)[:, None])
    settings = RoundSettings(
        draft=ExplorerSettings(population=800, generations=0, keep=200),
        verify=ExplorerSettings(population=200, generations=0, keep=20),
        random_sample=800,
        measured_share=0.0,
        epsilon=0.0,
        prior=prior,
        draft_leads=True,
    )

    def up(decisions):
        return decisions[:, 0].astype(float)

    def learn(history):
        return (lambda wanted: -up(wanted)) if len(history) else None

    policy = DraftThenVerify(pool, up, learn, settings, np.random.default_rng(0))
    middle = np.arange(100 - trials // 2, 100 + trials // 2)[:, None]
    latency_s = np.where(np.arange(trials) < failed, np.inf, 1.0)
    history = History(pool)
    history.add(middle, latency_s)
    proposed = policy.propose(5, history)[:, 0]
    assert abs(proposed - best).max() < 15


def test_before_a_measurement_the_draft_judges_what_the_model_refuses_too():
    def up(decisions):
        return decisions[:, 0].astype(float)

    def refuse(decisions):
        return np.full(len(decisions), -np.inf)

    seen, failed = np.arange(3)[:, None], np.full(4, np.inf)
    score = weighed(refuse, up, seen, prior=30, latency_s=failed)(seen)
    np.testing.assert_allclose(score, [-(1.5**0.5), 0, 1.5**0.5])


@pytest.mark.parametrize("draft_leads", [True, False])
def test_without_a_model_the_draft_or_chance_chooses_among_the_drafted(draft_leads):
    """Chance spreads over the 40 drafted; logs of a search hold many copies of what is on top."""
    pool = RecordedSpace(np.arange(200)[:, None])
    settings = RoundSettings(
        draft=ExplorerSettings(population=4000, generations=0, keep=40),
        epsilon=0.0,
        prior=20.0,
        draft_leads=draft_leads,
    )

    def up(decisions):
        return decisions[:, 0].astype(float)

    def nothing_to_learn_from(history):
        return None

    policy = DraftThenVerify(pool, up, nothing_to_learn_from, settings, np.random.default_rng(0))
    proposed = policy.propose(10, History(pool))[:, 0]
    assert proposed.min() >= 160
    assert (proposed.tolist() == list(range(199, 189, -1))) == draft_leads


@pytest.mark.parametrize(
    "kept", [{"draft": 8, "verify": 8}, {"draft": 200, "verify": 8}, {"draft": 8}]
)
def test_a_batch_that_is_larger_than_the_shortlists_is_still_the_best(kept):
    """Without `verify` the model has no data, and the batch is of the drafted programs."""
    pool = RecordedSpace(np.arange(200)[:, None])
    settings = RoundSettings(
        epsilon=0.0,
        **{
            name: ExplorerSettings(population=4000, generations=0, keep=keep)
            for name, keep in kept.items()
        },
    )
    learner = None if "verify" in kept else lambda history: None
    policy = DraftThenVerify(
        pool, lambda rows: rows[:, 0].astype(float), learner, settings, np.random.default_rng(0)
    )
    assert sorted(policy.propose(20, History(pool))[:, 0]) == list(range(180, 200))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"draft": None, "random_sample": 0}, "policy.random_sample must be at least 1"),
        (
            {
                "verify": ExplorerSettings(
                    population=1, generations=0, keep=1, mutation_probability=1
                )
            },
            "policy.verify.mutation_probability has no effect",
        ),
    ],
)
def test_numbers_of_a_round_that_cannot_work_are_refused(settings, told):
    with pytest.raises(PrunerError, match=told):
        RoundSettings(**settings)


@pytest.mark.parametrize("settings", [{"draft": None, "draft_leads": True}, {"draft_leads": False}])
def test_apart_is_refused_where_the_draft_does_not_lead(settings):
    with pytest.raises(PrunerError, match="has no effect here"):
        RoundSettings(**settings, first_apart=0.2)
    assert RoundSettings(**settings, first_apart=None).for_device(gpu=True).first_apart == 0.0


@pytest.mark.parametrize(
    ("first_apart", "wanted"), [(0.0, [0, 0, 0, 0]), (0.5, [0, 1, 2, 0]), (1.0, [0, 1, 2, 3])]
)
def test_the_first_programs_are_near_copies_or_apart(first_apart, wanted):
    """Ten tiles with twenty variants each: a variant costs a thousandth, another tile a tenth.

    A variant of the first tile shares half of its decisions: .25 of 0.5, less than the fourth tile.
    """
    pool = RecordedSpace(np.stack(np.divmod(np.arange(200), 20), axis=1))
    settings = RoundSettings(
        draft=ExplorerSettings(population=4000, generations=0, keep=200),
        epsilon=0.0,
        draft_leads=True,
        first_apart=first_apart,
    )

    def better(decisions):
        return -0.1 * decisions[:, 0] - 0.001 * decisions[:, 1]

    policy = DraftThenVerify(pool, better, lambda _: None, settings, np.random.default_rng(0))
    assert policy.propose(4, History(pool))[:, 0].tolist() == wanted
    if first_apart == 1.0:  # the next batch, chosen before any result, begins with another tile
        resumed = DraftThenVerify(pool, better, lambda _: None, settings, np.random.default_rng(1))
        resumed.load_state(policy.state())
        first = pool.keys(resumed._led)
        for one in (policy, resumed):
            assert one.propose(4, History(pool), first)[0, 0] == 4


def test_programs_that_are_being_measured_cost_no_random_share():
    pool = RecordedSpace(np.arange(200)[:, None])
    everything = ExplorerSettings(population=2000, generations=0, keep=200)
    settings = RoundSettings(
        draft=everything, verify=everything, random_sample=2000, epsilon=0.5, prior=1.0
    )

    def up(decisions):
        return decisions[:, 0].astype(float)

    pending = np.arange(180, 200)[:, None]
    for seed in range(5):
        policy = DraftThenVerify(pool, up, None, settings, np.random.default_rng(seed))
        proposed = policy.propose(10, History(pool), pool.keys(pending))[:, 0]
        assert proposed[:5].tolist() == [179, 178, 177, 176, 175]
        assert len(np.unique(proposed)) == 10
        assert proposed[5:].max() < 175
        assert proposed[5:].min() < 120  # by chance
    random = RandomDraws(draws=512).make(pool, None, None, np.random.default_rng(0))
    drawn = random.propose(200, History(pool), pool.keys(pending))
    assert drawn.max() < 180


def test_a_program_is_scored_once_and_twins_agree():
    pool, asked = RecordedSpace(np.arange(50)[:, None]), []

    def score(decisions):
        asked.extend(decisions[:, 0].tolist())
        return -decisions[:, 0].astype(float)

    memoised = Memoised(pool, score)
    rng = np.random.default_rng(0)
    for _ in range(6):
        wanted = rng.integers(0, 50, (40, 1))
        np.testing.assert_array_equal(memoised(wanted), -wanted[:, 0])
    assert len(asked) == len(set(asked)) > 40
