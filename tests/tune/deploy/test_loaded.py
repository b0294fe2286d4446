"""A library as a callable: structure, types, copies, refusals, with and without torch."""

import copy
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn

from pruner import load
from pruner.cli.tuning.optimize import _exported
from pruner.errors import DataError, PrunerError
from pruner.tune.deploy import loaded
from pruner.tune.deploy.build import build_here
from pruner.tune.measure.targets import vectors_of
from pruner.tune.networks.extraction import write_tasks
from pruner.tune.networks.request import REQUEST, NetworkRequest
from pruner.tune.networks.source import NetworkSource
from pruner.tune.tvm_import import load_tvm
from tests.cli.tuning.modules import assert_alike, made
from tests.tune.networks.test_signature import Nested, nested
from tests.tune.some_slow import some_slow

pytestmark = pytest.mark.tvm
TARGET = {"kind": "llvm", "mcpu": "x86-64-v2", "num-cores": 2}


def library(folder, module, inputs, named=None):
    """A library without schedules, built in this process."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.export.save(_exported(module, (inputs, named or {})), folder / "module.pt2")
    request = NetworkRequest(source=NetworkSource(name=str(folder / "module.pt2")), target=TARGET)
    request.save(folder / REQUEST)
    write_tasks(folder, keep=True)
    return build_here(folder, {}, folder / "network.so", reference=False, threads=2).library


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Module, inputs and library of the network with two inputs."""
    module, inputs = made("two")
    return module, inputs, library(tmp_path_factory.mktemp("two"), module, inputs)


@pytest.fixture
def network(two):
    return load(two[2])


def test_it_says_its_inputs_and_keeps_the_structure_of_its_outputs(two, network):
    module, inputs, _ = two
    assert [str(one) for one in network.inputs] == ["word: int64 4", "image: float32 4x6"]
    with torch.no_grad():
        assert_alike(network(*inputs), module(*inputs))
    assert network.latency_s is network.folder is network.report is None


def test_arguments_are_taken_as_the_module_takes_them(tmp_path):
    """In their structure, with constants or without; flat, by the names of the tensors."""
    _, (x, (b, none), named), keywords = nested()
    network = load(library(tmp_path, Nested(), (x, (b, none), named), keywords))
    wanted = Nested()(x, (b, none), named, **keywords)
    more, names = named["more"][0], [one.name for one in network.inputs]
    assert names == ["x", "pair_0", "named_more_0"]
    for args, kwargs in (
        ((x, (b, none), named), keywords),
        ((x, [b], {"more": [more]}), {}),
        ((x, b, more), {}),
        ((), dict(zip(names, (x, b, more), strict=True))),
    ):
        found = network(*args, **kwargs)
        assert found["none"] is None
        assert found["parts"][1][0] == 3
        assert_alike(found["found"], wanted["found"])
        assert_alike(found["parts"][0], wanted["parts"][0])
    for args, kwargs, told in (
        ((x, (b, none)), {}, r"inputs\[2\] is left out, a dict is wanted; .* takes x: float32 4"),
        ((x, (b, none), named), {"scale": 2.0}, r"\['scale'\] is 2.0, and 0.5 is built in"),
        ((x, (b, none), named), {"mask": 1}, "has 'mask', which the network does not take"),
        ((x, b, named), {}, r"inputs\[1\] is of Tensor, a tuple is wanted"),
        ((x, (b, b), named), {}, r"inputs\[1\]\[1\] is of Tensor, and None is built in"),
        ((x, more), {}, "2 inputs given; the network takes x"),
    ):
        with pytest.raises(PrunerError, match=told):
            network(*args, **kwargs)


def test_tensors_by_position_are_given_by_name_too(tmp_path):
    class Masked(nn.Module):
        def forward(self, x, scale=1.0, mask=None):
            return x * scale + mask

    x, mask = torch.ones(3), torch.tensor([0.0, 1.0, 2.0])
    network = load(library(tmp_path, Masked(), (x, 2.0, mask)))
    for found in (network(x, mask=mask), network(x, 2.0, mask=mask), network(mask=mask, x=x)):
        assert_alike(found, 2 * x + mask)
    for args, kwargs, told in (
        ((x,), {}, "1 inputs given; the network takes x"),
        ((x, mask), {"mask": mask}, r"inputs\[1\] is of Tensor, and 2.0 is built in"),
        ((x,), {"masks": mask}, r"inputs\[2\] is left out"),
        ((x,), {"mask": 1}, r"inputs\[2\] is 1, a tensor is wanted"),
    ):
        with pytest.raises(PrunerError, match=told):
            network(*args, **kwargs)


