"""Functions whose calls are not the usual ones: several outputs, and no dataflow."""

import numpy as np
import pytest

pytestmark = pytest.mark.tvm


def lowered(*, several=False, dataflow=True):
    """A product with constant weights as one call; its sums too, where `several`."""
    from tvm import relax, te

    def product(x, weights):
        k = te.reduce_axis((0, 16))
        y = te.compute((4, 32), lambda i, j: te.sum(x[i, k] * weights[k, j], axis=k))
        return [y, te.compute((4, 32), lambda i, j: y[i, j] + 1.0)] if several else y

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 16), "float32"))
    weights = relax.const(np.arange(512, dtype=np.float32).reshape(16, 32))
    with builder.function("main", [x]):
        if dataflow:
            with builder.dataflow():
                out = builder.emit_output(builder.call_te(product, x, weights))
        else:
            out = builder.emit_te(product, x, weights)
        builder.emit_func_output(out)
    return builder.get()


def packed(module):
    from pruner.tune.networks.rewrites.packing import pack_weights

    return pack_weights(module)


def test_a_function_of_several_outputs_stays_as_it_is():
    module = lowered(several=True)
    assert packed(module).script() == module.script()


@pytest.mark.parametrize("dataflow", [True, False])
def test_packed_calls_fit_their_block(dataflow):
    from tvm import relax

    found = packed(lowered(dataflow=dataflow))
    assert "out_ty=R.Tensor((4, 1, 32)" in found.script()  # [n, outputs / 32, 32]
    relax.analysis.well_formed(found)  # else it raises
