"""Inputs, outputs and state of torch's modules and of exported programs.

A library takes and returns tensors alone, one after the other. The structure around them is kept as
JSON: mappings, lists and tuples by their kind, the number of a tensor in its place, and constants
(None, switches, numbers, words), which are built in: ``{"tuple": [0, {"value": 0.5}]}``,
``{"dict": [["mean", 0], ["all", {"list": [1]}]]}``.
"""

from __future__ import annotations

import copy
import importlib
import json
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pruner.errors import PrunerError
from pruner.tune.measure.numerics import other_inputs, relative_error
from pruner.tune.networks.plain import (
    Arguments,
    names_in,
    plain_module,
    pytree,
    replaced,
    tensors_of,
    with_tensors,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

# attributes of `main`: structures as JSON, the coarsest type of numbers, whether they are rounded
INPUTS, OUTPUTS = "pruner_inputs", "pruner_outputs"
PRECISION, ROUNDS = "pruner_precision", "pruner_rounds"
_KEPT = "return what a call keeps as an output, and pass it to the next call as an input"
_SAME = 1e-3  # relative difference of two calls that may come from another order of sums


@contextmanager
def masks_by_values() -> Iterator[None]:
    """Export torch's transformers without their comparison of masks.

    A branch on values cannot be exported. A mask is applied without this hint, too.
    """

    def detect(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
        return bool(is_causal)

    transformer = importlib.import_module("torch.nn.modules.transformer")
    with replaced(transformer, "_detect_is_causal_mask", detect):
        yield


def exported(
    module: nn.Module,
    arguments: Arguments,
    wrapper: nn.Module | None = None,
    *,
    is_pure: bool = False,
) -> Any:
    """Export a module in evaluation mode whose calls do not depend on earlier calls.

    torch.export takes attributes that a call changes for constants: unless the module is declared
    pure, it is called twice, and with other inputs in between: a cache of equal rows would not be
    seen. ``wrapper``: is exported instead of the module that it calls. Raises `PrunerError`: a
    later call has another result; the message has the buffers that changed.
    """
    torch = importlib.import_module("torch")
    twin = module if is_pure else _twin(module)
    with torch.no_grad(), warnings.catch_warnings(), masks_by_values():
        warnings.simplefilter("ignore")  # of attributes that change, which the calls below find
        program = _export(wrapper or module, arguments)
        if is_pure:
            return program
        before = {name: one.clone() for name, one in twin.named_buffers()}
        first = _flat_result(twin, arguments)
        with suppress(Exception):  # of any kind: inputs that must not be changed, for example
            given = other_inputs([one.detach().numpy() for one in tensors_of(arguments)])
            _flat_result(twin, with_tensors(arguments, [torch.from_numpy(one) for one in given]))
        last = _flat_result(twin, arguments)
    is_same = [one.shape for one in first] == [one.shape for one in last]
    arrays = ([one.detach().double().numpy() for one in tensors] for tensors in (first, last))
    if not (is_same and all(map(_alike, *arrays))):
        changed = [n for n, one in twin.named_buffers() if not torch.equal(one, before.get(n, one))]
        about = f" ({', '.join(changed)})" if changed else ""
        raise PrunerError(
            f"a second call of {type(module).__name__} with the same inputs has another result: it "
            f"keeps state{about} or draws random numbers, which a library does not; {_KEPT}"
        )
    return program


def _export(module: nn.Module, arguments: Arguments) -> Any:
    """Export a module; results of classes that torch lacks become plain containers."""
    export = importlib.import_module("torch").export.export
    try:
        return export(module, *arguments)
    except Exception as error:  # torch raises kinds of its own
        if "in output, which is not a known type" not in str(error):
            raise
    return export(plain_module(module), *arguments)


def _twin(module: nn.Module) -> nn.Module:
    with suppress(Exception):  # tensors that were computed cannot be copied
        # parameters are shared: they are large, and no call changes them
        return copy.deepcopy(module, {id(one): one for one in module.parameters()})
    return module


def _alike(found: NDArray[Any], wanted: NDArray[Any]) -> bool:
    same = np.array_equal(found, wanted, equal_nan=True)
    return same or relative_error(found, wanted) <= _SAME


def _flat_result(module: nn.Module, arguments: Arguments) -> list[Tensor]:
    # copies, since a network may change its inputs in place
    args, kwargs = with_tensors(arguments, [one.clone() for one in tensors_of(arguments)])
    return tensors_of(module(*args, **kwargs))


# words in the names of operators that sum, and of views of a part
_SUMS = ("sum", "mean", "avg", "var", "mm", "matmul", "linear", "conv", "norm")
_PARTS = ("slice", "select", "split")


def last_scales(module: nn.Module, arguments: Arguments) -> list[float]:
    """Return the largest finite magnitude that the last sum of each output tensor reads.

    A mean of normalised values is nothing but the rounding of these values. It is 0 for outputs
    whose last operation, views aside, is no sum, product of matrices or normalisation.
    """
    torch, tensors, found = importlib.import_module("torch"), set(), {}

    class Scales(torch.fx.Interpreter):  # type: ignore[name-defined]
        def run_node(self, node: Any) -> Any:
            value = super().run_node(node)
            if isinstance(value, torch.Tensor):
                tensors.add(node)
                if value.is_floating_point():
                    sizes = value[value.isfinite()].abs()
                    found[node] = float(sizes.max()) if sizes.numel() else 0.0
            return value

    with torch.no_grad():
        graph = _export(module, arguments).run_decompositions().module()
        # the inputs are flat already, and the outputs are not looked at
        Scales(graph).run(*pytree().tree_leaves(arguments), enable_io_processing=False)
    scales = []
    for output in pytree().tree_leaves(graph.graph.output_node().args):
        if output not in tensors:  # a constant
            continue
        node, read = output, [one for one in _whole(output).all_input_nodes if one in found]
        while len(read) == 1 and not _has_word(node, _SUMS):
            if found[read[0]] != found.get(node) and not _has_word(node, _PARTS):  # no view
                break
            node = read[0]
            read = [one for one in _whole(node).all_input_nodes if one in found]
        is_sum = _has_word(node, _SUMS)
        scales.append(max((found[one] for one in read), default=0.0) if is_sum else 0.0)
    return scales


def _has_word(node: Any, words: Iterable[str]) -> bool:
    # aten::mean of aten.mean.dim
    name = str(getattr(getattr(_whole(node).target, "_schema", None), "name", ""))
    return any(word in name for word in words)


def _whole(node: Any) -> Any:
    """Return the call of an operator for one of its results."""
    is_part = getattr(node.target, "__name__", "") == "getitem"
    return node.all_input_nodes[0] if is_part else node


def check_state(program: Any) -> None:
    """Refuse a decomposed program that reads what an earlier call wrote.

    Statistics of a batch normalisation in training mode are left to another check. Raises
    `PrunerError`: it does; the message names its buffers.
    """
    signature, (results,) = program.graph_signature, program.graph.output_node().args
    outputs = [
        node
        for node, spec in zip(results, signature.output_specs, strict=True)
        if spec.kind.name == "USER_OUTPUT" and hasattr(node, "all_input_nodes")
    ]
    names = {
        node.name
        for node in computed_from(outputs)
        if not all("batch_norm" in str(user.target) for user in node.users)
    }
    written = {s.target for s in signature.output_specs if s.kind.name in _WRITES}
    kept = [
        str(spec.target)
        for spec in signature.input_specs
        if spec.kind.name in _STATE and spec.target in written and spec.arg.name in names
    ]
    if kept:
        raise PrunerError(
            f"each call writes {', '.join(kept)} and reads what earlier calls wrote; a library "
            f"keeps no state; {_KEPT}"
        )


def computed_from(results: Iterable[Any]) -> set[Any]:
    """Return nodes of a graph and all nodes from which they are computed."""
    found, waiting = set(results), list(results)
    while waiting:
        new = set(waiting.pop().all_input_nodes) - found
        found |= new
        waiting += new
    return found


_STATE, _WRITES = ("BUFFER", "PARAMETER"), ("BUFFER_MUTATION", "PARAMETER_MUTATION")


def structures(program: Any) -> dict[str, str]:
    """Describe the structures of inputs and outputs; raise `PrunerError` for other values."""
    signature = program.graph_signature
    found = {}
    for name, specs, tree, kind in (
        (INPUTS, signature.input_specs, program.call_spec.in_spec, "USER_INPUT"),
        (OUTPUTS, signature.output_specs, program.call_spec.out_spec, "USER_OUTPUT"),
    ):
        number, leaves = 0, list[Any]()
        for spec in specs:
            if spec.kind.name == kind:
                is_tensor = type(spec.arg).__name__ == "TensorArgument"
                leaves.append(number if is_tensor else spec.arg)
                number += is_tensor
        found[name] = json.dumps(_described(tree, iter(leaves), kind))
    return found


def _described(tree: Any, leaves: Iterator[Any], kind: str) -> Any:
    """Describe a part of a tree; classes become dicts or tuples."""
    if tree.is_leaf():
        leaf = next(leaves)
        if isinstance(leaf, int):
            return leaf
        if type(leaf).__name__ == "ConstantArgument":
            return {"value": leaf.value}
        raise PrunerError(
            f"a {type(leaf).__name__} is among its {kind.lower().replace('_', ' ')}s: they must be "
            "tensors or constants, in tuples, lists and dicts"
        )
    parts = [_described(one, leaves, kind) for one in tree.children()]
    # torch registers the function that makes classes of named tuples
    kind_of = tree.type if isinstance(tree.type, type) else tuple
    names = names_in(kind_of, tree.context, len(parts))
    if names is not None:
        return {"dict": list(zip(names, parts, strict=True))}
    return {"list" if issubclass(kind_of, list) else "tuple": parts}


def tensors_only(program: Any) -> None:
    """Reduce inputs and outputs of a decomposed program to its tensors.

    TVM's front end takes no constants among them. Writes to inputs and buffers are left out. Raises
    `PrunerError`: it returns no tensor.
    """
    signature, output = program.graph_signature, program.graph.output_node()
    signature.input_specs = [
        spec for spec in signature.input_specs if type(spec.arg).__name__ != "ConstantArgument"
    ]
    pairs = [
        (node, spec)
        for node, spec in zip(output.args[0], signature.output_specs, strict=True)
        if spec.kind.name == "USER_OUTPUT" and type(spec.arg).__name__ == "TensorArgument"
    ]
    if not pairs:
        raise PrunerError("it returns no tensor")
    output.args = (tuple(node for node, _ in pairs),)
    signature.output_specs = [spec for _, spec in pairs]
    program.graph.eliminate_dead_code()


def precision(types: Iterable[str]) -> str:
    """Return the coarsest float type, else float32; raise `PrunerError` for bfloat16 and less."""
    floats = [name for name in types if name.startswith(("float", "bfloat"))]
    coarse = sorted(set(floats) - {*_PRECISIONS})
    if coarse:
        raise PrunerError(
            f"it computes in {', '.join(coarse)}, and a library in {', '.join(_PRECISIONS)}: call "
            ".float() on the module and on its inputs before export"
        )
    return next((name for name in _PRECISIONS if name in floats), "float32")


_PRECISIONS = ("float16", "float32", "float64")
