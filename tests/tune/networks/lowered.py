"""Small networks imported and lowered once a process; nobody may change them."""

import json
from functools import cache

from pruner.tune.networks.lowering import lower
from pruner.tune.networks.network_tasks import network_tasks
from pruner.tune.networks.source import NetworkSource, import_network
from pruner.tune.tvm_import import load_tvm

HERE = "tests.tune.networks.small_networks"
ONE_CORE = '{"kind": "llvm", "num-cores": 1}'


def source(name):
    return NetworkSource(name=f"{HERE}:{name}")


@cache
def imported(name):
    """TVM's module of a network of `small_networks`."""
    return import_network(source(name))


@cache
def lowered(name, target=ONE_CORE):
    """The same for a target of TVM, by its name or the JSON of its table."""
    return lower(imported(name), _target(target))


@cache
def tasks_of(name, target=ONE_CORE):
    """Its tasks."""
    return tuple(network_tasks(lowered(name, target), _target(target)))


def _target(text):
    given = json.loads(text) if text.startswith("{") else text
    return load_tvm().tvm.target.Target(given)
