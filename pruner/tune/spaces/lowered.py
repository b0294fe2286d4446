"""Read the loop nests of single programs from TVM's schedules."""

from __future__ import annotations

from typing import Any

import numpy as np

from pruner.errors import UnsupportedProgram, unforeseen_refused
from pruner.program.dag.expr import Axis, Binary, Const, Expr, children, rebuild
from pruner.program.index import affine as af
from pruner.program.index.affine import Affine, LoopVar
from pruner.program.index.regions import evaluate_index
from pruner.program.nests import LoopNests, Mark
from pruner.program.replay import UNCERTAIN
from pruner.program.tir.lower import lower
from pruner.program.tir.postprocs import AUTO_COPY, lower_auto_copies
from pruner.program.tir.regions import index_uses
from pruner.program.tir.tree import Binding, Block, BlockIter, LoopNode, Tree
from pruner.tune.spaces.batched.prim_func import (
    PrimFuncReader,
    below_loops,
    kind_of,
    loops_inside,
    whole_number,
)
from pruner.tune.tvm_import import BOUND, PARALLEL, UNROLLED, VECTORIZED, load_tvm

_MARKS = {PARALLEL: Mark.PARALLEL, VECTORIZED: Mark.VECTORIZE, UNROLLED: Mark.UNROLL}
_UNROLL_DEPTH = "pragma_auto_unroll_max_step"
_ALIGN = "buffer_dim_align"
_NEW_LAYOUT = "meta_schedule.layout_rewrite_preproc"


class _ScheduledReader(PrimFuncReader):
    def _check_update(self, block: Any) -> None:
        """Take the updates of a sum; its start is a separate block."""

    def _loop(self, stmt: Any) -> LoopNode:
        if whole_number(stmt.min) != 0:
            raise UnsupportedProgram("loop-start", str(stmt.loop_var.name))
        var = LoopVar(str(stmt.loop_var.name), whole_number(stmt.extent))
        mark = _MARKS.get(int(stmt.kind))
        if int(stmt.kind) == BOUND:
            mark = Mark.of_axis(str(stmt.thread_binding.thread_tag))
        node = LoopNode(var, mark=mark)
        for key, value in stmt.annotations.items():
            # RewriteParallelVectorizeUnroll turns the block's annotation into this pragma of a loop
            if str(key) == _UNROLL_DEPTH:
                node.unroll = int(value)
            else:
                node.annotations[str(key)] = value
        return node

    def _blocks(self, realize: Any, parent: LoopNode, loops: dict[Any, LoopVar]) -> list[Block]:
        block = realize.block
        if _NEW_LAYOUT in block.annotations:
            return []  # rewrites the layout of weights once, ahead of time: not part of the kernel
        if kind_of(block.body) == "SeqStmt":
            return self._several(realize, parent, loops)
        if AUTO_COPY in block.annotations and kind_of(below_loops(block.body)) == "BufferStore":
            return [self._copy(realize, parent, loops)]
        return super()._blocks(realize, parent, loops)

    def _several(self, realize: Any, parent: LoopNode, loops: dict[Any, LoopVar]) -> list[Block]:
        """Split a block into its stores, as of argmax."""
        block, out = realize.block, list[Block]()
        slots: dict[Any, Expr] = {it.var: Axis(i) for i, it in enumerate(block.iter_vars)}
        inits = {} if block.init is None else {x.buffer: x for x in _stores(block.init)}
        for stmt in block.body.seq:
            # a value that several stores share: each store gets the expression itself
            if kind_of(stmt) == "Bind":
                slots[stmt.var] = self._expr(stmt.value, slots)
            elif kind_of(stmt) == "BufferStore":
                stores = stmt, inits.get(stmt.buffer)
                out.append(self._statement(realize, parent, loops, slots, stores))
            else:
                raise UnsupportedProgram("block-body", str(block.name_hint))
        return out

    def _copy(self, realize: Any, parent: LoopNode, loops: dict[Any, LoopVar]) -> Block:
        """Read a copy with loops inside the block, each an additional iterator."""
        block = realize.block
        own, stmt = loops_inside(block.body)
        variables = [*(it.var for it in block.iter_vars), *own]
        slots: dict[Any, Expr] = {var: Axis(slot) for slot, var in enumerate(variables)}
        outer = [BlockIter("spatial", whole_number(it.dom.extent)) for it in block.iter_vars]
        what = block, stmt, slots, parent
        return self._block_of(
            *what,
            iters=(*outer, *(BlockIter("spatial", var.extent) for var in own.values())),
            bindings=[
                *self._bindings(realize, loops),
                *(Binding(af.variable(var), {var: 1}) for var in own.values()),
            ],
            inner=tuple(own.values()),
        )

    def _bindings(self, realize: Any, loops: dict[Any, LoopVar]) -> list[Binding]:
        slots: dict[Any, Expr] = {var: Axis(slot) for slot, var in enumerate(loops)}
        around = _Around(self.tree, list(loops.values()))
        # the guard of a split that overruns its extent holds the loop before the split
        for sum_, bound in _guards(realize.predicate):
            wraps = self._wraps(realize, loops)
            around.bound(self._expr(sum_, slots), bound, wraps=wraps)
        return [around.binding(self._expr(value, slots)) for value in realize.iter_values]

    def _wraps(self, realize: Any, loops: dict[Any, LoopVar]) -> bool:
        """Decide whether the batched replay takes a guarded sum modulo its bound.

        As where all loops were fused and split into a parallel loop and vectors that overrun them,
        and the first has one iteration (:mod:`pruner.program.tir.parallelize`).
        """
        marks = [self._loops[var].mark for var in loops if var in self._loops]  # not in a block
        first = realize.block.iter_vars[0] if realize.block.iter_vars else None
        fused = marks == [Mark.PARALLEL, Mark.VECTORIZE]
        return fused and first is not None and whole_number(first.dom.extent) == 1

    def _notes(self, block: Any) -> dict[str, object]:
        found = super()._notes(block)
        if _ALIGN in found:
            found[_ALIGN] = _alignment(found[_ALIGN], str(block.name_hint))
        return found


