"""Prepare a program of torch for TVM's front end, and check the imported types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx
from torch._decomp import decomposition_table
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from pruner.errors import PrunerError
from pruner.tune.networks.operators.apart import decomposed_apart
from pruner.tune.networks.operators.complex_numbers import (
    lacks_rule,
    touches_complex,
    without_complex,
)
from pruner.tune.networks.operators.pooling import POOLED_WITH_PLACES, drops_window
from pruner.tune.networks.operators.promotion import promote
from pruner.tune.networks.operators.quantization import of_library
from pruner.tune.networks.operators.recurrent import check_lengths
from pruner.tune.networks.operators.registry import CONVERTED, REPLACED
from pruner.tune.tvm_import import load_tvm

_NOT_LOWERED = ("cond",)  # TVM makes functions of its branches, which no task has
Converter = Callable[[Any, Any], Any]  # of (node of the graph, importer of TVM)


def decomposed(program: Any, known: Iterable[str], *, apart: bool = False) -> Any:
    """Rewrite a program with `known` operators, as far as torch can.

    ``apart``: call by call where that is possible.
    """
    if apart:
        found = decomposed_apart(program, lambda part: decomposed(part, known))
        if found is not None:
            return found
    check_lengths(program)
    library = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)  # else an LSTM is decomposed into this library's operator
    try:
        table = torch.export.default_decompositions()
        for operator in CONVERTED:
            table.pop(operator, None)
        table.update(REPLACED | of_library(program))
        program = _rewritten(program, table, known)
        if (real := without_complex(program)) is not program:
            program = _rewritten(real, table, known)
    finally:
        torch._C._set_mkldnn_enabled(library)
    _check_targets(program, known)
    promote(program)
    return program


def _rewritten(program: Any, table: Mapping[Any, Any], known: Iterable[str]) -> Any:
    program = program.run_decompositions(table)
    while lacking := _decomposable(program, known):
        program = program.run_decompositions({**REPLACED, **lacking})
    return program


def converters(importer: Any) -> dict[str, Converter]:
    """Return the functions that import operators, by TVM's names of them.

    They are the importer's own and those of this package. Each compares its result with the shape
    and the type that torch recorded: a wrong type is cast, and a wrong shape ends the import.
    """
    own = {
        name: _without_importer(convert)
        for name, convert in importer.convert_map.items()
        if name not in _NOT_LOWERED
    }
    mine = {operator.__name__: convert for operator, convert in CONVERTED.items()}
    return {name: _checked(name, convert) for name, convert in {**own, **mine}.items()}


def _decomposable(program: Any, known: Iterable[str]) -> dict[Any, Callable[..., Any]]:
    """Return torch's decompositions of the operators that are not known."""
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    lacking = {
        node.target: decomposition_table[node.target]
        for node in calls
        if node.target.__name__ not in known and node.target in decomposition_table
        # torch's writes into the parts of a new complex tensor
        if not touches_complex(node)
    }
    for node in calls:
        # TVM's second result of a maximum pooling is zeros, and it drops no window
        if node.target in POOLED_WITH_PLACES and (_reads(node, 1) or _drops_window(node)):
            lacking[node.target] = POOLED_WITH_PLACES[node.target]
    return lacking


def _check_targets(program: Any, known: Iterable[str]) -> None:
    """Name all operators that cannot be imported, in the words of TVM's front end."""
    unknown = set()
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        # a call with a side effect has the operator among its arguments
        name = next(
            (part for part in node.args if isinstance(part, torch._ops.OpOverload)), node.target
        ).__name__
        if free_unbacked_symbols(node.meta.get("val")):
            if any(free_unbacked_symbols(part.meta.get("val")) for part in node.all_input_nodes):
                continue  # the size comes from an operator that is named itself
            unknown.add(f"{name} (a size that depends on the data)")
        elif lacks_rule(node):
            unknown.add(f"{name} (of complex numbers)")
        elif name not in known and not touches_complex(node):
            unknown.add(name)
    if unknown:
        raise AssertionError(f"Unsupported function types {sorted(unknown)}")


def _reads(node: fx.Node, number: int) -> bool:
    return any(user.target is getitem and user.args[1] == number for user in node.users)


def _drops_window(node: fx.Node) -> bool:
    image, *options = node.args
    return drops_window(image.meta["val"], *options, **node.kwargs)  # type: ignore[union-attr,arg-type]


def _without_importer(convert: Callable[[Any], Any]) -> Converter:
    return lambda node, _: convert(node)


def _checked(name: str, convert: Converter) -> Converter:
    def converted(node: fx.Node, importer: Any) -> Any:
        try:
            made, value = convert(node, importer), node.meta.get("val")
        except Exception as error:  # TVM raises kinds of its own
            line = (str(error).strip().splitlines() or [repr(error)])[0]
            raise PrunerError(
                f"TVM cannot import this {name}: {line}; write that part with other operators, or "
                "leave it out of the network"
            ) from error
        if not isinstance(value, Tensor) or not isinstance(made.ty, load_tvm().relax.TensorType):
            return made
        shape = made.ty.shape
        sizes = None if shape is None else [getattr(size, "value", size) for size in shape]
        if sizes is not None and not _agree(sizes, value.shape):
            found, wanted = ("x".join(map(str, part)) for part in (sizes, value.shape))
            raise AssertionError(f"Unsupported function types ['{name} ({found} for {wanted})']")
        dtype = importer._convert_data_type(value.dtype)
        if made.ty.dtype == dtype:
            return made
        return importer.block_builder.emit(load_tvm().relax.op.astype(made, dtype))

    return converted


def _agree(sizes: list[Any], wanted: Iterable[Any]) -> bool:
    """Compare the sizes of two shapes that are numbers."""
    wanted = list(wanted)
    return len(sizes) == len(wanted) and all(
        size == other
        for size, other in zip(sizes, wanted, strict=True)
        if isinstance(size, int) and isinstance(other, int)
    )
