"""What every adaptation method must do, on networks small enough for a second each."""

import io
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from pruner.errors import PrunerError
from pruner.models.adaptation.base import Adaptation, Setting
from pruner.models.adaptation.warm import Continue
from pruner.models.checkpoint.official import official_ranker, read_official
from pruner.models.judging import metrics
from pruner.models.programs.program_table import ProgramTable
from pruner.models.programs.scaler import Center
from tests.models import synthetic
from tests.models.adaptation import shifted
from tests.models.adaptation.shifted import METHODS, NETWORKS, adaptation, scores


@cache
def world(network="pacm", relative=True):
    return shifted.source_and_target(network, relative)


def accuracy(adapted, programs):
    scored = adapted.ranker.score_tasks(programs, torch.arange(programs.num_programs))
    return metrics.pairwise_accuracy(scored)


def first(store, num):
    """The first programs of every task: what has been measured so far."""
    return store.subset(torch.cat([store.programs_of([t])[:num] for t in range(3)]))


def updates_to_learn(method):
    """The official period of MoA is four updates."""
    return 4 if method == "moa_official" else 1


@pytest.mark.parametrize("network", ["pacm", pytest.param("tensetmlp", marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", [m for m in METHODS if m != "none"])
def test_every_method_gets_better_on_a_shifted_task(method, network):
    here = world(network)
    before = accuracy(adaptation("none", here, network), here.others)
    adapted = adaptation(method, here, network, steps=25)
    for _ in range(updates_to_learn(method)):
        adapted.update(here.target)
    assert accuracy(adapted, here.others) > before + 0.02


# plain fits, as `continue` is
SLOW = ("finetune", "finetune_official", "scratch")
SOME = [pytest.param(m, marks=pytest.mark.slow if m in SLOW else ()) for m in METHODS]


@pytest.mark.parametrize("method", SOME)
def test_the_seed_decides(method):
    here = world()
    one, same, other = (adaptation(method, here, seed=seed) for seed in (1, 1, 2))
    for adapted in (one, same, other):
        for _ in range(updates_to_learn(method)):
            adapted.update(first(here.target, 12))
    np.testing.assert_array_equal(scores(one, here.others), scores(same, here.others))
    if method != "none":
        assert not np.array_equal(scores(one, here.others), scores(other, here.others))


@pytest.mark.parametrize("method", METHODS)
def test_a_restored_adaptation_goes_on_exactly(method):
    here = world()
    whole = adaptation(method, here)
    for num in (4, 6, 8, 10):
        whole.update(first(here.target, num))
    stopped, resumed = adaptation(method, here), adaptation(method, here)
    for num in (4, 6):
        stopped.update(first(here.target, num))
    file = io.BytesIO()
    torch.save(stopped.state_dict(), file)
    resumed.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    for num in (8, 10):
        resumed.update(first(here.target, num))
    assert resumed.round == whole.round == 4
    np.testing.assert_array_equal(scores(resumed, here.target), scores(whole, here.target))


@pytest.mark.parametrize("method", METHODS)
def test_too_few_programs_change_nothing_and_enough_never_the_source(method):
    here = world()
    before = {name: value.clone() for name, value in here.ranker.state_dict().items()}
    adapted = adaptation(method, here)
    own = {name: value.clone() for name, value in adapted.ranker.state_dict().items()}
    adapted.update(first(here.target, 1))
    assert all(torch.equal(v, own[n]) for n, v in adapted.ranker.state_dict().items())
    adapted.update(here.target)
    assert adapted.ranker.network is not here.ranker.network
    assert here.ranker.centers == {}
    synthetic.exactly(before, here.ranker.state_dict())


@pytest.mark.parametrize("method", SOME)
def test_absolute_inputs_work_too(method):
    here = world(relative=False)
    adapted = adaptation(method, here)
    adapted.update(first(here.target, 10))
    assert np.isfinite(scores(adapted, here.others)).all()
    assert adapted.ranker.centers == {}


def test_none_scores_as_the_source_does():
    here = world()
    adapted = adaptation("none", here)
    for number, key in enumerate(here.target.keys):
        programs = here.target.programs_of([number])
        adapted.ranker.centers[key] = Center.of(here.target.programs(programs))
    adapted.update(first(here.target, 5))
    source = SimpleNamespace(ranker=here.ranker)
    np.testing.assert_array_equal(scores(adapted, here.target), scores(source, here.target))


def test_the_first_population_is_the_centre_for_good():
    rng, key = np.random.default_rng(0), synthetic.key("t0", "new")
    here, batches = (
        world(),
        [synthetic.features(rng, 6, max_statements=1, slots=2) for _ in range(2)],
    )
    adapted = adaptation("none", here)
    adapted.set_reference_population(key, batches[0])
    adapted.set_reference_population(key, batches[1])
    adapted.update(here.target)
    mean = batches[0].statement.mean(axis=0)
    np.testing.assert_allclose(adapted.ranker.centers[key].statement[0], mean, rtol=1e-5)
    score = adapted.ranker.score(batches[1], key)
    whole = Center.of(here.target.programs(here.target.programs_of([1])))
    measured = adapted.ranker.centers[here.target.keys[1]]
    np.testing.assert_allclose(measured.statement, whole.statement)
    assert not np.allclose(score, adapted.ranker.score(batches[1]))


def test_tasks_without_programs_get_no_centre():
    here = world()
    adapted = adaptation("finetune", here)
    adapted.update(here.target.subset(here.target.programs_of([2])))
    assert set(adapted.ranker.centers) == {here.target.keys[2]}


def test_without_a_source_continue_learns_from_random_weights():
    here = world()
    adapted = Continue(Setting(make_network=NETWORKS["pacm"]), fit=shifted.short_fit(25))
    before = accuracy(adapted, here.others)
    adapted.update(here.target)
    assert accuracy(adapted, here.others) > max(before, 0.6)


@pytest.mark.parametrize("method", METHODS)
def test_a_missing_source_and_missing_programs_of_it_are_told(method):
    if method in ("multi_task", "ewc"):
        no_store = SimpleNamespace(ranker=world().ranker, store=None)
        with pytest.raises(Exception, match="needs labelled source programs"):
            adaptation(method, no_store)
    empty = SimpleNamespace(ranker=None, store=None)
    if method in ("none", "scratch", "continue"):
        adaptation(method, empty)
        return
    with pytest.raises(Exception, match="needs a model of the source platform") as told:
        adaptation(method, empty)
    assert isinstance(told.value.__cause__, PrunerError)


@pytest.mark.parametrize("method", ["moa_official", "finetune_official", "ewc", "distill"])
def test_the_released_weights_are_a_source(method, shared):
    weights = read_official(shared / "data" / "official-checkpoints" / "pam_k80_1500.npz")
    programs = synthetic.store(sizes=(6, 5), slots=8)
    released = SimpleNamespace(ranker=official_ranker(weights), store=programs)
    adapted = adaptation(method, released, steps=1)
    before = scores(adapted, programs)
    for _ in range(updates_to_learn(method)):
        adapted.update(programs)
    after = scores(adapted, programs)
    assert np.isfinite(after).all()
    assert not np.array_equal(before, after)
    assert not adapted.ranker.relative


def test_failed_measurements_teach_nothing_wrong():
    here = world()
    target = first(here.target, 8)
    latency = target.latency_s.clone()
    latency[:8] = torch.inf  # all of task 0
    latency[8] = torch.inf  # one of task 1
    failing = ProgramTable(
        **{
            name: getattr(target, name)
            for name, field in ProgramTable.__dataclass_fields__.items()
            if field.init
        }
        | {"latency_s": latency}
    )
    adapted = adaptation("finetune", here)
    adapted.update(failing)
    assert np.isfinite(scores(adapted, here.others)).all()


@pytest.mark.parametrize("method", METHODS)
def test_every_configuration_is_as_its_constructor_wants(method):
    given = Setting(
        make_network=NETWORKS["pacm"], source=world().ranker, source_store=world().store
    )
    made = instantiate(OmegaConf.load(shifted.FILES / f"{method}.yaml"), setting=given)
    assert isinstance(made, Adaptation)
