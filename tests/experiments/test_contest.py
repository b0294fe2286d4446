"""Cells of a contest: what is run again, and the rows that come of them."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from experiments.common import contest
from experiments.common.contest import Contestant, contest_rows, run_contest
from pruner.cli.shared.recipe_options import recipe_of
from pruner.models.training.recipe import Recipe
from pruner.progress import Progress
from pruner.search.offline.adaptation_run import MethodRun, TuningCurve
from pruner.study.adaptation.context import Budget
from tests.cli.test_paper_presets import composed

BUDGET = Budget(
    trials=20, batch=5, tasks=2, least=1, spread=1.0, held_out=0, label_tasks=0, labels=[0, "all"],
    max_steps=None, source_programs=0,
)  # fmt: skip


def curve(*latencies, seconds):
    num = len(latencies)
    return TuningCurve(
        trials=np.arange(1, num + 1),
        relative_latency=np.array(latencies, float),
        elapsed_s=np.linspace(seconds / num, seconds, num),
    )


@pytest.fixture
def asked():
    return []


@pytest.fixture
def ran(monkeypatch, asked):
    found = []

    def tune(pools, model, settings, *, trials, batch, seed):
        found.append((settings.random_sample, seed))
        asked.append(trials)
        return curve(2.0, 1.0, seconds=4.0)

    monkeypatch.setattr(contest, "tune", tune)
    monkeypatch.setattr(contest, "affordable", lambda pools, trials: trials)
    return found


def ground(budget=BUDGET):
    return SimpleNamespace(
        platform="k80", budget=budget, progress=Progress(), pools=lambda form, dataflow: []
    )


def test_finished_cells_are_not_run_again_unless_they_are_of_something_else(ran, asked, tmp_path):
    one = Contestant()
    other = replace(one, settings=replace(one.settings, random_sample=7))
    first = run_contest({"a": one, "b": other}, ground(), tmp_path, seeds=[0, 1])
    assert [(cell.method, cell.seed) for cell in first] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert len(ran) == 4
    run_contest({"a": one, "b": other}, ground(), tmp_path, seeds=[0, 1])
    assert len(ran) == 4
    run_contest({"a": one, "b": one}, ground(), tmp_path, seeds=[0, 1])  # b has other rounds now
    assert ran[4:] == [(one.settings.random_sample, 0), (one.settings.random_sample, 1)]
    run_contest({"a": one}, ground(replace(BUDGET, trials=30)), tmp_path, seeds=[0])
    assert len(ran) == 7
    run_contest({"a": replace(one, times=4)}, ground(), tmp_path, seeds=[0])
    assert (len(ran), asked[-1]) == (8, 4 * BUDGET.trials)


def test_rows_compare_with_the_baseline_of_the_same_seed():
    cells = [
        MethodRun(method="slow", seed=0, curve=curve(4.0, 3.0, 2.0, 2.0, seconds=8.0)),
        MethodRun(method="quick", seed=0, curve=curve(3.0, 2.0, 1.0, 1.0, seconds=2.0)),
        MethodRun(method="never", seed=0, curve=curve(5.0, 5.0, 5.0, 5.0, seconds=4.0)),
    ]
    slow, quick, never = contest_rows(cells, "slow", platform="k80")
    # the baseline reaches its own final latency with its third trial of four, after 6 s of 8
    assert (slow["speedup"], slow["cost_share"]) == (pytest.approx(8 / 6), 1.0)
    # 2.0 with the second trial, after 1 s of 2
    assert (quick["trials_to_baseline"], quick["speedup"]) == (2, pytest.approx(8 / 1))
    assert (quick["cost_share"], quick["final_over"]) == (pytest.approx(2 / 8), 0.5)
    assert (never["reached"], never["speedup"], never["cost_share"]) == (0, 0.0, 0.5)


def test_more_trials_need_pools_that_allow_them(script, monkeypatch):
    """The pools of V100 once cut 800 trials to 220, which counted as 800."""
    item = script("rounds")
    monkeypatch.setitem(item["enough"].__globals__, "affordable", lambda pools, trials: 40)
    assert item["enough"](Contestant(), ground())  # all others have fewer trials, too
    assert item["enough"](Contestant(times=2), ground())
    assert not item["enough"](Contestant(times=3), ground())


def test_ansor_with_more_trials_is_a_rival_of_its_own(script):
    item = script("rounds")
    known = item["contestants"]()
    ansor, longer = known["ansor"], known["ansor_longer"]
    assert (ansor.times, longer.times) == (1, 4)
    assert (longer.settings, longer.model) == (ansor.settings, ansor.model)
    cells = [
        MethodRun(method="ansor", seed=0, curve=curve(4.0, 3.0, seconds=10.0)),
        MethodRun(method="ansor_longer", seed=0, curve=curve(*8 * [2.0], seconds=40.0)),
        MethodRun(method="ours", seed=0, curve=curve(3.0, 2.2, seconds=5.0)),
    ]
    rows = {(row["against"], row["method"]): row for row in item["result_rows"](cells, "v100")}
    assert set(rows) == {
        ("ansor", "ansor"), ("ansor", "ours"),
        ("ansor_longer", "ansor"), ("ansor_longer", "ansor_longer"), ("ansor_longer", "ours"),
    }  # fmt: skip
    ours = rows["ansor_longer", "ours"]
    assert (ours["final_over"], ours["cost_share"]) == (pytest.approx(1.1), 5 / 40)
    assert rows["ansor", "ours"]["speedup"] == 10 / 2.5  # 3 s with its first trial of two
    assert len(item["result_rows"]([cells[0], cells[2]], "v100")) == 2  # nobody had more trials


def items(recipe):
    (group,) = recipe.optimizer([torch.zeros(1, requires_grad=True)]).param_groups
    return {
        "loss": (type(recipe.loss), recipe.loss.lists),
        "optimizer": (group["lr"], group["weight_decay"]),
        "schedule": recipe.schedule,
        "batches": (type(recipe.batches), recipe.batches.programs),
        "inputs": (recipe.relative, recipe.scale),
        "kept": (recipe.keep, recipe.patience, recipe.epochs),
        "clip": recipe.trainer["gradient_clip_val"],
    }


def test_the_published_recipe_is_that_of_the_twin(script):
    ours = Recipe(**script("offline")["PUBLISHED"])
    assert items(ours) == items(recipe_of(composed("train", "paper_training")))


def test_a_model_a_seed_and_one_for_those_that_share_it(script, tmp_path):
    offline, made = script("offline"), []
    options = offline["Options"](data=offline["Data"](root=str(tmp_path)), runs=str(tmp_path))
    models = offline["Models"](ground=SimpleNamespace(), options=options)
    offline["Models"]._make = lambda _, name, recipe, seed: made.append((name, seed)) or object()
    ways = offline["ways"]("ours")
    first = models.ranker("pruner_offline", ways["pruner_offline"], 0)
    assert models.ranker("ours_offline", ways["ours_offline"], 0) is first
    assert models.ranker("pruner_offline", ways["pruner_offline"], 1) is not first
    assert made == [("pruner_offline", 0), ("pruner_offline", 1)]


def test_an_unknown_recipe_is_refused(script):
    with pytest.raises(Exception, match="recipe=theirs is unknown"):
        script("offline")["ways"]("theirs")


def test_another_budget_replaces_no_committed_rows(script, tmp_path):
    offline = script("offline")
    options = offline["Options"](data=offline["Data"](root=str(tmp_path)), budget="small")
    with pytest.raises(Exception, match="budget=small: it would replace rows of default; add"):
        offline["run"](options)
