"""Inputs, outputs and state of modules as people write them, against torch itself."""

import json
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._pytree import register_pytree_node

from pruner.errors import PrunerError
from pruner.tune.networks import signature
from pruner.tune.networks.plain import arguments_of, tensors_of
from pruner.tune.networks.signature import INPUTS, OUTPUTS, masks_by_values
from pruner.tune.networks.sizes import NetworkOptions
from pruner.tune.networks.source import NetworkSource, example_of, import_network, inputs_of
from tests.tune.networks.lowered import run
from tests.tune.networks.operators.against_torch import Function
from tests.tune.some_slow import some_slow

pytestmark = pytest.mark.tvm
HERE = __name__


class Nested(nn.Module):
    """A pair, a list and a dict as inputs, with constants of every kind among them."""

    def forward(self, x, pair, named=None, *, scale=1.0, mode="sum", flag=True):
        a, (b, nothing) = x * scale, pair
        more = named["more"][0] if flag and nothing is None else 0
        found = a + b if mode == "sum" else a - b
        return {"found": found, "none": None, "parts": [more * 2, (3, b)]}


def nested():
    torch.manual_seed(0)
    args = (torch.randn(4), (torch.randn(4), None), {"more": [torch.randn(4), 1]})
    return Nested(), args, {"mode": "difference", "scale": 0.5}


def by_name():
    _, args, named = nested()
    return Nested(), {"named": args[2], "x": args[0], "pair": args[1], **named}


class InPlace(nn.Module):
    def forward(self, x, y):
        x += 1
        y.mul_(2)
        return x * y


def in_place():
    return InPlace(), (torch.ones(3), torch.ones(3))


class Cache(nn.Module):
    """A row of a buffer is written; `read`: and the whole is read."""

    def __init__(self, read):
        super().__init__()
        self.register_buffer("rows", torch.zeros(4, 3))
        self.register_buffer("calls", torch.zeros(1))
        self.read = read

    def forward(self, x, place):
        self.calls += 1
        self.rows[place] = x
        return self.rows.sum(0) if self.read else x * 2


def cache():
    return Cache(read=True), (torch.ones(1, 3), torch.tensor([1]))


class Attribute(nn.Module):
    """State that torch.export takes for constants: a number, a list, a tensor."""

    def __init__(self, what):
        super().__init__()
        self.what, self.number, self.seen, self.last = what, 0, [], torch.zeros(3)

    def forward(self, x):
        if self.what == "number":
            self.number += 1
            return x * self.number
        if self.what in ("list", "keys"):
            self.seen.append(x)
            rows = torch.stack(self.seen)
            if self.what == "list":
                return rows.sum(0)
            # attention to the rows of all calls: equal rows give the row itself
            return torch.softmax(rows @ x, 0) @ rows
        if self.what == "rows":
            self.seen.append(x)
            return torch.stack(self.seen)
        self.last = self.last + x
        return self.last * 2


class Lazy(nn.Module):
    """A table that the first call makes, as rotary embeddings do: no state."""

    def __init__(self):
        super().__init__()
        self.table = None

    def forward(self, x):
        if self.table is None:
            self.table = torch.arange(3.0)
        return x * self.table


@dataclass
class Found:
    """A result with fields, as models of language have."""

    logits: torch.Tensor
    past: torch.Tensor | None = None


class Rows:
    """A class of lists, as caches of keys and values are."""

    def __init__(self, rows):
        self.rows = rows


torch.export.register_dataclass(Found, serialized_type_name="tests.Found")
register_pytree_node(
    Rows,
    lambda one: (one.rows, None),
    lambda rows, _: Rows(rows),
    serialized_type_name="tests.Rows",
)


def in_classes(x):
    return Found(logits=x * 2), Rows([x, x + 1]), defaultdict(list, a=[x + 2])


class Kept:
    """A class without tensors."""


def leaves():
    sys.exit(2)


def lost():
    return torch.load("lost.pt")


linear, DOUBLES = nn.Linear(4, 2), torch.ones(2, 4, dtype=torch.float64)
FACTORIES = {
    "one_tensor": lambda: (nn.Linear(4, 2), torch.randn(3, 4)),
    "counted": lambda: (Cache(read=False), (torch.ones(1, 3), torch.tensor([1]))),
    "number": lambda: (Attribute("number"), torch.ones(3)),
    "listed": lambda: (Attribute("list"), torch.ones(3)),
    "keys": lambda: (Attribute("keys"), torch.tensor([0.1, 0.2, 0.3])),
    "rows": lambda: (Attribute("rows"), torch.ones(3)),
    "tensor": lambda: (Attribute("tensor"), torch.ones(3)),
    "lazy": lambda: (Lazy(), torch.ones(3)),
    "brain": lambda: (nn.Linear(4, 4).bfloat16(), torch.ones(2, 4, dtype=torch.bfloat16)),
    "double": lambda: (nn.Sigmoid(), torch.randn(2, 4, dtype=torch.float64)),
    "halves": lambda: (Function(lambda x: (x.half() * 2).double().round()), DOUBLES),
    "classes": lambda: (Function(in_classes), torch.ones(3)),
    "unknown_class": lambda: (Function(lambda x: (x * 2, Kept())), torch.ones(3)),
    "without_inputs": lambda: (linear, 3),
}


