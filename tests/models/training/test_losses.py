import math

import numpy as np
import pytest
import torch

from pruner.models.training.losses import (
    LambdaRank,
    ListNet,
    MeanSquare,
    RankNet,
    TopShare,
)
from pruner.models.training.schedules import warmup_cosine
from tests.models import oracles

LOSSES = {
    "lambdarank": (LambdaRank, oracles.lambda_rank),
    "ranknet": (RankNet, oracles.rank_net),
    "listnet": (ListNet, lambda s, y: oracles.list_net(s, y, 0.1)),
    "mse": (MeanSquare, oracles.mean_square),
    "top-share": (TopShare, lambda s, y: oracles.top_share(s, y, 0.1)),
}


def example(seed, sizes=(7, 1, 12, 4)):
    rng = np.random.default_rng(seed)
    task = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    label = rng.choice([0.1, 0.3, 0.5, 0.75, 1.0], size=len(task))  # with ties
    score = rng.permutation(np.linspace(-3, 3, len(task)))
    return score, label, task


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("seed", range(3))
def test_lists_of_tasks_and_of_a_batch_equal_the_slow_loops(name, seed):
    score, label, task = example(seed)
    loss_class, slow = LOSSES[name]
    expected = sum(slow(list(score[task == t]), list(label[task == t])) for t in np.unique(task))
    given = (torch.tensor(score), torch.tensor(label), torch.tensor(task))
    assert loss_class(lists="task")(*given).item() == pytest.approx(expected, rel=1e-5)
    whole = slow(list(score), list(label))
    assert loss_class(lists="batch")(*given).item() == pytest.approx(whole, rel=1e-5)


def test_lambda_rank_of_two_programs_by_hand():
    # Ranked wrongly: y = 1 has score 0, y = 0.5 has score 1. D = log2 3 and log2 2 = 1.
    max_dcg = 1 + (2**0.5 - 1) / math.log2(3)
    weight = (1 - 1 / math.log2(3)) * (1 - (2**0.5 - 1)) / max_dcg
    expected = weight * math.log2(1 + math.e)  # -log2 sigmoid(-1)
    found = LambdaRank()(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.5]), torch.zeros(2).long())
    assert found.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_a_step_against_the_gradient_lowers_the_loss(name):
    score, label, task = (torch.tensor(x) for x in example(9))
    loss = LOSSES[name][0]()
    score.requires_grad_()
    value = loss(score, label, task)
    (gradient,) = torch.autograd.grad(value, score)
    assert torch.isfinite(gradient).all()
    # A step far too small to swap two neighbours (0.26 apart), where LambdaRank jumps.
    assert loss(score - 1e-3 * gradient / gradient.norm(), label, task) < value


def test_the_best_share_of_ten_by_hand():
    # The best fifth of ten are two: of scores 2 and 0, where seven others have 0 and one has 1.
    score = torch.tensor([2.0, 0, 0, 0, 1, 0, 0, 0, 0, 0])
    label = torch.tensor([1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])
    total = math.exp(2) + math.exp(1) + 8
    expected = -math.log((math.exp(2) + 1) / total)
    found = TopShare(share=0.2)(score, label, torch.zeros(10).long())
    assert found.item() == pytest.approx(expected, rel=1e-6)
    twice = TopShare(share=0.2, weight=2.0)(score + 5, label, torch.zeros(10).long())
    assert twice.item() == pytest.approx(2 * expected, rel=1e-5)


def test_failures_are_negatives_and_never_among_the_best():
    score, task = torch.tensor([1.0, 0.0, 0.0], requires_grad=True), torch.zeros(3).long()
    label = torch.tensor([0.5, 0.0, 0.0])  # the best tenth of three is one
    loss = TopShare()(score, label, task)
    assert loss.item() == pytest.approx(-math.log(math.e / (math.e + 2)), rel=1e-6)
    (gradient,) = torch.autograd.grad(loss, score)
    assert gradient[0] < 0 < gradient[1]
    nothing = TopShare()(score, torch.zeros(3), task)  # all failed: nothing to learn
    assert nothing.item() == 0.0


def test_another_loss_beside_is_added_and_wrong_arguments_are_refused():
    score, label, task = (torch.tensor(x) for x in example(2))
    for other in (LambdaRank(), LambdaRank(lists="batch")):
        both = TopShare(beside=other, weight=0.5)(score, label, task)
        alone = 0.5 * TopShare()(score, label, task) + other(score, label, task)
        assert both.item() == pytest.approx(alone.item(), rel=1e-6)
    with pytest.raises(ValueError, match="share is between"):
        TopShare(share=1.0)
    with pytest.raises(ValueError, match=r"loss\.lists: got 'all'"):
        LambdaRank(lists="all")


def test_warmup_cosine_by_hand():
    parameter = torch.nn.Parameter(torch.zeros(1))
    schedule = warmup_cosine(torch.optim.SGD([parameter], lr=2.0), 12, warmup=1 / 6, final=0.1)
    rates = []
    for _ in range(13):
        rates.append(schedule.get_last_lr()[0])
        schedule.optimizer.step()
        schedule.step()
    assert rates[0] == pytest.approx(2.0 * 1 / 2)
    assert rates[1] == rates[2] == pytest.approx(2.0)
    assert rates[7] == pytest.approx(2.0 * (0.1 + 0.9 / 2))  # half way of ten falling steps
    assert rates[12] == pytest.approx(2.0 * 0.1)
