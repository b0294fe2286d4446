"""CONTRIBUTING's recipe "add a search policy", followed: one file of `search` and a YAML file."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from pruner.cli.shared.options import build
from pruner.errors import PrunerError
from pruner.search.adatune import AdaTuneSettings
from pruner.search.policy import NO_KEYS, Policy, PolicySettings, RandomDraws, RoundSettings, fresh
from pruner.tune.measure.measurer import Outcome, Platform
from pruner.tune.run.tune_options import TuneOptions
from pruner.tune.workloads import operator
from tests.tune.targets import prepared

pytestmark = pytest.mark.tvm


# --- pruner/search/largest_first.py ---


class LargestFirstPolicy(Policy):
    def propose(self, num, history, pending=NO_KEYS):
        drawn = self._space.sample(self._settings.draws, self._rng)
        drawn = drawn[np.isfinite(self._draft(drawn))]
        drawn = drawn[np.argsort(-drawn[:, 1:].sum(axis=1), kind="stable")]
        return fresh(self._space, drawn, np.concatenate([history.keys, pending]), num)


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestFirst(PolicySettings):
    """Settings of a policy that proposes the legal draws with the largest sum of decisions."""

    draws: int = 64

    policy: ClassVar = LargestFirstPolicy

    def limited(self, population, *, can_draft):
        return LargestFirst(draws=min(population, self.draws))


# --- the test that follows it ---


@pytest.mark.parametrize("replay_only", [False, True])
def test_a_new_policy_tunes_without_another_file_knowing_it(tmp_path, platform, replay_only):
    task = operator("matmul", m=64, n=64, k=64)
    run = prepared(task, LargestFirst(), tmp_path, platform, replay_only=replay_only)
    found = run.tasks[0].search
    assert found.space.affordable == (64 if replay_only else None)
    rows = []
    for _ in range(2):
        candidates = found.propose(5)
        found.observe(candidates, [Outcome(costs_s=(1e-3,))] * len(candidates))
        rows += [[c.space, *c.decisions.tolist()] for c in candidates]
        sums = [sum(row[1:]) for row in rows[-5:]]
        assert sums == sorted(sums, reverse=True)
    assert len({tuple(row) for row in rows}) == 10  # nothing twice


def test_hydra_builds_it_from_its_yaml_file():
    target = f"{LargestFirst.__module__}.LargestFirst"
    assert build({"_target_": target, "draws": 8}) == LargestFirst(draws=8)


def test_policies_say_themselves_what_slow_spaces_take_of_them():
    rounds = RoundSettings()
    slow = rounds.limited(100, can_draft=False)
    assert (slow.draft.population, slow.draft.generations) == (100, 0)
    assert (slow.verify.population, slow.verify.generations) == (100, 1)
    assert slow.random_sample == 100
    assert rounds.limited(100, can_draft=True).draft.generations == 2
    assert rounds.limited(10**6, can_draft=True) == rounds
    assert RandomDraws(draws=128).limited(100, can_draft=True).draws == 100
    for most, population in ((100, 100), (10**6, 512)):
        assert AdaTuneSettings().limited(most, can_draft=True).explorer.population == population


def test_a_model_for_a_policy_that_takes_none_is_refused():
    with pytest.raises(PrunerError, match="RandomDraws: this policy takes no learned model"):
        TuneOptions(
            platform=Platform(target=None, device="cpu"), policy=RandomDraws(), make_model=object
        )
