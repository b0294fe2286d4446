"""``torch.compile(model, backend="pruner")`` for inference with fixed sizes.

With ``torch._dynamo.config.suppress_errors = True``, torch runs a graph that is refused as it is.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from pruner.cli.tuning.optimize import optimize
from pruner.errors import PrunerError


def backend(
    graph: fx.GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Compile a graph for torch.

    Weights become constants, as they are now: compile again after they have changed.

    Args:
        graph: the graph, whose weights are inputs.
        inputs: values of all its inputs.
        options: keyword arguments of `optimize`, as in
            ``torch.compile(model, backend="pruner", options={"effort": "draft"})``.

    Raises:
        PrunerError: gradients are required, sizes are open, tensors are changed in place, or
            `optimize` refuses the module.
    """
    nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
    weights = {
        place: value
        for place, (node, value) in enumerate(zip(nodes, inputs, strict=True))
        if isinstance(value, nn.Parameter)
        or "_dynamo_static_input_type" in node.meta.get("tensor_dict", {})
    }
    if torch.is_grad_enabled() and any(value.requires_grad for value in weights.values()):
        raise PrunerError(
            "backend=pruner computes no gradients: compile and call the module under "
            "torch.no_grad()"
        )
    rest = [place for place in range(len(nodes)) if place not in weights]
    if not all(isinstance(inputs[place], Tensor) for place in rest):
        raise PrunerError(
            "backend=pruner needs fixed sizes, and the graph has open ones: "
            "torch.compile(..., dynamic=False) compiles once for each size"
        )
    _check_writes(graph, inputs)
    pointers = [value.data_ptr() for value in weights.values()]
    # tensors of the inference mode have no count of their changes
    counted = [place for place, value in weights.items() if not value.is_inference()]
    versions = [weights[place]._version for place in counted]
    bound = Graph(graph, weights, rest)
    network = optimize(bound, tuple(inputs[place] for place in rest), **(options or {}))

    def call(*given: Any) -> Any:
        # torch gives the same graph to equal blocks, and to later values of a state
        if [given[place].data_ptr() for place in weights] != pointers:
            raise PrunerError(
                "backend=pruner: torch calls this graph with other weights, or another state, than "
                "it was compiled for; compile the whole model without graph breaks in parts that "
                "repeat, and pass a state as an input"
            )
        if [given[place]._version for place in counted] != versions:
            raise PrunerError(
                "backend=pruner: weights were changed in place, and the compiled network has those "
                "from before: call torch._dynamo.reset(), then torch.compile again"
            )
        return network(*[given[place] for place in rest])

    return call


def _check_writes(graph: fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Refuse a graph that writes to its inputs, which torch counts."""
    given = [value.detach().clone() if isinstance(value, Tensor) else value for value in inputs]
    before = [value._version if isinstance(value, Tensor) else 0 for value in given]
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        graph(*given)
    nodes = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
    changed = [
        name
        for name, value, version in zip(nodes, given, before, strict=True)
        if isinstance(value, Tensor) and value._version != version
    ]
    if changed:
        raise PrunerError(
            f"backend=pruner: the module changes {', '.join(changed)} in place, and a compiled "
            "network changes no tensor: return the new values as outputs"
        )


class Graph(nn.Module):
    """A graph of torch with inputs at the places `rest`; others are weights."""

    def __init__(
        self, graph: fx.GraphModule, weights: Mapping[int, Tensor], rest: Sequence[int]
    ) -> None:
        super().__init__()
        self.graph, self._weights, self._rest = graph, tuple(weights), tuple(rest)
        for place, value in weights.items():
            self.register_buffer(f"weight_{place}", value.detach())

    def forward(self, *given: Tensor) -> Any:
        """Compute the graph's outputs."""
        values = {place: getattr(self, f"weight_{place}") for place in self._weights}
        values |= dict(zip(self._rest, given, strict=True))
        return self.graph(*[values[place] for place in sorted(values)])
