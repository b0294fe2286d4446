"""Cells of an ablation, their minutes, changes that go together."""

from functools import partial

import numpy as np
import pytest

from experiments.model.ablation.candidates import (
    BASELINES,
    BASIS,
    CANDIDATES,
    EVERY,
    MODEL_S,
    QUESTIONS,
    Change,
    together,
)
from experiments.model.ablation.cells import AblationCell, Guess, check_seeds, planned, settings_of
from experiments.model.ablation.choice import best, compared, helping
from pruner.errors import PrunerError
from pruner.files import save_metrics
from pruner.models.networks.mlp import TenSetMLP
from pruner.models.networks.pacm import PaCM
from pruner.models.training.losses import RankNet, TopShare
from pruner.models.training.recipe import Recipe


def test_settings_are_each_alone_all_and_each_left_out_and_several_take_longer():
    found = {one.name: (one.learned, one.judged, one.left_out) for one in settings_of(["a", "b"])}
    assert found == {
        "a": (("a",), ("a",), ()),
        "b": (("b",), ("b",), ()),
        "all": (("a", "b"), ("a", "b"), ()),
        "without-a": (("b",), ("a",), ("a",)),
        "without-b": (("a",), ("b",), ("b",)),
    }
    assert [one.name for one in settings_of(["a"])] == ["a"]
    every = settings_of(["a", "b"])[2]
    guess = Guess(platform_s={"a": 10.0, "b": 40.0}, model={}, several=1.5)
    assert guess.seconds(AblationCell(setting=every, model="pacm", seed=0)) == 60.0


def test_what_is_left_is_as_what_is_made_took(tmp_path):
    cells = AblationCell.product(settings_of(["a"]), ["pacm", "soup"], [0, 1, 2])
    guess = Guess(platform_s={"a": 10.0}, model={"soup": 2.0})
    assert [row["minutes left"] for row in planned(cells, tmp_path, guess)] == [0.5, 1.0]
    (tmp_path / cells[0].name).mkdir(parents=True)
    save_metrics(tmp_path / cells[0].name, {"fit_seconds": 20.0})  # twice as slow as guessed
    first, second = planned(cells, tmp_path, guess)
    assert (first["made"], first["minutes left"]) == (1, pytest.approx(40 / 60))
    assert (second["made"], second["minutes left"]) == (0, 2.0)


def test_changes_go_together_unless_they_contradict_each_other_or_were_tried():
    one = Change(arguments={"residual": True}, failures=True)
    two = Change(arguments={"branch_dropout": 0.1}, fields={"loss": RankNet()})
    both = together({"one": one, "two": two})
    assert both.of == ("one", "two")
    assert both.arguments == {"residual": True, "branch_dropout": 0.1}
    assert both.failures
    recipe = both.recipe(Recipe(epochs=3))
    assert (recipe.epochs, type(recipe.loss)) == (3, RankNet)
    assert recipe.model.keywords == both.arguments
    with pytest.raises(PrunerError, match="loss"):
        together({"two": two, "more": Change(fields={"loss": TopShare()})})
    with pytest.raises(PrunerError, match="other models"):
        together({"one": one, "mlp": Change(model=TenSetMLP)})
    both = together({name: EVERY[name] for name in ("draft", "draft_residual")})
    assert both.same_as(EVERY["draft_residual"])
    assert not both.same_as(EVERY["draft"])
    assert not EVERY["failures"].same_as(EVERY[BASIS])
    assert not EVERY["ranknet"].same_as(EVERY[BASIS])


def test_the_unchanged_model_is_that_of_the_recipe():
    recipe, basis = EVERY[BASIS].recipe(Recipe()), Recipe()
    assert recipe.model.func is PaCM
    assert recipe.model.keywords == {}
    for name in ("relative", "schedule", "epochs", "average_epochs", "soup", "monitor"):
        assert getattr(recipe, name) == getattr(basis, name)


