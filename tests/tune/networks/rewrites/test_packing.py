"""Functions whose calls are not the usual ones: several outputs, and no dataflow."""

import numpy as np
import pytest

from pruner.tune.networks.rewrites.packing import pack_weights

pytestmark = pytest.mark.tvm


def lowered(*, several=False, dataflow=True, outputs=32):
    """A product with constant weights as one call; its sums too, where `several`."""
    from tvm import relax, te

    def product(x, weights):
        k = te.reduce_axis((0, 16))
        y = te.compute((4, outputs), lambda i, j: te.sum(x[i, k] * weights[k, j], axis=k))
        return [y, te.compute((4, outputs), lambda i, j: y[i, j] + 1.0)] if several else y

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 16), "float32"))
    weights = relax.const(np.arange(16 * outputs, dtype=np.float32).reshape(16, outputs))
    with builder.function("main", [x]):
        if dataflow:
            with builder.dataflow():
                out = builder.emit_output(builder.call_te(product, x, weights))
        else:
            out = builder.emit_te(product, x, weights)
        builder.emit_func_output(out)
    return builder.get()


def packed(module):
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


@pytest.mark.parametrize(("outputs", "rows"), [(1000, (25, 40)), (24, (1, 24)), (48, (3, 16))])
def test_rows_are_whole_vectors(outputs, rows):
    found = packed(lowered(outputs=outputs))
    assert f"out_ty=R.Tensor((4, {rows[0]}, {rows[1]})" in found.script()


def test_outputs_that_no_row_divides_stay_as_they_are():
    module = lowered(outputs=100)
    assert packed(module).script() == module.script()
