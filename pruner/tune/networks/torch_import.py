"""Import an exported torch program as a Relax module."""

from __future__ import annotations

import importlib
from typing import Any

from pruner.tune.networks.signature import (
    PRECISION,
    check_state,
    precision,
    structures,
    tensors_only,
)


def from_exported(program: Any, *, apart: bool = False) -> Any:
    """Import a program of ``torch.export`` with its weights as constants.

    ``apart``: decompose it call by call where that is possible, which is faster for networks that
    repeat the calls of earlier networks.

    Raises:
        PrunerError: it keeps state, or gets or returns something else than tensors and constants.
    """
    operators = importlib.import_module("pruner.tune.networks.operators")
    frontend = importlib.import_module("tvm.relax.frontend.torch.exported_program_translator")
    importer = frontend.ExportedProgramImporter()
    convert = operators.converters(importer)
    program = operators.decomposed(program, convert, apart=apart)
    check_state(program)
    values = [node.meta.get("val") for node in program.graph.nodes]
    types = (str(value.dtype) for value in values if hasattr(value, "dtype"))
    numbers = precision(name.removeprefix("torch.") for name in types)
    kept = structures(program) | {PRECISION: numbers}
    tensors_only(program)
    # weights become constants: as inputs, their transposes would be computed at every call
    module = importer.from_exported_program(
        program,
        keep_params_as_input=False,
        unwrap_unit_return_tuple=True,
        no_bind_return_tuple=False,
        custom_convert_map=convert,
    )
    for name, text in kept.items():
        module["main"] = module["main"].with_attr(name, text)
    return module