@pytest.mark.parametrize("name", EVERY)
def test_every_model_can_be_made_and_says_what_it_asks(name):
    change = EVERY[name]
    assert change.why or name == BASIS
    assert change.reads_draft() == (
        name in ("draft", "residual", "draft_residual", "draft_residual_absolute")
    )
    change.recipe(Recipe())
    assert partial(change.model, **change.arguments)() is not None


def test_names_are_told_apart():
    assert len(EVERY) == 1 + len(BASELINES) + len(QUESTIONS) + len(CANDIDATES)
    assert set(MODEL_S) <= {*EVERY, "together"}
    with pytest.raises(PrunerError, match="each once"):
        check_seeds([0, 0])


def row(model, seed, top1, pairwise, *, setting="k80", platform=None):
    return {
        "setting": setting,
        "platform": platform or setting,
        "model": model,
        "seed": str(seed),
        "top1_task_mean": top1,
        "pairwise_accuracy": pairwise,
    }


UNCHANGED = [row("pacm", 0, 0.90, 0.74), row("pacm", 1, 0.88, 0.76)]


def test_a_change_is_compared_in_pairs():
    rows = [*UNCHANGED, row("x", 0, 0.92, 0.75), row("x", 1, 0.92, 0.76), row("x", 2, 0.1, 0.1)]
    found = compared(rows, "x", "pacm")  # seed 2 has no partner
    # (0.02 + 0.01) / 2 = 0.015 and (0.04 + 0) / 2 = 0.02; their deviation is 0.005 / sqrt(2)
    assert found.pairs == 2
    assert found.gain == pytest.approx(0.0175)
    assert found.error == pytest.approx(0.005 / np.sqrt(2) / np.sqrt(2))
    assert found.numbers == pytest.approx({"top1_task_mean": 0.03, "pairwise_accuracy": 0.005})
    assert found.helps


def test_a_gain_within_its_error_or_of_one_pair_does_not_help():
    rows = [*UNCHANGED, row("x", 0, 1.0, 0.74), row("x", 1, 0.80, 0.76)]  # +0.05 and -0.04
    found = compared(rows, "x", "pacm")
    assert found.gain == pytest.approx(0.005)
    assert found.error == pytest.approx(0.045)
    assert not found.helps
    found = compared([UNCHANGED[0], row("x", 0, 1.0, 1.0)], "x", "pacm")
    assert found.error == float("inf")
    assert not found.helps


def test_pairs_of_a_seed_are_not_counted_as_if_they_were_independent():
    gains = {0: 0.03, 1: 0.0, 2: 0.0}  # all of the gain is one draw of workloads
    names = ("k80", "v100", "mi50", "all")
    basis = [row("pacm", s, 0.9, 0.7, setting=n) for n in names for s in gains]
    more = [row("x", s, 0.9 + g, 0.7 + g, setting=n) for n in names for s, g in gains.items()]
    found = compared([*basis, *more], "x", "pacm")
    assert found.pairs == 12
    assert found.gain == pytest.approx(0.01)
    # of three means 0.03, 0, 0: deviation sqrt(3) / 100, over the root of three
    assert found.error == pytest.approx(0.01)
    assert found.error > np.std([0.03] * 4 + [0.0] * 8, ddof=1) / np.sqrt(12)


def test_the_best_mean_is_chosen_and_the_unchanged_one_where_nothing_gains():
    rows = [*UNCHANGED]
    for name, shift in (("a", 0.01), ("b", 0.03), ("c", -0.02)):
        rows += [row(name, s, 0.9 + shift - 0.02 * s, 0.74 + shift + 0.02 * s) for s in (0, 1)]
    assert [one.model for one in helping(rows, ["a", "b", "c"], "pacm")] == ["b", "a", "c"]
    assert best(rows, ["a", "b"], "pacm") == "b"
    assert best(rows, ["c"], "pacm") == "pacm"
    assert best(rows, [], "pacm") == "pacm"
    with pytest.raises(PrunerError, match="in common"):
        compared(rows, "d", "pacm")
