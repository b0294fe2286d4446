"""Arithmetic in two prime fields, where rounding cannot hide a difference.

A random point decides whether two polynomials are equal: different polynomials of degree d agree
with probability d / p at most (Schwartz, 1980; Zippel, 1979). Divisions are products by inverses.
``exp`` maps the field of q = (p - 1) / 2 elements into that of p by x -> g^x, where g has order q,
so that exp(x + y) = exp(x) exp(y) holds (Wu et al., Mirage, OSDI 2025); its result has no value in
the field of q, which is marked by -1. Every other function is a keyed hash of its arguments: a rule
that uses a property of it, such as the order of its arguments, is refused.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pruner.tune.networks.variants.evaluation import Array, Places
from pruner.tune.networks.variants.graph import Graph, GraphNode, nodes

P, Q = 2_147_483_579, 1_073_741_789  # both prime, P = 2 Q + 1
_G = 4  # a square, so its order in the field of P divides Q, which is prime
_LOST = -1  # has no value in the field of Q
_HALF = 16  # bits
_SUMMANDS = 1 << 21  # sums of so many products of halves stay below 2^53
_Hashes = NDArray[np.uint64]


class Fields:
    """Arithmetic at a random point, modulo P and modulo Q, a sample each."""

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
