"""Which models of older features still hold: only the paper's rows of CPUs have changed."""

import pytest

from pruner.features import FEATURE_SET_VERSION
from pruner.features.versions import unchanged_rows

OLD = "official-1"
OLDER = pytest.mark.parametrize("old", [OLD, "official-2"])


def test_nothing_changes_between_a_version_and_itself():
    assert unchanged_rows(FEATURE_SET_VERSION, FEATURE_SET_VERSION, ["cpu-avx2"]) == {
        "paper", "official", None,
    }  # fmt: skip


@OLDER
@pytest.mark.parametrize("platforms", [["v100"], ["a100", "k80", "h200"]])
def test_models_of_gpus_hold(old, platforms):
    assert "paper" in unchanged_rows(old, FEATURE_SET_VERSION, platforms)


@OLDER
@pytest.mark.parametrize("platforms", [["cpu-avx2"], ["v100", "cpu-avx512"], ["nobodys"], []])
def test_models_that_read_rows_of_cpus_do_not(old, platforms):
    """Nor do those of platforms that nobody can tell."""
    assert unchanged_rows(old, FEATURE_SET_VERSION, platforms) == {"official", None}


@pytest.mark.parametrize("pair", [("f1", "f2"), (FEATURE_SET_VERSION, OLD), ("", OLD), (OLD, "f2")])
def test_other_versions_have_nothing_in_common(pair):
    assert not unchanged_rows(*pair, ["v100"])
