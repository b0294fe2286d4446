"""Apply the instructions of a MetaSchedule trace for N decision vectors.

:class:`Diverges` carries the values that separate programs which need different trees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pruner.arrays import Decisions, IntLike, Ints, Mask
from pruner.errors import UnsupportedProgram
from pruner.program.index.affine import plain
from pruner.program.nests import WARP_LANES, Mark, Scope
from pruner.program.tir import locations as places
from pruner.program.tir import primitives
from pruner.program.tir.copies import Copy
from pruner.program.tir.layouts import storage_align, transform_layout
from pruner.program.tir.parallelize import rewrite_parallel_vectorize_unroll
from pruner.program.tir.postprocs import (
    lower_auto_copies,
    read_at,
    require_bound,
    rewrite_cooperative_fetch,
    rewrite_reduction_blocks,
    write_at,
)
from pruner.program.tir.rfactor import rfactor
from pruner.program.tir.tree import Block, Diverges, LoopNode, Tree, uniform
from pruner.program.tir.verify import WARP_EXECUTION

LOCATE = "SampleComputeLocation"
TILES = ("SamplePerfectTile", "SamplePartitionedTile")  # instructions that decide factors of a loop
# Annotations whose values are numbers of each program, and an instruction that takes such a number.
_NUMBERS, _NUMBER = ("meta_schedule.parallel", "meta_schedule.vectorize"), "AnnotatedNumber"
_MOST_NUMBER = 1 << 63  # decisions are int64
_FIRST_WRITE = (0, 1)  # attributes of TransformLayout: which buffer, BufferIndexType.WRITE


@dataclass(frozen=True, slots=True)
class Ref:
    """The result of an earlier instruction: block, loop or number."""

    number: int


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction; its decision starts at ``slot`` of the vector (-1: none)."""

    kind: str
    inputs: tuple[Any, ...]
    attrs: tuple[Any, ...]
    outputs: tuple[int, ...]
    slot: int = -1


@dataclass(frozen=True, slots=True, eq=False)
class TraceProgram:
    """A function and its instructions; ``known``: results as places in `Tree.nodes`."""

    tree: Tree
    instructions: tuple[Instruction, ...]
    num_slots: int
    is_gpu: bool
    known: Mapping[int, int] = field(default_factory=dict)

    @property
    def numbers(self) -> list[int]:
        """Numbers that the trace annotates and that may differ within a tree."""
        return [i.inputs[1] for i in self.instructions if _annotates_number(i)]

    def with_open_numbers(self) -> TraceProgram:
        """Return the program with its `numbers` as decisions, so that spaces share trees."""
        made: list[Instruction] = []
        slot = self.num_slots
        for one in self.instructions:
            if _annotates_number(one):
                number = self.num_slots - slot - 1  # below the results of the trace
                made.append(Instruction(_NUMBER, (), (), (number,), slot))
                one = replace(one, inputs=(one.inputs[0], Ref(number)))
                slot += 1
            made.append(one)
        return replace(self, instructions=tuple(made), num_slots=slot)


def _annotates_number(instruction: Instruction) -> bool:
    if instruction.kind != "Annotate" or instruction.attrs[0] not in _NUMBERS:
        return False
    number = instruction.inputs[1]
    return type(number) is int and -_MOST_NUMBER < number < _MOST_NUMBER


