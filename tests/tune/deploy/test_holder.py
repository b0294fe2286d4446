"""The process of a network lowers it once, for its tasks and for its library."""

import json

import pytest

from pruner.places import conf_folder
from pruner.program.device import load_device

pytestmark = pytest.mark.tvm
NAME = "tests.tune.networks.small_networks:one_image"


def test_a_network_is_lowered_once_for_its_tasks_and_its_library(tmp_path, monkeypatch):
    from pruner.tune.deploy import build, holder
    from pruner.tune.measure.machine import make_platform
    from pruner.tune.networks import extraction
    from pruner.tune.networks.request import REQUEST, NetworkRequest, lowered_network
    from pruner.tune.networks.source import NetworkSource

    platform = make_platform(load_device(conf_folder() / "platform" / "cpu-sse4.yaml"))
    request = NetworkRequest(
        source=NetworkSource(name=NAME), target=json.loads(platform.target_json)
    )
    request.save(tmp_path / REQUEST)
    lowered = []

    def counted(asked):
        lowered.append(asked)
        return lowered_network(asked)

    monkeypatch.setattr(extraction, "lowered_network", counted)
    monkeypatch.setattr(build, "lowered_network", counted)
    monkeypatch.setattr(holder, "_lowered", {})
    holder.find_tasks(tmp_path / REQUEST)
    tasks = extraction.read_tasks(tmp_path / extraction.TASKS)
    library = tmp_path / "network.so"
    asked = build.BuildRequest.of_run(tmp_path, tasks, {}, library, reference=False)
    holder.build_library(asked)
    assert library.is_file()
    assert len(lowered) == 1
    holder._lowered.clear()
    holder.build_library(asked)  # a process that found no tasks lowers it itself
    assert len(lowered) == 2
