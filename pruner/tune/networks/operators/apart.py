"""Decompose the calls of a program apart; equal calls are decomposed once a process.

Torch traces a whole program to decompose it, which takes most of the time of an import. Networks of
a search space repeat the same calls: an operator on tensors of the same shapes. The new calls of a
network are decomposed as one program, in which they do not depend on each other; the part of each
is kept, and copied into every network.
"""

import copy
from collections.abc import Callable, Hashable, Mapping
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as tree

from pruner.tune.networks.signature import computed_from

_KNOWN: dict[Hashable, fx.Graph | None] = {}  # None: the call must be decomposed in its program
_MOST = 10_000  # of known calls, each some kilobytes


def decomposed_apart(program: Any, decompose: Callable[[Any], Any]) -> Any:
    """Decompose an exported program call by call where possible, else as a whole.

    `decompose`: of a complete program. See `joined`.
    """
    graph = joined(program.graph, decompose)
    if graph is None:
        return decompose(program)
    result = copy.copy(program)
    result._graph_module = fx.GraphModule(program.graph_module, graph)
    return result


def joined(given: fx.Graph, decompose: Callable[[Any], Any]) -> fx.Graph | None:
    """Decompose the calls of a graph apart; None where that is not possible.

    It is not possible for calls that write into their inputs or have other results once decomposed
    (of other strides, for example), for control flow and open sizes, and for calls that cannot be
    decomposed alone.
    """
    if len(_KNOWN) > _MOST:
        _KNOWN.clear()
    keys: dict[fx.Node, Hashable] = {}
    for node in given.nodes:
        if node.op in ("placeholder", "output") or node.target is getitem:
            continue
        key = _key(node)
        if key is None:
            return None
        keys[node] = key
    new = {key: node for node, key in keys.items() if key not in _KNOWN}
    if new:
        _learn(new, decompose)
    parts = {node: _KNOWN[key] for node, key in keys.items()}
    if None in parts.values():
        return None
    graph, values = fx.Graph(), dict[fx.Node, Any]()
    for node in given.nodes:
        if (part := parts.get(node)) is not None:
            inputs = [one for one in part.nodes if one.op == "placeholder"]
            taken = (values[one] for one in _inputs(node))
            found: Any = graph.graph_copy(part, dict(zip(inputs, taken, strict=True)))
            values[node] = found[0] if isinstance(node.meta["val"], Tensor) else found
        elif node.target is getitem:
            whole, place = node.args
            values[node] = values[whole][place]
        else:
            values[node] = graph.node_copy(node, lambda one: values[one])
            values[node].name = node.name  # a copy of `input`, a word of Python, gets another name
    graph.eliminate_dead_code()
    return graph


def _inputs(node: fx.Node) -> list[fx.Node]:
    leaves = tree.tree_leaves((node.args, node.kwargs))
    return list(dict.fromkeys(one for one in leaves if isinstance(one, fx.Node)))


def _key(node: fx.Node) -> Hashable | None:
    """Describe a call by its operator, tensors and constants; None: only in its program."""
    target = node.target
    if isinstance(target, torch._ops.HigherOrderOperator) or not callable(target):
        return None
    if isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable:
        return None
    inputs = _inputs(node)
    kinds = [_kind(one.meta.get("val")) for one in inputs]
    results = node.meta.get("val")
    many = results if isinstance(results, list | tuple) else [results]
    if None in kinds or None in map(_kind, many):
        return None
    if "max_pool" in getattr(target, "__name__", "") and len(many) > 1:
        return None  # whether the places are read decides
    places = {one: place for place, one in enumerate(inputs)}
    leaves, spec = tree.tree_flatten((node.args, node.kwargs))
    given = [
        ("tensor", places[one]) if isinstance(one, fx.Node) else (type(one).__name__, repr(one))
        for one in leaves
    ]
    # Numbers without a type have the default. A part is kept for results of the same forms.
    forms = tuple(_forms(many))
    return target, str(spec), tuple(given), tuple(kinds), torch.get_default_dtype(), forms


