"""Probabilities of proposals against enumeration, their masks, and what a model learns."""

import itertools
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
import torch

from experiments.proposals.fit import ProposalRecipe, TaskSequences, fit_proposals
from experiments.proposals.run import read_pools
from pruner.data.frozen import FrozenSplit
from pruner.data.root import RecordRoot
from pruner.errors import DataError, PrunerError
from pruner.models.proposals.decision_tokens import ThreadBound, encode
from pruner.models.proposals.proposal_model import ProposalModel, ProposalNetwork, bundled_weights
from pruner.search.offline.recorded_run import RecordedSpace
from pruner.search.propose_lm import Proposer
from tests.models.proposals.tiny import factorisations, tiny_space
from tests.paths import DATASETS


def model_of(space, *, trained):
    """A model of random weights, or one whose last layers are still zero."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        network = ProposalNetwork(num_space=len(space.columns), width=16).eval()
        if trained:
            torch.nn.init.normal_(network.score.weight, std=2.0)
    return ProposalModel(network=network, kinds=frozenset([space.kind]), about={})


def every_vector(tiles, choices):
    parts = [[tuple(f) for f in factorisations(*tile)] for tile in tiles]
    parts += [[(n,) for n in range(number)] for number in choices]
    return np.array([sum(combined, ()) for combined in itertools.product(*parts)])


TILES, CHOICES = [(12, 3, 4), (10, 2, 64), (7, 4, 64)], (3,)


def test_priors_and_probabilities_of_all_legal_vectors_sum_to_one_whatever_the_weights():
    space, rows = tiny_space(TILES, CHOICES), every_vector(TILES, CHOICES)
    prior = 1 / len(rows)  # MetaSchedule draws every factorisation with the same probability
    untrained, trained = (model_of(space, trained=one) for one in (False, True))
    assert np.allclose(untrained.log_ratio(space, rows), 0, atol=1e-5)
    ratio = trained.log_ratio(space, rows)
    assert np.exp(ratio).std() > 0.1
    assert np.isclose((prior * np.exp(ratio)).sum(), 1, atol=1e-4)
    sequences, legal = encode(space, rows)
    assert legal.all()
    chosen = np.take_along_axis(sequences.prior, sequences.chosen[..., None], axis=2)[..., 0]
    assert np.allclose(np.exp(chosen.sum(axis=1)), 1 / len(rows), rtol=1e-5)


def test_drawn_vectors_are_legal_and_their_likelihood_is_that_of_the_replayed_vector():
    space = tiny_space(TILES, CHOICES)
    model = model_of(space, trained=True)
    rows, ratio = model.draw(space, 400, np.random.default_rng(0))
    known = {tuple(row) for row in every_vector(TILES, CHOICES).tolist()}
    assert {tuple(row) for row in rows.tolist()} <= known
    assert np.allclose(model.log_ratio(space, rows), ratio, atol=1e-4)
    # drawn as often as their probability: the sum over all draws of 1 / p estimates their number
    assert np.isclose((np.exp(-ratio)).mean(), 1, atol=0.25)


def test_a_vector_with_an_illegal_decision_has_no_likelihood():
    space = tiny_space([(12, 3, 4)])
    rows = np.array([[1, 2, 6], [3, 2, 2], [5, 2, 2], [12, 1, 1]])  # 6 > 4; legal; 5; legal
    ratio = model_of(space, trained=True).log_ratio(space, rows)
    assert np.isfinite(ratio).tolist() == [False, True, True, True]  # the rest is not a choice


def test_threads_stay_in_their_range_where_a_factor_can_keep_them_there():
    space = tiny_space([(64, 5, 64), (64, 5, 64)], platform="a100", structure="SSSRRSRS")
    first = [token for token in space.tokens if token.slot == 2]
    last = [token for token in space.tokens if token.slot == 7]
    bounds = {
        first[0]: ThreadBound(slots=(), lanes=1, low=16, high=32, closes=False),
        last[0]: ThreadBound(slots=(2,), lanes=1, low=16, high=32, closes=True),
    }
    tokens = [replace(t, threads=bounds[t]) if t in bounds else t for t in space.tokens]
    space = replace(space, tokens=tuple(tokens))
    rows, _ = model_of(space, trained=True).draw(space, 300, np.random.default_rng(0))
    threads = rows[:, 2] * rows[:, 7]
    assert threads.max() <= 32
    assert (rows[:, :5].prod(axis=1) == 64).all()
    # at least 16 unless the factors inside left too little of the second loop
    possible = rows[:, 2] * (64 // rows[:, 8:].prod(axis=1)) >= 16
    assert (threads[possible] >= 16).all()


def tasks(extents, rng, num=64):
    """Tasks whose fast programs have an innermost factor of 8 and the second candidate."""
    out = []
    for extent in extents:
        space = tiny_space([(extent, 3, 64)], (3,))
        rows = np.array(every_vector([(extent, 3, 64)], (3,)))
        rows = rows[rng.integers(0, len(rows), num)]
        slow = 1.0 + 3 * (rows[:, 2] != 8) + 3 * (rows[:, 3] != 1)
        out.append(TaskSequences(parts=(encode(space, rows)[0],), latency_s=(1e-3 * slow,)))
    return out


@pytest.mark.parametrize("choice", [0.0, 1.0])
def test_what_is_always_fast_is_learned_and_holds_for_an_extent_never_seen(choice):
    recipe = ProposalRecipe(
        epochs=12, width=24, batch=1, lr=1e-2, dropout=0.0, sharpness=4.0, choice=choice
    )
    train = tasks([16, 32, 64, 48, 80, 24], np.random.default_rng(0))
    model = fit_proposals(train, (), recipe, seed=0)
    space = tiny_space([(160, 3, 64)], (3,))
    rows, _ = model.draw(space, 400, np.random.default_rng(1))
    chance = np.mean([row[2] == 8 for row in factorisations(160, 3, 64)])
    assert chance < 0.2
    assert (rows[:, 2] == 8).mean() > 0.5
    assert (rows[:, 3] == 1).mean() > 0.6


def test_a_seed_gives_the_same_weights():
    train = tasks([16, 32], np.random.default_rng(0))
    recipe = ProposalRecipe(epochs=2, width=8)
    first, same, other = (
        fit_proposals(train, train, recipe, seed=seed).network.score.weight for seed in (0, 0, 1)
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_a_file_gives_the_same_proposals(tmp_path):
    space = tiny_space(TILES, CHOICES)
    model = model_of(space, trained=True)
    model.network.half().float()  # the file has float16
    model.save(tmp_path / "weights.safetensors")
    again = ProposalModel.load(tmp_path / "weights.safetensors")
    assert again.kinds == model.kinds
    rows = model.draw(space, 20, np.random.default_rng(0))[0]
    assert np.array_equal(rows, again.draw(space, 20, np.random.default_rng(0))[0])


def test_a_missing_or_foreign_file_is_one_line(tmp_path):
    with pytest.raises(PrunerError, match=r"no trained weights.*experiments\.proposals"):
        ProposalModel.load(tmp_path / "none.safetensors")
    (tmp_path / "text").write_text("no tensors")
    with pytest.raises(DataError, match=r"policy\.weights=.*text"):
        ProposalModel.load(tmp_path / "text")
    space = tiny_space(TILES)
    model = model_of(space, trained=False)
    model.network.arguments["width"] = 8  # not the width of its weights
    model.save(tmp_path / "odd.safetensors")
    with pytest.raises(DataError, match="no weights of a proposal model"):
        ProposalModel.load(tmp_path / "odd.safetensors")
    model = model_of(space, trained=False)
    model.network.arguments["width"] = 1 << 30  # more memory than there is
    model.save(tmp_path / "huge.safetensors")
    with pytest.raises(DataError, match="no weights of a proposal model"):
        ProposalModel.load(tmp_path / "huge.safetensors")
    model = model_of(space, trained=False)
    torch.nn.init.constant_(model.network.token.weight, np.nan)
    model.save(tmp_path / "nan.safetensors")
    with pytest.raises(DataError, match="no finite numbers"):
        ProposalModel.load(tmp_path / "nan.safetensors")


def test_the_file_is_small_and_as_it_was_made():
    content = bundled_weights().read_bytes()
    sums = (bundled_weights().parent / "SHA256SUMS").read_text(encoding="utf-8")
    assert sums == f"{sha256(content).hexdigest()}  {bundled_weights().name}\n"
    assert len(content) < 2_000_000
    assert not [word for word in (b"/work", b"/home", b"/tmp") if word in content]
    assert sum(p.numel() for p in ProposalModel.load(bundled_weights()).network.parameters()) < 3e5


@pytest.mark.parametrize("task", ["batch_matmul_12_1_128_64_128", "conv2d_bias_relu_1_256_14_14"])
def test_on_unseen_tasks_of_an_h200_its_first_programs_beat_chance(task, tmp_path):
    split = FrozenSplit.load("h200", 0)
    records = tmp_path / "measure_records" / "h200"
    records.mkdir(parents=True)
    (file,) = (DATASETS / "h200" / "measure_records" / "h200").glob(f"{task}*")
    (records / file.name).symlink_to(file)
    (tmp_path / "design_spaces").symlink_to(DATASETS / "h200" / "design_spaces")
    (pool,) = read_pools(RecordRoot(tmp_path), "h200")
    assert split.sides[pool.key.identity] == "test"
    space = RecordedSpace(pool.decisions, pool.spaces)
    model = ProposalModel.load(bundled_weights())
    order = np.argsort(-Proposer(space, model).log_ratio(pool.decisions), kind="stable")
    first = np.sort(pool.latency_s[order[:8]])
    # the mean speed of the first quarter against the mean speed of all programs
    assert np.mean(1 / first) > 1.5 * np.mean(1 / pool.latency_s)
    assert pool.lost == 0
