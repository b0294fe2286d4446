"""Which functions stand in for which operators of torch."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as tree

F = TypeVar("F", bound=Callable[..., Any])
Functions = dict[Any, Callable[..., Any]]

# Decompositions: functions of torch with the operator's own arguments.
REPLACED: Functions = {}
# Functions of (node of the graph, importer of TVM); torch does not decompose these operators, which
# are given by their names if they are of another package.
CONVERTED: Functions = {}


def replaces(*operators: Any, table: Functions = REPLACED) -> Callable[[F], F]:
    """Register a function of torch in place of operators."""

    def register(function: F) -> F:
        table.update(dict.fromkeys(operators, function))
        return function

    return register


def converts(*operators: Any) -> Callable[[F], F]:
    """Register a function that makes the Relax call of operators."""
    return replaces(*operators, table=CONVERTED)


def in_single(operator: Any) -> Callable[..., Any]:
    """Return a replacement that computes an operator of half precision in single precision.

    TVM adds in half precision: the sum of 4,096 ones is 2,048.
    """

    def computed(*args: Any, **named: Any) -> Any:
        kinds = {one.dtype for one in tree.tree_leaves(args) if isinstance(one, Tensor)}
        if kinds != {torch.float16} or named.get("dtype"):
            return NotImplemented
        wide = tree.tree_map_only(Tensor, Tensor.float, args)
        return tree.tree_map_only(Tensor, Tensor.half, operator(*wide, **named))

    return computed


def by_tvm(node: Any, importer: Any) -> Any:
    """Import a call as TVM's front end does."""
    return importer.create_convert_map()[node.target.__name__](node)