def _kind(value: Any) -> tuple[Any, ...] | None:
    if not isinstance(value, Tensor) or not all(type(size) is int for size in value.shape):
        return None
    return tuple(value.shape), tuple(value.stride()), value.dtype, value.requires_grad


def _learn(new: Mapping[Hashable, fx.Node], decompose: Callable[[Any], Any]) -> None:
    """Decompose calls; what fails alone is left to its program from now on."""
    if _learned(new, decompose):
        return
    if len(new) == 1:
        _KNOWN.update(dict.fromkeys(new))
        return
    calls = list(new.items())
    for half in (calls[: len(calls) // 2], calls[len(calls) // 2 :]):
        _learn(dict(half), decompose)


def _learned(new: Mapping[Hashable, fx.Node], decompose: Callable[[Any], Any]) -> bool:
    """Decompose calls as one program, and keep their parts; False where that fails."""
    calls, tensors = list(new.values()), list[Tensor]()
    for value in (one.meta["val"] for node in calls for one in _inputs(node)):
        made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
        tensors.append(made.requires_grad_(value.requires_grad))
    try:
        with torch.no_grad():
            program = torch.export.export(_Calls(calls), tuple(tensors))
        found = decompose(program)
    except Exception:  # of any kind: the complete program may succeed, or gives the message
        return False
    nodes = list(found.graph.nodes)
    inputs = iter([node for node in nodes if node.op == "placeholder"])
    outputs = iter(found.graph.output_node().args[0])
    is_plain = all(s.kind.name == "USER_OUTPUT" for s in found.graph_signature.output_specs)
    num_inputs = sum(node.op == "placeholder" for node in nodes)
    # other inputs are constants of a decomposition
    if not is_plain or num_inputs != len(tensors) or any(n.op == "get_attr" for n in nodes):
        return False
    for key, call in new.items():
        own = [next(inputs) for _ in _inputs(call)]
        val = call.meta["val"]
        results = [next(outputs) for _ in range(1 if isinstance(val, Tensor) else len(val))]
        # of other strides, the calls behind it would be decomposed in another way; of another type,
        # the call depends on more than its key
        same = _forms(val) == _forms([one.meta["val"] for one in results])
        _KNOWN[key] = _part(nodes, own, results) if same else None
    return True


def _forms(value: Any) -> list[tuple[Any, ...]]:
    many = [value] if isinstance(value, Tensor) else value
    return [(one.shape, one.stride(), one.dtype) for one in many]


def _part(nodes: list[fx.Node], inputs: list[fx.Node], results: list[fx.Node]) -> fx.Graph:
    """Copy the nodes from which results are computed into a graph of their own."""
    needed = computed_from(results)
    part, values = fx.Graph(), dict[fx.Node, Any]()
    for node in inputs:
        values[node] = part.node_copy(node)
    for node in nodes:
        if node in needed and node not in values:
            values[node] = part.node_copy(node, lambda one: values[one])
    part.output(tuple(values[one] for one in results))
    return part


class _Calls(nn.Module):
    """A module that makes the calls of nodes, each on tensors of its own."""

    def __init__(self, nodes: list[fx.Node]) -> None:
        super().__init__()
        self._calls = [(node, _inputs(node)) for node in nodes]

    def forward(self, *tensors: Tensor) -> Any:
        left, results = list(tensors), []
        for node, inputs in self._calls:
            given = dict(zip(inputs, left[: len(inputs)], strict=True))
            del left[: len(inputs)]
            leaves, spec = tree.tree_flatten((node.args, node.kwargs))
            leaves = [given[one] if isinstance(one, fx.Node) else one for one in leaves]
            args, kwargs = tree.tree_unflatten(leaves, spec)
            made = node.target(*args, **kwargs)  # type: ignore[operator]
            results += [made] if isinstance(made, Tensor) else list(made)
        return tuple(results)