def __getattr__(name):
    if name in FACTORIES:
        return FACTORIES[name]
    raise AttributeError(name)


def source(name):
    return NetworkSource(name=f"{HERE}:{name}")


def eager(name):
    module, (args, kwargs) = example_of(source(name))
    return [one.detach().numpy() for one in tensors_of(module(*args, **kwargs))]


@some_slow(
    "name",
    ["nested", "in_place", "counted", "double"],
    ["by_name", "one_tensor", "lazy", "halves"],
)
def test_tensors_go_in_and_out_in_the_programs_order(name):
    found = run(import_network(source(name)), inputs_of(source(name)))
    for mine, theirs in zip(found, eager(name), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)
        assert mine.dtype == theirs.dtype


def test_structures_and_constants_are_kept_also_of_classes_that_torch_takes_apart():
    attrs = import_network(source("nested"))["main"].attrs
    value = lambda one: {"value": one}  # noqa: E731
    named = {"dict": [["more", {"list": [2, value(1)]}]]}
    positional = {"tuple": [0, {"tuple": [1, value(None)]}, named]}
    keywords = {"dict": [["mode", value("difference")], ["scale", value(0.5)]]}
    assert json.loads(attrs[INPUTS]) == {"tuple": [positional, keywords]}
    parts = {"list": [1, {"tuple": [value(3), 2]}]}
    wanted = {"dict": [["found", 0], ["none", value(None)], ["parts", parts]]}
    assert json.loads(attrs[OUTPUTS]) == wanted
    attrs = import_network(source("classes"))["main"].attrs
    parts = [{"dict": [["logits", 0]]}, {"tuple": [1, 2]}, {"dict": [["a", {"list": [3]}]]}]
    assert json.loads(attrs[OUTPUTS]) == {"tuple": parts}


SECOND_CALL = "a second call of Attribute with the same inputs has another result"


def test_numbers_that_the_first_import_draws_change_no_weights():
    """Nor do numbers of numpy and Python: two processes must make equal networks."""
    sys.modules.pop("tests.tune.networks.drawing", None)
    first, later = (
        example_of(NetworkSource(name="tests.tune.networks.drawing:make"))[0] for _ in "12"
    )
    assert len(first) == len(later)
    assert all(map(torch.equal, first.parameters(), later.parameters()))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        *((name, "the factory must return") for name in ("linear", "Lazy", "without_inputs")),
        ("leaves", r"SystemExit: 2 \(line \d+ of test_signature.py: sys.exit\(2\)\)"),
        (
            "unknown_class",
            r"outputs\[1\] is of Kept: a library takes and returns tensors and const",
        ),
        ("lost", r"lost.pt: no such file \(line \d+ of test_signature.py: return torch.load"),
        ("cache", r"network=.*:cache: each call writes rows and reads"),
        *((name, SECOND_CALL) for name in ("number", "listed", "tensor", "keys", "rows")),
        ("brain", r"computes in bfloat16, .* call \.float\(\)"),
    ],
)
def test_what_is_no_factory_state_and_short_floats_are_told_in_one_line(name, told):
    with pytest.raises(PrunerError, match=told) as refused:
        import_network(source(name))
    assert "\n" not in str(refused.value)


def test_the_precision_is_the_coarsest_type():
    attrs = {name: import_network(source(name))["main"].attrs for name in ("double", "halves")}
    assert [str(one[signature.PRECISION]) for one in attrs.values()] == ["float64", "float16"]
    assert [bool(one[signature.ROUNDS]) for one in attrs.values()] == [False, True]


def written(folder, factory, **how):
    module, *inputs = factory()
    args, kwargs = arguments_of(inputs[0])
    kwargs |= inputs[1] if len(inputs) > 1 else {}
    with torch.no_grad():
        program = torch.export.export(module.eval(), args, kwargs, **how)
    torch.export.save(program, folder / "net.pt2")
    return str(folder / "net.pt2")


@some_slow("factory", [by_name], [nested, in_place])
def test_a_file_is_taken_as_its_factory_is(factory, tmp_path):
    given = NetworkSource(name=written(tmp_path, factory))
    found = run(import_network(given), inputs_of(given))
    module, (args, kwargs) = example_of(given)
    for mine, theirs in zip(found, tensors_of(module(*args, **kwargs)), strict=True):
        np.testing.assert_allclose(mine, theirs.detach().numpy(), rtol=1e-6)
    with pytest.raises(PrunerError, match="each call writes rows and reads"):  # as a factory's
        import_network(NetworkSource(name=written(tmp_path, cache)))


