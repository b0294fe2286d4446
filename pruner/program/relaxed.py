"""Record the arithmetic of N programs as formulas of their tile sizes.

`Relaxed` arrays hold the numbers of the programs, the *anchors*, and record every operation in a
`FormulaNode`, which :mod:`pruner.models.analyzer.derivatives` evaluates in torch. Decisions that
are no tiles are constant, and so is what code derives from comparisons of the anchors; floor and
ceiling of ``x`` are ``x`` plus what rounding adds at the anchor; remainders, greatest common
divisors and bits are constant; minima, maxima and clips compare the relaxed numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Decisions, Ints

Plain = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class FormulaNode:
    """A recorded operation.

    ``options``: an axis, an index, a shape; ``known`` nodes, so that equal operations are recorded
    once. ``tile`` is column ``options[1]`` of the rows ``options[0]`` of the decisions.
    """

    operation: str
    arguments: tuple[FormulaNode | Plain, ...]
    options: Any = None
    known: dict[Any, FormulaNode] = field(default_factory=dict)

    def then(self, operation: str, arguments: Sequence[Any], options: Any = None) -> FormulaNode:
        """Record an operation on numbers, some of which may be relaxed."""
        # Copies: NumPy code may change its arrays after it used them.
        found = [one.formula if isinstance(one, Relaxed) else one for one in arguments]
        parts = tuple(x if isinstance(x, FormulaNode) else np.array(x) for x in found)
        key = (operation, *map(_name, parts), _name(options))
        if key not in self.known:
            self.known[key] = FormulaNode(operation, parts, _copied(options), self.known)
        return self.known[key]


def _name(part: Any) -> Any:
    """Make a key that is equal for equal arguments and options."""
    if isinstance(part, np.ndarray):
        return part.shape, part.dtype.char, part.tobytes()
    if isinstance(part, (tuple, list)):
        return tuple(map(_name, part))
    return str(part) if isinstance(part, slice) else part


def _copied(options: Any) -> Any:
    if isinstance(options, tuple):
        return tuple(map(_copied, options))
    return options.copy() if isinstance(options, np.ndarray) else options


def _select(part: FormulaNode | Plain, index: tuple[Any, ...]) -> FormulaNode | Plain:
    """Return what an index selects; of stacked rows only the rows that it needs."""
    if not isinstance(part, FormulaNode):
        return part[index]
    if not index:
        return part
    first, rest = index[0], index[1:]
    if part.operation == "stack" and part.options == 0:
        if isinstance(first, int):
            return _select(part.arguments[first], rest)
        if rest and isinstance(first, slice) and first == slice(None):
            rows = [_select(one, rest) for one in part.arguments]
            relaxed = any(isinstance(row, FormulaNode) for row in rows)
            return part.then("stack", rows, 0) if relaxed else np.stack(rows)  # type: ignore[arg-type]
    return part.then("select", [part], index)


class Relaxed(np.ndarray):
    """Numbers of the anchors that also record how they follow from tile sizes.

    Comparisons give plain arrays; what is neither recorded nor structure raises `TypeError`.
    """

    node: FormulaNode | None

    @property
    def formula(self) -> FormulaNode:
        """How the numbers follow from tile sizes."""
        if self.node is None:
            raise TypeError("a relaxed number lost its formula")
        return self.node

    def __array_finalize__(self, made_from: Any) -> None:
        """Keep the formula of copies and casts; views of another shape have none."""
        same = made_from is not None and made_from.shape == self.shape
        self.node = getattr(made_from, "node", None) if same else None

    def __getitem__(self, index: Any) -> Any:
        """Select numbers, and record the selection."""
        found = np.asarray(self)[index]
        if not isinstance(found, np.ndarray):
            return found
        node = _select(self.formula, index if isinstance(index, tuple) else (index,))
        return _with_node(found, node) if isinstance(node, FormulaNode) else found

    def __setitem__(self, index: Any, value: Any) -> None:
        """Raise `TypeError`: an array that changes has no formula."""
        raise TypeError("relaxed numbers do not change in place")

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = (), **options: Any
    ) -> Any:
        """Apply NumPy's function to the anchors, and record it."""
        if any(not isinstance(one, Relaxed) for one in out):
            raise TypeError("relaxed numbers do not fit a plain array")
        found = getattr(ufunc, method)(*map(_plain, inputs), **options)
        name = ufunc.__name__
        if method == "__call__" and name == "divmod":
            return _rounded(found[0], inputs), found[1]
        if found.dtype == bool or name in _CONSTANT:
            return found
        if method == "__call__" and name in _ROUNDED:
            return _rounded(found, inputs)
        if name == "absolute" and (found == _plain(inputs[0])).all():
            return inputs[0]
        if method == "__call__" and name in _RECORDED:
            return recorded(found, name, inputs)
        if (name, method) in _OVER_AXIS:
            axis = options.get("axis", 0)
            return recorded(found, _OVER_AXIS[name, method], inputs[:1], axis)
        raise TypeError(f"{name}.{method} of relaxed numbers is not recorded")

    def __array_function__(self, function: Any, types: Any, inputs: Any, options: Any) -> Any:
        """Record NumPy's function, or apply it to the anchors where it gives structure."""
        name = function.__name__
        if name in _FUNCTIONS:
            return _FUNCTIONS[name](*inputs, **options)
        if name in _STRUCTURE:
            return function(*map(_plain, inputs), **{k: _plain(v) for k, v in options.items()})
        raise TypeError(f"{name} of relaxed numbers is not recorded")


