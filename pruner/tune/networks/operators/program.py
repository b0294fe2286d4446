"""Import an exported torch program as a Relax module, with checked types."""

import importlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial, reduce
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._decomp import decomposition_table
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from pruner.errors import PrunerError, lines_of
from pruner.tune.networks.operators.apart import decomposed_apart
from pruner.tune.networks.operators.arithmetic import of_library
from pruner.tune.networks.operators.called_functions import recorded
from pruner.tune.networks.operators.complex_numbers import (
    lacks_rule,
    touches_complex,
    without_complex,
)
from pruner.tune.networks.operators.registry import CONVERTED, REPLACED
from pruner.tune.networks.operators.windows import MAX_POOLS, pool_with_places, windows
from pruner.tune.networks.plain import Arguments
from pruner.tune.networks.signature import (
    PRECISION,
    check_state,
    exported,
    precision,
    structures,
    tensors_only,
)
from pruner.tune.tvm_import import load_tvm

aten = torch.ops.aten
Converter = Callable[[Any, Any], Any]  # of (node of the graph, importer of TVM)

_NOT_LOWERED = ("cond",)  # TVM makes functions of its branches, which no task has
# TVM draws their numbers once, at the import, or leaves them out
_RANDOM = ("bernoulli.p", "exponential.default", "randn.default", "randn_like.default")
_RECURRENT = (aten.lstm.input, aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input)
# arguments of these: how many layers, whether both directions, and whether the batch is first
_LAYERS = (4, 7, 8)
_MOST = 512  # steps of all layers together: each takes 0.2 s to import and to lower
# Operators whose operands have the result's type though they are no pointwise ones.
_OTHERS = (
    *(aten.cat.default, aten.cumsum.default, aten.cumprod.default),
    *(aten.prod.default, aten.prod.dim_int),
)
_CONDITIONS = {aten.where.self: 0, aten.masked_fill.Scalar: 1}  # an operand that stays as it is


def from_exported(program: Any) -> Any:
    """Import a program of ``torch.export`` with its weights as constants.

    Raises `PrunerError`: it keeps state, or gets or returns something else than tensors and
    constants.
    """
    return _relax(lambda decompose: decompose(program))


def from_module(module: nn.Module, arguments: Arguments) -> Any:
    """Import a module in evaluation mode, whose calls do not depend on earlier calls.

    It is decomposed call by call where that is possible, which is faster for networks that repeat
    the calls of earlier networks. Inputs are named by their places.

    Raises `PrunerError`: see `from_exported`.
    """

    def found(decompose: Callable[[Any], Any]) -> Any:
        program = recorded(module, arguments, decompose)
        if program is not None:
            return program
        return decomposed_apart(exported(module, arguments, is_pure=True), decompose)

    return _relax(found)


def _relax(make: Callable[[Callable[[Any], Any]], Any]) -> Any:
    """Convert what `make` returns, for a function that decomposes, to a Relax module."""
    frontend = importlib.import_module("tvm.relax.frontend.torch.exported_program_translator")
    importer = frontend.ExportedProgramImporter()
    convert = converters(importer)
    program = make(partial(decomposed, known=convert))
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


