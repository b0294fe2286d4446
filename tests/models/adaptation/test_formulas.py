"""The arithmetic of each method, by hand."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from pruner.errors import PrunerError
from pruner.models.adaptation.base import Setting
from pruner.models.adaptation.distill import distillation
from pruner.models.adaptation.ewc import elastic_penalty, fisher_diagonal
from pruner.models.adaptation.fitting import Example, OnlineFit, gentle_fit
from pruner.models.adaptation.moa import MomentumAdaptation, follow
from pruner.models.adaptation.moses import Moses, transferable_masks
from pruner.models.adaptation.multitask import MultiTask
from pruner.models.adaptation.residual import Residual
from pruner.models.adaptation.warm import Continue
from pruner.models.training.losses import MeanSquare
from pruner.models.training.sampler import MixedBatches, TaskBatches
from tests.models import synthetic
from tests.models.adaptation import shifted
from tests.models.adaptation.shifted import NETWORKS, scores


@pytest.fixture(scope="module")
def world():
    return shifted.source_and_target()


def setting(world):
    return Setting(make_network=NETWORKS["pacm"], source=world.ranker, source_store=world.store)


def quick(**changes):
    plan = TaskBatches(tasks=3, programs=30)
    return OnlineFit(**{"epochs": 3, "batches": plan, **changes})


class TwoWeights(nn.Module):
    """``score = a x + b z`` on the first two statement columns of one-statement programs."""

    def __init__(self, a, b):
        super().__init__()
        self.a = nn.Parameter(torch.tensor(float(a)))
        self.b = nn.Parameter(torch.tensor(float(b)))

    def forward(self, batch):
        return self.a * batch.statement[:, 0] + self.b * batch.statement[:, 1]


@pytest.mark.parametrize("average_buffers", [False, True])
def test_momentum_by_hand(average_buffers):
    target = nn.BatchNorm1d(1)
    siamese = {name: value.clone() for name, value in target.state_dict().items()}
    siamese["weight"].fill_(2.0)
    with torch.no_grad():
        target.weight.fill_(4.0)
        target.running_mean.fill_(8.0)
        target.num_batches_tracked.fill_(7)
    follow(siamese, target, 0.75, average_buffers=average_buffers)
    assert siamese["weight"].item() == 0.75 * 2.0 + 0.25 * 4.0
    assert siamese["running_mean"].item() == (0.25 * 8.0 if average_buffers else 0.0)
    assert siamese["num_batches_tracked"].item() == 0  # a count is not averaged


def test_the_siamese_side_follows_every_fit(world):
    moa = MomentumAdaptation(setting(world), momentum=0.9, fit=quick())
    source = world.ranker.network.state_dict()
    moa.update(world.target)
    for name, value in moa.ranker.network.named_parameters():
        expected = 0.9 * source[name] + 0.1 * value
        torch.testing.assert_close(moa.siamese[name], expected)
    synthetic.exactly(moa.models["siamese"].network.state_dict(), moa.siamese)
    for name, _ in moa.ranker.network.named_buffers():
        assert torch.equal(moa.siamese[name], source[name]), name


def test_every_fourth_update_trains(world):
    moa = MomentumAdaptation(setting(world), period=4, fit=quick())
    changed = []
    before = scores(moa, world.target)
    for _ in range(9):
        moa.update(world.target)
        after = scores(moa, world.target)
        changed.append(not np.array_equal(before, after))
        before = after
    # The first update also fixes the centres, at the very means that were used before it.
    assert changed == [False, False, False, True, False, False, False, True, False]


def test_norm_vectors_are_the_sources_or_the_targets(world):
    kept = MomentumAdaptation(setting(world), fit=quick())
    fresh = MomentumAdaptation(setting(world), normalisation="online", fit=quick())
    for moa in (kept, fresh):
        moa.update(world.target)
    source = world.ranker.scaler
    assert torch.equal(kept.ranker.scaler.statement_scale, source.statement_scale)
    everything = torch.arange(world.target.num_programs)
    expected = world.target.relative().fit_scaler(everything, "standard")
    torch.testing.assert_close(fresh.ranker.scaler.statement_scale, expected.statement_scale)


def test_momentum_options_are_checked(world):
    for wrong in ({"momentum": 1.5}, {"period": 0}, {"normalisation": "none"}):
        with pytest.raises(ValueError, match="moa"):
            MomentumAdaptation(setting(world), **wrong)


def test_elastic_penalty_and_fisher_by_hand():
    network = TwoWeights(3.0, 1.5)
    anchor = {"a": torch.tensor(2.0), "b": torch.tensor(2.0)}
    fisher = {"a": torch.tensor(2.0), "b": torch.tensor(4.0)}
    penalty = elastic_penalty(network, anchor, fisher, 3.0)
    assert penalty.item() == pytest.approx(0.5 * 3.0 * (2.0 * 1.0**2 + 4.0 * 0.5**2))
    penalty.backward()
    assert network.a.grad.item() == pytest.approx(3.0 * 2.0 * 1.0)
    assert network.b.grad.item() == pytest.approx(3.0 * 4.0 * -0.5)
    store = shifted.store(0, [3], platform="old", tasks=1, programs=2)
    network = TwoWeights(0.1, 0.2)
    fit = OnlineFit(loss=MeanSquare(), batches=MixedBatches(programs=2))
    fisher = fisher_diagonal(network, Example(store=store, index=torch.arange(2)), fit, 0)
    x, z, label = store.rows[:, 0], store.rows[:, 1], store.label
    error = 0.1 * x + 0.2 * z - label
    square = torch.stack([(2 * error * x).sum(), (2 * error * z).sum()]).square()
    expected = square / square.mean()
    assert fisher["a"].item() == pytest.approx(expected[0].item(), rel=1e-4)
    assert fisher["b"].item() == pytest.approx(expected[1].item(), rel=1e-4)


def test_moses_keeps_the_largest_products():
    network = nn.Linear(3, 1)
    with torch.no_grad():
        network.weight.copy_(torch.tensor([[1.0, -2.0, 3.0]]))
        network.bias.fill_(4.0)
    gradients = {"weight": torch.tensor([[5.0, 1.0, -1.0]]), "bias": torch.tensor([0.1])}
    masks = transferable_masks(network, gradients, 0.5)  # |5|, |2|, |3|, |0.4|
    assert masks["weight"].tolist() == [[True, False, True]]
    assert masks["bias"].tolist() == [False]


def test_moses_lets_the_rest_decay_and_nothing_else(world):
    moses = Moses(setting(world), transferable=0.3, decay=0.01, fit=quick(max_steps=3))
    moses.update(world.target)
    source = dict(world.ranker.network.named_parameters())
    decayed = trained = 0
    for name, value in moses.ranker.network.named_parameters():
        rest = torch.isclose(value, source[name] * 0.99**3, rtol=1e-6, atol=0)
        decayed += int(rest.sum())
        trained += int((~rest).sum())
    assert trained / (trained + decayed) == pytest.approx(0.3, abs=0.02)


def test_distillation_by_hand():
    score, teacher = torch.tensor([0.0, 0.0, 5.0]), torch.tensor([2.0 * math.log(3), 0.0, -1.0])
    task = torch.tensor([0, 0, 1])  # task 1 has one program: nothing to compare
    value = distillation(score, teacher, task, 2.0)
    expected = 2.0**2 * (0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5))
    assert value.item() == pytest.approx(expected, rel=1e-5)
    shifted_scores = teacher + torch.tensor([7.0, 7.0, -3.0])  # constants of a task say nothing
    assert distillation(shifted_scores, teacher, task, 2.0).item() == pytest.approx(0.0, abs=1e-5)


def test_a_strong_teacher_keeps_the_source_order(world):
    from pruner.models.adaptation.distill import Distillation

    taught = Distillation(setting(world), weight=1000.0, fit=quick(epochs=20))
    free = Distillation(setting(world), weight=0.0, fit=quick(epochs=20))
    source = scores(SimpleNamespace(ranker=world.ranker), world.target)
    distance = []
    for adapted in (taught, free):
        adapted.update(world.target)
        distance.append(1 - np.corrcoef(scores(adapted, world.target), source)[0, 1])
    assert distance[0] < 0.3 * distance[1]


def test_the_correction_starts_at_nothing_and_leaves_the_source_alone(world):
    residual = Residual(setting(world), fit=quick())
    source = SimpleNamespace(ranker=world.ranker)
    np.testing.assert_allclose(
        scores(residual, world.target), scores(source, world.target), rtol=1e-5
    )
    residual.update(world.target)
    base = residual.ranker.network.base
    synthetic.exactly(base.state_dict(), world.ranker.network.state_dict())
    assert not np.allclose(scores(residual, world.target), scores(source, world.target))


def test_heads_part_and_the_source_head_needs_its_loss(world):
    start = world.ranker.network.state_dict()["head.weight"]
    fit = quick(optimizer=torch.optim.Adam)  # without decay, which moves what has no gradient
    for weight in (0.0, 1.0):
        tasks = MultiTask(setting(world), source_weight=weight, num_source=64, fit=fit)
        tasks.update(world.target)
        source_head = tasks.source_head["head.weight"].detach()
        assert torch.equal(source_head, start) == (weight == 0.0)
        assert not torch.allclose(tasks.ranker.network.head.weight, source_head)
        if weight == 0.0:  # running statistics, too
            alone = Continue(setting(world), fit=fit)
            alone.update(world.target)
            ours, theirs = (dict(one.ranker.network.named_buffers()) for one in (tasks, alone))
            torch.testing.assert_close(ours, theirs)


def test_the_number_of_steps():
    store = synthetic.store(sizes=(12, 9, 15))
    example = Example(store=store, index=torch.arange(36))
    plan = TaskBatches(tasks=1, programs=8)  # 2 + 2 + 2 lists
    assert OnlineFit(epochs=3, max_steps=None, batches=plan).num_steps(example) == 3 * 6
    assert OnlineFit(epochs=3, max_steps=7, batches=plan).num_steps(example) == 7
    with pytest.raises(ValueError, match="at least 1"):
        OnlineFit(epochs=0)


@pytest.mark.parametrize(("fit", "moves"), [(OnlineFit, True), (gentle_fit, False)])
def test_decay_moves_weights_that_have_no_gradient(fit, moves):
    store = shifted.store(0, [3], platform="old")
    network = nn.Sequential(TwoWeights(0.0625, 0.0625))
    store.rows[:, 1] = 0  # what the second weight reads never occurs
    index = torch.arange(store.num_programs)
    recipe = fit(epochs=40, max_steps=40)
    recipe(network, Example(store=store, index=index), seed=0)
    rate = 7e-4
    lost = 0.0625 - network[0].b.item()
    assert lost == pytest.approx(40 * rate, rel=0.3) if moves else lost == 0.0


def test_no_source_programs_are_refused_instead_of_endless_batches(world):
    with pytest.raises(PrunerError, match="num_source=0 has no source task with two programs"):
        MultiTask(setting(world), num_source=0)