@dataclass(slots=True, eq=False)
class TraceState:
    """State while the instructions run; ``strict`` checks foreign decisions."""

    tree: Tree
    decisions: Decisions
    strict: bool = False
    results: dict[int, Any] = field(default_factory=dict)
    fetches: list[tuple[Any, ...]] = field(default_factory=list)  # of rewrite_cooperative_fetch
    threads: dict[str, IntLike] = field(default_factory=dict)
    tiled: dict[int, IntLike] = field(default_factory=dict)

    def get(self, value: Any) -> Any:
        """Return an input: an instruction's result, a constant, or several."""
        if isinstance(value, tuple):
            return [self.get(item) for item in value]
        return self.results[value.number] if isinstance(value, Ref) else value

    def decision(self, slot: int) -> IntLike:
        """Return a column of the decision vectors, an int if common."""
        return plain(self.decisions[:, slot])

    def require(self, fits: Mask, what: str) -> None:
        """Raise `Diverges` where decisions of some programs fit, else `UnsupportedProgram`."""
        if fits.all():
            return
        # The fitting and the others begin anew apart; the part without a fit is refused then.
        if fits.any():
            raise Diverges(fits.astype(np.int64))
        raise UnsupportedProgram("bad-decision", what)

    def take(self, instruction: Instruction) -> None:
        """Apply an instruction; raise `Diverges`, or `UnsupportedProgram` without a form."""
        handler = _HANDLERS.get(instruction.kind)
        if handler is None:
            raise UnsupportedProgram("trace-instruction", instruction.kind)
        found = handler(self, instruction, *map(self.get, instruction.inputs))
        results = found if isinstance(found, list) else [] if found is None else [found]
        # Another number of outputs is another version of TVM.
        if len(results) != len(instruction.outputs):
            raise UnsupportedProgram("trace-results", instruction.kind)
        self.results.update(zip(instruction.outputs, results, strict=True))

    def locate(self, instruction: Instruction, taken: Ints) -> None:
        """Apply a ``SampleComputeLocation`` of a shared tree, where cut loops are no results."""
        block = self.get(instruction.inputs[0])
        self.results[instruction.outputs[0]] = places.shared(self.tree, block, taken)
        if (taken != taken[0]).any():
            self.forget_lost()

    def forget_lost(self) -> None:
        """Drop results that are loops no longer in the tree."""
        alive = set(self.tree.nodes())
        for number, value in self.results.items():
            if isinstance(value, LoopNode) and value not in alive:
                self.results[number] = None

    def select(self, rows: Ints) -> TraceState:
        """Return a copy of the state for some programs."""
        copy = Copy(rows)
        tree = copy.tree(self.tree, len(rows))
        # Results point into the old tree: the same nodes of the copy.
        nodes: dict[Any, Any] = {self.tree: tree, **copy.nodes}
        results = {n: _copied(value, nodes, copy) for n, value in self.results.items()}
        fetches = [(nodes[block], *map(copy.number, more)) for block, *more in self.fetches]
        threads = {axis: copy.number(extent) for axis, extent in self.threads.items()}
        tiled = {slot: copy.number(extent) for slot, extent in self.tiled.items()}
        decisions = self.decisions[rows]
        return TraceState(tree, decisions, self.strict, results, fetches, threads, tiled)

    def finish(self, *, is_gpu: bool) -> None:
        """Apply MetaSchedule's postprocessors; raise as :meth:`take`."""
        # In TVM's order: fetches, bound blocks, parallel and unrolled loops, reductions; copies
        # last, when the program is lowered.
        for fetch in self.fetches:
            rewrite_cooperative_fetch(self.tree, *fetch)
        if is_gpu:
            require_bound(self.tree)
        rewrite_parallel_vectorize_unroll(
            self.tree,
            parallel=self._requested("parallel"),
            vectorize=self._requested("vectorize"),
            unroll=self._requested("unroll_explicit", "unroll_implicit"),
        )
        rewrite_reduction_blocks(self.tree)
        lower_auto_copies(self.tree)

    def _requested(self, *keys: str) -> Any:
        found = [self.tree.annotations.get(f"meta_schedule.{key}") for key in keys]
        return next((value for value in found if value is not None), None)


def _copied(value: Any, nodes: dict[Any, Any], copy: Copy) -> Any:
    """Copy an instruction's result; None for a node that is gone."""
    if isinstance(value, (Tree, LoopNode, Block)):
        return nodes.get(value)
    return copy.number(value)


