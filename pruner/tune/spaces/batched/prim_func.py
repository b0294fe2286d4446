"""Read a TVM ``PrimFunc``, as ``te.create_prim_func`` makes it, as a block tree.

Its text is as Ansor prints a DAG, for equal workload flags.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float32

from pruner.errors import UnsupportedProgram
from pruner.features.columns import text_flags
from pruner.program.dag.dag import ASSIGNMENT, INFIX, shortened
from pruner.program.dag.expr import (
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
)
from pruner.program.index import affine as af
from pruner.program.index.affine import LoopVar
from pruner.program.index.regions import evaluate_index
from pruner.program.nests import DYNAMIC_SHARED, Buffer, Scope
from pruner.program.tir.tree import Binding, Block, BlockIter, LoopNode, Tree, Uses

# nodes of TVM 0.27 that were calls in older versions, as TenSet's records have them
_CALLS = {
    "LShift": "shift_left", "RShift": "shift_right", "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor",
}  # fmt: skip
_SPATIAL, _REDUCE = 0, 2  # IterVar.DataPar, IterVar.CommReduce
IN_PLACE = "in-place"  # the reason of a block that reads what it writes
_IMPURE = frozenset({"tvm_call_packed", "call_extern"})


def read_prim_func(func: Any) -> Tree:
    """Read a function of plain loops; raise `UnsupportedProgram` for anything else."""
    if func.attrs is not None and "layout_free_buffers" in func.attrs:
        raise UnsupportedProgram("layout-rewrite", "RewriteLayout would change the weights")
    return PrimFuncReader(func).tree


def places_of(func: Any, wanted: Mapping[int, Any]) -> dict[int, int]:
    """Find the positions of TVM's blocks and loops in :meth:`Tree.nodes`, if there."""
    reader = PrimFuncReader(func)
    places = {id(node): place for place, node in enumerate(reader.tree.nodes())}
    nodes = {number: reader.node_of(thing) for number, thing in wanted.items()}
    return {number: places[id(node)] for number, node in nodes.items() if node is not None}