class RelaxedDecisions(np.ndarray):
    """Decision vectors [N, d] of the anchors, whose columns ``tiles`` are relaxed."""

    tiles: frozenset[int]
    rows: Ints
    known: dict[Any, FormulaNode]

    @staticmethod
    def of(decisions: Decisions, tiles: Collection[int]) -> RelaxedDecisions:
        """Begin to record at the anchors int64 [N, d]."""
        return _selected(decisions, frozenset(tiles), np.arange(len(decisions)), {})

    def __getitem__(self, index: Any) -> Any:
        """Select rows, or columns of all rows: a column of a tile is relaxed."""
        found = np.asarray(self)[index]
        if not isinstance(index, tuple):
            return _selected(found, self.tiles, self.rows[index], self.known)
        _, slot = index
        if slot not in self.tiles:
            return found
        key = ("tile", slot, self.rows.tobytes())
        node = self.known.setdefault(key, FormulaNode("tile", (), (self.rows, slot), self.known))
        return _with_node(found, node)


def _selected(
    values: Plain, tiles: frozenset[int], rows: Ints, known: dict[Any, FormulaNode]
) -> RelaxedDecisions:
    out = values.view(RelaxedDecisions)
    out.tiles, out.rows, out.known = tiles, rows, known
    return out


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value))
    return np.asarray(value) if isinstance(value, Relaxed) else value


def _with_node(values: Plain, node: FormulaNode) -> Relaxed:
    out = np.asarray(values).view(Relaxed)
    out.node = node
    return out


def recorded(found: Plain, operation: str, inputs: Sequence[Any], options: Any = None) -> Any:
    """Return numbers of the anchors with their operation; plain where that is constant."""
    same = _unchanged(operation, inputs, options)
    if same is not None and not isinstance(same, Relaxed):
        return found
    if same is not None and same.shape == found.shape:
        return _with_node(found, same.formula)
    node = next(one.formula for one in inputs if isinstance(one, Relaxed))
    return _with_node(found, node.then(operation, inputs, options))


def _unchanged(operation: str, inputs: Sequence[Any], options: Any) -> Any:
    """Return the input that an operation returns, as a product with 1, else None."""
    if operation == "where":
        return inputs[0] if options.all() else None if options.any() else inputs[1]
    if operation in ("multiply", "add", "round"):
        nothing = 1 if operation == "multiply" else 0
        for one, other in (inputs, inputs[::-1]):
            if not isinstance(one, Relaxed):
                if (np.asarray(one) == nothing).all():
                    return other
                if nothing and not np.any(one):
                    return one
    return None