def _sample_perfect_tile(s: TraceState, i: Instruction, loop: LoopNode) -> list[IntLike]:
    s.tiled[i.slot] = loop.extent
    parts = int(i.attrs[0])
    # A record's factors come from a file: their product must be the loop's extent.
    if s.strict:
        factors = s.decisions[:, i.slot : i.slot + parts].astype(np.float64)  # no overflow
        fits = (factors >= 1).all(axis=1) & (factors.prod(axis=1) == loop.extent)
        s.require(fits, f"factors of {loop.var.name}")
    return [s.decision(i.slot + k) for k in range(parts)]


def _sample_partitioned_tile(s: TraceState, i: Instruction, loop: LoopNode) -> list[IntLike]:
    # Attribute 2 is innerpart_factor: the inner part must stay a multiple of it.
    if not np.all(np.equal(np.mod(loop.extent, int(i.attrs[2])), 0)):
        raise UnsupportedProgram("partitioned-tile", loop.var.name)
    return _sample_perfect_tile(s, i, loop)


def _sample_categorical(s: TraceState, i: Instruction) -> IntLike:
    candidates = np.asarray(i.attrs[0], np.int64)
    if s.strict:
        index = s.decisions[:, i.slot]
        s.require((index >= 0) & (index < len(candidates)), f"one of {len(candidates)} candidates")
    # A decision is the index of a candidate, as in TVM's trace.
    return plain(candidates[s.decisions[:, i.slot]])


def _sample_compute_location(s: TraceState, i: Instruction, block: Block) -> LoopNode | int:
    taken = settled(s, i)
    uniform(taken)  # raises where locations differ
    return places.shared(s.tree, block, taken)


def settled(s: TraceState, i: Instruction) -> Ints:
    """Return each program's location at a coming ``SampleComputeLocation``."""
    return places.settle(s.tree, s.get(i.inputs[0]), s.decisions[:, i.slot])


def _bind(s: TraceState, i: Instruction, loop: LoopNode) -> None:
    axis = str(i.attrs[0])
    loop.mark = Mark.of_axis(axis)  # virtual axes share a mark
    s.threads[axis] = loop.extent


def _unroll(_s: TraceState, _i: Instruction, loop: LoopNode) -> None:
    loop.mark = Mark.UNROLL


def _annotate(s: TraceState, i: Instruction, target: Tree | Block | LoopNode, value: Any) -> None:
    key = str(i.attrs[0])
    # RewriteCooperativeFetch takes the extents of the Bind instructions before the annotation.
    if key == "meta_schedule.cooperative_fetch":
        x, y = s.threads.get("threadIdx.x"), s.threads.get("threadIdx.y")
        if x is None or not isinstance(target, Block):
            raise UnsupportedProgram("cooperative-fetch", "no threads are bound before it")
        s.fetches.append((target, value, x, y))
        return
    if key == WARP_EXECUTION:  # the lanes of a warp are threadIdx.x
        s.threads["threadIdx.x"] = WARP_LANES
    target.annotations[key] = value


def _unannotate(_: TraceState, i: Instruction, target: Tree | Block | LoopNode) -> None:
    target.annotations.pop(str(i.attrs[0]), None)


def _transform_layout(s: TraceState, i: Instruction, block: Block, pieces: tuple[Any, ...]) -> None:
    """Change the output's layout; ``pieces``: (axis, divisors, factors or None) each."""
    if tuple(i.attrs[:2]) != _FIRST_WRITE:
        raise UnsupportedProgram("transform-layout", block.name)
    found = [
        (axis, plain(math.prod(d)), 0 if e is None else plain(math.prod(e)))
        for axis, d, e in pieces
    ]
    transform_layout(s.tree, block, found)


def _storage_align(s: TraceState, i: Instruction, block: Block) -> None:
    number, axis, factor, offset = (int(attr) for attr in i.attrs)
    if number != 0:
        raise UnsupportedProgram("storage-align", block.name)
    storage_align(block, axis % len(s.tree.buffers[block.buffer].shape), factor, offset)


