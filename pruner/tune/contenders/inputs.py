"""The inputs that every contender gets: those of the network's source, which are seeded.

They are made in a process of their own: a network may take gigabytes, which end with the process.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pruner.errors import PrunerError
from pruner.files import write_whole
from pruner.processes import ask
from pruner.tune.measure.numerics import inputs as seeded
from pruner.tune.networks.source import NetworkSource, network_of


def write_inputs(source: NetworkSource, path: Path) -> Path:
    """Write the inputs as ``arr_0``, ``arr_1`` ... of an ``.npz`` file, once.

    Raises:
        PrunerError: the network cannot be made, or its file does not say its inputs.
    """
    if not path.is_file():
        ask(__name__, write_here.__name__, source, path, log=path.with_suffix(".log"))
    return path


def save_arrays(path: Path, arrays: Sequence[NDArray[Any]]) -> None:
    """Write ``arr_0``, ``arr_1`` ... as an ``.npz`` file, whole or not at all."""
    with write_whole(path) as partial, partial.open("wb") as file:
        np.savez(file, *arrays)


def inputs_of(source: NetworkSource) -> Sequence[NDArray[Any]]:
    """The example inputs of a module or exported program; of an ONNX file seeded ones that fit.

    Raises:
        PrunerError: sizes that are left open, or no such network.
    """
    if source.path is None:
        return [np.asarray(tensor) for tensor in network_of(source)[1]]
    if not source.is_onnx:
        torch = importlib.import_module("torch")
        given = torch.export.load(source.path).example_inputs
        return [np.asarray(tensor) for tensor in given[0]]
    onnx = importlib.import_module("onnx")
    graph = onnx.load(str(source.path)).graph
    weights = {one.name for one in graph.initializer}
    arguments = []
    for one in graph.input:
        kind = one.type.tensor_type
        shape = tuple(size.dim_value for size in kind.shape.dim)
        if one.name not in weights:
            if 0 in shape:
                raise PrunerError(f"network={source.name}: input {one.name} has open sizes")
            dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
            arguments.append((shape, str(np.dtype(dtype))))
    return seeded(arguments, source.seed)


def write_here(source: NetworkSource, path: Path) -> None:
    """In the child: write the inputs."""
    save_arrays(path, inputs_of(source))
