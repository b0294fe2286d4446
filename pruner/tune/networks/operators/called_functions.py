"""Import a module by its calls of torch's functions, each decomposed apart.

``torch.export`` traces every operator of a module, also where all calls are known from earlier
networks. Here the module is called once, on tensors with shapes and without values, and its calls
of torch's functions are noted: a convolution, an activation, a mean. The parts of the calls are
those of :mod:`~pruner.tune.networks.operators.apart`.
"""

import copy
import importlib
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from operator import getitem, is_
from types import EllipsisType, NoneType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as tree

from pruner.tune.networks.operators.apart import joined
from pruner.tune.networks.plain import Arguments
from pruner.tune.networks.signature import masks_by_values

# Arguments and results that a key describes completely.
_PLAIN = (
    *(NoneType, bool, int, float, complex, str, EllipsisType),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
)
_VALUES = (NoneType, bool, int, float, str)  # inputs and results of a module
_CONTAINERS = (dict, list, set, deque)  # that a module can change in place
_SETTERS = ("__set__", "__delete__")


class _Refused(Exception):
    """A module does more than its calls of torch's functions."""


def recorded(
    module: nn.Module, arguments: Arguments, decompose: Callable[[Any], Any]
) -> SimpleNamespace | None:
    """Import and decompose a module in evaluation mode; None where not possible.

    The result has what an import reads of an ``ExportedProgram``.

    `decompose`: of a complete program. It is not possible where the module writes into tensors,
    changes itself or depends on values, where a tensor comes from elsewhere than from torch's
    functions, and where `joined` fails: ``torch.export`` succeeds there, or gives the message.
    """
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    try:
        with _unchanged(module), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the complete export gives them
            recorder = _Recorder()
            specs = recorder.run(module, arguments, parameters, buffers)
        graph = joined(recorder.graph, decompose)
        if graph is None:
            return None
        graph_module = fx.GraphModule(nn.Module(), graph)  # it compiles the graph's code
    except Exception:  # of any kind, by the module's own code
        return None
    return SimpleNamespace(
        graph=graph,
        graph_module=graph_module,
        graph_signature=_signature(graph, [*parameters], [*buffers]),
        call_spec=specs,
        state_dict={**parameters, **buffers},
        constants={},
        named_parameters=parameters.items,
        named_buffers=buffers.items,
    )


@contextmanager
def _unchanged(module: nn.Module) -> Iterator[None]:
    """Take back a call's changes of a module, and refuse the call."""
    places: dict[int, Any] = {}
    waiting: list[Any] = [vars(part) for part in module.modules()]  # with the dicts of weights
    while waiting:
        place = waiting.pop()
        if isinstance(place, _CONTAINERS) and id(place) not in places:
            places[id(place)] = place
            waiting += place.values() if isinstance(place, dict) else place
    before = [(place, copy.copy(place)) for place in places.values()]
    try:
        yield
    finally:
        changed = False
        for place, kept in before:
            now, then = _contents(place), _contents(kept)
            if len(now) != len(then) or not all(map(is_, now, then)):
                place.clear()
                add = place.extend if isinstance(place, list | deque) else place.update
                add(kept)
                changed = True
        if changed:
            raise _Refused


def _contents(place: Any) -> list[Any]:
    return [*place, *place.values()] if isinstance(place, dict) else [*place]


