"""Loops, blocks and buffers of a TIR function under scheduling, N at once.

The shape is common, extents are plain or int64 [N]. A loop that was split or fused away lives on as
a *definition* of its variable by the loops that replaced it, so bindings are never rewritten.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from typing import Literal

import numpy as np

from pruner.arrays import IntLike, Mask
from pruner.errors import UnsupportedProgram
from pruner.program.dag.expr import Expr, Load, loads
from pruner.program.index import affine as af
from pruner.program.index.affine import Affine, LoopVar
from pruner.program.index.divide import floordiv, floormod
from pruner.program.index.regions import Region
from pruner.program.nests import DYNAMIC_SHARED, Buffer, Mark, Scope, is_bound

IterKind = Literal["spatial", "reduce", "derived"]
Uses = dict[LoopVar, IntLike]


class Diverges(Exception):
    """Programs need different trees; ``values`` int64 [N] separates them."""

    def __init__(self, values: np.ndarray) -> None:
        super().__init__("candidates need different trees")
        self.values = values


@dataclass(frozen=True, slots=True)
class BlockIter:
    """An iterator over ``[0, extent)``: spatial, reduction, or derived by ``rfactor``."""

    kind: IterKind
    extent: IntLike


@dataclass(eq=False, slots=True)
class Binding:
    """Value of an iterator: a sum of loop variables, and its variables.

    ``uses``, with factors (0: divided), keeps variables of extent 1, which the sum drops, because
    TVM's structural questions depend on them.
    """

    value: Affine
    uses: Uses

    @staticmethod
    def of(var: LoopVar) -> Binding:
        """Bind an iterator to one loop."""
        return Binding(af.variable(var), {var: 1})


@dataclass(eq=False, slots=True)
class LoopNode:
    """A loop; ``mark`` is its annotation, ``unroll`` its pragma's depth (0: none).

    ``marked``: where the mark holds; ``absent``: where the program lacks the loop, its extent being
    1; ``fused``: made by fusing (also of a single loop).
    """

    var: LoopVar
    body: list[LoopNode | Block] = field(default_factory=list)
    parent: LoopNode | None = None
    mark: Mark | None = None
    unroll: IntLike | None = None
    marked: Mask | np.bool_ = field(default_factory=lambda: np.bool_(True))
    absent: Mask | np.bool_ = field(default_factory=lambda: np.bool_(False))
    annotations: dict[str, object] = field(default_factory=dict)
    fused: bool = False

    @property
    def extent(self) -> IntLike:
        """Iterations of the loop: an int or int64 [N]."""
        return self.var.extent

    @property
    def is_bound(self) -> bool:
        """True for a loop bound to a block or (virtual) thread."""
        return is_bound(self.mark)


@dataclass(eq=False, slots=True)
class Block:
    """A statement ``buffer[indices] = value``; axis slots are its iterators.

    ``init``: the first value of a reduction; ``reads``: the buffers, in TVM's order;
    ``stands_for``: slots of the variables for other iterators in the value of a derived one;
    ``inner``: loops of a nest that one instruction computes (``blockize``); ``guards``: (index,
    bound) of a guard, as where padding is cut off.
    """

    name: str
    iters: tuple[BlockIter, ...]
    bindings: list[Binding]
    buffer: int
    indices: tuple[Expr, ...]
    value: Expr
    init: Expr | None = None
    reads: list[int] = field(default_factory=list)
    annotations: dict[str, object] = field(default_factory=dict)
    parent: LoopNode | None = None
    stands_for: dict[LoopVar, int] = field(default_factory=dict)
    inner: tuple[LoopVar, ...] = ()
    guards: tuple[tuple[Expr, IntLike], ...] = ()
    known_loads: tuple[Expr, dict[int, list[Load]]] | None = None  # of a value, by buffer

    @property
    def reduces(self) -> bool:
        """True where some iterator is a reduction."""
        return any(it.kind == "reduce" for it in self.iters)

    def list_reads(self) -> None:
        """Recompute :attr:`reads` as TVM's detector lists them after a rewrite."""
        found = dict.fromkeys(self.loads)
        # A reduction's own element is no read: TVM removes it from the list.
        if self.init is not None:
            found.pop(self.buffer, None)
        self.reads = list(found)

    @property
    def loads(self) -> dict[int, list[Load]]:
        """Loads of the value by buffer, in order of first load; cached."""
        if self.known_loads is None or self.known_loads[0] is not self.value:
            table: dict[int, list[Load]] = {}
            for load in loads(self.value):
                table.setdefault(load.stage, []).append(load)
            self.known_loads = (self.value, table)
        return self.known_loads[1]

    def loads_of(self, buffer: int) -> list[Load]:
        """Return every load of a buffer."""
        return self.loads.get(buffer, [])


