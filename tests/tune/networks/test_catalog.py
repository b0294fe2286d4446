"""Every name of the catalog becomes tasks, and DETR computes what torch computes."""

import numpy as np
import pytest
import torch

from pruner.tune.networks.catalog import NETWORKS
from pruner.tune.networks.lowering import lower
from pruner.tune.networks.network_tasks import network_tasks
from pruner.tune.networks.sizes import CATALOG, NetworkOptions
from pruner.tune.networks.source import NetworkSource, import_network, network_of
from pruner.tune.tvm_import import load_tvm
from tests.tune.networks.test_extraction import run

pytestmark = [pytest.mark.tvm, pytest.mark.slow]
SMALL = {"image": 64, "length": 16, "layers": 1}
LARGER = {"inception_v3": {"image": 96}}  # its pools need 75 pixels


def small(name):
    sizes = SMALL | LARGER.get(name, {})
    return NetworkSource(name=name, options=NetworkOptions(**{n: sizes[n] for n in CATALOG[name]}))


@pytest.fixture(scope="module")
def target():
    return load_tvm().tvm.target.Target({"kind": "llvm", "num-cores": 1})


@pytest.mark.parametrize("name", NETWORKS)
def test_it_becomes_tasks(name, target):
    """All of the arithmetic is in products, convolutions among them where there are images."""
    tasks = network_tasks(lower(import_network(small(name)), target), target)
    assert sum(task.share for task in tasks) == pytest.approx(1.0)
    kinds = ("conv2d", "matmul", "dense")
    products = [task for task in tasks if any(kind in task.name for kind in kinds)]
    assert sum(task.share for task in products) > 0.8


def test_detr_computes_what_torch_computes(target):
    """Twelve layers of attention over an image of a residual network, two outputs."""
    network, inputs = network_of(small("detr"))
    with torch.no_grad():
        wanted = network(*inputs)
    found = run(lower(import_network(small("detr")), target), inputs)
    for mine, theirs in zip(found, wanted, strict=True):
        error = np.abs(mine - theirs.numpy()).max() / np.abs(theirs.numpy()).max()
        assert error < 1e-5
