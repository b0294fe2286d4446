"""Classes among the arguments and results of modules, against torch itself."""

import json
from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._pytree import register_pytree_node

from pruner.cli.tuning.optimize import _exported
from pruner.errors import PrunerError
from pruner.tune.networks.plain import plain, plain_module, tensors_of, with_tensors
from pruner.tune.networks.signature import INPUTS, OUTPUTS
from pruner.tune.networks.source import NetworkSource, example_of, import_network, inputs_of
from tests.tune.networks.lowered import run

pytestmark = pytest.mark.tvm


class Layer:
    """Keys and values of a layer, with what a cache of transformers keeps beside them."""

    def __init__(self):
        self.keys = self.values = None
        self.dtype, self._window = None, torch.tensor([3])


class Cache:
    """A cache as transformers has it: it grows, and its elements are pairs with a None."""

    def __init__(self, layers=2):
        self.layers = [Layer() for _ in range(layers)]

    def update(self, place, keys, values):
        """Append new rows; return all rows."""
        layer = self.layers[place]
        if layer.keys is None:
            layer.dtype, layer.keys, layer.values = keys.dtype, torch.tensor([]), torch.tensor([])
        layer.keys = torch.cat([layer.keys, keys], 1)
        layer.values = torch.cat([layer.values, values], 1)
        return layer.keys, layer.values

    def __iter__(self):
        return iter([(layer.keys, layer.values, None) for layer in self.layers])


class Registered(Cache):
    """The same, registered for torch.export as transformers does it on request."""


def registered(keys, values):
    found = Registered(len(keys))
    for place, rows in enumerate(zip(keys, values, strict=True)):
        found.update(place, *rows)
    return found


register_pytree_node(
    Registered,
    lambda one: (
        [[layer.keys for layer in one.layers], [layer.values for layer in one.layers]],
        [["key_cache", "value_cache"], [None for _ in one.layers]],
    ),
    lambda parts, _: registered(*parts),
    serialized_type_name="tests.Registered",
)


class Output(OrderedDict):
    """An output with attributes, as those of transformers; registered nowhere."""

    def __getattr__(self, name):
        return self[name]


class Decoder(nn.Module):
    """Two layers of attention that return their cache by default."""

    def __init__(self, kind=Cache):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(8, 24) for _ in range(2))
        self.kind = kind

    def forward(self, hidden, cache=None):
        cache = self.kind() if cache is None else cache
        for place, layer in enumerate(self.layers):
            query, *new = layer(hidden).chunk(3, -1)
            keys, values = cache.update(place, *new)
            hidden = hidden + torch.softmax(query @ keys.mT, -1) @ values
        return Output(logits=hidden, past=cache)


def fresh():
    return Decoder(), torch.randn(1, 4, 8)


def fresh_registered():
    return Decoder(Registered), torch.randn(1, 4, 8)


def filled(kind):
    cache, rows = kind(), torch.randn(4, 1, 5, 8)
    for place in range(2):
        cache.update(place, *rows[2 * place : 2 * place + 2])
    return Decoder(kind), (torch.randn(1, 1, 8),), {"cache": cache}


def grown():
    return filled(Cache)


def grown_registered():
    return filled(Registered)


def source(name):
    return NetworkSource(name=f"{__name__}:{name}")


# keys and values of both layers, each beside a None
PAIRS = {"tuple": [{"tuple": [2 * i + 1, 2 * i + 2, {"value": None}]} for i in range(2)]}
LISTS = {"dict": [["key_cache", {"list": [1, 2]}], ["value_cache", {"list": [3, 4]}]]}


@pytest.mark.parametrize(
    ("name", "past"), [("fresh", PAIRS), ("grown", PAIRS), ("fresh_registered", LISTS)]
)
def test_a_cache_is_an_output_and_an_input(name, past):
    module = import_network(source(name))
    found = run(module, inputs_of(source(name)))
    network, (args, kwargs) = example_of(source(name))
    for _ in "12":  # the cache is changed in place, and a second call begins anew
        wanted = tensors_of(network(*args, **kwargs))
        assert len(wanted) == 5
        for mine, theirs in zip(found, wanted, strict=True):
            np.testing.assert_allclose(mine, theirs.detach().numpy(), rtol=1e-4, atol=1e-6)
    assert json.loads(module["main"].attrs[OUTPUTS]) == {"dict": [["logits", 0], ["past", past]]}


