"""Loop nests executed one iteration after another: the slow second reading of lowered programs.

For programs without threads. Buffers have the whole shape of their stage, so where a tile is stored
does not matter; iterations beyond an axis are skipped, as the guards of the compiler skip them.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

from pruner.program.dag.expr import Axis, Binary, Call, Cast, Const, Expr, Load
from pruner.program.index.affine import INF, Affine, LoopVar
from pruner.program.nests import BufferStore, LoopNests

OPS: dict[str, Any] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "floormod": lambda a, b: a % b,
    "max": max,
    "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "and": lambda a, b: a and b,
}


def index_value(a: Affine, at: dict[LoopVar, int], program: int = 0) -> int:
    """Value of an index in one iteration of one program."""
    total = of_program(a.base, program)
    for t in a.terms:
        coef = of_program(t.coef, program)
        if not coef:
            continue
        simple = isinstance(t.index, LoopVar)
        # a loop that lowering removed stands still
        index = at.get(t.index, 0) if simple else index_value(t.index, at, program)
        upper = of_program(t.upper, program)
        inner = index if upper >= INF else index % upper
        total += coef * (inner // of_program(t.lower, program))
    return total


def of_program(x: Any, program: int) -> int:
    return int(x) if np.ndim(x) == 0 else int(np.ravel(x)[program])


class Executed:
    """Arrays by buffer key, and how often each store ran, by buffer name and kind."""

    def __init__(
        self,
        nests: LoopNests,
        inputs: dict[int, np.ndarray],
        reduce_extents: dict[int, Sequence[int]],
        program: int,
    ) -> None:
        self._program = program
        self._reduce = reduce_extents
        self.arrays = [
            np.full([of_program(e, program) for e in buffer.shape], np.nan)
            for buffer in nests.buffers
        ]
        for key, values in inputs.items():
            self.arrays[key] = values
        self.runs: dict[tuple[str, str], int] = {}
        self._run(nests.stores, 0, {})

    def _run(self, stores: Sequence[BufferStore], depth: int, at: dict[LoopVar, int]) -> None:
        def here(store: BufferStore) -> LoopVar | None:
            return store.loops[depth].var if len(store.loops) > depth else None

        for var, group in groupby(stores, here):
            inside = list(group)
            if var is None:
                for store in inside:
                    self._store(store, at)
                continue
            for value in range(of_program(inside[0].loops[depth].extent, self._program)):
                self._run(inside, depth + 1, at | {var: value})

    def _store(self, store: BufferStore, at: dict[LoopVar, int]) -> None:
        slots = [index_value(slot, at, self._program) for slot in store.slots]
        into = self.arrays[store.buffer.key]
        extents = [*into.shape, *self._reduce.get(store.buffer.key, ())]
        if any(s >= e for s, e in zip(slots, extents, strict=False)):
            return
        place = tuple(slots[: into.ndim])
        name = (store.buffer.name, store.kind)
        self.runs[name] = self.runs.get(name, 0) + 1
        into[place] = self._value(store.value, slots, place)

    def _value(self, expr: Expr, slots: list[int], own: tuple[int, ...]) -> Any:
        match expr:
            case Const(value=value):
                return value if np.ndim(value) == 0 else of_program(value, self._program)
            case Axis(slot=slot):
                return slots[slot]
            case Cast(a=a):
                return self._value(a, slots, own)
            case Binary(op=op, a=a, b=b):
                return OPS[op](self._value(a, slots, own), self._value(b, slots, own))
            case Call(name="if_then_else", args=(cond, then, other)):
                chosen = then if self._value(cond, slots, own) else other
                return self._value(chosen, slots, own)
            case Load(stage=stage, indices=()):
                return self.arrays[stage][own]
            case Load(stage=stage, indices=indices):
                return self.arrays[stage][tuple(self._value(i, slots, own) for i in indices)]
            case _:
                raise NotImplementedError(expr)