class PrimFuncReader:
    """Reads a function block by block; `lowered` derives a reader of scheduled functions."""

    def __init__(self, func: Any) -> None:
        """Read a function; raises as :func:`read_prim_func`."""
        self._keys: dict[Any, int] = {}
        self._loops: dict[Any, LoopNode] = {}
        self.tree = Tree([], LoopNode(LoopVar("root")))
        for param in func.params:
            buffer = _buffer_of(func, param)
            self._buffer(buffer, is_param=True)
        if kind_of(func.body) != "SBlockRealize":
            raise UnsupportedProgram("statement", kind_of(func.body))
        root = func.body.block
        for buffer in root.alloc_buffers:
            self._buffer(buffer)
        self.tree.annotations |= self._notes(root)
        self._read(root.body, self.tree.root, {})

    def _check_update(self, block: Any) -> None:
        """Refuse updates that are no reductions, which TVM's primitives refuse."""
        written = block.body.buffer
        if block.init is None and any(region.source.same_as(written) for region in block.reads):
            what = f"block {block.name_hint} updates {written.name}; let it write another buffer"
            raise UnsupportedProgram(IN_PLACE, what)

    def node_of(self, thing: Any) -> LoopNode | Block | None:
        """Find the node of a loop or block, None without a node."""
        if kind_of(thing) == "For":
            return self._loops.get(thing.loop_var)
        # te.create_prim_func numbers repeated names, so a name means one block
        name = str(thing.name_hint)
        if name == "root":
            return self.tree.root
        return next((block for block in self.tree.blocks() if block.name == name), None)

    def _buffer(self, buffer: Any, *, is_param: bool = False) -> None:
        shape = tuple(whole_number(extent) for extent in buffer.shape)
        scope = str(buffer.scope())
        made = Buffer(
            len(self.tree.buffers), str(buffer.name), str(buffer.dtype), shape,
            Scope.of(scope), is_param, is_dynamic=scope == DYNAMIC_SHARED,
        )  # fmt: skip
        self._keys[buffer] = made.key
        self.tree.buffers.append(made)

    def _read(self, stmt: Any, parent: LoopNode, loops: dict[Any, LoopVar]) -> None:
        kind = kind_of(stmt)
        if kind == "SeqStmt":
            for part in stmt.seq:
                self._read(part, parent, loops)
        elif kind == "For":
            node = self._loop(stmt)
            node.parent = parent
            self._loops[stmt.loop_var] = node
            parent.body.append(node)
            self._read(stmt.body, node, loops | {stmt.loop_var: node.var})
        elif kind == "SBlockRealize":
            parent.body += self._blocks(stmt, parent, loops)
        else:
            raise UnsupportedProgram("statement", kind)

    def _loop(self, stmt: Any) -> LoopNode:
        if whole_number(stmt.min) != 0 or int(stmt.kind) != 0:
            raise UnsupportedProgram("scheduled-function", f"loop {stmt.loop_var.name}")
        return LoopNode(LoopVar(str(stmt.loop_var.name), whole_number(stmt.extent)))

    def _blocks(self, realize: Any, parent: LoopNode, loops: dict[Any, LoopVar]) -> list[Block]:
        block = realize.block
        if kind_of(block.body) == "For" and kind_of(below_loops(block.body)) == "SBlockRealize":
            return [self._blockized(realize, parent, loops)]
        _check_plain(block)
        self._check_update(block)
        # expressions name iterators by position, so that blocks of the same computation are equal
        slots: dict[Any, Expr] = {it.var: Axis(i) for i, it in enumerate(block.iter_vars)}
        return [self._statement(realize, parent, loops, slots, (block.body, block.init))]

    def _statement(
        self,
        realize: Any,
        parent: LoopNode,
        loops: dict[Any, LoopVar],
        slots: dict[Any, Expr],
        stores: tuple[Any, Any | None],
    ) -> Block:
        block, (store, init) = realize.block, stores
        what = block, store, slots, parent
        return self._block_of(
            *what,
            iters=tuple(_iter(it) for it in block.iter_vars),
            bindings=self._bindings(realize, loops),
            init=None if init is None else self._init(init, str(block.name_hint), slots),
        )

    def _block_of(
        self, block: Any, store: Any, slots: dict[Any, Expr], parent: LoopNode, **more: Any
    ) -> Block:
        """Read what all blocks have; `more`: iterators, bindings, init, loops inside."""
        return Block(
            name=str(block.name_hint),
            buffer=self._key(store.buffer),
            indices=tuple(self._expr(index, slots) for index in store.indices),
            value=self._expr(store.value, slots),
            reads=[self._key(region.source) for region in block.reads],
            annotations=self._notes(block),
            parent=parent,
            **more,
        )

    def _blockized(self, realize: Any, parent: LoopNode, loops: dict[Any, LoopVar]) -> Block:
        """Read a block around a block, with iterators of both and loops between inside."""
        outer = realize.block
        inner_loops, nested = loops_inside(outer.body)
        inner = nested.block
        _check_plain(inner)
        # outer iterators count fragments and inner ones elements: an index is a sum of both
        iters = [*outer.iter_vars, *inner.iter_vars]
        slots: dict[Any, Expr] = {it.var: Axis(i) for i, it in enumerate(iters)}
        what = outer, inner.body, slots, parent
        return self._block_of(
            *what,
            iters=tuple(_iter(it) for it in iters),
            bindings=[*self._bindings(realize, loops), *self._bindings(nested, inner_loops)],
            init=None if outer.init is None else self._inner_init(outer, slots),
            inner=tuple(inner_loops.values()),
        )

    def _bindings(self, realize: Any, loops: dict[Any, LoopVar]) -> list[Binding]:
        loop_slots: dict[Any, Expr] = {var: Axis(i) for i, var in enumerate(loops)}
        roots = {i: af.variable(var) for i, var in enumerate(loops.values())}
        bindings = []
        for value in realize.iter_values:
            expr = self._expr(value, loop_slots)
            # before scheduling an iterator is one loop; anything else was scheduled
            if not isinstance(expr, (Axis, Const)):
                raise UnsupportedProgram("binding", str(value))
            variables = list(loops.values())
            uses: Uses = {variables[expr.slot]: 1} if isinstance(expr, Axis) else {}
            bindings.append(Binding(evaluate_index(expr, roots), uses))
        return bindings

    def _inner_init(self, outer: Any, slots: dict[Any, Expr]) -> Expr:
        """Read the initialisation inside a block that ``blockize`` made."""
        inner = below_loops(outer.init).block
        store = inner.body if inner.init is None else inner.init
        return self._init(store, str(inner.name_hint), slots)

    def _init(self, store: Any, block: str, slots: dict[Any, Expr]) -> Expr:
        if kind_of(store) != "BufferStore":
            raise UnsupportedProgram("block-init", block)
        return self._expr(store.value, slots)

    def _notes(self, block: Any) -> dict[str, object]:
        return {str(key): value for key, value in block.annotations.items()}

    def _key(self, buffer: Any) -> int:
        if buffer not in self._keys:
            raise UnsupportedProgram("unknown-buffer", str(buffer.name))
        return self._keys[buffer]

    def _expr(self, expr: Any, slots: dict[Any, Expr]) -> Expr:
        kind = kind_of(expr)
        if kind in ("IntImm", "FloatImm"):
            # IntImm holds booleans, too; their dtype says so
            value = expr.value
            return Const(int(value) if kind == "IntImm" else float(value), str(expr.ty))
        if kind in ("Var", "PrimVar"):
            if expr not in slots:
                raise UnsupportedProgram("free-variable", str(expr.name))
            return slots[expr]
        if kind in TVM_BINARY:
            a, b = self._expr(expr.a, slots), self._expr(expr.b, slots)
            return Binary(TVM_BINARY[kind], a, b, str(expr.ty))
        if kind in _CALLS:
            operands = (self._expr(expr.a, slots), self._expr(expr.b, slots))
            return Call(_CALLS[kind], operands, str(expr.ty))
        if kind == "BitwiseNot":
            return Call("bitwise_not", (self._expr(expr.a, slots),), str(expr.ty))
        if kind == "Not":
            return Not(self._expr(expr.a, slots))
        if kind == "Cast":
            return Cast(self._expr(expr.value, slots), str(expr.ty))
        if kind == "Select":
            parts = (expr.condition, expr.true_value, expr.false_value)
            cond, then, other = (self._expr(part, slots) for part in parts)
            return Select(cond, then, other, str(expr.ty))
        if kind == "TensorLoad":
            indices = tuple(self._expr(index, slots) for index in expr.indices)
            return Load(self._key(expr.source), indices, str(expr.ty))
        if kind == "Call":
            name = str(expr.op.name).split(".")[-1]
            args = tuple(self._expr(arg, slots) for arg in expr.args)
            return Call(name, args, str(expr.ty), pure=name not in _IMPURE)
        raise UnsupportedProgram("expression", kind)