TreeNode = LoopNode | Block


@dataclass(slots=True, eq=False)
class Place:
    """The place of a buffer: under ``loop`` (None: the kernel), its box."""

    loop: LoopNode | None
    box: list[Region]


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """New dimensions of a buffer: ``(index[axis] div divisor) mod extent`` each.

    ``pieces``: (axis, divisor) of each new dimension; ``shape``: of the old dimensions; ``reads``:
    the old indices of every block that reads the buffer.
    """

    pieces: tuple[tuple[int, IntLike], ...]
    shape: tuple[IntLike, ...]
    reads: dict[Block, tuple[Expr, ...]]


@dataclass(eq=False, slots=True)
class Tree:
    """A function under scheduling; ``annotations`` belong to its root block.

    ``uncertain``: programs whose regions TVM may compute otherwise; they count as refused.
    ``places``: of the buffers of a finished tree
    (:func:`pruner.program.tir.regions.buffer_scopes`).
    """

    buffers: list[Buffer]
    root: LoopNode
    annotations: dict[str, object] = field(default_factory=dict)
    num_programs: int = 1
    definitions: dict[LoopVar, Affine] = field(default_factory=dict)
    made_of: dict[LoopVar, Uses] = field(default_factory=dict)
    uncertain: Mask | np.bool_ = field(default_factory=lambda: np.bool_(False))
    places: dict[int, Place] = field(default_factory=dict)
    layouts: dict[int, Layout] = field(default_factory=dict)
    _resolved: dict[LoopVar, Affine] = field(default_factory=dict)
    _parts: dict[LoopVar, frozenset[LoopVar]] = field(default_factory=dict)
    _values: dict[Block, tuple[list[Binding], list[Affine]]] = field(default_factory=dict)
    _used: dict[Block, tuple[list[Binding], list[Uses]]] = field(default_factory=dict)

    def new_buffer(self, name: str, like: Buffer, scope: str) -> Buffer:
        """Add a buffer like another in another scope, by TVM's name."""
        made = Buffer(
            len(self.buffers), name, like.dtype, like.shape, Scope.of(scope),
            is_dynamic=scope == DYNAMIC_SHARED,
        )  # fmt: skip
        self.buffers.append(made)
        return made

    def define(self, var: LoopVar, value: Affine, uses: Uses) -> None:
        """Define ``var`` as ``value``, made of the loops ``uses``."""
        self.definitions[var] = value
        self.made_of[var] = uses
        # Any cached value may contain the variable: all caches start anew.
        self._resolved.clear()
        self._parts.clear()
        self._values.clear()
        self._used.clear()

    def blocks(self, below: TreeNode | None = None) -> Iterator[Block]:
        """Yield blocks in program order, of the tree or below a node."""
        # A walk of its own: one generator less, for the most frequent question.
        pending: list[TreeNode] = [self.root if below is None else below]
        while pending:
            node = pending.pop()
            if isinstance(node, Block):
                yield node
            else:
                pending.extend(reversed(node.body))

    def loops(self, below: TreeNode | None = None) -> Iterator[LoopNode]:
        """Yield loops in program order, of the tree or at and below a node."""
        loops = (node for node in self.nodes(below) if isinstance(node, LoopNode))
        return (loop for loop in loops if loop is not self.root)

    def nodes(self, below: TreeNode | None = None) -> Iterator[TreeNode]:
        """Yield loops and blocks in program order; a loop before its body."""
        pending: list[TreeNode] = [self.root if below is None else below]
        while pending:
            node = pending.pop()
            yield node
            if isinstance(node, LoopNode):
                pending += reversed(node.body)

    def find(self, name: str) -> Block:
        """Return the block of that name; raise `UnsupportedProgram` otherwise."""
        for block in self.blocks():
            if block.name == name:
                return block
        raise UnsupportedProgram("unknown-block", name)

    def path(self, node: TreeNode) -> list[LoopNode]:
        """Return the loops around a node, outermost first."""
        out: list[LoopNode] = []
        parent = node.parent
        while parent is not None and parent is not self.root:
            out.append(parent)
            parent = parent.parent
        out.reverse()
        return out

    def common_path(self, blocks: Iterable[Block]) -> list[LoopNode]:
        """Return the loops around all blocks, outermost first; none without blocks."""
        levels = zip(*map(self.path, blocks), strict=False)
        return [one[0] for one in takewhile(lambda level: len(set(level)) == 1, levels)]

    def producers(self, block: Block) -> list[Block]:
        """Return other blocks that write the inputs of ``block``."""
        read = block.loads.keys() - {block.buffer}  # a reduction reads its own element
        return [other for other in self.blocks() if other is not block and other.buffer in read]

    def consumers(self, block: Block) -> list[Block]:
        """Return other blocks that read the output of ``block``, in order."""
        return [b for b in self.blocks() if b is not block and b.loads_of(block.buffer)]

    def reducing(self, block: Block) -> set[LoopVar]:
        """Return the loop variables that move a reduction iterator of a block."""
        slots = [slot for slot, it in enumerate(block.iters) if it.kind == "reduce"]
        return {var for slot in slots for var in self.uses(block, slot)}

    def reducing_in(self, loops: Sequence[LoopNode]) -> set[LoopVar]:
        """Return :meth:`reducing` of the blocks in the first of nested loops."""
        blocks = self.blocks(loops[0]) if loops else ()
        return set[LoopVar]().union(*map(self.reducing, blocks))

    def resolve(self, value: Affine) -> Affine:
        """Return ``value`` in the variables of existing loops."""
        return substitute(value, self._value_of)

    def rebound(self, binding: Binding, uses: Uses, names: Mapping[LoopVar, LoopVar]) -> Binding:
        """Return a binding in existing loops ``uses``, with the variables ``names`` exchanged."""
        value = renamed(self.resolve(binding.value), names)
        return Binding(value, {names.get(var, var): scale for var, scale in uses.items()})

    def _value_of(self, var: LoopVar) -> Affine | None:
        if var not in self.definitions:
            return None
        if var not in self._resolved:
            self._resolved[var] = self.resolve(self.definitions[var])
        return self._resolved[var]

    def uses(self, block: Block, slot: int) -> Uses:
        """Return variables of existing loops in a value, with factors; do not change it."""
        known = self._used.get(block)
        # Bindings are replaced, never changed in place: by identity the cache holds or not.
        if known is None or known[0] is not block.bindings:
            found = [self._uses_of(block, place) for place in range(len(block.bindings))]
            known = self._used[block] = (block.bindings, found)
        return known[1][slot]

    def _uses_of(self, block: Block, slot: int) -> Uses:
        out: Uses = {}
        pending = list(block.bindings[slot].uses.items())
        while pending:
            var, scale = pending.pop()
            if var in block.stands_for:
                inner = self._uses_of(block, block.stands_for[var])
                pending.extend((v, scale * s) for v, s in inner.items())
            elif var in self.made_of:
                # Factors multiply along the definitions; a divided variable (0) stays divided.
                pending.extend((v, scale * s) for v, s in self.made_of[var].items())
            else:
                out[var] = out.get(var, 0) + scale
        return out

    def _leaves(self, var: LoopVar) -> frozenset[LoopVar]:
        """Return the existing loops that make up a variable."""
        if var not in self.made_of:
            return frozenset((var,))
        if var not in self._parts:
            self._parts[var] = frozenset().union(*map(self._leaves, self.made_of[var]))
        return self._parts[var]

    def values_above(self, block: Block, moving: set[LoopVar]) -> tuple[list[Affine], set[LoopVar]]:
        """Return iterators with loops made of ``moving`` loops whole, and these."""
        whole: set[LoopVar] = set()
        absent = {loop.var: loop.absent for loop in self.path(block)}

        def moves(leaves: frozenset[LoopVar]) -> Mask | np.bool_:
            runs: Mask | np.bool_ = np.bool_(False)
            stands: Mask | np.bool_ = np.bool_(False)
            for leaf in leaves:
                exists = ~np.asarray(absent.get(leaf, False))
                if leaf in moving:
                    runs = runs | exists
                else:
                    stands = stands | exists
            return runs & ~stands

        def lookup(var: LoopVar) -> Affine | None:
            if var in block.stands_for:
                return substitute(block.bindings[block.stands_for[var]].value, lookup)
            if var not in self.definitions:
                return None
            leaves = self._leaves(var)
            # Nothing of it moves: its full definition, in existing loops.
            if leaves.isdisjoint(moving):
                return self._value_of(var)
            # A loop whose parts all run covers its own range, whatever its parts overrun.
            here = moves(leaves)
            if af.any_nonzero(here):
                whole.add(var)
            if af.everywhere(here):
                return None
            return af.select(here, af.variable(var), substitute(self.definitions[var], lookup))

        return [substitute(binding.value, lookup) for binding in block.bindings], whole

    def values(self, block: Block) -> list[Affine]:
        """Return the iterators of a block in existing loop variables."""
        known = self._values.get(block)
        if known is not None and known[0] is block.bindings:
            return known[1]

        def lookup(var: LoopVar) -> Affine | None:
            if var in block.stands_for:
                return self.resolve(block.bindings[block.stands_for[var]].value)
            return self._value_of(var)

        found = [substitute(binding.value, lookup) for binding in block.bindings]
        self._values[block] = (block.bindings, found)
        return found


