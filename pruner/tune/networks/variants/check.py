"""Check that two graphs compute the same: exactly in fields, then in floating point.

A random point of two prime fields decides whether two polynomials are equal: different polynomials
of degree d agree with probability d / p at most (Schwartz, 1980; Zippel, 1979). A graph that is
wrong at a checked element is accepted with the probability :attr:`Verdict.bound` at most. Checked
are of every axis the first places, a run that is as long as the tiles of rules, the last ones, and
some between them, which are others for each random point. The second check, in the network's
precision, has many more places (of small outputs all), and refuses a graph that is right but
inaccurate. Where scores can have masks, it has a sample with masks of minus infinity, too: a
variant must be finite where the original is. In float16, a further sample has inputs up to 1,024,
because another order of products can lead to numbers that float16 does not have.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pruner.tune.measure.numerics import TOLERANCE
from pruner.tune.networks.rewrites.layout import Precision
from pruner.tune.networks.variants.evaluation import Array, Box, Places, evaluate, whole
from pruner.tune.networks.variants.graph import Graph, GraphNode, nodes

_POINTS = 2  # random points of a complete check; a search takes one
_EXACT, _ROUNDED = 9, 32  # checked places of an axis
_RUN, _END = 6, 2  # at its begin and end
_WHOLE = 2**16  # elements of an output that are all checked for rounding
_SHARE = 0.1  # of a network's tolerance: errors of many parts add up
_LARGE = 1024.0  # inputs of a further sample in float16, whose largest number is 65,504
P, Q = 2_147_483_579, 1_073_741_789  # both prime, P = 2 Q + 1
_G = 4  # a square, so its order in the field of P divides Q, which is prime
_LOST = -1  # has no value in the field of Q
_HALF = 16  # bits
_SUMMANDS = 1 << 21  # sums of so many products of halves stay below 2^53
_Hashes = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of a check, which took ``seconds`` of processor time.

    ``bound``: probability that the fields accept a graph that is wrong at a checked place.
    ``error``: the largest rounding error of the new graph, relative to the largest element and for
    inputs up to 1; ``own_error``: that of the old graph.
    ``refused``: the reason, None for an accepted graph.
    """

    refused: str | None = None
    bound: float = 1.0
    error: float = 0.0
    own_error: float = 0.0
    seconds: float = 0.0


