"""What a network takes is known, and refused in one line, before its weights are there."""

import pytest
import torch

from pruner.errors import PrunerError
from pruner.tune.networks import host_memory
from pruner.tune.networks.catalog import NETWORKS
from pruner.tune.networks.sizes import NetworkOptions
from pruner.tune.networks.source import NetworkSource, import_network

LARGE = ("densenet121", "inception_v3", "wide_resnet50_2", "resnet50")  # as others, deeper
SMALL = "tests.tune.networks.small_networks:faint"  # 16 x 8 + 8 + 8 x 8 parameters
SMALL_BYTES = 4 * (16 * 8 + 8 + 8 * 8)
# Two matrices of queries and outputs, two of keys and values, three of SwiGLU, two norms.
MISTRAL_LAYER = 2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096
MISTRAL_REST = 2 * 32000 * 4096 + 4096  # words, output layer, last norm
MISTRAL_CONSTANTS = 128 * 128 + 2 * 128 * 128  # mask and rotations of 128 tokens


@pytest.mark.parametrize("layers", [2, 32])
def test_bytes_of_a_named_network_by_hand(layers):
    numbers = layers * MISTRAL_LAYER + MISTRAL_REST + MISTRAL_CONSTANTS
    assert host_memory.named_bytes("mistral", NetworkOptions(layers=layers)) == 4 * numbers


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in LARGE else ()) for n in NETWORKS]
)
def test_every_name_is_counted_without_its_weights(name):
    assert 1e6 < host_memory.named_bytes(name, NetworkOptions()) < 30e9


def test_what_does_not_fit_is_refused_with_how_much_and_what_would():
    whole = NetworkOptions()
    with pytest.raises(PrunerError) as refused:
        host_memory.check_named("mistral", whole, free=20e9)
    told = str(refused.value)
    assert told.startswith("network=mistral: 29.0 GB of weights take about 116 GB")
    assert "20 GB are free; sizes.layers=2 takes 11 GB and has the same tasks" in told
    assert "\n" not in told
    host_memory.check_named("mistral", whole, free=117e9)
    host_memory.check_named("mistral", NetworkOptions(layers=2), free=12e9)
    with pytest.raises(PrunerError, match="free memory, or take a smaller network"):
        host_memory.check_named("resnet18", whole, free=1e6)


def test_copies_that_are_there_are_not_counted_again():
    host_memory.check("net", 10e9, held=1, free=30e9)
    with pytest.raises(PrunerError, match="about 40 GB"):
        host_memory.check("net", 10e9, held=0, free=30e9)


def test_own_modules_and_files_are_refused_too(tmp_path, monkeypatch):
    path = tmp_path / "net.pt2"
    with torch.no_grad():
        network, inputs = torch.nn.Linear(16, 8).eval(), (torch.randn(4, 16),)
        torch.export.save(torch.export.export(network, inputs), path)
    monkeypatch.setattr(
        host_memory, "free_bytes", lambda: (host_memory.COPIES - 1) * SMALL_BYTES - 1.0
    )
    for name in (SMALL, str(path)):
        with pytest.raises(PrunerError, match="GB of weights take about"):
            import_network(NetworkSource(name=name))


def test_free_memory_is_the_least_of_the_machines_and_the_groups(tmp_path, monkeypatch):
    info, limit = tmp_path / "meminfo", tmp_path / "memory.max"
    monkeypatch.setattr(host_memory, "_MEMINFO", info)
    monkeypatch.setattr(host_memory, "_LIMIT", limit)
    assert host_memory.free_bytes() == float("inf")  # neither is told here
    info.write_text("MemTotal:  9 kB\nMemAvailable:     3000 kB\nCached: 7 kB\n")
    limit.write_text("max\n")
    assert host_memory.free_bytes() == 3000 * 1024
    limit.write_text("4096\n")
    assert host_memory.free_bytes() == 4096
