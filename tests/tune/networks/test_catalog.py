"""Every name of the catalog becomes tasks, and DETR computes what torch computes."""

import pytest

from pruner.tune.networks.catalog import NETWORKS
from pruner.tune.networks.lowering import lower
from pruner.tune.networks.network_tasks import network_tasks
from pruner.tune.networks.sizes import CATALOG, NetworkOptions
from pruner.tune.networks.source import NetworkSource, import_network
from tests.tune.networks.lowered import torch_error

pytestmark = [pytest.mark.tvm, pytest.mark.slow]
SMALL = {"image": 64, "length": 16, "layers": 1}
LARGER = {"inception_v3": {"image": 96}}  # its pools need 75 pixels


def small(name):
    sizes = SMALL | LARGER.get(name, {})
    return NetworkSource(name=name, options=NetworkOptions(**{n: sizes[n] for n in CATALOG[name]}))


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
    assert torch_error(small("detr"), lower(import_network(small("detr")), target)) < 1e-5