class Checker:
    """Compare variants with a graph, whose values are computed once."""

    def __init__(self, graph: Graph, precision: Precision = "float32") -> None:
        self._graph, self._precision, self._degree = graph, precision, degree(graph)
        self._exact = [places_of(graph, _EXACT, seed=point) for point in range(_POINTS)]
        self._rounded = [
            whole((node,))[0] if prod(node.shape) <= _WHOLE else box
            for node, box in zip(graph, places_of(graph, _ROUNDED, seed=_POINTS), strict=True)
        ]
        self._samples: list[dict[str, Any]] = [{}]  # arguments of `Floats`
        if scores := _scores(graph):
            self._samples.append({"masked": scores})
        self._values: dict[int, list[Array]] = {}  # by the point
        self._reference: Sequence[Array] | None = None
        self._own_errors = np.zeros(0)

    def exactly(self, variant: Graph, points: int = 1) -> Verdict:
        """Compare a variant in the fields."""
        try:
            return self._compared(variant, points)
        except (ValueError, IndexError) as error:  # nodes whose shapes do not fit
            return Verdict(refused=f"it cannot be evaluated ({error})")

    def _compared(self, variant: Graph, points: int) -> Verdict:
        start, bound, total = time.process_time(), 1.0, self._degree + degree(variant)
        shapes = [node.shape for node in variant]
        if shapes != [node.shape for node in self._graph]:
            return Verdict(refused=f"it has outputs of the shapes {shapes}")
        for point in range(points):
            fields, boxes = Fields(point), self._exact[point]
            if point not in self._values:
                self._values[point] = evaluate(self._graph, boxes, fields)
            wanted, found = self._values[point], evaluate(variant, boxes, fields)
            if any(differ(*both) for both in zip(wanted, found, strict=True)):
                seconds = time.process_time() - start
                return Verdict(refused="it computes something else", seconds=seconds)
            # values behind exp are compared in one field only
            lost = any((value < 0).any() for value in (*found, *wanted))
            bound *= min(1.0, total / Q) * (1.0 if lost else min(1.0, total / P))
        return Verdict(bound=bound, seconds=time.process_time() - start)

    def __call__(self, variant: Graph) -> Verdict:
        """Compare a variant in the fields, then its rounding error."""
        start, exact = time.process_time(), self.exactly(variant, _POINTS)
        if exact.refused is not None:
            return exact
        if self._reference is None:
            self._add_large()
            self._reference = self._evaluated(self._graph, "float64")
            self._own_errors = self._errors(self._graph)
        errors, first = self._errors(variant), slice(len(variant))
        most = np.fmax(_SHARE * TOLERANCE[self._precision], self._own_errors)
        wrong = ~(errors <= most)  # of NaN, too
        return Verdict(
            refused=f"its rounding error is {errors[wrong][0]:.1e}, more than {most[wrong][0]:.1e}"
            if wrong.any()
            else None,
            bound=exact.bound,
            error=float(errors[first].max()),
            own_error=float(self._own_errors[first].max()),
            seconds=time.process_time() - start,
        )

    def _errors(self, graph: Graph) -> NDArray[np.float64]:
        """Return the largest error of every output, sample by sample."""
        found, errors = self._evaluated(graph, self._precision), []
        assert self._reference is not None
        for a, b in zip(found, self._reference, strict=True):
            finite = np.isfinite(b)
            a, b = a[finite], b[finite]
            errors.append(np.abs(a - b).max(initial=0) / (np.abs(b).max(initial=0) or 1.0))
        return np.array(errors, float)

    def _add_large(self) -> None:
        """Add a sample of large inputs, if the graph is finite for it."""
        if self._precision == "float16":
            samples, self._samples = self._samples, [{"largest": _LARGE}]
            finite = all(np.isfinite(one).all() for one in self._evaluated(self._graph, "float16"))
            self._samples = [*samples, *(self._samples if finite else [])]

    def _evaluated(self, graph: Graph, precision: Precision | str) -> list[Array]:
        """Evaluate a graph in floating point, for every sample."""
        with np.errstate(all="ignore"):
            kinds = [Floats(precision, **how) for how in self._samples]
            return [array for kind in kinds for array in evaluate(graph, self._rounded, kind)]


def _scores(graph: Graph) -> frozenset[GraphNode]:
    """Return the leaves that are summands of a softmax or a maximum."""
    waiting = [node.args[0] for node in nodes(graph) if node.op in ("softmax", "max")]
    found = set()
    while waiting:
        node = waiting.pop()
        if node.op == "leaf":
            found.add(node)
        elif node.op in ("add", "reshape", "permute", "cut", "concat"):
            waiting.extend(node.args)
    return frozenset(found)


def places_of(graph: Graph, most: int, *, seed: int = 0) -> list[Box]:
    """Choose up to `most` places of every axis of the outputs."""
    rng = np.random.default_rng(seed)

    def places(extent: int) -> Places:
        if extent <= most:
            return np.arange(extent)
        inner = rng.choice(np.arange(_RUN, extent - _END), most - _RUN - _END, replace=False)
        return np.sort(np.array([*range(_RUN), *inner, *range(extent - _END, extent)]))

    return [tuple(places(extent) for extent in node.shape) for node in graph]


