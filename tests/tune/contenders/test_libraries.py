"""Runs that are compared are other runs of the same network."""

from dataclasses import replace

import pytest

from pruner.errors import DataError, PrunerError
from pruner.tune.contenders.libraries import check_others
from pruner.tune.networks.lowering import NetworkForm
from pruner.tune.networks.request import REQUEST, NetworkRequest
from pruner.tune.networks.source import NetworkSource

ASKED = NetworkRequest(source=NetworkSource(name="resnet18"), target={"kind": "llvm"})


def run(folder, request=ASKED):
    folder.mkdir(parents=True)
    request.save(folder / REQUEST)
    return folder


def test_other_runs_of_the_network_are_taken(tmp_path):
    check_others(run(tmp_path / "one"), [run(tmp_path / "two"), run(tmp_path / "three")])


def test_names_that_are_taken_are_refused(tmp_path):
    one, two, same = run(tmp_path / "one"), run(tmp_path / "two"), run(tmp_path / "x" / "two")
    for others in ([two, same], [one], [two, two], [run(tmp_path / "eager")]):
        with pytest.raises(PrunerError, match="is taken"):
            check_others(one, others)


def test_other_networks_and_targets_are_refused(tmp_path):
    one = run(tmp_path / "one")
    others = {
        "source": NetworkSource(name="resnet50"),
        "target": {"kind": "cuda"},
        "form": NetworkForm(precision="float16"),
    }
    for name, value in others.items():
        other = run(tmp_path / name, replace(ASKED, **{name: value}))
        with pytest.raises(PrunerError, match="another network, precision or target"):
            check_others(one, [other])
    check_others(one, [run(tmp_path / "nhwc", replace(ASKED, form=NetworkForm(layout="NHWC")))])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no network\.json there"):
        check_others(one, [tmp_path / "empty"])
