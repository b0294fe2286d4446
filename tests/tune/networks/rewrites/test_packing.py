"""Weights packed to whole vectors: odd functions, channels that are filled up, sizes by hand."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from pruner.tune.networks.lowering import NetworkFormat, lower
from pruner.tune.networks.network_tasks import network_tasks
from pruner.tune.networks.rewrites.packing import pack_weights, padded_size
from pruner.tune.networks.source import NetworkSource, import_network
from pruner.tune.tvm_import import load_tvm
from tests.tune.networks.lowered import torch_error
from tests.tune.targets import target_of


def product(*, several=False, dataflow=True, outputs=32):
    """A product with constant weights as one call; its sums too, where `several`."""
    relax, te = load_tvm().relax, load_tvm().tvm.te

    def both(x, weights):
        k = te.reduce_axis((0, 16))
        y = te.compute((4, outputs), lambda i, j: te.sum(x[i, k] * weights[k, j], axis=k))
        return [y, te.compute((4, outputs), lambda i, j: y[i, j] + 1.0)] if several else y

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 16), "float32"))
    weights = relax.const(np.arange(16 * outputs, dtype=np.float32).reshape(16, outputs))
    with builder.function("main", [x]):
        if dataflow:
            with builder.dataflow():
                out = builder.emit_output(builder.call_te(both, x, weights))
        else:
            out = builder.emit_te(both, x, weights)
        builder.emit_func_output(out)
    return builder.get()


@pytest.mark.tvm
@pytest.mark.parametrize("given", [{"several": True}, {"outputs": 100}])
def test_several_outputs_and_sizes_that_no_row_divides_stay_as_they_are(given):
    module = product(**given)
    assert pack_weights(module).script() == module.script()


@pytest.mark.tvm
@pytest.mark.parametrize("dataflow", [True, False])
def test_packed_calls_fit_their_block(dataflow):
    found = pack_weights(product(dataflow=dataflow))
    assert "out_ty=R.Tensor((4, 1, 32)" in found.script()  # [n, outputs / 32, 32]
    load_tvm().relax.analysis.well_formed(found)  # else it raises


@pytest.mark.tvm
@pytest.mark.parametrize(("outputs", "rows"), [(1000, (25, 40)), (24, (1, 24)), (48, (3, 16))])
def test_rows_are_whole_vectors(outputs, rows):
    found = pack_weights(product(outputs=outputs))
    assert f"out_ty=R.Tensor((4, {rows[0]}, {rows[1]})" in found.script()


@pytest.mark.parametrize(
    ("outputs", "computed"),
    [(64, None), (48, None), (24, None), (21, None), (1000, 1024), (310, 320), (169, 176)],
)
def test_sizes_by_hand(outputs, computed):
    """Multiples of 32, else of 16, at most a twentieth more: of 24 it would be a third."""
    assert padded_size(outputs) == computed


class Classifier(nn.Module):
    """A convolution of 310 channels that are averaged, as the last one of SqueezeNet has 1,000."""

    def __init__(self, axes):
        super().__init__()
        self.last, self.axes = nn.Conv2d(8, 310, 1), axes

    def forward(self, x):
        return torch.relu(self.last(x)).mean(self.axes)


def classifier(axes):
    torch.manual_seed(0)
    return Classifier(axes).eval(), (torch.randn(1, 8, 6, 6),)


image, channels = partial(classifier, (2, 3)), partial(classifier, (1,))


@pytest.mark.tvm
@pytest.mark.parametrize(
    ("factory", "layout", "wide"),
    [("image", "NHWC", True), ("image", "NCHW", False), ("channels", "NHWC", False)],
)
def test_a_classifier_is_computed_wide_and_right(factory, layout, wide):
    target = target_of(2)
    source = NetworkSource(name=f"{__name__}:{factory}")
    lowered = lower(import_network(source), target, NetworkFormat(layout=layout))
    shapes = {shape for task in network_tasks(lowered, target) for shape, _ in task.shapes}
    assert ((6, 10, 32) in {shape[-3:] for shape in shapes}) == wide  # 310 fill 10 rows of 32
    assert torch_error(source, lowered) < 1e-5
