"""The backend of ``torch.compile``: graphs of a module with weights inside; what it refuses."""

import tomllib
from importlib import import_module

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

from pruner.cli.tuning import torch_compile
from pruner.errors import PrunerError
from tests.cli.tuning.modules import assert_alike, made
from tests.paths import REPOSITORY

pytestmark = pytest.mark.tvm


@pytest.fixture(autouse=True)
def _forget():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(module, **options):
    return torch.compile(module, backend=torch_compile.backend, options=options)


def test_torch_finds_it_by_its_name():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    place = project["entry-points"]["torch_dynamo_backends"]["pruner"]
    module, _, name = place.partition(":")
    assert getattr(import_module(module), name) is torch_compile.backend


def test_a_graph_gets_its_weights_and_only_its_own_inputs(monkeypatch):
    """`optimize` is left out: what it is given computes what the module does."""
    found = []

    def as_it_is(module, inputs, **options):
        found.append((inputs, options))
        return module

    monkeypatch.setattr(torch_compile, "optimize", as_it_is)
    module, inputs = made("cnn")
    module.eval()
    network = compiled(module, effort="draft", threads=1)
    with torch.no_grad():
        assert_alike(network(*inputs), module(*inputs))
        assert_alike(network(-inputs[0]), module(-inputs[0]))
    (((image,), options),) = found
    assert torch.equal(image, inputs[0])
    assert options == {"effort": "draft", "threads": 1}


def test_gradients_and_open_sizes_are_refused(monkeypatch):
    monkeypatch.setattr(torch_compile, "optimize", lambda module, inputs: module)
    module, (image,) = made("cnn")
    module.eval()
    with pytest.raises(BackendCompilerFailed, match="computes no gradients: compile and call"):
        compiled(module)(image)
    network = compiled(module)
    with torch.no_grad():
        network(image)
        with pytest.raises(BackendCompilerFailed, match="needs fixed sizes"):
            network(torch.cat([image, image]))


def test_equal_blocks_do_not_share_weights(monkeypatch):
    """torch compiles equal blocks once; the weights of the first would be used for all."""
    monkeypatch.setattr(torch_compile, "optimize", lambda module, inputs: module)
    one, two, x = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), torch.randn(2, 4)
    network = torch.compile(lambda block, x: block(x) * 2, backend=torch_compile.backend)
    with torch.no_grad():
        assert_alike(network(one, x), one(x) * 2)
        with pytest.raises(PrunerError, match="with other weights"):
            network(two, x)


def test_weights_that_are_changed_in_place_are_told(monkeypatch):
    monkeypatch.setattr(torch_compile, "optimize", lambda module, inputs: module)
    linear, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    network = compiled(linear)
    with torch.no_grad():
        assert_alike(network(x), linear(x))
        assert_alike(network(-x), linear(-x))
        linear.weight.add_(1)
        with pytest.raises(PrunerError, match="weights were changed in place"):
            network(x)


class Changes(torch.nn.Module):
    def __init__(self, what):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))
        self.what = what

    def forward(self, x):
        getattr(self, self.what, x).add_(1)
        return x * 2


@pytest.mark.parametrize(("what", "name"), [("calls", "calls"), ("x", "l_x_")])
def test_changes_in_place_are_refused_by_name(what, name, monkeypatch):
    monkeypatch.setattr(torch_compile, "optimize", lambda module, inputs: module)
    x = torch.ones(2)
    with (
        torch.no_grad(),
        pytest.raises(BackendCompilerFailed, match=f"changes .*{name}.* in place"),
    ):
        compiled(Changes(what))(x)
    assert torch.equal(x, torch.ones(2))


@pytest.mark.slow
def test_a_module_is_compiled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module, inputs = made("two")
    network = compiled(module, effort="draft", progress=False)
    with torch.no_grad():
        assert_alike(network(*inputs), module(*inputs))
    assert len(list((tmp_path / "outputs" / "tune").iterdir())) == 1