class Scaled(nn.Module):
    def forward(self, x, times):
        return x * times, x.shape[0]


def test_an_open_number_and_a_file_without_examples(tmp_path):
    """The number becomes the one of the example; tensors without an example are drawn."""
    auto = torch.export.Dim.DYNAMIC
    example = lambda: (Scaled(), (torch.randn(4, 3), 5))  # noqa: E731
    name = written(tmp_path, example, dynamic_shapes=({0: auto}, auto))
    given = NetworkSource(name=name, options=NetworkOptions(batch=2))
    (x,) = inputs_of(given)
    module = import_network(given)
    np.testing.assert_allclose(run(module, [x])[0], 5 * x, rtol=1e-6)
    assert json.loads(module["main"].attrs[OUTPUTS])["tuple"][1] == {"value": 2}
    program = torch.export.export(Nested(), nested()[1])
    program.example_inputs = None
    torch.export.save(program, tmp_path / "bare.pt2")
    drawn = inputs_of(NetworkSource(name=str(tmp_path / "bare.pt2")))
    assert [(one.shape, str(one.dtype)) for one in drawn] == [((4,), "float32")] * 3


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 4)

    def forward(self, ids, *, mask):
        return (self.table(ids) * mask.unsqueeze(-1)).sum(1)


def tokens():
    torch.manual_seed(0)
    return Tokens(), (torch.randint(0, 50, (2, 6)),), {"mask": torch.ones(2, 6)}


@pytest.mark.parametrize("sizes", [{"batch": 3, "ids": "3x9"}, {"mask": "1x4"}])
def test_open_sizes_of_a_file_are_given(sizes, tmp_path):
    auto = torch.export.Dim.AUTO
    name = written(
        tmp_path, tokens, dynamic_shapes={"ids": {0: auto, 1: auto}, "mask": {0: auto, 1: auto}}
    )
    with pytest.raises(PrunerError, match=r"net.pt2: sizes are open: ids s\d+xs\d+, mask "):
        import_network(NetworkSource(name=name))
    given = NetworkSource(name=name, options=NetworkOptions(**sizes))
    arrays = inputs_of(given)
    assert [a.shape for a in arrays] == [(3, 9)] * 2 if "batch" in sizes else [(1, 4)] * 2
    assert arrays[0].max() < 50
    (found,) = run(import_network(given), arrays)
    wanted = tokens()[0].eval()(torch.from_numpy(arrays[0]), mask=torch.from_numpy(arrays[1]))
    np.testing.assert_allclose(found, wanted.detach().numpy(), rtol=1e-5)


class Ends(nn.Module):
    """Outputs whose last operation is a sum, and others; with constants among them."""

    def forward(self, x, mask=None, *, most=1e9):
        centred = x - x.mean()
        hidden = centred.masked_fill(mask, -torch.inf)
        return {
            "mean": centred.mean().reshape(1),
            "none": None,
            "number": 3,
            "product": x * 3,
            "masked": hidden,
            "added": x + torch.where(mask, -most, 0.0),
            "sum of infinities": hidden.sum(),
            "labels": x.argmax(),
            "group norm": nn.functional.group_norm(x.reshape(1, 3, 1), 1),
            "linear": nn.functional.linear(x, torch.full((2, 3), 9.0))[:1],
            "input": x,
        }


def test_scales_are_of_the_numbers_that_outputs_sum():
    x, mask = torch.tensor([1.0, 3.0, 8.0]), torch.tensor([True, False, False])
    # 4 at most from the mean, which is 4; the first is masked, so that 4 of the last is left
    wanted = [4.0, 0.0, 0.0, 0.0, 4.0, 0.0, 8.0, 9.0, 0.0]
    for given in ((x,), {"most": 1e9, "mask": mask}), ((x, mask), {"most": 1e9}):
        assert signature.last_scales(Ends(), given) == wanted


def test_threads_that_export_leave_torch_as_it_was():
    """The second thread begins before the first ends, unless it waits."""
    transformer = nn.modules.transformer
    before = transformer._detect_is_causal_mask
    one_is_in, other_is_in, one_is_out = Event(), Event(), Event()

    def one():
        with masks_by_values():
            one_is_in.set()
            other_is_in.wait(0.2)
        one_is_out.set()

    def other():
        one_is_in.wait()
        with masks_by_values():
            other_is_in.set()
            one_is_out.wait()

    with ThreadPoolExecutor(2) as pool:
        for thread in [pool.submit(one), pool.submit(other)]:
            thread.result()
    assert transformer._detect_is_causal_mask is before