def _rounded(found: Plain, inputs: Sequence[Any]) -> Any:
    """Record a rounded quotient as the quotient plus what rounding changed."""
    exact = inputs[0] if len(inputs) == 1 else np.true_divide(*inputs)
    return recorded(found, "round", [exact, found - np.asarray(exact)])


def _where(condition: Plain, a: Any, b: Any) -> Any:
    return recorded(np.where(condition, _plain(a), _plain(b)), "where", [a, b], _plain(condition))


def _joined(name: str) -> Callable[..., Any]:
    function = getattr(np, name)

    def join(values: Sequence[Any], axis: int = 0) -> Any:
        return recorded(function(_plain(list(values)), axis=axis), name, list(values), axis)

    return join


def _broadcast_to(values: Any, shape: Any, **_: Any) -> Any:
    return recorded(np.broadcast_to(_plain(values), shape), "broadcast_to", [values], shape)


def _take_along_axis(values: Any, index: Any, axis: int) -> Any:
    found = np.take_along_axis(_plain(values), _plain(index), axis)
    return recorded(found, "take_along_axis", [values], (axis, _plain(index)))


def _sort(values: Any, axis: int = -1) -> Any:
    return _take_along_axis(values, np.argsort(_plain(values), axis=axis), axis)


def _split(values: Any, ends: Sequence[int], axis: int = 0) -> list[Any]:
    edges = [0, *ends, values.shape[axis]]
    before = (slice(None),) * axis
    return [values[(*before, slice(a, b))] for a, b in pairwise(edges)]


def _diff(values: Any, axis: int = -1) -> Any:
    before = (slice(None),) * (axis % values.ndim)
    return values[(*before, slice(1, None))] - values[(*before, slice(None, -1))]


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "where": _where,
    "stack": _joined("stack"),
    "concatenate": _joined("concatenate"),
    "clip": lambda values, low, high: np.minimum(np.maximum(values, low), high),
    "broadcast_to": _broadcast_to,
    "take_along_axis": _take_along_axis,
    "sort": _sort,
    "split": _split,
    "diff": _diff,
}
# What they return are positions, masks, shapes, or constant arrays of the same shape.
_STRUCTURE = frozenset((
    "all", "any", "argmax", "argmin", "argsort", "array_equal", "count_nonzero", "empty_like",
    "flatnonzero", "full_like", "isin", "mean", "ndim", "nonzero", "ones_like", "shape", "unique",
    "zeros_like",
))  # fmt: skip
_RECORDED = frozenset((
    "add", "subtract", "multiply", "divide", "power", "negative", "absolute", "minimum", "maximum",
    "log", "log2", "exp", "sqrt", "square",
))  # fmt: skip
_ROUNDED = frozenset(("floor_divide", "floor", "ceil", "rint"))
_CONSTANT = frozenset(("remainder", "gcd", "lcm", "right_shift", "bitwise_and", "sign"))
_OVER_AXIS = {
    ("add", "reduce"): "sum",
    ("multiply", "reduce"): "prod",
    ("maximum", "reduce"): "amax",
    ("minimum", "reduce"): "amin",
    ("multiply", "accumulate"): "cumprod",
}


def in_order(outputs: Sequence[FormulaNode]) -> list[FormulaNode]:
    """List the nodes that `outputs` need, arguments before results."""
    done: dict[FormulaNode, None] = {}
    pending: list[tuple[FormulaNode, Iterator[FormulaNode]]] = []
    for output in outputs:
        pending.append((output, _nodes(output)))
        while pending:
            node, rest = pending[-1]
            following = next((one for one in rest if one not in done), None)
            if following is None:
                done[node] = None
                pending.pop()
            else:
                pending.append((following, _nodes(following)))
    return list(done)


def _nodes(node: FormulaNode) -> Iterator[FormulaNode]:
    return iter([one for one in node.arguments if isinstance(one, FormulaNode)])