class Floats:
    """Arithmetic of floating-point numbers, of one sample.

    ``float16``: products of half precision, sums in single precision. ``masked``: leaves whose rows
    are minus infinity behind a random place, as those of a causal mask are. ``largest``: magnitude
    of inputs; constants are between -1 and 1.
    """

    def __init__(
        self,
        precision: Precision | str,
        *,
        masked: frozenset[GraphNode] = frozenset(),
        largest: float = 1.0,
    ) -> None:
        self._masked, self._largest = masked, largest
        self._dtype = np.dtype("float64" if precision == "float64" else "float32")
        self._half = precision == "float16"

    def leaf(self, node: GraphNode, places: Places) -> Array:
        """Return random elements up to the largest magnitude."""
        words = Fields().leaf(node, places)[:1]
        found: Array = (words / (P / 2) - 1).astype(np.float32).astype(self._dtype)
        if not node.constant:
            found *= self._dtype.type(self._largest)
        if node in self._masked and node.shape:
            row, place = np.divmod(places, node.shape[-1])
            kept = Fields(1).leaf(node, row)[:1] % node.shape[-1]
            found[place > kept] = -np.inf
        return found

    def literal(self, numerators: Places, denominator: int) -> Array:
        """Return rounded fractions."""
        return (numerators[None] / denominator).astype(self._dtype)

    def apply(self, node: GraphNode, args: Sequence[Array]) -> Array:
        """Apply an elementwise operator; an unspecified function is a leaky ReLU."""
        if node.op != "call":
            found: Array = getattr(np, node.op)(*args)
        elif node.attrs[0] == "exp":
            found = np.exp(args[0])
        else:
            total = sum((i + 1) * arg for i, arg in enumerate(args))
            found = np.maximum(total, total * self._dtype.type(0.25))
        return found

    def matmul(self, left: Array, right: Array) -> Array:
        """Multiply matrices."""
        if self._half:
            left, right = (x.astype(np.float16).astype(np.float32) for x in (left, right))
        return left @ right

    def rows(self, op: str, data: Array, axis: int) -> Array:
        """Apply ``softmax`` or ``max`` along an axis."""
        largest = data.max(axis, keepdims=True)
        if op == "max":
            return largest
        powers = np.exp(data - largest)
        return powers / powers.sum(axis, keepdims=True)


class Fields:
    """Arithmetic at a random point, modulo P and modulo Q, a sample each.

    Divisions are products by inverses. ``exp`` maps the field of q = (p - 1) / 2 elements into that
    of p by x -> g^x, where g has order q, so that exp(x + y) = exp(x) exp(y) holds (Wu et al.,
    Mirage, OSDI 2025); its result has no value in the field of q, which is marked by -1. Every
    other function is a keyed hash of its arguments: a rule that uses a property of it, such as the
    order of its arguments, is refused.
    """

    def __init__(self, seed: int = 0) -> None:
        self._seed, self._moduli = seed, np.array([P, Q], np.int64)

    def leaf(self, node: GraphNode, places: Places) -> Array:
        """Return random elements by their places in row-major order, and by their name alone."""
        keys = [_key(f"{node.attrs[0]} {self._seed} {i}") for i in range(2)]
        states = np.array(keys, np.uint64).reshape(-1, *(1,) * places.ndim)
        return self._rest(_mixed(_mixed(places.astype(np.uint64)) ^ states))

    def literal(self, numerators: Places, denominator: int) -> Array:
        """Return fractions."""
        inverse = [pow(denominator, int(m) - 2, int(m)) for m in self._moduli]
        wide = np.broadcast_to(numerators, (len(inverse), *numerators.shape))
        return (
            self._reduced(wide)
            * self._along(np.array(inverse), wide)
            % self._along(self._moduli, wide)
        )

    def apply(self, node: GraphNode, args: Sequence[Array]) -> Array:
        """Apply an elementwise operator to arguments of one rank."""
        if node.op == "call":
            if node.attrs[0] == "exp":
                return self._exp(args[0])
            return self._drawn(self._state(str(node.attrs[0]), np.broadcast_arrays(*args)))
        left, right = args
        if node.op == "divide":
            found = left * self._inverse(right)
        else:
            found = getattr(np, node.op)(left, right)
        lost = (left == _LOST) | (right == _LOST)
        return np.where(lost, _LOST, self._reduced(found))

    def matmul(self, left: Array, right: Array) -> Array:
        """Multiply [samples, batch, m, k] and [samples, batch, k, n]."""
        ends = range(0, max(1, left.shape[-1]), _SUMMANDS)
        parts = [
            self._product(left[..., k : k + _SUMMANDS], right[..., k : k + _SUMMANDS, :])
            for k in ends
        ]
        found = self._reduced(sum(parts[1:], parts[0]))
        if (left[1] == _LOST).any() or (right[1] == _LOST).any():
            found[1] = _LOST
        return found

    def _product(self, left: Array, right: Array) -> Array:
        """Multiply by four exact products, of :data:`_SUMMANDS` summands at most."""
        high, low = (
            ((x >> _HALF).astype(float), (x & 0xFFFF).astype(float)) for x in (left, right)
        )
        (a1, a0), (b1, b0) = high, low
        upper = self._reduced((a1 @ b1).astype(np.int64)) << _HALF
        middle = (a1 @ b0).astype(np.int64) + (a0 @ b1).astype(np.int64)
        found = self._reduced(upper + self._reduced(middle))
        return self._reduced((found << _HALF) + self._reduced((a0 @ b0).astype(np.int64)))

    def rows(self, op: str, data: Array, axis: int) -> Array:
        """Apply ``softmax`` by its definition, or ``max`` as a hash without an order."""
        if op == "max":
            each = self._state("max", [data]).sum(axis - 1, keepdims=True, dtype=np.uint64)
            return self._drawn(_mixed(each))
        powers = self._exp(data)
        total = self._reduced(powers.sum(axis, keepdims=True))
        found = self._reduced(powers * self._inverse(total))
        found[1] = _LOST
        return found

    def _exp(self, data: Array) -> Array:
        exponents, found = data[1], np.full(data.shape, _LOST, np.int64)
        if (exponents == _LOST).any():  # exp of exp
            found[0] = self._drawn(self._state("exp", [data]))[0]
        else:
            found[0] = _powers(np.full_like(exponents, _G), exponents, P)
        return found

    def _inverse(self, data: Array) -> Array:
        # Fermat: x^(p - 2) x = 1
        exponents = np.broadcast_to(self._along(self._moduli - 2, data), data.shape)
        return _powers(np.maximum(data, 0), exponents, self._along(self._moduli, data))

    def _state(self, name: str, args: Sequence[Array]) -> _Hashes:
        """Hash the arguments of a function, both their values."""
        state = np.full(args[0].shape[1:], _key(name), np.uint64)
        for arg in args:
            for sample in arg:
                state = _mixed(state ^ sample.astype(np.uint64))
        return state

    def _drawn(self, state: _Hashes) -> Array:
        return self._rest(np.stack([state, _mixed(state)]))

    def _rest(self, hashes: _Hashes) -> Array:
        return (hashes % self._along(self._moduli.astype(np.uint64), hashes)).astype(np.int64)

    def _reduced(self, data: Array) -> Array:
        return data % self._along(self._moduli, data)

    @staticmethod
    def _along(values: Array, like: Array) -> Array:
        return values.reshape(-1, *(1,) * (like.ndim - 1))


