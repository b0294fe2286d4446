"""Copy a tree, also for some of its programs; equal values are shared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from pruner.arrays import IntLike, Ints, Mask
from pruner.program.dag.expr import Const, Expr, PerProgram, rewrite
from pruner.program.index.affine import Affine, LoopVar, Term, any_nonzero, everywhere, plain
from pruner.program.tir.tree import (
    Binding,
    Block,
    BlockIter,
    Layout,
    LoopNode,
    Tree,
    TreeNode,
    Uses,
)


class Copy:
    """Copies for the programs ``rows`` (None: all), each object once."""

    def __init__(self, rows: Ints | None = None) -> None:
        self._rows = rows
        self._variables: dict[LoopVar, LoopVar] = {}
        self._literals = False  # whether expressions hold numbers per program, as layouts do
        self._lacking: list[LoopVar] = []  # variables of loops that no program of the copy has
        self.nodes: dict[TreeNode, TreeNode] = {}

    def tree(self, tree: Tree, num_programs: int) -> Tree:
        """Copy an unfinished tree; places of its buffers are left out."""
        self._literals = bool(tree.layouts)
        root = self._loop(tree.root)
        definitions = {self._variable(v): self._sum(x) for v, x in tree.definitions.items()}
        made_of = {self._variable(v): self._uses(x) for v, x in tree.made_of.items()}
        for var in self._lacking:
            definitions[var], made_of[var] = Affine(), {}
        return Tree(
            [replace(buffer, shape=self._numbers(buffer.shape)) for buffer in tree.buffers],
            root,
            self._annotations(tree.annotations),
            num_programs,
            definitions,
            made_of,
            self._mask(tree.uncertain),
            layouts={key: self._layout(layout) for key, layout in tree.layouts.items()},
        )

    def number(self, value: Any) -> Any:
        """Return an array's rows; other values stay as they are."""
        found: Any = self._mask(value)
        # A number that differed in the batch may be common in the part: `plain` makes it an int.
        return value if found is value else plain(found)

    def _mask(self, value: Mask | np.bool_) -> Mask | np.bool_:
        if self._rows is None or not isinstance(value, np.ndarray) or not value.ndim:
            return value
        return value[self._rows]

    def _annotations(self, values: dict[str, object]) -> dict[str, object]:
        return {key: self.number(value) for key, value in values.items()}

    def _numbers(self, values: tuple[IntLike, ...]) -> tuple[IntLike, ...]:
        return tuple(self.number(value) for value in values)

    def _variable(self, var: LoopVar) -> LoopVar:
        # A variable of a common extent is shared, so that sums over it are, too.
        if self._rows is None or not isinstance(var.extent, np.ndarray):
            return var
        if var not in self._variables:
            self._variables[var] = LoopVar(var.name, self.number(var.extent))
        return self._variables[var]

    def _sum(self, value: Affine) -> Affine:
        if self._rows is None:
            return value
        terms = [self._term(t) for t in value.terms]
        base, limit = self.number(value.base), self.number(value.limit)
        # Unchanged sums stay the same object, for the shortcuts by identity in `index.affine`.
        same = base is value.base and limit is value.limit
        if same and all(new is t for new, t in zip(terms, value.terms, strict=True)):
            return value
        return Affine([t for t in terms if any_nonzero(t.coef)], base, limit)

    def _term(self, t: Term) -> Term:
        index = t.index
        inside = self._variable(index) if isinstance(index, LoopVar) else self._sum(index)
        old = (t.lower, t.upper, t.coef, t.limit)
        numbers = self._numbers(old)
        if inside is index and all(a is b for a, b in zip(numbers, old, strict=True)):
            return t
        return Term(inside, *numbers)

    def _expression(self, expr: Expr) -> Expr:
        return rewrite(expr, self._literal) if self._literals else expr

    def _literal(self, expr: Expr) -> Expr:
        literal: object = expr.value if isinstance(expr, Const) else None
        if self._rows is None or not isinstance(literal, PerProgram):
            return expr
        values = PerProgram(literal.values[self._rows])
        return replace(expr, value=values)  # type: ignore[arg-type]  # see layouts

    def _uses(self, uses: Uses) -> Uses:
        return {self._variable(var): self.number(scale) for var, scale in uses.items()}

    def _loop(self, loop: LoopNode) -> LoopNode:
        out = LoopNode(
            self._variable(loop.var),
            mark=loop.mark,
            unroll=self.number(loop.unroll),
            marked=self._mask(loop.marked),
            absent=self._mask(loop.absent),
            annotations=self._annotations(loop.annotations),
            fused=loop.fused,
        )
        self.nodes[loop] = out
        for child in self._children(loop):
            made = self._loop(child) if isinstance(child, LoopNode) else self._block(child)
            made.parent = out
            out.body.append(made)
        return out

    def _children(self, loop: LoopNode) -> Iterator[TreeNode]:
        """Yield a loop's children, replacing loops that no program has."""
        for child in loop.body:
            # A loop that no program of the part has would keep structures apart: its children move
            # up, its variable becomes 0.
            if isinstance(child, LoopNode) and everywhere(self._mask(child.absent)):
                self._lacking.append(self._variable(child.var))
                yield from self._children(child)
            else:
                yield child

    def _block(self, block: Block) -> Block:
        out = replace(
            block,
            iters=tuple(BlockIter(it.kind, self.number(it.extent)) for it in block.iters),
            bindings=[Binding(self._sum(b.value), self._uses(b.uses)) for b in block.bindings],
            indices=tuple(self._expression(index) for index in block.indices),
            value=self._expression(block.value),
            reads=list(block.reads),
            annotations=self._annotations(block.annotations),
            stands_for={self._variable(var): slot for var, slot in block.stands_for.items()},
            inner=tuple(self._variable(var) for var in block.inner),
            guards=tuple((self._expression(i), self.number(n)) for i, n in block.guards),
        )
        self.nodes[block] = out
        return out

    def _layout(self, layout: Layout) -> Layout:
        """Copy a layout, leaving out readers that were inlined since."""
        return Layout(
            tuple((axis, self.number(divisor)) for axis, divisor in layout.pieces),
            self._numbers(layout.shape),
            {
                made: tuple(self._expression(index) for index in indices)
                for block, indices in layout.reads.items()
                if isinstance(made := self.nodes.get(block), Block)
            },
        )