def test_a_registered_cache_is_an_input_by_its_names():
    attrs = import_network(source("grown_registered"))["main"].attrs
    assert json.loads(attrs[INPUTS]) == {"tuple": [{"tuple": [0]}, {"dict": [["cache", LISTS]]}]}


def test_a_module_that_takes_a_cache_is_exported_by_the_names_of_its_inputs():
    module, args, kwargs = grown()
    program = _exported(module, (args, kwargs))
    names = ["hidden", *(f"cache_{layer}_{part}" for layer in range(2) for part in range(2))]
    # beside the constants None
    assert [one for one in program.graph_signature.user_inputs if one] == names
    keys = kwargs["cache"].layers[0].keys
    assert keys.shape[1] == 5  # the caller's stays as it was


def test_containers_become_plain_and_objects_dicts_of_their_tensors():
    one, two = torch.ones(1), torch.zeros(1)
    pair = namedtuple("Pair", ["a", "b"])(one, [two])
    found = plain(OrderedDict(pair=pair, none=None))
    assert (type(found), type(found["pair"]), type(found["pair"][1])) == (dict, tuple, list)
    assert found["pair"][0] is one
    layer = Layer()
    layer.keys, layer.circle, layer.more = one, layer, {"b": [two, object]}
    layer.inner = Layer()
    layer.inner.values = two
    assert plain(layer) == {"keys": one, "inner": {"values": two}}
    assert tensors_of([layer, {"x": 1}]) == [one, two]


@pytest.mark.parametrize("value", [{torch.ones(1)}, np.ones(2), Layer(), 3j])
def test_what_holds_no_tensors_in_an_order_is_refused(value):
    with pytest.raises(PrunerError, match=rf"outputs\[0\] is of {type(value).__name__}: a lib"):
        plain([value])
    assert tensors_of([value]) == []


class Moving:
    """An object whose tensors are made when they are read."""

    def __iter__(self):
        return iter([torch.ones(2)])


def test_an_object_whose_tensors_cannot_be_replaced_is_named():
    with pytest.raises(PrunerError, match="the tensors of a Moving among the inputs cannot be"):
        with_tensors(((Moving(),), {}), [torch.zeros(2)])


def test_a_tensor_at_two_places_of_an_object_becomes_two_tensors():
    layer, one, two = Layer(), torch.zeros(2), torch.ones(2)
    layer.keys = layer.values = torch.rand(2)
    ((made,), _) = with_tensors(((layer,), {}), [one, two])
    assert made.keys is one
    assert made.values is two
    assert layer.keys is layer.values


class Rows(list):
    """A list with a method."""

    def total(self):
        return self[0] + self[1]


class Totals(nn.Module):
    def forward(self, rows, pair):
        return rows.total() - 2 * pair.a


def totals():
    return Totals(), (Rows([torch.rand(3), torch.rand(3)]), Pair(torch.rand(3), 1))


def test_a_module_gets_its_own_class_of_list():
    module = import_network(source("totals"))
    one, two, three = arrays = inputs_of(source("totals"))
    (found,) = run(module, arrays)
    np.testing.assert_allclose(found, one + two - 2 * three, rtol=1e-6)


class Differs(nn.Module):
    def forward(self, layer):
        return layer.keys - 2 * layer.values


def same_twice():
    layer = Layer()
    layer.keys = layer.values = torch.rand(3)
    return Differs(), (layer,)


class Difference(nn.Module):
    def forward(self, x, y):
        return x - 2 * y


def same_arguments():
    return Difference(), (torch.ones(3),) * 2


@pytest.mark.parametrize("name", ["same_twice", "same_arguments"])
def test_a_tensor_at_two_places_is_two_inputs(name):
    keys, values = np.float32([1, 2, 3]), np.float32([5, 7, 9])
    (found,) = run(import_network(source(name)), [keys, values])
    np.testing.assert_array_equal(found, keys - 2 * values)


Pair = namedtuple("Pair", ["a", "b"])


class Named(nn.Module):
    def forward(self, x):
        return Pair(x + 1, [x * 2])


def named():
    return Named(), torch.ones(3)


def test_named_tuples_become_tuples():
    attrs = import_network(source("named"))["main"].attrs
    assert json.loads(attrs[OUTPUTS]) == {"tuple": [0, {"list": [1]}]}
    assert type(plain_module(Named())(torch.ones(3))) is tuple