def differ(left: Array, right: Array) -> bool:
    """Check for a difference in the fields where both arrays have values."""
    return bool(((left != right) & (left != _LOST) & (right != _LOST)).any())


def degree(graph: Graph) -> int:
    """Return a bound on the degree of the outputs as quotients of polynomials."""
    found: dict[GraphNode, tuple[int, int]] = {}  # of numerator and denominator
    for node in nodes(graph):
        args = [found[arg] for arg in node.args]
        above, below = [a for a, _ in args], [b for _, b in args]
        if node.op in ("leaf", "call", "max"):
            found[node] = (1, 0)  # a function's result is a new variable
        elif node.op == "softmax":
            found[node] = (above[0] + below[0],) * 2
        elif node.op in ("contract", "multiply"):
            found[node] = (sum(above), sum(below))
        elif node.op == "divide":
            found[node] = (above[0] + below[1], below[0] + above[1])
        elif node.op in ("add", "subtract"):
            found[node] = (max(above[0] + below[1], above[1] + below[0]), sum(below))
        else:
            found[node] = (max(above, default=0), max(below, default=0))
    return max((above + below for above, below in (found[node] for node in graph)), default=0)


def _powers(base: Array, exponents: Array, modulus: Array | int) -> Array:
    result = np.ones_like(base)
    for bit in range(int(exponents.max(initial=1)).bit_length()):
        result = np.where((exponents >> bit) & 1, result * base % modulus, result)
        base = base * base % modulus
    return result


def _key(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _mixed(state: _Hashes) -> _Hashes:
    """Scramble 64 bits (SplitMix64; Steele et al., 2014)."""
    with np.errstate(over="ignore"):  # of scalars; arrays wrap around anyway
        state = state + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