def _cache_write(s: TraceState, i: Instruction, block: Block, consumers: list[Block]) -> Block:
    if int(i.attrs[0]) != 0 or consumers:
        raise UnsupportedProgram("cache-write", block.name)
    return primitives.cache_write(s.tree, block, str(i.attrs[1]))


def _write_at(s: TraceState, i: Instruction, loop: LoopNode, block: Block) -> Block:
    if int(i.attrs[0]) != 0:
        raise UnsupportedProgram("write-at", block.name)
    return write_at(s.tree, loop, block, str(i.attrs[1]))


def _set_scope(s: TraceState, i: Instruction, block: Block) -> None:
    if int(i.attrs[0]) != 0:
        raise UnsupportedProgram("set-scope", block.name)
    buffer = s.tree.buffers[block.buffer]
    scope = str(i.attrs[1])
    # TVM renames the buffer on set_scope.
    buffer.scope, buffer.name = Scope.of(scope), f"{buffer.name}_{scope}"


def _rfactor(s: TraceState, i: Instruction, loop: LoopNode) -> Block:
    # TVM's rfactor takes a loop of a single block.
    (block,) = s.tree.blocks(loop)
    return rfactor(s.tree, block, loop, int(i.attrs[0]))


def _compute_at(s: TraceState, _: Instruction, block: Block, loop: LoopNode | int) -> None:
    if isinstance(loop, LoopNode):
        primitives.compute_at(s.tree, block, loop)
        if np.any(primitives.lacking(s.tree, loop)):
            s.forget_lost()
    elif loop == places.INLINE:
        primitives.compute_inline(s.tree, block)


# By kind: (state, instruction, inputs) -> result, list of results, or None.
_HANDLERS: dict[str, Callable[..., Any]] = {
    _NUMBER: lambda s, i: s.decision(i.slot),
    # TVM's root block is no statement here: the tree itself stands for it.
    "GetSBlock": lambda s, i: s.tree if i.attrs[0] == "root" else s.tree.find(i.attrs[0]),
    "GetLoops": lambda s, _, block: s.tree.path(block),
    "GetConsumers": lambda s, _, block: s.tree.consumers(block),
    "GetProducers": lambda s, _, block: s.tree.producers(block),
    "SamplePerfectTile": _sample_perfect_tile,
    "SamplePartitionedTile": _sample_partitioned_tile,
    "SampleCategorical": _sample_categorical,
    LOCATE: _sample_compute_location,
    "Split": lambda s, _, loop, *factors: primitives.split(s.tree, loop, factors),
    "Fuse": lambda s, _, *loops: primitives.fuse(s.tree, loops),
    "Reorder": lambda s, _, *loops: primitives.reorder(s.tree, loops),
    "Bind": _bind,
    "Unroll": _unroll,
    "Annotate": _annotate,
    "Unannotate": _unannotate,
    "Blockize": lambda _s, _i, loop: primitives.blockize(loop),
    "TransformLayout": _transform_layout,
    "StorageAlign": _storage_align,
    "CacheRead": lambda s, i, block, readers: primitives.cache_read(
        s.tree, block, int(i.attrs[0]), str(i.attrs[1]), readers
    ),
    "CacheWrite": _cache_write,
    "ReadAt": lambda s, i, loop, block: read_at(
        s.tree, loop, block, int(i.attrs[0]), str(i.attrs[1])
    ),
    "WriteAt": _write_at,
    "RFactor": _rfactor,
    "SetScope": _set_scope,
    "ComputeAt": _compute_at,
    "ReverseComputeAt": lambda s, _, block, at: primitives.reverse_compute_at(s.tree, block, at),
    "ComputeInline": lambda s, _, block: primitives.compute_inline(s.tree, block),
    "ReverseComputeInline": lambda s, _, block: primitives.reverse_compute_inline(s.tree, block),
    "EnterPostproc": lambda *_: None,
}
KINDS = frozenset(_HANDLERS)  # what may stand in a trace