def decomposed(program: Any, known: Iterable[str]) -> Any:
    """Rewrite a program with `known` operators, as far as torch can."""
    check_lengths(program)
    library = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)  # else an LSTM is decomposed into this library's operator
    try:
        table = torch.export.default_decompositions()
        for operator in CONVERTED:
            if not isinstance(operator, str):  # torch decomposes its own alone
                table.pop(operator, None)
        table.update(REPLACED | of_library(program))
        program = _rewritten(program, table, known)
        if (real := without_complex(program)) is not program:
            program = _rewritten(real, table, known)
    finally:
        torch._C._set_mkldnn_enabled(library)
    _check_targets(program, known)
    _promote(program)
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
        name: lambda node, _, convert=convert: convert(node)
        for name, convert in importer.convert_map.items()
        if name not in _NOT_LOWERED
    }
    mine = {getattr(one, "__name__", one): convert for one, convert in CONVERTED.items()}
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
        if node.target in MAX_POOLS:
            # TVM's second result of a maximum pooling is zeros, and it drops no window
            image, *options = node.args
            reads = any(user.target is getitem and user.args[1] == 1 for user in node.users)
            parts = windows(image.meta["val"], *options, **node.kwargs)
            if reads or any(part.drops for part in parts):
                lacking[node.target] = pool_with_places
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
            is_number = node.target is aten._local_scalar_dense.default
            told = "item (a number" if is_number else f"{name} (a size"
            unknown.add(f"{told} that depends on the data)")
        elif _draws(node, name):
            unknown.add(f"{name} (random numbers)")
        elif lacks_rule(node):
            unknown.add(f"{name} (of complex numbers)")
        elif name not in known and not touches_complex(node):
            unknown.add(name)
    if unknown:
        raise AssertionError(f"Unsupported function types {sorted(unknown)}")


def _draws(node: fx.Node, name: str) -> bool:
    if name in ("dropout.default", "native_dropout.default"):
        _, share, trains = node.args
        return bool(share) and trains is not False
    return name in _RANDOM


def _checked(name: str, convert: Converter) -> Converter:
    def converted(node: fx.Node, importer: Any) -> Any:
        try:
            made, value = convert(node, importer), node.meta.get("val")
        except Exception as error:  # TVM raises kinds of its own
            line = lines_of(error)[0]
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
    wanted = list(wanted)
    return len(sizes) == len(wanted) and all(
        size == other
        for size, other in zip(sizes, wanted, strict=True)
        if isinstance(size, int) and isinstance(other, int)
    )


def check_lengths(program: Any) -> None:
    """Check that recurrences are short enough for torch to unroll them.

    Raises `AssertionError`: one is too long, in the words of TVM's front end.
    """
    for node in program.graph.nodes:
        if node.target not in _RECURRENT:
            continue
        layers, both, first = (node.args[place] for place in _LAYERS)
        length = node.args[0].meta["val"].shape[int(first)]
        steps = length * layers * (1 + both)
        if steps > _MOST:
            told = f"{node.target.__name__} ({steps} steps for at most {_MOST})"
            raise AssertionError(f"Unsupported function types ['{told}']")


def _promote(program: Any) -> None:
    """Cast operands to their common type; TVM mostly takes the first operand's.

    ``x + 0.5`` of integers adds 0 in TVM's import, ``x / 2`` divides without a remainder, and a
    double of no dimensions makes float32 tensors double.
    """
    graph = program.graph
    for node in list(graph.nodes):
        wanted = _operand_type(node)
        if wanted is None:
            continue
        condition = _CONDITIONS.get(node.target)

        def cast(operand: fx.Node, *, node: fx.Node = node, wanted: torch.dtype = wanted) -> Any:
            value = operand.meta["val"]
            if not isinstance(value, Tensor) or value.dtype == wanted:
                return operand
            with graph.inserting_before(node):
                made = graph.call_function(aten._to_copy.default, (operand,), {"dtype": wanted})
            made.meta["val"] = value.to(wanted)
            return made

        node.args = tuple(
            part if place == condition else fx.map_arg(part, cast)
            for place, part in enumerate(node.args)
        )
    graph.eliminate_dead_code()


def _operand_type(node: fx.Node) -> torch.dtype | None:
    """Return the type of a node's operands, None where they keep their own."""
    target, value = node.target, node.meta.get("val")
    if not isinstance(target, torch._ops.OpOverload) or not isinstance(value, Tensor):
        return None
    if torch.Tag.pointwise not in target.tags and target not in _OTHERS:
        return None
    if value.dtype != torch.bool:
        return value.dtype
    operands = [part.meta["val"] if isinstance(part, fx.Node) else part for part in node.args]
    numbers = [part for part in operands if isinstance(part, Tensor | int | float)]
    if len(numbers) < 2:
        return None
    return reduce(
        torch.promote_types, [torch.result_type(numbers[0], part) for part in numbers[1:]]
    )
