"""Modules whose calls of torch's functions are recorded have the graph of ``torch.export``."""

import pytest
import torch
from torch import nn

from pruner.tune.networks.operators import apart
from pruner.tune.networks.plain import arguments_of
from pruner.tune.networks.signature import exported, structures
from tests.tune.networks import small_networks

pytestmark = pytest.mark.tvm


def known():
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    from pruner.tune.networks.operators.program import converters

    return converters(ExportedProgramImporter())


def recorded(network, inputs):
    from pruner.tune.networks.operators import program

    convert = known()
    return program.recorded(
        network, arguments_of(inputs), lambda part: program.decomposed(part, convert)
    )


def calls(program):
    """Operators with the shapes of their results, in order."""
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    return [(node.target, getattr(node.meta["val"], "shape", None)) for node in nodes]


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch):
    monkeypatch.setattr(apart, "_KNOWN", {})


@pytest.mark.parametrize("name", ["residual", "channels", "encoder", "two_outputs"])
def test_the_graph_is_that_of_the_complete_program(name, monkeypatch):
    """With the structures of inputs and outputs; the second time no call is decomposed."""
    from pruner.tune.networks.operators.program import decomposed

    network, inputs = getattr(small_networks, name)()
    wanted = decomposed(exported(network, arguments_of(inputs), is_pure=True), known())
    found = recorded(network, inputs)
    assert calls(found) == calls(wanted)
    assert structures(found) == structures(wanted)
    monkeypatch.setattr(apart, "_learned", lambda *_: pytest.fail("it is known"))
    assert calls(recorded(network, inputs)) == calls(wanted)


class Names(nn.Module):
    """Weights with the same name once dots are replaced, and a name with a sign."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Linear(3, 3, bias=False)
        self.conv_weight = nn.Parameter(torch.ones(3))
        self.named = nn.ModuleDict({"conv-3x3": nn.Linear(3, 3)})

    def forward(self, x):
        return self.named["conv-3x3"](self.conv(x)) * self.conv_weight


def test_names_of_weights_need_not_be_words_of_python():
    """Each placeholder of a weight has the shape of the weight that its signature names."""
    module = Names()
    program = recorded(module, torch.ones(2, 3))
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    inputs = [one for one in program.graph_signature.input_specs if one.target]
    assert {one.target for one in inputs} == {*dict(module.named_parameters())}
    for one in inputs:
        weight = program.state_dict[one.target]
        assert nodes[one.arg.name].meta["val"].shape == weight.shape


class Writes(nn.Module):
    def forward(self, x):
        y = x * 2
        y += 1
        return y


class InPlace(nn.Module):
    """A function that writes into its argument only if it is asked to."""

    def forward(self, x):
        y = x * 2
        nn.functional.relu(y, inplace=True)
        return y


class Remembers(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = None

    def forward(self, x):
        self.last = x * 2
        return self.last + 1


class Collects(nn.Module):
    """A list, a dict, a set and a list in a dict that grow with every call."""

    def __init__(self):
        super().__init__()
        self.seen, self.cache, self.sizes, self.inner = [], {}, set(), {"seen": []}

    def forward(self, x):
        y = x * 2
        self.change(y)
        return y + 1


class Appends(Collects):
    def change(self, y):
        self.seen.append(y)


class Caches(Collects):
    def change(self, y):
        self.cache[y.shape] = y


class Adds(Collects):
    def change(self, y):
        self.sizes.add(y.shape)


class AppendsInside(Collects):
    def change(self, y):
        self.inner["seen"].append(y)


class Foreign(nn.Module):
    """A tensor that is neither a parameter nor a buffer."""

    def __init__(self):
        super().__init__()
        self.table = torch.ones(3)

    def forward(self, x):
        return x * self.table


class Half(nn.Module):
    """A product of another type than its arguments say."""

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return x @ x


class Values(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


COLLECT = [Appends, Caches, Adds, AppendsInside]


@pytest.mark.parametrize("kind", [Writes, InPlace, Remembers, *COLLECT, Foreign, Half, Values])
def test_what_calls_do_not_say_is_left_to_export(kind):
    """And the module is as before."""
    module, image = kind(), torch.ones(3, 3)
    before, text = dict(vars(module)), repr(vars(module))
    assert recorded(module, image) is None
    assert vars(module) == before
    assert repr(vars(module)) == text


def test_a_call_that_cannot_be_decomposed_is_left_out_of_the_others():
    """Four calls: the others are known from then on, and a network of these is recorded."""

    class Decomposed(nn.Module):
        def forward(self, x):
            return torch.relu(torch.linalg.eigvals(torch.tanh(x)).real)

    class Others(nn.Module):
        def forward(self, x):
            return torch.relu(torch.tanh(x)[0])

    image = torch.ones(3, 3)
    assert recorded(Decomposed(), image) is None
    assert None in apart._KNOWN.values()
    assert any(part is not None for part in apart._KNOWN.values())
    assert recorded(Others(), image) is not None
