"""Cells of an ablation, their minutes, changes that go together."""

from functools import partial

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
