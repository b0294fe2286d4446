"""Kernels are timed beside those of runs of the same programs only."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from pruner.errors import DataError
from pruner.tune.contenders.kernels import check_equal
from pruner.tune.contenders.libraries import check_run_names


def task(name, fingerprint="1"):
    return SimpleNamespace(name=name, fingerprint=fingerprint)


def test_runs_of_the_same_programs_are_taken():
    check_equal(Path("b"), [task("x"), task("y")], [task("y"), task("z")])


@pytest.mark.parametrize(
    ("theirs", "told"),
    [([task("x", "2")], "its x is another program"), ([task("z")], "it has none of x, y")],
)
def test_other_programs_are_refused(theirs, told):
    with pytest.raises(DataError, match=f"compare=b: {told}"):
        check_equal(Path("b"), [task("x"), task("y")], theirs)


def test_every_run_needs_a_name_of_its_own(tmp_path):
    check_run_names(tmp_path / "a", [tmp_path / "b", tmp_path / "c"])
    for others in (["a"], ["b", "b"], ["eager"], ["ours"]):
        with pytest.raises(DataError, match="is taken"):
            check_run_names(tmp_path / "a", [tmp_path / name for name in others])