def test_what_lies_well_is_not_copied(two, network, monkeypatch):
    """The library reads the same memory, of torch and of numpy."""
    main, read = network._main, []
    monkeypatch.setattr(network, "_main", lambda *given: read.append(given[1]) or main(*given))
    _, (word, image), _ = two
    assert image.data_ptr() % 64 == 0
    network(word, image)
    assert read[0].data_ptr() == image.data_ptr()
    array = np.zeros(4 * 6 * 4 + 64, "uint8")
    start = -array.ctypes.data % 64
    aligned = array[start : start + 96].view("float32").reshape(4, 6)
    network(word.numpy(), aligned)
    assert np.from_dlpack(read[1]).ctypes.data == aligned.ctypes.data


class Shares(nn.Module):
    """Inputs, constants and an output again, as they are, copied and in another shape."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.arange(3.0))

    def forward(self, x):
        more, (low, high) = x + 1, torch.topk(x, 2)
        again = more, more.clone(), more.view(2, 2), low, high
        return *again, x, x.clone(), x.view(2, 2).clone(), self.table, torch.ones(5), self.table * 2


def test_outputs_have_memory_of_their_own(tmp_path):
    x = torch.tensor([3.0, 1.0, 0.0, 2.0])
    network = load(library(tmp_path, Shares(), (x,)))
    assert len(network.interface.copied) == 8  # all but the sum, and values and places of topk
    for given in (x, x.numpy()):
        found = [network(given) for _ in range(2)]
        for some in found:
            assert_alike(tuple(map(torch.as_tensor, some)), Shares()(x))
        arrays = [np.asarray(one) for one in (given, *found[0], *found[1])]
        assert not any(np.shares_memory(*pair) for pair in combinations(arrays, 2))


@pytest.mark.parametrize("way", ["misaligned", "transposed", "read only"])
def test_what_lies_badly_is_copied_and_right(two, network, way):
    _, (word, image), _ = two
    wanted = network(word, image)["both"]
    if way == "misaligned":
        given = torch.cat([torch.zeros(1), image.flatten()])[1:].view(4, 6)
        assert given.data_ptr() % 64
    else:
        given = image.T.contiguous().T
    if way == "read only":
        given = image.numpy().copy()
        given.flags.writeable = False
        assert isinstance(network(word.numpy(), given)["both"], np.ndarray)
    found = torch.as_tensor(network(word, given)["both"])
    assert torch.equal(found, wanted)


def test_outputs_of_a_call_survive_the_next_and_a_parameter_may_be_an_input(two, network):
    _, (word, image), _ = two
    first = network(word, image)["both"]
    kept = first.clone()
    network(word, torch.randn(4, 6))
    assert torch.equal(first, kept)
    _, (word, image), _ = two
    with torch.no_grad():
        assert not network(word, image.clone().requires_grad_())["both"].requires_grad


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda word, image: (word,), "1 inputs given; the network takes word: int64 4, image"),
        (lambda word, image: (word, image[:3]), "image: float32 3x6 given, image: float32 4x6"),
        (lambda word, image: (word, image.double()), "image: float64 4x6 given, image: float32"),
        (lambda word, image: (image, word), "word: float32 4x6 given, word: int64 4 wanted"),
        (lambda word, image: (word, image.to("meta")), "image is on meta, the network on cpu"),
        (lambda word, image: (word, image.clone().requires_grad_()), "under torch.no_grad"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(two, network, change, told):
    with pytest.raises(PrunerError, match=told) as refused:
        network(*change(*two[1]))
    assert "\n" not in str(refused.value)


def test_threads_take_turns(two, network):
    _, (word, image), _ = two
    wanted = network(word, image)["both"]
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: network(word, image)["both"], range(8)):
            assert torch.equal(found, wanted)


def test_it_uses_the_threads_it_was_built_for(network, two, monkeypatch):
    """TVM alone takes half of the processors; what the environment says wins and stays."""
    number, found = load_tvm().tvm.get_global_func("runtime.NumThreads"), []
    main, at_call = network._main, []

    def recorded(*given):
        at_call.append(int(os.environ["TVM_NUM_THREADS"]))
        return main(*given)

    monkeypatch.setattr(network, "_main", recorded)

    def call():
        network(*two[1])
        return number()

    for given in (None, "1"):
        monkeypatch.delenv("TVM_NUM_THREADS", raising=False)
        if given:
            monkeypatch.setenv("TVM_NUM_THREADS", given)
        with ThreadPoolExecutor(1) as pool:
            found.append(pool.submit(call).result())
        assert os.environ.get("TVM_NUM_THREADS") == given
    assert found == [min(2, os.cpu_count()), 1]
    # TVM reads it at every call, and with 1 it uses no pool: half of two processors
    assert at_call == [max(2, os.cpu_count()), 1]


def test_a_network_can_be_copied_by_the_path_of_its_library(network, two):
    _, inputs, _ = two
    for other in (pickle.loads(pickle.dumps(network)), copy.deepcopy(network)):
        assert torch.equal(other(*inputs)["both"], network(*inputs)["both"])


def test_a_fork_after_a_call_is_refused_in_a_line(network, two, monkeypatch):
    """TVM's threads are not copied: the call would never return."""
    assert network(*two[1]) is not None
    pool = multiprocessing.get_context("fork").Pool(1)
    with pool, pytest.raises(PrunerError, match="forked after a network had run"):
        pool.apply_async(network, two[1]).get(20)


