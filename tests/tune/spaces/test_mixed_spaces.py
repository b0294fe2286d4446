"""Tasks of which TVM replays some design spaces: the others are drafted as ever."""

import numpy as np
import pytest

from pruner.errors import PrunerError, UnsupportedProgram
from pruner.features.batch import ProgramFeatures
from pruner.models.analyzer.analyzer import load_analyzer
from pruner.search.explorer import ExplorerSettings, NoneFound, explore
from pruner.search.policy import RandomDraws, RoundSettings
from pruner.tune.phases import Phases
from pruner.tune.run.learning import learned_score
from pruner.tune.spaces import opening
from pruner.tune.spaces.tvm import ReplaySpace
from pruner.tune.spaces.union import UnionSpace
from pruner.tune.workloads import operator
from tests.paths import CONF
from tests.tune.targets import prepared


class Numbers:
    """One decision, 0 to 9999; a draft that knows its score, or none (``blind``). 7 is illegal."""

    num_slots = 1
    has_features = False
    can_draft = True  # asked for its scores, even where it has none
    affordable = None
    slope = 1e-5  # of the score; so small that evolution goes nowhere

    def __init__(self, *, blind):
        self.blind = blind

    def sample(self, num, rng):
        return rng.integers(0, 10000, (num, 1))

    def mutate(self, parents, rng):
        return np.clip(parents + rng.integers(-500, 500, parents.shape), 0, 9999)

    def draft_score(self, decisions, analyzer):
        score = np.full(len(decisions), np.nan) if self.blind else self.slope * decisions[:, 0]
        return np.where(decisions[:, 0] == 7, -np.inf, score)

    def features(self, decisions) -> ProgramFeatures:
        raise AssertionError("a draft needs no features")


def scores(kinds, rows):
    union = UnionSpace([Numbers(blind=blind) for blind in kinds], Phases(), object())
    return union.draft_score(np.array(rows))


def test_what_cannot_be_drafted_is_spread_over_the_scores_of_the_rest_whatever_else_is_asked():
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.integers(0, 2, 4000), rng.integers(8, 10000, 4000)])
    rows[:10, 1] = 7
    found = scores((False, True), rows)
    assert (found[:10] == -np.inf).all()
    assert np.isfinite(found[10:]).all()
    drafted, blind = found[rows[:, 0] == 0], found[rows[:, 0] == 1]
    known = (rows[:, 0] == 0) & (rows[:, 1] != 7)
    np.testing.assert_array_equal(found[known], 1e-5 * rows[known, 1])
    # as many of the best tenth are blind as of all, and no number of theirs is better than another
    best = np.quantile(drafted, 0.9)
    assert (blind > best).mean() == pytest.approx(0.1, abs=0.03)
    chosen = (rows[:, 0] == 1) & (rows[:, 1] != 7)
    assert abs(np.corrcoef(rows[chosen, 1], found[chosen])[0, 1]) < 0.1
    np.testing.assert_array_equal(scores((False, True), rows), found)  # the same every time
    # where nothing can be drafted all are alike
    assert scores((True,), [[0, 1], [0, 7], [0, 9]]).tolist() == [0.0, -np.inf, 0.0]
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.integers(0, 2, 60), rng.integers(0, 10000, 60)])
    alone = [scores((False, True), rows[i : i + 1])[0] for i in range(len(rows))]
    np.testing.assert_array_equal(scores((False, True), rows), alone)


class Unlucky(Numbers):
    """Draws at its first call alone."""

    calls = 0

    def sample(self, num, rng):
        self.calls += 1
        if self.calls > 1:
            raise NoneFound("nothing")
        return super().sample(num, rng)


def test_the_rows_of_a_space_that_draws_nothing_go_to_the_others():
    spaces = Unlucky(blind=False), Numbers(blind=False), Numbers(blind=False)
    usual, union = (UnionSpace(some, Phases()) for some in (spaces[1:], spaces[:2]))
    rng, same = np.random.default_rng(0), np.random.default_rng(0)
    np.testing.assert_array_equal(union.sample(40, rng), usual.sample(40, same))
    rows = union.sample(40, rng)
    assert rows[:, 0].tolist() == [1] * 40
    assert len(np.unique(rows[:, 1])) > 30
    alone = UnionSpace(spaces[:1], Phases())
    with pytest.raises(NoneFound):
        alone.sample(4, rng)


def test_evolution_leaves_those_that_chance_scores_a_share(monkeypatch):
    monkeypatch.setattr(Numbers, "slope", 4e-4)
    union = UnionSpace([Numbers(blind=False), Numbers(blind=True)], Phases(), object())
    for generations in (0, 1, 2):
        how = ExplorerSettings(population=2000, generations=generations, keep=300)
        drafted = explore(union, union.draft_score, how, np.random.default_rng(0)).decisions
        assert 0.25 < drafted[:, 0].mean() < 0.75


