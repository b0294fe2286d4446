"""What PaCM can have beside its own branches: what begins as the analyzer, what drops out."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pruner.errors import DataError, PrunerError
from pruner.models.analyzer.columns import SCORE
from pruner.models.networks.pacm import BranchDropout, PaCM
from pruner.models.ranker import NeuralRanker
from tests.models import synthetic


def made(seed=0, **options):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return PaCM(**options)


def normalised():
    store = synthetic.store()
    everything = torch.arange(store.num_programs)
    return store.fit_scaler(everything, "standard")(store.programs(everything))


def test_the_published_weights_are_drawn_as_ever_beside_what_is_new():
    plain, more = made(), made(branch_dropout=0.3)
    for name, value in plain.state_dict().items():
        assert torch.equal(value, more.state_dict()[name]), name
    assert not plain.reads_draft
    assert not hasattr(plain.drop, "stream")


def test_before_it_has_learned_a_residual_model_ranks_as_the_analyzer():
    batch, model = normalised(), made(residual=True).eval()
    torch.testing.assert_close(model(batch), batch.draft[:, SCORE])
    store = synthetic.store()
    ranker = NeuralRanker(model, store.fit_scaler(torch.arange(store.num_programs)), relative=True)
    assert ranker.reads_draft
    for programs in store.by_task(torch.arange(store.num_programs)):
        score = ranker.score_store(store, programs)
        analyzer = store.draft[programs, SCORE].numpy()
        np.testing.assert_allclose(score, analyzer - analyzer.mean(), atol=1e-5)


def test_what_a_residual_model_learns_is_added_to_the_analyzer():
    batch, model = normalised(), made(residual=True)
    batch = replace(batch, draft=batch.draft.clone().requires_grad_())
    torch.nn.init.normal_(model.head.weight)
    (gradient,) = torch.autograd.grad(model.eval()(batch).sum(), batch.draft)
    expected = torch.zeros_like(gradient)
    expected[:, SCORE] = 1.0  # the weight that it begins with, and no other column
    torch.testing.assert_close(gradient, expected)


def test_the_draft_branch_reads_every_column_of_the_analyzer():
    batch, model = normalised(), made(use_draft=True)
    batch = replace(batch, draft=batch.draft.clone().requires_grad_())
    (gradient,) = torch.autograd.grad(model.eval()(batch).sum(), batch.draft)
    assert (gradient.abs().sum(dim=0) > 0).all()


def test_programs_without_the_analyzer_are_refused_in_words():
    batch = replace(normalised(), draft=None)
    for options in ({"use_draft": True}, {"residual": True}):
        with pytest.raises(PrunerError, match="reads the analyzer's terms"):
            made(**options)(batch)
    assert made()(batch).shape == (batch.num_programs,)


def test_one_branch_of_some_programs_is_zero_and_never_two():
    drop = BranchDropout(0.3).train()
    ones = [torch.ones(20_000, width) for width in (3, 2, 1)]
    found = drop(ones)
    gone = torch.stack([(part == 0).all(dim=1) for part in found], dim=1)
    whole = torch.stack([(part == 1).all(dim=1) for part in found], dim=1)
    assert (gone | whole).all()
    assert gone.sum(dim=1).max() == 1
    # 0.3 of the programs, a third of them each branch: deviations of 20,000 draws are below .003
    assert gone.any(dim=1).float().mean().item() == pytest.approx(0.3, abs=0.015)
    for place in range(3):
        assert gone[:, place].float().mean().item() == pytest.approx(0.1, abs=0.01)


def test_nothing_drops_out_when_it_scores_or_where_there_is_one_branch():
    ones = [torch.ones(50, 2), torch.ones(50, 3)]
    assert all(
        torch.equal(a, b) for a, b in zip(BranchDropout(0.9).eval()(ones), ones, strict=True)
    )
    assert torch.equal(BranchDropout(0.9).train()(ones[:1])[0], ones[0])


def test_every_batch_draws_anew_and_a_copy_draws_the_same():
    first = BranchDropout(0.5)
    ones = [torch.ones(64, 1), torch.ones(64, 1)]
    one, two = first.train()(ones), first(ones)
    assert not torch.equal(one[0], two[0])
    later = BranchDropout(0.5).train()
    later.load_state_dict(first.state_dict())  # as a resumed fit does
    again, third = later(ones), first(ones)
    assert torch.equal(again[0], third[0])
    assert torch.equal(again[1], third[1])


@pytest.mark.parametrize("probability", [-0.1, 1.0])
def test_a_probability_that_means_nothing_is_refused(probability):
    with pytest.raises(ValueError, match="branch_dropout"):
        BranchDropout(probability)
