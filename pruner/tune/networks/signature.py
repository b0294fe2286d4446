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
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import is_dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pruner.errors import PrunerError
from pruner.tune.measure.numerics import inputs as seeded
from pruner.tune.measure.numerics import other_inputs, relative_error
from pruner.tune.networks.sizes import NetworkOptions, fixed_shapes

if TYPE_CHECKING:
    from torch import Tensor, nn

# attributes of `main`: structures as JSON, the coarsest type of numbers, whether they are rounded
INPUTS, OUTPUTS = "pruner_inputs", "pruner_outputs"
PRECISION, ROUNDS = "pruner_precision", "pruner_rounds"
Arguments = tuple[tuple[Any, ...], dict[str, Any]]  # by position, and by name
_KEPT = "return what a call keeps as an output, and pass it to the next call as an input"
_SAME = 1e-3  # relative difference of two calls that may come from another order of sums
_MASKS = threading.RLock()  # held while a function of torch is replaced


def arguments_of(given: Any) -> Arguments:
    """Convert example inputs: a tensor, inputs in order, or a mapping by name."""
    if hasattr(given, "shape"):
        return (given,), {}
    return ((), dict(given)) if isinstance(given, Mapping) else (tuple(given), {})


def tensors_of(values: Any) -> list[Tensor]:
    """List the tensors of nested arguments or results, in order."""
    torch, tree = importlib.import_module("torch"), _tree()
    return [leaf for leaf in tree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def with_tensors(arguments: Arguments, tensors: Sequence[Tensor]) -> Arguments:
    """Replace the tensors of nested arguments, in order."""
    torch, given = importlib.import_module("torch"), iter(tensors)
    found: Arguments = _tree().tree_map(
        lambda leaf: next(given) if isinstance(leaf, torch.Tensor) else leaf, arguments
    )
    return found


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
    with torch.no_grad(), warnings.catch_warnings(), _masks_by_values():
        warnings.simplefilter("ignore")  # of attributes that change, which the calls below find
        program = torch.export.export(wrapper or module, *arguments)
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


@contextmanager
def _masks_by_values() -> Iterator[None]:
    """Export torch's transformers without their comparison of masks.

    A branch on values cannot be exported. A mask is applied without this hint, too.
    """
    transformer: Any = importlib.import_module("torch.nn.modules.transformer")
    with _MASKS:
        detect = transformer._detect_is_causal_mask
        transformer._detect_is_causal_mask = lambda mask, is_causal=None, size=None: bool(is_causal)
        try:
            yield
        finally:
            transformer._detect_is_causal_mask = detect


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
        graph = torch.export.export(module, *arguments).run_decompositions().module()
        # the inputs are flat already, and the outputs are not looked at
        Scales(graph).run(*_tree().tree_leaves(arguments), enable_io_processing=False)
    scales = []
    for output in _tree().tree_leaves(graph.graph.output_node().args):
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


def opened(path: Path, network: str, options: NetworkOptions) -> Any:
    """Read a ``.pt2`` file as a program with fixed sizes and example inputs.

    Raises `PrunerError`: no such program, sizes that are left open, or that it does not have.
    """
    torch, tree = importlib.import_module("torch"), _tree()
    try:
        program = torch.export.load(path)
    except OSError:
        raise
    except Exception as error:  # torch raises kinds of its own
        line = (str(error).strip().splitlines() or [repr(error)])[0]
        raise PrunerError(
            f"network={network}: torch.export.load cannot read it ({line}); a FILE.pt2 is written "
            "by torch.export.save(torch.export.export(module.cpu().eval(), inputs), file)"
        ) from error
    values = {
        node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"
    }
    inputs = [s.arg for s in program.graph_signature.input_specs if s.kind.name == "USER_INPUT"]
    open_sizes = {
        one.name: [size if isinstance(size, int) else str(size) for size in values[one.name].shape]
        for one in inputs
        if hasattr(values[one.name], "shape")
    }
    shapes = fixed_shapes(network, open_sizes, options)
    given = tree.tree_leaves(program.example_inputs) if program.example_inputs else []
    leaves = [
        _example(example, shapes[one.name], values[one.name].dtype)
        if one.name in shapes
        else getattr(one, "value", example)
        for one, example in zip_longest(inputs, given)
    ]
    arguments: Arguments = tree.tree_unflatten(leaves, program.call_spec.in_spec)
    sizes = [size for shape in open_sizes.values() for size in shape]
    if any(isinstance(n, str) for n in sizes) or any("Sym" in type(one).__name__ for one in inputs):
        with torch.no_grad():
            return torch.export.export(program.module(), *arguments)
    program.example_inputs = arguments
    return program


def _example(known: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Repeat the values of an example, which are valid; without an example draw."""
    torch, size = importlib.import_module("torch"), int(np.prod(shape))
    if known is None or known.numel() < min(size, 1):
        (drawn,) = seeded([(shape, str(dtype).removeprefix("torch."))])
        return torch.from_numpy(drawn)
    if tuple(known.shape) == shape:
        return known.detach()
    return known.detach().flatten()[torch.arange(size) % known.numel()].reshape(shape)


def check_state(program: Any) -> None:
    """Refuse a decomposed program that reads what an earlier call wrote.

    Statistics of a batch normalisation in training mode are left to another check. Raises
    `PrunerError`: it does; the message names its buffers.
    """
    signature, (results,) = program.graph_signature, program.graph.output_node().args
    waiting = [
        node
        for node, spec in zip(results, signature.output_specs, strict=True)
        if spec.kind.name == "USER_OUTPUT" and hasattr(node, "all_input_nodes")
    ]
    read = set(waiting)
    while waiting:
        new = set(waiting.pop().all_input_nodes) - read
        read |= new
        waiting += new
    names = {
        node.name
        for node in read
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
    names = tree.context
    if isinstance(names, list):  # in it, a dataclass and a defaultdict have the list of theirs
        names = next((one for one in names if isinstance(one, list)), names)
    has_names = isinstance(names, list) and len(names) == len(parts)
    if has_names and (issubclass(tree.type, Mapping) or is_dataclass(tree.type)):
        return {"dict": list(zip(names, parts, strict=True))}
    return {"list" if issubclass(tree.type, list) else "tuple": parts}


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


def _tree() -> Any:
    return importlib.import_module("torch.utils._pytree")
