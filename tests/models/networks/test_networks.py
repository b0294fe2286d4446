"""One suite, every network: shape, permutation, batch of one, seed."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from pruner.errors import DataError, PrunerError
from pruner.models.analyzer.columns import SCORE
from pruner.models.networks.layers import MaskedSelfAttention, PooledSelfAttention, ProgramNorm
from pruner.models.networks.mlp import TenSetMLP
from pruner.models.networks.pacm import BranchDropout, PaCM
from pruner.models.networks.tlp import TLP
from pruner.models.programs.program_table import ProgramTable
from pruner.models.ranker import NeuralRanker
from pruner.models.registry import MODELS
from tests.models import synthetic, zoo

NETWORKS = {
    **zoo.networks(),
    "pacm-no-statement": lambda: PaCM(use_statement=False),
    "pacm-no-dataflow": lambda: PaCM(use_dataflow=False),
    "pacm-draft": lambda: PaCM(use_draft=True),
    "pacm-device": lambda: PaCM(use_device=True),
    "pacm-dropout": lambda: PaCM(branch_dropout=0.5),
}


def network(name):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return NETWORKS[name]().eval()


def normalised(seed=0):
    store = synthetic.store(seed)
    everything = torch.arange(store.num_programs)
    return store.fit_scaler(everything)(store.programs(everything))


def permuted(batch, order):
    counts = torch.bincount(batch.program, minlength=batch.num_programs)
    starts = counts.cumsum(0) - counts
    rows = torch.cat([torch.arange(int(starts[i]), int(starts[i] + counts[i])) for i in order])
    return replace(
        batch,
        statement=batch.statement[rows],
        program=torch.repeat_interleave(torch.arange(len(order)), counts[order]),
        dataflow=batch.dataflow[order],
        platform=batch.platform[order],
        tokens=batch.tokens.take(order),
        draft=batch.draft[order],
    )


def test_every_model_is_in_the_table_and_can_be_chosen():
    assert zoo.concrete_classes() == set(MODELS.values())
    assert {spec.name for spec in zoo.choices().values()} == set(MODELS)
    assert set(NETWORKS) > {"pacm", "tensetmlp", "tlp", "mtl_tlp", "attention"}


def test_parameters_by_hand():
    expected = (174 * 256 + 256) + 3 * (256 * 256 + 256) + (256 + 1)
    assert sum(p.numel() for p in TenSetMLP().parameters()) == expected

    def layers(*widths):
        return sum(a * b + b for a, b in pairwise(widths))

    encoder = layers(22, 64, 128, 256, 256)
    attention = layers(256, 3 * 256) + layers(256, 256)
    head = layers(256, 256, 128, 64, 1)
    single = encoder + attention + 2 * layers(256, 256) + head
    assert sum(p.numel() for p in TLP().parameters()) == single
    three = TLP(platforms=["a", "b", "c"])
    assert sum(p.numel() for p in three.parameters()) == single + 2 * head


@pytest.mark.parametrize("name", NETWORKS)
def test_one_finite_score_for_each_program_and_none_for_none(name):
    batch = normalised()
    score = network(name)(batch)
    assert score.shape == (batch.num_programs,)
    assert torch.isfinite(score).all()
    assert score.std() > 0
    batch = synthetic.store().programs(torch.zeros(0, dtype=torch.long))
    assert network(name)(batch).shape == (0,)


@pytest.mark.parametrize("name", NETWORKS)
def test_scores_follow_a_permutation_of_programs_and_need_no_company(name):
    batch, model = normalised(), network(name)
    order = torch.randperm(batch.num_programs, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(model(permuted(batch, order)), model(batch)[order])
    whole = model(batch)
    for i in (0, 5):
        torch.testing.assert_close(model(permuted(batch, torch.tensor([i]))), whole[i : i + 1])
    model.train()
    assert torch.isfinite(model(permuted(batch, torch.tensor([2])))).all()


@pytest.mark.parametrize("name", NETWORKS)
def test_order_of_statements_and_dataflow_rows_does_not_matter(name):
    batch, model = normalised(), network(name)
    row_order = torch.arange(len(batch.program))
    for program in range(batch.num_programs):
        mine = torch.nonzero(batch.program == program).squeeze(1)
        row_order[mine] = mine.flip(0)
    flipped = replace(batch, statement=batch.statement[row_order], dataflow=batch.dataflow.flip(1))
    torch.testing.assert_close(model(flipped), model(batch))


def test_masked_attention_equals_torch_attention_with_masked_padding():
    ours = MaskedSelfAttention(32, 8)
    theirs = torch.nn.MultiheadAttention(32, 8, batch_first=True)
    theirs.load_state_dict(
        {
            "in_proj_weight": ours.project.weight,
            "in_proj_bias": ours.project.bias,
            "out_proj.weight": ours.out.weight,
            "out_proj.bias": ours.out.bias,
        }
    )
    x = torch.randn(4, 6, 32, generator=torch.Generator().manual_seed(0))
    real = torch.arange(6) < torch.tensor([[6], [3], [1], [4]])
    attended, _ = theirs(x, x, x, key_padding_mask=~real, need_weights=False)
    torch.testing.assert_close(ours(x, real)[real], (x + attended)[real])


def test_decisions_change_the_score():
    batch = normalised()
    tokens = batch.tokens
    moved = replace(tokens, number=tokens.number + 1)
    model = network("tlp")
    assert not torch.allclose(model(replace(batch, tokens=moved)), model(batch))


def test_each_platform_has_its_own_head_and_only_its_programs_train_it():
    store = ProgramTable.build(
        synthetic.task(np.random.default_rng(i), f"t{i}", 6, platform=name)
        for i, name in enumerate(("b", "a"))
    )
    model = TLP(platforms=["a", "b", "c"])
    batch = store.programs(torch.arange(12))
    alone = torch.cat([model(store.programs(store.programs_of([task]))) for task in (0, 1)])
    torch.testing.assert_close(model(batch), alone)
    model(store.programs(store.programs_of([0]))).sum().backward()
    trained = [any(p.grad is not None for p in head.parameters()) for head in model.heads]
    assert trained == [False, True, False]
    with pytest.raises(DataError, match=r"heads for a, c; got programs of b"):
        TLP(platforms=["a", "c"])(batch)


def test_what_a_network_cannot_read_or_do_is_named():
    with pytest.raises(DataError, match="schedule primitives"):
        TLP()(replace(normalised(), tokens=None))
    batch = normalised()
    with pytest.raises(PrunerError, match=r"10 dataflow rows.*made for 8.*features\.dataflow"):
        PaCM(num_dataflow_rows=8)(batch)
    with pytest.raises(ValueError, match="turn one on"):
        PaCM(use_statement=False, use_dataflow=False)
    batch = replace(standardised(), draft=None)
    for options in ({"use_draft": True}, {"residual": True}):
        with pytest.raises(PrunerError, match="reads the analyzer's terms"):
            made(**options)(batch)
    assert made()(batch).shape == (batch.num_programs,)


def test_pooled_attention_equals_torch_attention_plus_residual_summed():
    ours, theirs = (
        PooledSelfAttention(128, 4),
        torch.nn.MultiheadAttention(128, 4, batch_first=True),
    )
    theirs.load_state_dict(ours.state_dict())
    torch.nn.init.normal_(ours.out_proj.bias)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(5, 10, 128, generator=torch.Generator().manual_seed(0))
    attended, _ = theirs(x, x, x, need_weights=False)
    torch.testing.assert_close(ours(x), (x + attended).sum(dim=1))


def test_norm_uses_running_statistics_unless_asked():
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(1)) * 5 + 2
    running = ProgramNorm(3).eval()
    torch.testing.assert_close(running(x), x / np.sqrt(1 + running.eps))
    batch = ProgramNorm(3, statistics="batch").eval()
    expected = (x - x.mean(0)) / torch.sqrt(x.var(0, unbiased=False) + batch.eps)
    torch.testing.assert_close(batch(x), expected)
    assert batch.running_mean.abs().sum() == 0.0  # inference moves nothing
    reference = torch.nn.BatchNorm1d(3)
    running.train()
    torch.testing.assert_close(running(x), reference(x))
    torch.testing.assert_close(running.running_var, reference.running_var)


@pytest.mark.parametrize("name", ["attention", "pacm-device"])
def test_the_device_is_read_and_asked_for(name):
    batch, model = normalised(), network(name)
    assert not torch.allclose(model(replace(batch, platforms=("k80",))), model(batch))
    with pytest.raises(DataError, match="name the platform"):
        model(replace(batch, platforms=("",)))


def made(seed=0, **options):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return PaCM(**options)


def standardised():
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
    batch, model = standardised(), made(residual=True).eval()
    torch.testing.assert_close(model(batch), batch.draft[:, SCORE])
    store = synthetic.store()
    ranker = NeuralRanker(model, store.fit_scaler(torch.arange(store.num_programs)), relative=True)
    assert ranker.reads_draft
    for programs in store.by_task(torch.arange(store.num_programs)):
        score = ranker.score_store(store, programs)
        analyzer = store.draft[programs, SCORE].numpy()
        np.testing.assert_allclose(score, analyzer - analyzer.mean(), atol=1e-5)


def test_what_a_residual_model_learns_is_added_to_the_analyzer():
    batch, model = standardised(), made(residual=True)
    batch = replace(batch, draft=batch.draft.clone().requires_grad_())
    torch.nn.init.normal_(model.head.weight)
    (gradient,) = torch.autograd.grad(model.eval()(batch).sum(), batch.draft)
    expected = torch.zeros_like(gradient)
    expected[:, SCORE] = 1.0  # the weight that it begins with, and no other column
    torch.testing.assert_close(gradient, expected)


def test_the_draft_branch_reads_every_column_of_the_analyzer():
    batch, model = standardised(), made(use_draft=True)
    batch = replace(batch, draft=batch.draft.clone().requires_grad_())
    (gradient,) = torch.autograd.grad(model.eval()(batch).sum(), batch.draft)
    assert (gradient.abs().sum(dim=0) > 0).all()


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