class _Recorder(TorchFunctionMode):
    """Notes calls of torch's functions as nodes of ``graph``."""

    def __init__(self) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self._nodes: dict[int, fx.Node] = {}
        self._tensors: list[Tensor] = []  # their identities must not be used again

    def run(
        self,
        module: nn.Module,
        arguments: Arguments,
        parameters: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
    ) -> SimpleNamespace:
        """Call a module on tensors without values."""
        # neither is public: without them `recorded` finds nothing
        trace = importlib.import_module("torch.export._trace")
        shapes = importlib.import_module("torch._subclasses.fake_tensor").FakeTensorMode()
        given = {
            name: self._input(f"{kind}_{place}", shapes, tensor)  # a name may be no word of Python
            for kind, tensors in (("p", parameters), ("b", buffers))
            for place, (name, tensor) in enumerate(tensors.items())
        }
        leaves, in_spec = tree.tree_flatten(arguments)
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor):
                leaves[place] = self._input(f"input_{place}", shapes, leaf)
            else:
                self.graph.placeholder(f"input_{place}").meta["val"] = _value(leaf)
        args, kwargs = tree.tree_unflatten(leaves, in_spec)
        with (
            torch.no_grad(),
            masks_by_values(),
            # as torch.export: the results of its libraries have other strides
            trace._ignore_backend_decomps(),
            trace._compiling_state_context(),
            shapes,
            self,
        ):
            result = torch.func.functional_call(module, given, args, kwargs)
        outputs, out_spec = tree.tree_flatten(result)
        self.graph.output(
            tuple(self._node(one) if isinstance(one, Tensor) else _value(one) for one in outputs)
        )
        return SimpleNamespace(in_spec=in_spec, out_spec=out_spec)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function, and note the call if tensors come out of it."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _SETTERS or (name.endswith("_") and not name.endswith("__")):
            raise _Refused
        tensors = [one for one in tree.tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        versions = [one._version for one in tensors]
        result = func(*args, **kwargs)
        if versions != [one._version for one in tensors] or torch.is_autocast_enabled("cpu"):
            raise _Refused
        made = list(result) if isinstance(result, tuple | list) else [result]
        are_tensors = {isinstance(one, Tensor) for one in made}
        if True not in are_tensors:
            if not all(isinstance(one, _PLAIN) for one in made):
                raise _Refused
            return result  # a size, a type, a switch
        if False in are_tensors:
            raise _Refused
        if isinstance(result, Tensor) and id(result) in self._nodes:
            return result  # it does nothing
        node = self.graph.call_function(func, *tree.tree_map(self._written, (tuple(args), kwargs)))
        node.meta["val"] = result
        if isinstance(result, Tensor):
            self._keep(result, node)
        else:
            for place, one in enumerate(made):
                part = self.graph.call_function(getitem, (node, place))
                part.meta["val"] = one
                self._keep(one, part)
        return result

    def _input(self, name: str, shapes: Any, tensor: Tensor) -> Tensor:
        if tensor.layout != torch.strided or tensor.device.type != "cpu":
            raise _Refused
        made: Tensor = shapes.from_tensor(tensor)
        node = self.graph.placeholder(name)
        node.meta["val"] = made
        self._keep(made, node)
        return made

    def _keep(self, tensor: Tensor, node: fx.Node) -> None:
        if id(tensor) in self._nodes:
            raise _Refused
        self._nodes[id(tensor)] = node
        self._tensors.append(tensor)

    def _node(self, tensor: Tensor) -> fx.Node:
        if id(tensor) not in self._nodes:
            raise _Refused
        return self._nodes[id(tensor)]

    def _written(self, leaf: Any) -> Any:
        """Return the node of a tensor, and a constant as it is."""
        if isinstance(leaf, Tensor):
            return self._node(leaf)
        parts = (leaf.start, leaf.stop, leaf.step) if isinstance(leaf, slice) else (leaf,)
        if not all(isinstance(part, _PLAIN) for part in parts):
            raise _Refused
        return leaf


def _value(value: Any) -> Any:
    if not isinstance(value, _VALUES):
        raise _Refused
    return value


def _signature(graph: fx.Graph, parameters: list[str], buffers: list[str]) -> ExportGraphSignature:
    """Describe inputs and outputs of a graph, whose first inputs are the named tensors."""
    targets = [(InputKind.PARAMETER, name) for name in parameters]
    targets += [(InputKind.BUFFER, name) for name in buffers]
    inputs = []
    for place, node in enumerate(graph.find_nodes(op="placeholder")):
        kind, target = targets[place] if place < len(targets) else (InputKind.USER_INPUT, None)
        persistent = True if kind is InputKind.BUFFER else None
        inputs.append(InputSpec(kind, _argument(node), target, persistent))
    results: Any = graph.output_node().args[0]
    outputs = [OutputSpec(OutputKind.USER_OUTPUT, _argument(one), None) for one in results]
    return ExportGraphSignature(inputs, outputs)


def _argument(value: Any) -> TensorArgument | ConstantArgument:
    if not isinstance(value, fx.Node):
        return ConstantArgument("", value)
    val = value.meta["val"]
    if isinstance(val, Tensor):
        return TensorArgument(value.name)
    return ConstantArgument(value.name, val)
