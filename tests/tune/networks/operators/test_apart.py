"""Calls that are decomposed apart give the graph of the complete program."""

from functools import partial

import pytest
import torch

from pruner.tune.networks.operators import apart
from pruner.tune.networks.operators.program import converters, decomposed
from pruner.tune.networks.plain import arguments_of
from pruner.tune.networks.signature import exported
from tests.tune.networks import small_networks
from tests.tune.some_slow import some_slow

pytestmark = pytest.mark.tvm


def operators(program):
    return [node.target for node in program.graph.nodes if node.op == "call_function"]


def shapes(program):
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    return [getattr(node.meta["val"], "shape", None) for node in nodes]


@some_slow("name", ["channels", "causal_attention", "adaptive_pools"], ["biased"])
def test_the_graph_is_that_of_the_complete_program(name, monkeypatch):
    """Attention, and pools whose places nobody reads, are left to the complete program."""
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    network, inputs = getattr(small_networks, name)()
    known = converters(ExportedProgramImporter())
    program = exported(network, arguments_of(inputs), is_pure=True)
    wanted = decomposed(exported(network, arguments_of(inputs), is_pure=True), known)
    monkeypatch.setattr(apart, "_KNOWN", {})
    found = apart.decomposed_apart(program, partial(decomposed, known=known))
    assert (None in apart._KNOWN.values()) == (name == "causal_attention")
    assert bool(apart._KNOWN) == (name != "adaptive_pools")
    assert operators(found) == operators(wanted)
    assert shapes(found) == shapes(wanted)
    monkeypatch.setattr(apart, "_learned", lambda *_: pytest.fail("it is known"))
    program = exported(network, arguments_of(inputs), is_pure=True)
    found = apart.decomposed_apart(program, partial(decomposed, known=known))
    assert operators(found) == operators(wanted)


def test_a_call_that_writes_into_its_input_is_left_to_the_complete_program():
    class Writes(torch.nn.Module):
        def forward(self, x):
            return (x * 2).add_(1)

    program = exported(Writes(), arguments_of(torch.ones(3)), is_pure=True)
    assert apart.joined(program.graph, lambda _: pytest.fail("not decomposed")) is None


def test_a_known_part_is_not_taken_for_a_result_of_other_strides(monkeypatch):
    """The call is known; then its node has the strides of channels last."""
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    from pruner.tune.networks.operators.program import converters, decomposed

    convert = converters(ExportedProgramImporter())
    monkeypatch.setattr(apart, "_KNOWN", {})
    program = exported(torch.nn.ReLU(), arguments_of(torch.ones(1, 2, 3, 3)), is_pure=True)
    assert apart.joined(program.graph, lambda part: decomposed(part, convert)) is not None
    (call,) = (node for node in program.graph.nodes if node.op == "call_function")
    call.meta["val"] = call.meta["val"].to(memory_format=torch.channels_last)
    assert apart.joined(program.graph, lambda part: decomposed(part, convert)) is None
