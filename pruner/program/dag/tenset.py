"""Convert TVM's saved tensors (a JSON object graph of TenSet's task files) to DAGs.

A graph that the vocabulary cannot express is refused with a reason, never approximated.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

from pruner.data.tenset.task_pickle import Node, NodeGraph
from pruner.errors import DataError, UnsupportedProgram
from pruner.program.dag.dag import AxisDef, Combiner, ComputeDAG, Stage, post_order
from pruner.program.dag.expr import (
    OPERATIONS,
    TVM_BINARY,
    Axis,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Not,
    Select,
    loads,
    rewrite,
    slots_of,
)

MAX_POINTS = 65536
"""Iterations that :func:`constant_value` is willing to try."""


def integer_value(expr: Expr, iteration: Sequence[int]) -> int:
    """Return the value of ``expr`` where axis slot ``i`` is ``iteration[i]``.

    Division and remainder truncate (``div``, ``mod``) or floor (``floordiv``, ``floormod``).
    Raises :class:`UnsupportedProgram` (``not-an-integer``) for loads, floats and other calls.
    """
    match expr:
        case Const(value=int(value)):
            return value
        case Axis(slot=slot):
            return iteration[slot]
        case Binary(op=op, a=a, b=b):
            return int(OPERATIONS[op](integer_value(a, iteration), integer_value(b, iteration)))
        case Not(a=a):
            return int(not integer_value(a, iteration))
        case Cast(a=a, dtype=dtype) if dtype.startswith(("int", "uint", "bool")):
            return integer_value(a, iteration)
        case (
            Select(cond=cond, then=then, other=other)
            | Call(name="if_then_else", args=(cond, then, other))
        ):
            # Only the chosen side: the other may divide by zero.
            return integer_value(then if integer_value(cond, iteration) else other, iteration)
        case _:
            raise UnsupportedProgram("not-an-integer", type(expr).__name__)


def constant_value(expr: Expr, extents: Sequence[int]) -> int | None:
    """Return the value common to all (at most `MAX_POINTS`) iterations, else None."""
    used = slots_of(expr)
    # A loop that the expression does not use contributes one point, so unused extents cost nothing.
    ranges = [range(extent if slot in used else 1) for slot, extent in enumerate(extents)]
    if math.prod(map(len, ranges)) > MAX_POINTS:
        return None
    found = {integer_value(expr, iteration) for iteration in product(*ranges)}
    return found.pop() if len(found) == 1 else None


COMBINERS: dict[str, Combiner] = {
    "tir.Add": "add",
    "tir.Mul": "mul",
    "tir.Max": "max",
    "tir.Min": "min",
}
SPATIAL, REDUCE = 0, 2
"""Kinds of loop variables in the file."""


def dag_from_json(text: str) -> ComputeDAG:
    """Build the compute DAG of a saved array of tensors.

    Raises :class:`UnsupportedProgram`: ``damaged-graph``, or the part that the vocabulary lacks,
    such as ``multi-output``, ``unsupported-expression``, ``dynamic-shape``.
    """
    try:
        return _Reader(NodeGraph.parse(text)).dag()
    except (DataError, RecursionError, ZeroDivisionError) as error:
        raise UnsupportedProgram("damaged-graph", str(error)) from error


class _Reader:
    """Operations by their node number; stage numbers are assigned last."""

    def __init__(self, graph: NodeGraph) -> None:
        self.graph = graph
        self.op_number: dict[int, int] = {}  # node number of an operation -> position
        self.ops: list[Node] = []

    def dag(self) -> ComputeDAG:
        root = self.graph.root
        if root.type_key != "Array" or not root.items:
            raise UnsupportedProgram("damaged-graph", "the root is no array of tensors")
        tensors = [self.operation(tensor) for tensor in root.items]
        stages: list[Stage] = []
        while len(stages) < len(self.ops):  # reading a stage finds the operations that it reads
            stages.append(self.stage(self.ops[len(stages)]))
        order, outputs = schedule_order([stage.reads for stage in stages], tensors)
        position = {op: i for i, op in enumerate(order)}
        _check_loads(stages, position)
        return ComputeDAG(
            stages=tuple(_renumbered(stages[op], position) for op in order),
            outputs=tuple(position[op] for op in outputs),
        )

    def operation(self, tensor: Node) -> int:
        if tensor.type_key != "Tensor":
            raise UnsupportedProgram("damaged-graph", f"{tensor.type_key} in place of a tensor")
        if tensor.integer("value_index") != 0:
            raise UnsupportedProgram("multi-output", "a tensor is a second output")
        op = tensor.ref("op")
        # Numbered at first sight; `dag` renumbers in Ansor's order once all are found.
        if op.number not in self.op_number:
            self.op_number[op.number] = len(self.ops)
            self.ops.append(op)
        return self.op_number[op.number]

    def stage(self, op: Node) -> Stage:
        match op.type_key:
            case "PlaceholderOp":
                return Stage(
                    name=op.field("name"),
                    shape=tuple(_extent(size, self.reader({})) for size in op.ref("shape").items),
                    dtype=op.field("dtype"),
                )
            case "ComputeOp":
                return self.compute(op)
            case other:
                raise UnsupportedProgram("unsupported-operation", other)

    def reader(self, variables: dict[int, int]) -> ExprReader:
        return ExprReader(variables=variables, stage_of=self.operation)

    def compute(self, op: Node) -> Stage:
        bodies = op.ref("body").items
        if len(bodies) != 1:
            raise UnsupportedProgram("multi-output", f"{op.field('name')} has {len(bodies)} values")
        value = bodies[0]
        axes = op.ref("axis").items
        reduce_axes = op.ref("reduce_axis").items
        reduces = value.type_key == "tir.Reduce"
        found: tuple[Node, Combiner | None, float] = (value, None, 0.0)
        source, combiner, identity = _reduction(value) if reduces else found
        if not reduces and reduce_axes:
            raise UnsupportedProgram("unsupported-reduction", "reduce axes without a reduction")
        variables = {axis.ref("var").number: i for i, axis in enumerate((*axes, *reduce_axes))}
        reader = self.reader(variables)
        spatial = tuple(_axis(axis, SPATIAL, reader, ()) for axis in axes)
        return Stage(
            name=op.field("name"),
            shape=tuple(axis.extent for axis in spatial),
            dtype=value.field("dtype"),
            axes=spatial,
            reduce_axes=tuple(_axis(axis, REDUCE, reader, spatial) for axis in reduce_axes),
            body=reader.read(source),
            combiner=combiner,
            identity=identity,
            const_matrix="const_matrix" in op.ref("attrs").keys,
        )


def _check_loads(stages: list[Stage], position: dict[int, int]) -> None:
    """Check that loads read earlier stages, with one index per dimension."""
    for op, stage in enumerate(stages):
        for load in loads(stage.body) if stage.body is not None else ():
            # The file may be edited: a cycle would make later walks endless.
            if op not in position or position[load.stage] >= position[op]:
                raise UnsupportedProgram("damaged-graph", f"{stage.name} reads itself")
            if len(load.indices) != len(stages[load.stage].shape):
                raise UnsupportedProgram("damaged-graph", f"{stage.name}: wrong number of indices")


def _renumbered(stage: Stage, position: dict[int, int]) -> Stage:
    if stage.body is None:
        return stage

    def rule(expr: Expr) -> Expr:
        return replace(expr, stage=position[expr.stage]) if isinstance(expr, Load) else expr

    return replace(stage, body=rewrite(stage.body, rule))


def _reduction(node: Node) -> tuple[Node, Combiner, float]:
    """Return source, combiner and identity of a plain reduction: one value, no condition."""
    reducer = node.ref("combiner")
    sources, results = node.ref("source").items, reducer.ref("result").items
    if len(sources) != 1 or len(results) != 1:
        raise UnsupportedProgram("unsupported-reduction", f"{len(sources)} values at once")
    result = results[0]
    combiner = COMBINERS.get(result.type_key)
    if combiner is None:
        raise UnsupportedProgram("unsupported-reduction", f"combines by {result.type_key}")
    # The combiner must be its two variables combined; TVM could save any expression of them.
    variables = {v.number for name in ("lhs", "rhs") for v in reducer.ref(name).items}
    if {result.integer("a"), result.integer("b")} != variables:
        raise UnsupportedProgram("unsupported-reduction", "combines something else than its values")
    condition = node.ref("condition")
    # A stage has no field for a predicate: the reduction would count as unconditional.
    if condition.type_key != "IntImm" or condition.integer("value") != 1:
        raise UnsupportedProgram("unsupported-reduction", "a condition on the reduction")
    if node.ref("init").items:
        raise UnsupportedProgram("unsupported-reduction", "an initial value")
    identity = reducer.ref("identity_element").items[0]
    if identity.type_key not in ("FloatImm", "IntImm"):
        raise UnsupportedProgram("unsupported-reduction", "an identity that is no literal")
    return sources[0], combiner, float(identity.field("value"))


def _axis(axis: Node, kind: int, reader: ExprReader, spatial: tuple[AxisDef, ...]) -> AxisDef:
    # IterVarType of TVM: thread axes and scans have other numbers.
    if axis.integer("iter_type") != kind:
        raise UnsupportedProgram("unsupported-operation", "a loop of an unusual kind")
    domain = axis.ref("dom")
    if _extent(domain.ref("min"), reader, spatial) != 0:
        raise UnsupportedProgram("axis-start", "a loop does not start at 0")
    name = axis.ref("var").ref("name").text
    return AxisDef(name=name, extent=_extent(domain.ref("extent"), reader, spatial))


def _extent(node: Node, reader: ExprReader, spatial: tuple[AxisDef, ...] = ()) -> int:
    """Return a size: a number, or unfolded arithmetic that is constant everywhere."""
    if node.type_key == "IntImm":
        return node.integer("value")
    value = constant_value(reader.read(node), [axis.extent for axis in spatial])
    if value is None:
        raise UnsupportedProgram("dynamic-shape", "a size differs between iterations")
    return value


BINARY = {f"tir.{name}": op for name, op in TVM_BINARY.items()}

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
    """Reads the expressions of one stage, each node once; ``variables``: slots by node."""

    def __init__(self, *, variables: dict[int, int], stage_of: Callable[[Node], int]) -> None:
        self.variables = variables
        self.stage_of = stage_of
        self.known: dict[int, Expr] = {}

    def read(self, node: Node) -> Expr:
        """Return the expression at ``node``; raise :class:`UnsupportedProgram` if unsupported."""
        # The graph shares nodes: without this table, subtrees would be read exponentially often.
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
                # By node, not by name: two loops of a stage may be called "i".
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
                parts = ("condition", "true_value", "false_value")
                cond, then, other = (self.read(node.ref(part)) for part in parts)
                return Select(cond, then, other, node.field("dtype"))
            case "tir.Call":
                return self._call(node)
            case "tir.ProducerLoad":
                # Numbers the stage that is read at its first reader (`_Reader.operation`).
                stage = self.stage_of(node.ref("producer"))
                return Load(stage, self._all(node.ref("indices")), node.field("dtype"))
            case _:
                raise UnsupportedProgram("unsupported-expression", kind)

    def _all(self, array: Node) -> tuple[Expr, ...]:
        return tuple(self.read(item) for item in array.items)

    def _call(self, node: Node) -> Expr:
        op = node.ref("op")
        name = op.text.removeprefix("tir.")
        if op.type_key != "Op" or name not in PURE_CALLS:
            raise UnsupportedProgram("unknown-call", op.text or op.type_key)
        return Call(name, self._all(node.ref("args")), node.field("dtype"), pure=True)


def schedule_order(
    reads: Sequence[Sequence[int]], tensors: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the operations in stage order, and the outputs among them.

    A topological order with priorities finds the outputs (``TopoSortOps`` of Ansor); a depth-first
    walk from these numbers the stages (``Schedule`` of TE). ``reads[i]``: what operation ``i``
    reads, each once; ``tensors``: the operations named when the DAG was made.
    """
    read = {source for sources in reads for source in sources}
    outputs = [op for op in _priority_order(reads, tensors) if op not in read]
    return post_order(reads, outputs), outputs


def _priority_order(reads: Sequence[Sequence[int]], tensors: Sequence[int]) -> list[int]:
    """Return a topological order; the ready operation found last goes first."""
    priority: dict[int, int] = {}
    users: defaultdict[int, list[int]] = defaultdict(list)
    stack = list(tensors)
    # A stack, not a queue: discovery order is Ansor's, and it sets the priorities.
    while stack:
        op = stack.pop()
        if op in priority:
            continue
        priority[op] = len(priority)
        for source in reads[op]:
            users[source].append(op)
            stack.append(source)
    missing = {op: len(reads[op]) for op in priority}
    # A negated priority makes Python's smallest-first heap a largest-first heap, as C++'s
    # priority_queue in TopoSortOps.
    ready = [(-priority[op], op) for op, count in missing.items() if count == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, op = heapq.heappop(ready)
        order.append(op)
        for user in users[op]:
            missing[user] -= 1
            if missing[user] == 0:
                heapq.heappush(ready, (-priority[user], user))
    return order
