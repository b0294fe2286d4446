"""Test the guard of a vector once, where all of its lanes agree.

A padded convolution fetches vectors under a condition. TVM's ``VectorizeLoop`` keeps a vector only
if the condition is plainly the same in every lane; it does not see that the eight lanes of
``(x * 8 + lane) // 1152`` are equal. Then it writes eight loads with a branch each, and the eight
times longer body is too long to be unrolled. Here the condition is computed at the first lane.
"""

import operator
from typing import Any, NamedTuple

from pruner.tune.tvm_import import (
    VECTORIZED,
    changed_loop,
    holds,
    load_tvm,
    map_loops,
    replaced,
)

_CHOICE = "if_then_else"  # last part of the operator's name


class _AtLanes(NamedTuple):
    """An index at the first lane, and whether it grows by one a lane."""

    first: Any
    moves: bool


def guards_shared(module: Any) -> Any:
    """Compute guards of vectors at the first lane where the other lanes are equal."""
    return map_loops(module, _with_one_guard)


def _with_one_guard(loop: Any) -> Any:
    tvm, ffi = load_tvm().tvm, load_tvm().ffi
    realize = loop.body
    is_vector = int(loop.kind) == VECTORIZED and loop.step is None
    if not is_vector or type(realize).__name__ != "SBlockRealize":
        return loop
    lanes, block = _Lanes(loop), realize.block
    bound = list(zip((axis.var for axis in block.iter_vars), realize.iter_values, strict=True))

    def choice(call: Any) -> Any:
        if not str(getattr(call.op, "name", "")).endswith(_CHOICE):
            return call
        whole = replaced(call.args[0], bound)
        guard = lanes.guard(whole)
        if guard is None or guard.same_as(whole):  # lanes differ, or the guard has none
            return call
        return type(call)(call.op, [guard, *call.args[1:]], ret_ty=call.ty)

    body = ffi.structural_map(block.body, (tvm.ir.Call, choice))
    guard = lanes.guard(realize.predicate)
    if body.same_as(block.body) and (guard is None or guard.same_as(realize.predicate)):
        return loop
    parts = (block.init, block.alloc_buffers, block.match_buffers, block.annotations)
    block = type(block)(
        block.iter_vars, block.reads, block.writes, block.name_hint, body, *parts, block.span
    )
    guard = realize.predicate if guard is None else guard
    realize = type(realize)(realize.iter_values, guard, block, realize.span)
    return changed_loop(loop, body=realize)


class _Lanes:
    """The lanes of a vectorized loop."""

    def __init__(self, loop: Any) -> None:
        self._lane, self._first, self._number = loop.loop_var, loop.min, int(loop.extent)
        self._analyzer = load_tvm().tvm.sym.Analyzer()

    def guard(self, guard: Any) -> Any | None:
        """Return a condition at the first lane, None where lanes may differ."""
        tirx, kind = load_tvm().tirx, type(guard)
        if not holds(guard, self._lane):
            return guard
        if kind in (tirx.And, tirx.Or):
            first, second = self.guard(guard.a), self.guard(guard.b)
            return None if first is None or second is None else kind(first, second)
        if kind not in (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE):
            return None
        a, b = self._index(guard.a), self._index(guard.b)
        return None if a is None or b is None or a.moves or b.moves else kind(a.first, b.first)

    def _index(self, index: Any) -> _AtLanes | None:
        """Follow the lane through an index; None where its steps are unknown."""
        tirx, kind = load_tvm().tirx, type(index)
        if not holds(index, self._lane):
            return _AtLanes(index, moves=False)
        if kind is tirx.Var:
            return _AtLanes(self._first, moves=True)
        # Python's operators fold constants, TVM's nodes do not
        computed = {
            tirx.Add: operator.add,
            tirx.Sub: operator.sub,
            tirx.Mul: operator.mul,
            tirx.FloorDiv: operator.floordiv,
            tirx.FloorMod: operator.mod,
        }
        if kind not in computed:
            return None
        a, b = self._index(index.a), self._index(index.b)
        if a is None or b is None:
            return None
        first = computed[kind](a.first, b.first)
        if not a.moves and not b.moves:
            return _AtLanes(first, moves=False)
        if kind is tirx.Add and a.moves != b.moves:
            return _AtLanes(first, moves=True)
        if kind is tirx.Sub and not b.moves:
            return _AtLanes(first, moves=True)
        quotient = kind in (tirx.FloorDiv, tirx.FloorMod) and not b.moves
        # a row of lanes that begins at a multiple of its length crosses no multiple of it
        by_number = isinstance(index.b, tirx.IntImm) and int(index.b) > 0
        if quotient and by_number and self._is_multiple(a.first) and self._is_multiple(b.first):
            return _AtLanes(first, moves=kind is tirx.FloorMod)
        return None

    def _is_multiple(self, index: Any) -> bool:
        found = self._analyzer.modular_set(index)
        return int(found.coeff) % self._number == 0 and int(found.base) % self._number == 0
