"""Runs that are compared are other runs of the same network, or of the same programs."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from pruner.errors import DataError, PrunerError
from pruner.tune.compare.compare_runs import check_equal, check_others, check_run_names
from pruner.tune.networks.lowering import NetworkFormat
from pruner.tune.networks.request import REQUEST, NetworkRequest
from pruner.tune.networks.source import NetworkSource

ASKED = NetworkRequest(source=NetworkSource(name="resnet18"), target={"kind": "llvm"})


def run(folder, request=ASKED):
    folder.mkdir(parents=True)
    request.save(folder / REQUEST)
    return folder


def test_other_runs_of_the_network_are_taken_unless_their_names_are(tmp_path):
    one, two, same = run(tmp_path / "one"), run(tmp_path / "two"), run(tmp_path / "x" / "two")
    check_others(one, [two, run(tmp_path / "three")])
    with pytest.raises(PrunerError, match="is taken"):
        check_others(one, [two, same])


def test_other_networks_and_targets_are_refused(tmp_path):
    one = run(tmp_path / "one")
    others = {
        "source": NetworkSource(name="resnet50"),
        "target": {"kind": "cuda"},
        "form": NetworkFormat(precision="float16"),
    }
    for name, value in others.items():
        other = run(tmp_path / name, replace(ASKED, **{name: value}))
        with pytest.raises(PrunerError, match="another network, precision or target"):
            check_others(one, [other])
    check_others(one, [run(tmp_path / "nhwc", replace(ASKED, form=NetworkFormat(layout="NHWC")))])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no network\.json there"):
        check_others(one, [tmp_path / "empty"])


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
