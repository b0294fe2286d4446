"""Formulas over decision columns: build once per skeleton, evaluate for N candidates.

Loop extents of tiled programs are products of decisions and constants; everything else (windows of
a convolution, ragged fetch loops) is a short sum, quotient or limit of such products. A formula is
kept as ``constant * product of atoms ** powers``, so that ``E / (a * b) * b`` becomes ``E / a``
before anything is computed, and equal formulas are one node that is evaluated once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Floats

Operation = Literal["slot", "sum", "ceil", "min", "max", "equal", "banks"]


@dataclass(frozen=True, slots=True)
class Atom:
    """What a product is made of: a decision column, or an operation on formulas.

    Atoms are compared and ordered by ``label``, a digest of their text: the same in every process.
    """

    label: str
    operation: Operation = field(compare=False)
    slot: int = field(default=-1, compare=False)
    operands: tuple[Formula, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Formula:
    """``constant * prod(atom ** power)``; immutable, equal when the text is equal."""

    constant: float
    powers: tuple[tuple[Atom, int], ...] = ()

    @property
    def is_constant(self) -> bool:
        """No decision appears in it."""
        return not self.powers

    def __mul__(self, other: Formula | float) -> Formula:
        """Product; powers of equal atoms are added."""
        return _product(self, as_formula(other), 1)

    def __truediv__(self, other: Formula | float) -> Formula:
        """Quotient that the caller knows to be exact, or that may be fractional."""
        return _product(self, as_formula(other), -1)

    def __add__(self, other: Formula | float) -> Formula:
        """Sum; constants are folded, equal products merged."""
        return total((self, as_formula(other)))

    def __sub__(self, other: Formula | float) -> Formula:
        """Difference."""
        return total((self, as_formula(other) * -1.0))


ONE = Formula(1.0)
ZERO = Formula(0.0)


def as_formula(value: Formula | float) -> Formula:
    """A number as a constant formula."""
    return value if isinstance(value, Formula) else Formula(float(value))


def slot(number: int) -> Formula:
    """Decision column ``number``."""
    return Formula(1.0, ((Atom(f"#{number:04d}", "slot", slot=number), 1),))


def product(factors: Iterable[Formula]) -> Formula:
    """Product of any number of formulas."""
    out = ONE
    for factor in factors:
        out = out * factor
    return out


def total(terms: Iterable[Formula]) -> Formula:
    """Sum of any number of formulas."""
    merged: dict[tuple[tuple[Atom, int], ...], float] = {}
    for term in terms:
        for part in _terms(term):
            merged[part.powers] = merged.get(part.powers, 0.0) + part.constant
    kept = tuple(Formula(c, p) for p, c in merged.items() if c != 0.0)
    if not kept:
        return ZERO
    if len(kept) == 1:
        return kept[0]
    return _operation("sum", kept)


def ceil(value: Formula) -> Formula:
    """Rounded up; whole products stay as they are."""
    if value.is_constant:
        return Formula(float(np.ceil(value.constant - 1e-9)))
    whole = value.constant == int(value.constant)
    if whole and all(p > 0 and a.operation != "sum" for a, p in value.powers):
        return value
    return _operation("ceil", (value,))


def minimum(a: Formula, b: Formula) -> Formula:
    """The smaller of two."""
    return _pair("min", a, b)


def maximum(a: Formula, b: Formula) -> Formula:
    """The larger of two."""
    return _pair("max", a, b)


def equal(a: Formula, b: Formula) -> Formula:
    """1 where the two are equal, else 0."""
    if a == b:
        return ONE
    if a.is_constant and b.is_constant:
        return ZERO
    return _operation("equal", (a, b))


def power_of_two(value: Formula) -> Formula:
    """Largest power of two, at most 32, that divides a whole number (32 for 0)."""
    if value.is_constant:
        return Formula(float(np.gcd(int(value.constant), 32)))
    return _operation("banks", (value,))


def where_one(test: Formula, then: Formula, other: Formula) -> Formula:
    """``then`` where ``test`` is 1, else ``other``."""
    one = equal(test, ONE)
    if one.is_constant:
        return then if one.constant else other
    return one * then + (ONE - one) * other


def _pair(operation: Literal["min", "max"], a: Formula, b: Formula) -> Formula:
    if a == b:
        return a
    if a.is_constant and b.is_constant:
        pick = min if operation == "min" else max
        return Formula(pick(a.constant, b.constant))
    return _operation(operation, (a, b))


def _product(a: Formula, b: Formula, sign: int) -> Formula:
    constant = a.constant * b.constant if sign > 0 else a.constant / b.constant
    if constant == 0.0:
        return ZERO
    if not b.powers:
        return Formula(constant, a.powers)
    powers = dict(a.powers)
    for atom, power in b.powers:
        powers[atom] = powers.get(atom, 0) + sign * power
    return Formula(constant, _canonical(powers))


def _canonical(powers: dict[Atom, int]) -> tuple[tuple[Atom, int], ...]:
    kept = [(atom, power) for atom, power in powers.items() if power]
    return tuple(sorted(kept, key=lambda item: item[0].label))


def _operation(operation: Operation, operands: tuple[Formula, ...]) -> Formula:
    text = ";".join(
        f"{f.constant!r}" + "".join(f"*{atom.label}^{power}" for atom, power in f.powers)
        for f in operands
    )
    label = hashlib.sha256(f"{operation}({text})".encode()).hexdigest()[:24]
    return Formula(1.0, ((Atom(label, operation, operands=operands), 1),))


def _terms(value: Formula) -> tuple[Formula, ...]:
    if len(value.powers) == 1:
        atom, power = value.powers[0]
        if atom.operation == "sum" and power == 1:
            return tuple(term * value.constant for term in atom.operands)
    return (value,)


Value = Floats | float


class Evaluator:
    """Evaluates many formulas together: a flat program, equal parts once, in a fixed order."""

    def __init__(self, formulas: Sequence[Formula]) -> None:
        self._program: list[tuple[str, tuple[int, ...], tuple[int, ...], float]] = []
        self._registers: dict[Formula | Atom, int] = {}
        self._outputs = [self._formula(f) for f in formulas]

    def __call__(self, decisions: NDArray[np.int64]) -> Floats:
        """Values float64 [len(formulas), N] for decision vectors int64 [N, d]."""
        columns = np.ascontiguousarray(decisions.T, np.float64)
        values: list[Value] = []
        for operation, above, below, constant in self._program:
            values.append(_execute(operation, above, below, constant, values, columns))
        out = np.empty((len(self._outputs), columns.shape[1]))
        for row, register in enumerate(self._outputs):
            out[row] = values[register]
        return out

    def _emit(
        self,
        key: Formula | Atom,
        operation: str,
        above: Sequence[int],
        below: Sequence[int] = (),
        constant: float = 1.0,
    ) -> int:
        self._program.append((operation, tuple(above), tuple(below), constant))
        self._registers[key] = len(self._program) - 1
        return self._registers[key]

    def _formula(self, formula: Formula) -> int:
        if formula in self._registers:
            return self._registers[formula]
        above: list[int] = []
        below: list[int] = []
        for atom, power in formula.powers:
            (above if power > 0 else below).extend([self._atom(atom)] * abs(power))
        if len(above) == 1 and not below and formula.constant == 1.0:
            self._registers[formula] = above[0]
            return above[0]
        return self._emit(formula, "product", above, below, formula.constant)

    def _atom(self, atom: Atom) -> int:
        if atom in self._registers:
            return self._registers[atom]
        if atom.operation == "slot":
            return self._emit(atom, "slot", (atom.slot,))
        return self._emit(atom, atom.operation, [self._formula(f) for f in atom.operands])


def _execute(
    operation: str,
    above: tuple[int, ...],
    below: tuple[int, ...],
    constant: float,
    values: list[Value],
    columns: Floats,
) -> Value:
    match operation:
        case "slot":
            return columns[above[0]]
        case "product":
            return _quotient([values[r] for r in above], [values[r] for r in below], constant)
        case "sum":
            return sum((values[r] for r in above[1:]), start=values[above[0]])
        case "ceil":
            return np.ceil(np.asarray(values[above[0]]) - 1e-9)
        case "banks":
            return np.gcd(np.asarray(values[above[0]]).astype(np.int64), 32).astype(np.float64)
        case "min":
            return np.minimum(values[above[0]], values[above[1]])
        case "max":
            return np.maximum(values[above[0]], values[above[1]])
        case _:
            return np.equal(values[above[0]], values[above[1]]).astype(np.float64)


def _quotient(above: list[Value], below: list[Value], constant: float) -> Value:
    out: Value = 1.0
    for value in above:
        out = value if isinstance(out, float) and out == 1.0 else out * value
    if below:
        divisor: Value = below[0]
        for value in below[1:]:
            divisor = divisor * value
        return out * constant / divisor  # exact quotients of whole numbers stay exact
    return out if constant == 1.0 else out * constant
