"""Expressions of TVM's saved graphs become our expressions."""

from __future__ import annotations

from collections.abc import Callable

from pruner.data.tenset.node_graph import Node
from pruner.errors import UnsupportedProgram
from pruner.program.dag.expr import (
    Axis,
    Binary,
    BinaryOp,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Not,
    Select,
)

BINARY: dict[str, BinaryOp] = {
    "tir.Add": "add",
    "tir.Sub": "sub",
    "tir.Mul": "mul",
    "tir.Div": "div",
    "tir.Mod": "mod",
    "tir.FloorDiv": "floordiv",
    "tir.FloorMod": "floormod",
    "tir.Min": "min",
    "tir.Max": "max",
    "tir.EQ": "eq",
    "tir.NE": "ne",
    "tir.LT": "lt",
    "tir.LE": "le",
    "tir.GT": "gt",
    "tir.GE": "ge",
    "tir.And": "and",
    "tir.Or": "or",
}

# fmt: off
PURE_CALLS = frozenset({
    "if_then_else", "likely", "reinterpret", "isnan", "popcount", "fma", "q_multiply_shift",
    "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "shift_left", "shift_right",
    "pow", "fabs", "fmod", "floor", "ceil", "round", "nearbyint", "trunc", "exp", "exp2", "exp10",
    "erf", "tanh", "sigmoid", "sqrt", "rsqrt", "log", "log2", "log1p", "log10", "tan", "cos",
    "cosh", "sin", "sinh", "asin", "acos", "atan", "acosh", "asinh", "atanh", "atan2",
    "nextafter", "hypot", "copysign", "ldexp",
})
# fmt: on
"""Calls whose effect kind in TVM is pure or annotation."""


class ExprReader:
    """Reads the expressions of one stage.

    ``variables`` maps node numbers of loop variables to axis slots, ``stage_of`` a tensor node to
    its stage. A node used twice is read once.
    """

    def __init__(self, *, variables: dict[int, int], stage_of: Callable[[Node], int]) -> None:
        self.variables = variables
        self.stage_of = stage_of
        self.known: dict[int, Expr] = {}

    def read(self, node: Node) -> Expr:
        """The expression at ``node``; raises :class:`UnsupportedProgram`."""
        if node.number not in self.known:
            self.known[node.number] = self._read(node)
        return self.known[node.number]

    def _read(self, node: Node) -> Expr:
        kind = node.type_key
        if kind in BINARY:
            a, b = self.read(node.ref("a")), self.read(node.ref("b"))
            return Binary(BINARY[kind], a, b, node.field("dtype"))
        match kind:
            case "tir.Var" | "tir.SizeVar":
                if node.number not in self.variables:
                    raise UnsupportedProgram("unsupported-expression", "a free variable")
                return Axis(self.variables[node.number], node.field("dtype"))
            case "IntImm":
                return Const(node.integer("value"), node.field("dtype"))
            case "FloatImm":
                return Const(float(node.field("value")), node.field("dtype"))
            case "tir.Not":
                return Not(self.read(node.ref("a")))
            case "tir.Cast":
                return Cast(self.read(node.ref("value")), node.field("dtype"))
            case "tir.Select":
                return self._select(node)
            case "tir.Call":
                return self._call(node)
            case "tir.ProducerLoad":
                stage = self.stage_of(node.ref("producer"))
                return Load(stage, self._all(node.ref("indices")), node.field("dtype"))
            case _:
                raise UnsupportedProgram("unsupported-expression", kind)

    def _all(self, array: Node) -> tuple[Expr, ...]:
        return tuple(self.read(item) for item in array.items)

    def _select(self, node: Node) -> Expr:
        parts = (node.ref("condition"), node.ref("true_value"), node.ref("false_value"))
        cond, then, other = (self.read(part) for part in parts)
        return Select(cond, then, other, node.field("dtype"))

    def _call(self, node: Node) -> Expr:
        op = node.ref("op")
        name = op.text.removeprefix("tir.")
        if op.type_key != "Op" or name not in PURE_CALLS:
            raise UnsupportedProgram("unknown-call", op.text or op.type_key)
        return Call(name, self._all(node.ref("args")), node.field("dtype"), pure=True)
