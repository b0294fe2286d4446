"""Means of weights: by hand, over the last epochs of a fit, of the fits that help."""

import pytest
import torch

from pruner.errors import PrunerError
from pruner.models.checkpoint.checkpoint import load_checkpoint
from pruner.models.checkpoint.tensors import load_tensors
from pruner.models.training.averaging import AVERAGED, LastEpochs, greedy, mean_weights
from pruner.models.training.fit import fit
from pruner.models.training.recipe import Recipe
from pruner.models.training.training import build_network
from pruner.models.trees.xgboost import XGBoostRanker
from tests.models import synthetic
from tests.models.training.test_start import A, recipe, split, tasks, weights
from tests.models.training.test_training import fit as fit_plain


def test_the_mean_of_weights_by_hand_and_counters_of_the_last():
    parts = [
        {"w": torch.tensor([1.0, 2.0]), "seen": torch.tensor(3)},
        {"w": torch.tensor([4.0, 0.0]), "seen": torch.tensor(5)},
        {"w": torch.tensor([1.0, 1.0]), "seen": torch.tensor(4)},
    ]
    found = mean_weights(parts)
    assert found["w"].tolist() == [2.0, 1.0]
    assert found["seen"].item() == 4
    running = LastEpochs(3)
    for part in parts:
        running.add(part)
    torch.testing.assert_close(running.mean["w"], found["w"])
    assert running.mean["seen"].item() == 4
    running = LastEpochs(2)
    for _ in range(2):  # the limit of a scaler that cuts nothing
        running.add({"limit": torch.tensor(torch.inf)})
    assert running.mean["limit"].item() == torch.inf
    assert parts[0]["w"].tolist() == [1.0, 2.0]  # what was given stays what it is
    with pytest.raises(ValueError, match="different models"):
        mean_weights([parts[0], {"w": torch.zeros(3), "seen": torch.tensor(0)}])


@pytest.fixture
def made(monkeypatch):
    """What the fits of a test averaged."""
    found = []
    monkeypatch.setattr(
        "pruner.models.training.training.LastEpochs",
        lambda number: found.append(_Trace(number)) or found[-1],
    )
    return found


def test_a_saved_mean_goes_to_the_device_of_the_weights():
    """A saved state is on the CPU; ``meta`` is another device."""
    running = LastEpochs(2)
    running.load_state_dict({"count": 1, "mean": {"w": torch.ones(2)}, "newest": 3})
    running.add({"w": torch.ones(2, device="meta")})
    assert running.mean["w"].device.type == "meta"