class _Around:
    """The loops around a block, by the axis slots of expressions."""

    def __init__(self, tree: Tree, loops: list[LoopVar]) -> None:
        self._tree = tree
        self._block = Block("", (), [], buffer=-1, indices=(), value=Const(0))
        self._roots: dict[int, Affine] = {}
        self._bounded: list[tuple[Affine, Expr]] = []  # and what stands for each
        for var in loops:
            self._take(var)

    def _take(self, var: LoopVar) -> int:
        slot = len(self._roots)
        self._roots[slot] = af.variable(var)
        self._block.iters += (BlockIter("spatial", var.extent),)
        self._block.bindings = [*self._block.bindings, Binding(self._roots[slot], {var: 1})]
        return slot

    def bound(self, sum_: Expr, bound: int, *, wraps: bool) -> None:
        """Bound a sum whose split overruns ``bound``; ``wraps``: take it modulo the bound."""
        value = evaluate_index(sum_, self._roots)
        if wraps:
            self._bounded.append((value, Binary("floormod", sum_, Const(bound), "int32")))
            return
        # a loop of the tree that no node has: extent and uses are those before the split
        var = LoopVar("guarded", bound)
        self._tree.define(var, value, index_uses(self._tree, self._block, sum_))
        self._bounded.append((value, Axis(self._take(var))))

    def binding(self, expr: Expr) -> Binding:
        found = self._rejoined(expr)
        return Binding(
            evaluate_index(found, self._roots), index_uses(self._tree, self._block, found)
        )

    def _rejoined(self, expr: Expr) -> Expr:
        if not self._bounded or isinstance(expr, (Axis, Const)):
            return expr
        value = evaluate_index(expr, self._roots)
        for bounded, instead in self._bounded:
            # the terms of equal sums may differ in order, so the difference is tested for zero
            if af.is_zero(af.add(value, bounded, -1)):
                return instead
        return rebuild(expr, tuple(map(self._rejoined, children(expr))))


def _guards(predicate: Any) -> list[tuple[Any, int]]:
    kind = kind_of(predicate)
    if kind == "And":
        return [*_guards(predicate.a), *_guards(predicate.b)]
    if kind == "LT" and kind_of(predicate.b) == "IntImm":
        return [(predicate.a, int(predicate.b))]
    return []


def _stores(stmt: Any) -> list[Any]:
    return list(stmt.seq) if kind_of(stmt) == "SeqStmt" else [stmt]


def _alignment(asked: Any, block: str) -> tuple[int, int, int]:
    """Parse axis, factor and offset as :func:`pruner.program.tir.layouts.storage_align`."""
    if len(asked) != 1 or int(asked[0][0]) != 0:
        raise UnsupportedProgram("storage-align", block)
    axis, factor, offset = (int(part) for part in asked[0][1:])
    return axis, factor, offset


def lowered(module: Any) -> LoopNests:
    """Read the nests of one program; raise `UnsupportedProgram`, also where uncertain."""
    with unforeseen_refused():
        passes = load_tvm().s_tir.transform
        # weights come in their new layout, as a builder has it
        module = passes.RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module)
        ((_, func),) = module.functions_items()
        tree = _ScheduledReader(func).tree
        # TVM lowers ReadAt and WriteAt only in compilation; features describe the copies themselves
        lower_auto_copies(tree)
        nests = lower(tree)
    # the batched replay refuses such programs, too: features must not depend on the kind of space
    if np.any(tree.uncertain):
        raise UnsupportedProgram(UNCERTAIN, "a width that is no number")
    return nests
