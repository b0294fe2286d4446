"""A blend is the mean of its members' standard scores."""

import numpy as np
import pytest
import torch

from pruner.models.blend import Blend
from pruner.models.pacm import PaCM
from pruner.models.ranker import NeuralRanker
from pruner.models.trees import XGBoostRanker
from tests.models import synthetic


def members(store):
    everything = torch.arange(store.num_programs)
    trees = XGBoostRanker(num_rounds=5)
    trees.fit(store, everything, everything[:0], seed=0, num_threads=1)
    return NeuralRanker(PaCM(), store.fit_scaler(everything)).eval(), trees


def standard(score):
    return (score - score.mean()) / score.std()


def test_scores_are_the_mean_of_standard_scores():
    store = synthetic.store()
    network, trees = members(store)
    index = store.programs_of([2])
    expected = (
        standard(network.score_store(store, index)) + standard(trees.score_store(store, index))
    ) / 2
    found = Blend(network=network, trees=trees).score_store(store, index)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_one_candidate_gets_a_number():
    store = synthetic.store()
    network, trees = members(store)
    assert Blend(network=network, trees=trees).score_store(store, torch.tensor([3])).tolist() == [0]


def test_an_untrained_blend_says_so():
    blend = Blend(network=PaCM(), trees=XGBoostRanker())
    with pytest.raises(RuntimeError, match="before its network is trained"):
        blend.score_store(synthetic.store(), torch.arange(3))
