"""Sorted orders equal torch's stable ones, NaN and equal values included."""

import numpy as np
import pytest
import torch
from torch import nn

from pruner.tune.measure.machine import host_cpu
from pruner.tune.networks.lowering import lower
from pruner.tune.networks.rewrites.sorting import _merge
from pruner.tune.networks.source import NetworkSource, example_of, import_network
from pruner.tune.tvm_import import load_tvm
from tests.tune.networks.lowered import run
from tests.tune.targets import target_of

pytestmark = pytest.mark.tvm


@pytest.mark.parametrize(
    ("rows", "count", "dtype", "descending"),
    [(1, 5, "float32", False), (7, 1, "float32", True), (3, 37, "float32", True),
     (2, 300, "int64", False), (20, 8, "float64", False), (1, 9, "int8", True)],
)  # fmt: skip
def test_orders_equal_torch(rows, count, dtype, descending):
    tvm = load_tvm().tvm
    values = np.random.default_rng(0).integers(0, max(2, count // 2), (rows, count)).astype(dtype)
    if "float" in dtype:
        values.flat[count // 2] = np.nan
    function = _merge(rows, count, dtype, descending).with_attr("global_symbol", "order")
    # this processor's vectors: unrolled rows were wrong there
    target = target_of({"kind": "llvm", "mcpu": host_cpu()})
    library = tvm.compile(tvm.IRModule({"order": function}), target=target)
    found, *scratch = (
        tvm.runtime.tensor(np.zeros((rows, size), "int64")) for size in (count, count, 2)
    )
    library["order"](tvm.runtime.tensor(values), found, *scratch)
    wanted = torch.sort(torch.from_numpy(values), stable=True, descending=descending)[1]
    np.testing.assert_array_equal(found.numpy(), wanted.numpy())


class Sorts(nn.Module):
    """Along several dimensions, without ties."""

    def forward(self, x):
        most, places = x.topk(3, 1)
        least, _ = x.topk(2, -1, largest=False)
        return most, places, least, torch.argsort(x, dim=0), x.sort(1, descending=True)[0]


def sorts():
    torch.manual_seed(0)
    return Sorts().eval(), (torch.randn(3, 7, 5),)


def test_sorts_need_no_function_of_the_runtime():
    source = NetworkSource(name=f"{__name__}:sorts")
    network, (inputs, _) = example_of(source)
    lowered = lower(import_network(source), target_of({"kind": "llvm"}))
    assert "tvm.contrib" not in lowered.script()
    for found, wanted in zip(run(lowered, [inputs[0].numpy()]), network(*inputs), strict=True):
        np.testing.assert_array_equal(found, wanted.numpy())