def test_building_a_network_touches_no_gpu(monkeypatch):
    """Copies of a process that has started CUDA cannot use it."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda *_: pytest.fail("starts CUDA"))
    build_network(lambda: torch.nn.Linear(2, 2), 0)


class _Trace(LastEpochs):
    def __init__(self, number):
        super().__init__(number)
        self.taken = []

    def add(self, weights):
        self.taken.append({name: value.clone() for name, value in weights.items()})
        super().add(weights)


def test_the_last_epochs_of_a_fit_are_averaged_and_count_as_one_more(tmp_path, made):
    module, result, saved = fit_plain(tmp_path, synthetic.store(), epochs=5, average_epochs=2)
    (trace,) = made
    assert len(trace.taken) == 2
    expected = mean_weights(trace.taken)
    torch.testing.assert_close(module.state_dict(), expected)
    if result.best_epoch == AVERAGED:
        assert saved[-1]["epoch"] == AVERAGED


def test_a_resumed_fit_has_the_mean_of_an_uninterrupted_one(tmp_path):
    store = synthetic.store()
    whole, result, _ = fit_plain(tmp_path / "whole", store, average_epochs=4)
    fit_plain(tmp_path / "parts", store, average_epochs=4, stop_after=4)  # two of the four are in
    resumed, again, _ = fit_plain(tmp_path / "parts", store, average_epochs=4)
    assert again == result
    synthetic.exactly(resumed.state_dict(), whole.state_dict())


def test_a_fit_that_is_given_more_epochs_averages_its_new_last_ones(tmp_path, made):
    store = synthetic.store()
    fit_plain(tmp_path, store, epochs=3, average_epochs=2)
    module, _, _ = fit_plain(tmp_path, store, epochs=7, average_epochs=2)
    first, second = made
    assert [len(first.taken), len(second.taken)] == [2, 2]
    expected = mean_weights(second.taken)  # of epochs 6 and 7 alone
    torch.testing.assert_close(module.state_dict(), expected)


def test_a_fit_that_is_given_more_epochs_keeps_the_model_that_its_numbers_name(
    tmp_path, monkeypatch
):
    values = iter([
        *(1.0, 2.0, 3.0, 4.0),  # three epochs and their mean
        *(0.0, 0.0, 0.0, 1.0),  # neither an epoch nor the new mean is better than epoch 2
        *(5.0, 0.0, 2.0),
        *(0.0, 7.0),
        *(7.0,),  # resumed without an epoch left: the mean is judged again
    ])  # fmt: skip
    for name in ("lit", "training"):
        monkeypatch.setattr(
            f"pruner.models.training.{name}.ranking_metrics",
            lambda _: {"top1_task_mean": next(values)},
        )
    for epochs, best, value in (
        *((3, AVERAGED, 4.0), (6, 2, 3.0), (8, 6, 5.0), (9, AVERAGED, 7.0), (9, AVERAGED, 7.0)),
    ):
        found = fit(recipe(epochs, average_epochs=2), A, split(A), folder=tmp_path)
        numbers, metrics = found.numbers, found.info.metrics
        assert (numbers["best_epoch"], numbers["best_valid"]) == (best, value)
        assert (metrics["epoch"], metrics["valid/top1_task_mean"]) == (best, value)
    assert not list(values)


def test_the_best_epoch_of_a_soup_is_its_first_fits_where_only_this_is_kept(tmp_path, monkeypatch):
    for kept in ([0], [0, 1], [1]):
        monkeypatch.setattr(
            "pruner.models.training.fit.greedy",
            lambda members, _, kept=kept: ([members[number] for number in kept], 1.0),
        )
        found = fit(recipe(soup=1, soup_epochs=1), A, split(A), folder=tmp_path)
        assert (found.numbers["best_epoch"] == AVERAGED) == (kept != [0])


def test_a_member_stays_where_the_mean_with_it_is_no_worse():
    def value(parts):
        return -abs(sum(parts) / len(parts) - 2.5)

    # 2 is the best alone; with 1 it is worse, with 4 as good, with 4 and 2.5 better
    assert greedy([1.0, 4.0, 2.0], value) == ([2.0, 4.0], -0.5)
    kept, best = greedy([9.0, 2.4, 2.6], value)
    assert kept == [2.4, 2.6]
    assert best == pytest.approx(0.0)
    assert greedy([7.0], value) == ([7.0], -4.5)


def test_a_soup_is_the_mean_of_fits_that_go_on_and_no_worse_than_the_first(tmp_path):
    first = fit(recipe(), A, split(A), folder=tmp_path / "alone")
    cooked = fit(recipe(soup=2, soup_epochs=1), A, split(A), folder=tmp_path / "soup")
    again = fit(recipe(soup=2, soup_epochs=1), A, split(A), folder=tmp_path / "soup")  # is resumed
    assert cooked.numbers["best_valid"] >= first.numbers["best_valid"] - 1e-6  # of float32
    assert 1 <= cooked.numbers["soup_members"] <= 3
    synthetic.exactly(weights(again.ranker), weights(cooked.ranker))
    places = ("first", "member-1-after-2", "member-2-after-2")
    assert all((tmp_path / "soup" / name / "best.safetensors").is_file() for name in places)
    assert cooked.info.seen_tasks == first.info.seen_tasks
    before = weights(fit(recipe(), A, split(A), folder=tmp_path / "soup" / "first").ranker)
    synthetic.exactly(before, weights(first.ranker))  # the first fit is the usual one


def test_members_have_other_batches_of_the_same_programs(tmp_path):
    store = tasks("k80", 1, "abcdefghij")
    half = recipe(soup=1, soup_epochs=1, train_share=0.5, train_pick="tasks")
    fit(half, store, split(store), folder=tmp_path)
    first, member = (
        load_checkpoint(tmp_path / name / "best.safetensors")[1]
        for name in ("first", "member-1-after-2")
    )
    assert len(first.seen_tasks["k80"]) == 4 + 1  # half of eight, and the one that validates
    assert member.seen_tasks == first.seen_tasks


@pytest.mark.slow
def test_a_soup_that_is_given_more_epochs_is_that_of_a_fit_that_had_them(tmp_path):
    def cooked(epochs, folder):
        plan = recipe(epochs, soup=1, soup_epochs=1, schedule=None, keep="last")
        return fit(plan, A, split(A), folder=folder)

    wanted = cooked(3, tmp_path / "at once")
    cooked(1, tmp_path / "later")
    found = cooked(3, tmp_path / "later")
    assert found.numbers["epochs"] == 3
    theirs, ours = (
        load_tensors(sorted((tmp_path / name).glob("member-1*"))[-1] / "last.safetensors")
        for name in ("at once", "later")
    )
    synthetic.exactly(ours["state_dict"], theirs["state_dict"])
    synthetic.exactly(weights(found.ranker), weights(wanted.ranker))


def test_trees_and_numbers_that_mean_nothing_are_refused(tmp_path):
    with pytest.raises(PrunerError, match="has no weights"):
        fit(recipe(model=XGBoostRanker, soup=1), A, split(A), folder=tmp_path)
    with pytest.raises(PrunerError, match="soup_epochs"):
        Recipe(soup=1, soup_epochs=0)
    with pytest.raises(PrunerError, match="patience=3"):
        Recipe(average_epochs=4, patience=3)
    with pytest.raises(PrunerError, match=r"leave trainer\.max_steps= out"):
        Recipe(average_epochs=4, trainer={"max_steps": 7})