def test_wrong_numbers_of_threads_and_missing_instructions_are_told(network, two, monkeypatch):
    monkeypatch.setenv("TVM_NUM_THREADS", "auto")
    with pytest.raises(PrunerError, match="TVM_NUM_THREADS=auto: it must be a whole number"):
        network(*two[1])
    assert "TVM_BIND_THREADS" not in os.environ
    monkeypatch.delenv("TVM_NUM_THREADS")
    assert network.interface.vectors == []  # of x86-64-v2
    assert vectors_of(["avx2", "cmov", "fma"]) == ["avx2", "fma"]
    monkeypatch.setattr(loaded, "hidden_vectors", lambda _: ["avx512f"])
    with pytest.raises(PrunerError, match="a CPU with avx512f, which this machine lacks"):
        load(two[2])


def test_a_tensor_of_the_second_gpu_is_refused(network):
    tensor = Mock(shape=(4,), dtype=torch.int64, device=torch.device("cuda:1"))
    with pytest.raises(PrunerError, match="is on cuda:1, the network on cpu"):
        network._of_torch(tensor, network.inputs[0], torch)


WITHOUT = """
import json, sys
sys.modules["torch"] = None
import numpy
from pruner import load
network = load(sys.argv[1])
with numpy.load(sys.argv[2]) as inputs:
    found = network(*inputs.values())
kinds = [type(found).__name__, type(found["parts"]).__name__, type(found["parts"][1]).__name__]
numpy.savez(sys.argv[3], found["both"], found["parts"][0])
heavy = [name for name in ("tvm.relax", "hydra", "pandas") if name in sys.modules]
print(json.dumps([kinds, heavy]))
"""


@some_slow("runtime", [{"TVM_USE_RUNTIME_LIB": "1"}], [{}])
def test_a_saved_library_runs_alone_without_torch(two, network, tmp_path, runtime):
    module, inputs, _ = two
    saved = network.save(tmp_path / "elsewhere" / "mine.so")
    given, found = tmp_path / "given.npz", tmp_path / "found.npz"
    np.savez(given, *[one.numpy() for one in inputs])
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(saved), str(given), str(found)],
        env=os.environ | runtime, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    kinds, heavy = json.loads(done.stdout.splitlines()[-1])
    assert kinds == ["dict", "tuple", "list"]
    if runtime:
        assert heavy == []
    with torch.no_grad():
        wanted = module(*inputs)
    with np.load(found) as arrays:
        np.testing.assert_allclose(arrays["arr_0"], wanted["both"], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(arrays["arr_1"], wanted["parts"][0], rtol=1e-4, atol=1e-5)


def test_a_library_in_the_place_of_another_is_read_anew(tmp_path):
    """The system knows libraries by name: the one that was opened first would come again."""
    x, found = torch.ones(1, 4), []
    for value in (1.0, 2.0):
        module = nn.Linear(4, 4)
        nn.init.constant_(module.weight, value)
        nn.init.zeros_(module.bias)
        place = tmp_path / str(value)
        load(library(place, module, (x,))).save(tmp_path / "network.so")
        found.append(float(load(tmp_path / "network.so")(x).sum()))
    assert found == [16.0, 32.0]


def test_what_is_no_library_of_a_network_is_told(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        load(tmp_path / "none.so")
    (tmp_path / "bad.so").write_text("nothing")
    with pytest.raises(DataError, match="no library of a network, or of an older version"):
        load(tmp_path / "bad.so")
