"""What an adaptation leaves: chains through files are chains in one process."""

from dataclasses import replace
from functools import cache

import pytest

from pruner import features
from pruner.models.adaptation.base import Setting, save_models
from pruner.models.adaptation.moa import MomentumAdaptation
from pruner.models.adaptation.warm import Scratch
from pruner.models.checkpoint.checkpoint import CheckpointInfo, load_checkpoint
from pruner.models.registry import ModelSpec
from pruner.models.training.fit import checkpoint_file, start_of
from pruner.models.training.recipe import Start
from tests.models.adaptation import shifted
from tests.models.adaptation.shifted import METHODS, NETWORKS, adaptation
from tests.models.synthetic import exactly

SPEC = ModelSpec.of(NETWORKS["pacm"])
THIRD = shifted.store(9, [5, 11], platform="third")


@cache
def world():
    return shifted.source_and_target()


def given():
    info = CheckpointInfo(
        model=SPEC,
        feature_version=features.FEATURE_SET_VERSION,
        dataflow="paper",
    ).with_seen(world().store.keys)
    return Start(ranker=world().ranker, info=info)


def keep(adapted, folder, keys, start=None):
    return save_models(
        adapted,
        lambda name: folder / "models" / f"{name}.safetensors",
        start=start,
        dataflow="paper",
        keys=keys,
        about={"method": "x"},
    )


def moa(source):
    setting = Setting(make_network=NETWORKS["pacm"], source=source)
    return MomentumAdaptation(setting, momentum=0.5, fit=shifted.short_fit())


@pytest.mark.parametrize("name", ["adapted", "siamese"])
def test_a_chain_of_files_is_the_chain_in_one_process(tmp_path, name):
    first = moa(world().ranker)
    for _ in range(3):
        first.update(world().target)
    files = keep(first, tmp_path, world().target.keys, given())
    second, third = moa(first.models[name]), moa(start_of(files[name]).ranker)
    # the centres of B's tasks stay with the run that measured them
    for one in (second, third):
        one.ranker.centers.clear()
        one.update(THIRD)
        one.update(THIRD)
    for which, model in second.models.items():
        exactly(third.models[which].state_dict(), model.state_dict())


@pytest.mark.parametrize("method", METHODS)
def test_checkpoints_say_what_is_still_in_the_weights(tmp_path, method):
    adapted = adaptation(method, world())
    adapted.update(world().target)
    files = keep(adapted, tmp_path, world().target.keys, given())
    expected = {"none": {"old"}, "scratch": {"new"}}.get(method, {"old", "new"})
    assert set(files) == {
        "residual": set(), "moa": {"adapted", "siamese"}, "moa_official": {"adapted", "siamese"},
    }.get(method, {"adapted"})  # fmt: skip
    for name, path in files.items():
        ranker, info = load_checkpoint(path, feature_version=features.FEATURE_SET_VERSION)
        assert set(info.seen_tasks) == expected
        assert all(len(tasks) == 3 for tasks in info.seen_tasks.values())
        assert info.config["adapted"] == {"method": "x", "model": name}
        assert info.says_seen
        if name == "adapted":
            assert checkpoint_file(tmp_path) == path
            exactly(ranker.state_dict(), adapted.ranker.state_dict())


def test_a_successor_is_of_the_features_that_it_learned_with(tmp_path):
    start = given()
    start = replace(start, info=replace(start.info, feature_version="older"))
    adapted = moa(world().ranker)
    adapted.update(world().target)
    files = keep(adapted, tmp_path, world().target.keys, start)
    for path in files.values():
        load_checkpoint(path, feature_version=features.FEATURE_SET_VERSION)


def test_without_a_source_it_has_seen_the_target_alone(tmp_path):
    adapted = Scratch(Setting(make_network=NETWORKS["pacm"]), fit=shifted.short_fit())
    adapted.update(world().target)
    info = load_checkpoint(keep(adapted, tmp_path, world().target.keys)["adapted"])[1]
    assert (info.model, set(info.seen_tasks)) == (SPEC, {"new"})
    made_by_hand = Scratch(
        Setting(make_network=lambda: NETWORKS["pacm"]()), fit=shifted.short_fit()
    )
    assert keep(made_by_hand, tmp_path / "none", []) == {}
    assert not (tmp_path / "none").exists()


def test_three_platforms_are_added_up(tmp_path):
    start, seen = given(), {"old"}
    for number, store in enumerate((world().target, THIRD)):
        adapted = moa(start.ranker)
        adapted.update(store)
        files = keep(adapted, tmp_path / str(number), store.keys, start)
        start = start_of(files["siamese"])
        seen |= {key.platform for key in store.keys}
        assert set(start.info.seen_tasks) == seen
    assert [one["checkpoint"] for one in start.inherited["lineage"]] == [
        "models/siamese.safetensors",
        "models/siamese.safetensors",
    ]
