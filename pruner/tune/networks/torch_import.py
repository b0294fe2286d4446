"""Import an exported torch program as a Relax module."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from typing import Any

OUTPUTS = "pruner_outputs"  # attribute of `main`: the structure of its outputs, as JSON


def from_exported(program: Any) -> Any:
    """Import a program of ``torch.export`` with its weights as constants."""
    torch_frontend = importlib.import_module("tvm.relax.frontend.torch")
    # weights become constants: as inputs, their transposes would be computed at every call
    module = torch_frontend.from_exported_program(
        program, keep_params_as_input=False, unwrap_unit_return_tuple=True
    )
    spec = program.call_spec.out_spec
    places = importlib.import_module("torch.utils._pytree").tree_unflatten(
        range(spec.num_leaves), spec
    )
    module["main"] = module["main"].with_attr(OUTPUTS, json.dumps(described(places)))
    return module


def described(outputs: Any) -> Any:
    """Describe the structure of outputs as JSON.

    Mappings, lists and tuples, of named fields too, are kept by their kind: ``{"tuple": [0, 1]}``,
    ``{"dict": [["mean", 0], ["all", {"list": [1]}]]}``. In `outputs`, the number of a tensor stands
    in its place.
    """
    if isinstance(outputs, Mapping):
        return {"dict": [[key, described(part)] for key, part in outputs.items()]}
    if isinstance(outputs, list | tuple):
        kind = "list" if isinstance(outputs, list) else "tuple"
        return {kind: [described(part) for part in outputs]}
    return outputs
