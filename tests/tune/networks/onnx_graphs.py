"""Files of ONNX, written with its own helper."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
make, FLOAT, INT64 = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def onnx_graph(nodes, inputs, outputs, constants=()):
    """A graph; ``inputs`` and ``outputs`` are names with type and shape."""
    return make.make_graph(
        nodes,
        "net",
        [make.make_tensor_value_info(*one) for one in inputs],
        [make.make_tensor_value_info(*one) for one in outputs],
        [
            onnx.numpy_helper.from_array(np.asarray(values), name)
            for name, values in dict(constants).items()
        ],
    )


def written(path, *graph, version=17):
    """The path of a file of such a graph."""
    imports = [make.make_opsetid("", version)]
    onnx.save(make.make_model(onnx_graph(*graph), opset_imports=imports, ir_version=9), path)
    return path