@pytest.mark.tvm
def test_a_task_with_one_replayed_space_is_drafted(tmp_path, monkeypatch, platform):
    """Of three spaces the first is taken for one that the engine does not know."""
    few = ExplorerSettings(population=256, generations=1, keep=128)
    batched, asked = opening.BatchedSpace, []

    def first_is_unknown(design, **_):
        asked.append(design)
        if len(asked) == 1:
            raise UnsupportedProgram("trace-instruction", "Blockize")
        return batched(design)

    monkeypatch.setattr(opening, "BatchedSpace", first_is_unknown)
    policy, told = RoundSettings(draft=few, verify=few, random_sample=32), []
    workload = operator("matmul", m=64, n=64, k=64)
    given = {"analyzer": load_analyzer(CONF, "cpu-avx2"), "log": told.append}
    found = prepared(workload, policy, tmp_path, platform, **given)
    assert not told  # nothing of a task is made before it is begun
    search = found.tasks[0].search
    (line,) = (line for line in told if "design spaces" in line)
    assert f"1 of {len(asked)} design spaces go through TVM's replay" in line
    assert "replay, slowly (trace-instruction: Blockize)" in line
    union = search.space
    assert union.replayed == ["trace-instruction: Blockize"]
    assert found.replayed == {workload.name: 1}
    assert [isinstance(space, ReplaySpace) for space in union.spaces] == [True, False, False]
    chosen = search.propose(32)
    spaces = {candidate.space for candidate in chosen}
    assert 0 in spaces  # the analyzer scores the replayed one as it does the others
    assert spaces & {1, 2}  # which of the drafted ones the analyzer likes is its own affair
    rows = union.sample(64, np.random.default_rng(0))
    assert len(np.unique(union.draft_score(rows))) > 16  # a draft, not one number for all


class Ranked(Numbers):
    """Numbers whose feature is the number."""

    has_features = True

    def features(self, decisions, spec=None):
        return decisions[:, 0].astype(float)


class Halves:
    """A model whose score is half of the feature; it must see nothing but features."""

    dataflow = "official"
    reads_draft = False

    class ranker:
        @staticmethod
        def score(features, key):
            return features / 2


def test_a_model_ranks_only_what_has_features_and_chance_the_rest(monkeypatch):
    union = UnionSpace([Ranked(blind=False), Numbers(blind=True)], Phases())

    def features(rows, spec):
        assert (spec.dataflow, spec.extra) == ("official", None)
        return rows[:, 1].astype(float)

    monkeypatch.setattr(union, "features", features)
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.integers(0, 2, 4000), rng.integers(8, 10000, 4000)])
    ranked, score = rows[:, 0] == 0, learned_score(None, union, Halves(), Phases())
    np.testing.assert_array_equal(union.ranked(rows), ranked)
    found = score(rows)
    np.testing.assert_array_equal(found[ranked], rows[ranked, 1] / 2)
    # as many of the best tenth are replayed as of all; their own number says nothing
    best = np.quantile(found[ranked], 0.9)
    assert (found[~ranked] > best).mean() == pytest.approx(0.1, abs=0.03)
    assert abs(np.corrcoef(rows[~ranked, 1], found[~ranked])[0, 1]) < 0.1
    again = score(rows[~ranked][:50])  # asked alone: beside the scores that were given before
    np.testing.assert_allclose(again, found[~ranked][:50], rtol=1e-12)


class Empty(Numbers):
    """A design space of which every draw is refused."""

    def __init__(self, design):
        super().__init__(blind=False)

    def sample(self, num, rng):
        raise NoneFound("no random schedule of this space is legal on this target")


@pytest.mark.tvm
@pytest.mark.parametrize("empty", [1, 3])
def test_a_space_without_legal_programs_is_left_out(tmp_path, monkeypatch, platform, empty):
    batched, made = opening.BatchedSpace, []

    def first_are_empty(design, **_):
        made.append(Empty(design) if len(made) < empty else batched(design))
        return made[-1]

    monkeypatch.setattr(opening, "BatchedSpace", first_are_empty)
    workload, told = operator("matmul", m=64, n=64, k=64), []
    found = prepared(workload, RandomDraws(), tmp_path, platform, log=told.append)
    if empty == 3:
        with pytest.raises(PrunerError, match="matmul_64_64_64: no random program is legal"):
            _ = found.tasks[0].search
    else:
        assert found.tasks[0].search.space.spaces == made[1:]
        (line,) = (one for one in told if "left out" in one)
        assert "matmul_64_64_64: 1 of 3 design spaces are left out" in line
