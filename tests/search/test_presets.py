"""The presets of conf/policy: each builds, says what the notes say, and repeats no value."""

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from pruner.cli.shared.known import chosen
from pruner.search.explorer import ExplorerSettings
from pruner.search.policy import RoundSettings
from tests.paths import CONF

FILES = sorted((CONF / "policy").glob("*.yaml"))

# (population, generations, keep) of draft and verification; random, redraft, measured, epsilon.
NOTES = {
    "ansor": (None, (2048, 4, 64), 2048, 2, 0.2, 0.05),
    "pruner_official": ((1536, 2, 512), (1536, 1, 64), 1536, 2, 0.1, 0.1),
    "pruner_paper": ((2048, 4, 512), (1536, 0, 64), 128, 1, 0.0, 0.1),
}


def sizes(settings: ExplorerSettings | None) -> tuple[int, int, int] | None:
    return settings and (settings.population, settings.generations, settings.keep)


def test_every_preset_is_described():
    assert {path.stem for path in FILES} >= set(NOTES)


@pytest.mark.parametrize("name", NOTES)
def test_presets_say_what_the_notes_say(name):
    built = instantiate(chosen("policy", name))
    assert isinstance(built, RoundSettings)
    found = (
        sizes(built.draft), sizes(built.verify), built.random_sample, built.redraft_period,
        built.measured_share, built.epsilon,
    )  # fmt: skip
    assert found == NOTES[name]


def test_the_draft_decides_beside_or_before_a_model_in_live_spaces_alone():
    built = {path.stem: instantiate(chosen("policy", path.stem)) for path in FILES}
    found = {
        name: (settings.prior, settings.draft_leads)
        for name, settings in built.items()
        if isinstance(settings, RoundSettings) and (settings.prior or settings.draft_leads)
    }
    own_draft = ["gradient", "pruner_live", "pruner_network"]
    assert found == dict.fromkeys(own_draft, (50, True))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_file_repeats_no_value_of_the_file_that_it_changes(path):
    own = OmegaConf.to_container(OmegaConf.load(path))
    for first in own.pop("defaults", []):
        base = OmegaConf.to_container(chosen("policy", first))
        assert [name for name, value in own.items() if base.get(name, ...) == value] == []
