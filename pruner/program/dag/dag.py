"""Compute DAGs, the computation of an operator before any schedule, and their text.

The text is letter by letter TVM's; workload flags search it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

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
    loads,
)

Combiner = Literal["add", "mul", "max", "min"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisDef:
    """One loop of a stage: TE's ``name`` and ``extent`` in iterations."""

    name: str
    extent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One tensor: a kernel input (without ``body``) or a computation over its axes.

    ``body`` is the value of one element; with ``combiner`` set it is the reduction's source and
    ``identity`` the value the output starts from.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    axes: tuple[AxisDef, ...] = ()
    reduce_axes: tuple[AxisDef, ...] = ()
    body: Expr | None = None
    combiner: Combiner | None = None
    identity: float = 0.0
    const_matrix: bool = False

    @property
    def reads(self) -> tuple[int, ...]:
        """Stages that the body loads, each once, in order of first load."""
        if self.body is None:
            return ()
        # The order matters: Ansor numbers stages by a walk in it (`tenset.schedule_order`).
        return tuple(dict.fromkeys(load.stage for load in loads(self.body)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeDAG:
    """Stages in the order of steps (Ansor's); ``outputs`` are places of the results."""

    stages: tuple[Stage, ...]
    outputs: tuple[int, ...]


def post_order(reads: Sequence[Sequence[int]], outputs: Iterable[int]) -> list[int]:
    """List what ``outputs`` need, inputs before their user (TE's ``PostDFSOrder``)."""
    order: list[int] = []
    visited: set[int] = set()

    def visit(number: int) -> None:
        if number not in visited:
            visited.add(number)
            for source in reads[number]:
                visit(source)
            order.append(number)

    for output in outputs:
        visit(output)
    return order


MAX_LINE_WIDTH = 256
"""Longer lines lose their middle, as in the original (so words in it are not found)."""

INFIX: dict[BinaryOp, str] = {
    "add": " + ",
    "sub": " - ",
    "mul": "*",
    "div": "/",
    "mod": " % ",
    "eq": " == ",
    "ne": " != ",
    "lt": " < ",
    "le": " <= ",
    "gt": " > ",
    "ge": " >= ",
    "and": " && ",
    "or": " || ",
}
ASSIGNMENT: dict[Combiner | None, str] = {
    None: " = ",
    "add": " += ",
    "max": " max= ",
    "min": " min= ",
}
FLOAT_SUFFIX = {"float32": "f", "float16": "h", "float64": ""}


def dag_text(dag: ComputeDAG) -> str:
    """Print a line a stage, in stage order, newlines included."""
    return "".join(shortened(stage_text(dag, stage)) + "\n" for stage in dag.stages)


def shortened(line: str) -> str:
    """Shorten a line above `MAX_LINE_WIDTH` to its two ends."""
    if len(line) <= MAX_LINE_WIDTH:
        return line
    half = MAX_LINE_WIDTH // 2
    return f"{line[:half]} ..(OMITTED).. {line[-half:]}"


def stage_text(dag: ComputeDAG, stage: Stage) -> str:
    """Print ``name(axes) = value`` or ``name = PLACEHOLDER [shape]``."""
    if stage.body is None:
        return f"{stage.name} = PLACEHOLDER [{', '.join(map(str, stage.shape))}]"
    head = f"{stage.name}({', '.join(axis.name for axis in stage.axes)})"
    if stage.combiner == "mul":  # TVM has no short form: it prints the combiner instead
        return f"{head}reduce(x*y)"
    return f"{head}{ASSIGNMENT[stage.combiner]}{expr_text(dag, stage, stage.body)}"


def expr_text(dag: ComputeDAG, stage: Stage, expr: Expr) -> str:
    """Print an expression of ``stage``, fully parenthesised."""

    def text(part: Expr) -> str:
        return expr_text(dag, stage, part)

    def listed(parts: tuple[Expr, ...]) -> str:
        return ", ".join(text(part) for part in parts)

    match expr:
        case Const():
            return const_text(expr)
        case Axis(slot=slot):
            return (stage.axes + stage.reduce_axes)[slot].name
        case Binary(op="floordiv" | "floormod" | "min" | "max" as op, a=a, b=b):
            return f"{op}({text(a)}, {text(b)})"
        case Binary(op=op, a=a, b=b):
            return f"({text(a)}{INFIX[op]}{text(b)})"
        case Not(a=a):
            return f"!{text(a)}"
        case Cast(a=a, dtype=dtype):
            return f"{dtype}({text(a)})"
        case Select(cond=cond, then=then, other=other):
            return f"select({listed((cond, then, other))})"
        case Call(name=name, args=args):
            return f"tir.{name}({listed(args)})"
        case Load(stage=number, indices=indices):
            return f"{dag.stages[number].name}[{listed(indices)}]"


def const_text(const: Const) -> str:
    """Print ``7``, ``(bool)1``, ``0.5f``; floats with six significant digits."""
    # C++ streams print floats with six significant digits, as Python's ``:g`` does.
    if const.dtype in FLOAT_SUFFIX:
        return f"{const.value:g}{FLOAT_SUFFIX[const.dtype]}"
    return f"{const.value}" if const.dtype == "int32" else f"({const.dtype}){const.value}"