def substitute(value: Affine, lookup: object) -> Affine:
    """Replace variables of ``value``; ``lookup(var)`` gives a sum or None."""
    out = Affine([], value.base)
    for t in value.terms:
        if isinstance(t.index, LoopVar):
            new = lookup(t.index)  # type: ignore[operator]
            if new is None:
                out = af.add(out, Affine([t]))
                continue
        else:
            new = substitute(t.index, lookup)
        # Divided again, not copied: with the new index another simplification may hold.
        if not af.is_endless(t.upper):
            new = floormod(new, t.upper)
        if not (isinstance(t.lower, int) and t.lower == 1):
            new = floordiv(new, t.lower)
        out = af.add(out, new, t.coef)
    return out


def renamed(value: Affine, names: Mapping[LoopVar, LoopVar]) -> Affine:
    """Exchange loop variables of ``value`` for others of the same extents."""
    if not names:
        return value
    return substitute(value, lambda var: af.variable(names[var]) if var in names else None)


def uniform(value: IntLike | np.ndarray) -> int:
    """Return the value common to all programs; raise :class:`Diverges` otherwise."""
    value = af.plain(np.asarray(value))
    if isinstance(value, np.ndarray):
        raise Diverges(value)
    return value


def nest(loops: Sequence[LoopNode], body: list[TreeNode]) -> TreeNode:
    """Put ``body`` under ``loops``, outermost first; return the outermost node."""
    for outer, inner in pairwise(loops):
        outer.body, inner.parent = [inner], outer
    if not loops:
        return body[0]
    loops[-1].body = body
    for child in body:
        child.parent = loops[-1]
    return loops[0]


def replace_child(node: TreeNode, new: list[TreeNode]) -> None:
    """Put ``new`` in the place of ``node``."""
    parent = node.parent
    assert parent is not None
    place = parent.body.index(node)
    parent.body[place : place + 1] = new
    for child in new:
        child.parent = parent


def remove(node: TreeNode) -> None:
    """Remove a node, with the loops that hold nothing else."""
    parent = node.parent
    assert parent is not None
    # TVM removes loops that would be left empty (LeafBlockRemovalPlan).
    while len(parent.body) == 1 and parent.parent is not None:
        node, parent = parent, parent.parent
    parent.body.remove(node)


def insert(parent: LoopNode, place: int, node: TreeNode) -> None:
    """Put ``node`` into the body of ``parent`` at ``place``."""
    parent.body.insert(place, node)
    node.parent = parent