def blocks_in(stmt: Any, wanted: Callable[[Any], bool]) -> Iterator[Any]:
    """Yield the outermost blocks that are ``wanted``, in program order."""
    if kind_of(stmt) == "SeqStmt":
        for part in stmt.seq:
            yield from blocks_in(part, wanted)
    elif kind_of(stmt) == "SBlockRealize":
        if wanted(stmt.block):
            yield stmt.block
        else:
            yield from blocks_in(stmt.block.body, wanted)
    elif hasattr(stmt, "body"):  # loops and whatever else stands around a statement
        yield from blocks_in(stmt.body, wanted)


def below_loops(stmt: Any) -> Any:
    """Descend through a chain of loops to the statement inside."""
    while kind_of(stmt) == "For":
        stmt = stmt.body
    return stmt


def loops_inside(stmt: Any) -> tuple[dict[Any, LoopVar], Any]:
    """Collect a chain of loops by their variables, and the statement inside."""
    loops: dict[Any, LoopVar] = {}
    while kind_of(stmt) == "For":
        loops[stmt.loop_var] = LoopVar(str(stmt.loop_var.name), whole_number(stmt.extent))
        stmt = stmt.body
    return loops, stmt


def _check_plain(block: Any) -> None:
    if block.alloc_buffers or block.match_buffers or kind_of(block.body) != "BufferStore":
        raise UnsupportedProgram("block-body", str(block.name_hint))


