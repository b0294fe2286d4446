"""The inputs that every contender gets: those of the network's source, which are seeded.

Run as ``python -m pruner.tune.contenders.inputs REQUEST``, REQUEST being a JSON file with a
:class:`~pruner.tune.networks.source.NetworkSource` and a path: making a network may take gigabytes,
which end with the process.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pruner.errors import PrunerError
from pruner.files import write_whole
from pruner.tune.child import ask_child, told_in_one_line
from pruner.tune.measure.numerics import inputs as seeded
from pruner.tune.networks.source import NetworkSource, network_of


def write_inputs(source: NetworkSource, path: Path) -> Path:
    """Write the inputs as ``arr_0``, ``arr_1`` ... of an ``.npz`` file, once.

    Raises:
        PrunerError: the network cannot be made, or its file does not say its inputs.
    """
    if path.is_file():
        return path
    request = {"source": asdict(source), "path": str(path)}
    ask_child(__spec__.name, request, path.with_suffix(".log"))
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


def _main(path: Path) -> None:
    asked = json.loads(path.read_text(encoding="utf-8"))
    with told_in_one_line():
        inputs = inputs_of(NetworkSource.read(asked["source"]))
    save_arrays(Path(asked["path"]), inputs)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