def _buffer_of(func: Any, param: Any) -> Any:
    if hasattr(param, "shape"):
        return param
    if param in func.buffer_map:
        return func.buffer_map[param]
    raise UnsupportedProgram("parameter", str(param.name))


def _iter(it: Any) -> BlockIter:
    if int(it.iter_type) not in (_SPATIAL, _REDUCE) or whole_number(it.dom.min) != 0:
        raise UnsupportedProgram("iterator", str(it.var.name))
    return BlockIter(
        "reduce" if int(it.iter_type) == _REDUCE else "spatial", whole_number(it.dom.extent)
    )


def kind_of(node: Any) -> str:
    """Return the class name of a TIR node, such as "For", without importing TVM."""
    return type(node).__name__


def whole_number(value: Any) -> int:
    """Convert an extent to int; raise `UnsupportedProgram` unless it is constant."""
    if kind_of(value) != "IntImm" and not isinstance(value, int):
        raise UnsupportedProgram("dynamic-shape", str(value))
    return int(value)


def module_flags(module: Any) -> Float32[np.ndarray, " flag"]:
    """Compute the workload flags of a task's module."""
    return text_flags(module_text(module))


def module_text(module: Any) -> str:
    """Print the computation of a module, a line for every input and store."""
    return "".join(_func_text(func) for _, func in module.functions_items())


def _func_text(func: Any) -> str:
    # Ansor prints no structure above the stores: the root block and nested blocks vanish
    blocks = list(blocks_in(func.body, lambda block: kind_of(block.body) == "BufferStore"))
    written = {str(block.body.buffer.name) for block in blocks}
    buffers = [_buffer_of(func, param) for param in func.params]
    lines = [
        f"{buffer.name} = PLACEHOLDER [{', '.join(map(str, buffer.shape))}]"
        for buffer in buffers
        if str(buffer.name) not in written
    ]
    lines += [_line(block) for block in blocks]
    return "".join(shortened(line) + "\n" for line in lines)


def _line(block: Any) -> str:
    axes = [_name(it.var) for it in block.iter_vars if int(it.iter_type) == _SPATIAL]
    value, sign = block.body.value, ASSIGNMENT[None]
    combiner: Any = TVM_BINARY.get(kind_of(value))
    if block.init is not None and combiner is not None and combiner in ASSIGNMENT:
        # C[i] = C[i] + x of a reduction is C(i) += x
        value, sign = value.b, ASSIGNMENT[combiner]
    return f"{block.name_hint}({', '.join(axes)}){sign}{_text(value)}"


def _name(var: Any) -> str:
    return str(var.name).removeprefix("v_")  # TVM names block iterators v_AXIS


def _text(expr: Any) -> str:
    kind = kind_of(expr)

    def listed(parts: Any) -> str:
        return ", ".join(_text(part) for part in parts)

    if kind in TVM_BINARY:
        op = TVM_BINARY[kind]
        if op not in INFIX:  # minima, maxima and floors are printed as calls
            return f"{op}({listed((expr.a, expr.b))})"
        return f"({_text(expr.a)}{INFIX[op]}{_text(expr.b)})"
    if kind == "Not":
        return f"!{_text(expr.a)}"
    if kind == "Cast":
        return f"{expr.ty}({_text(expr.value)})"
    if kind == "Select":
        return f"select({listed((expr.condition, expr.true_value, expr.false_value))})"
    if kind == "TensorLoad":
        return f"{expr.source.name}[{listed(expr.indices)}]"
    if kind == "Call":
        return f"tir.{str(expr.op.name).split('.')[-1]}({listed(expr.args)})"
    if kind in ("Var", "PrimVar"):
        return _name(expr)
    return str(expr.value) if kind in ("IntImm", "FloatImm") else str(expr)
