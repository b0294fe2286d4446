"""The tiles of a batched design space, for the construction of programs.

MetaSchedule annotates its tiling, outermost first: ``SSRSRS`` on CPUs, ``SSSRRSRS`` on GPUs
(schedule_rule/multi_level_tiling.cc). The innermost spatial loops are the register tile; the
reduction and the spatial loop around it are the tile of the first cache, or of shared memory; the
outermost loops are distributed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Decisions, dtype_bytes
from pruner.program.device import CpuDevice, Device, GpuDevice
from pruner.program.nests import WARP_LANES
from pruner.program.tir.trace import TILES, Instruction, Ref, TraceProgram
from pruner.program.tir.verify import THREADS_HIGH, THREADS_LOW
from pruner.search.construct import Tile, Tiling, Unit
from pruner.tune.spaces.batched.decisions import Decision, TileDecision, prime_powers

_STRUCTURE = "meta_schedule.tiling_structure"
_VTHREAD, _THREAD = 1, 2  # places of these factors in a spatial tile of a GPU


def tiling_of(
    program: TraceProgram,
    decisions: Mapping[int, Decision],
    threads: list[ThreadRange],
    device: Device,
) -> Tiling:
    """Find tiles and units, which count as far as ``gcd(extent, unit)``."""
    structures = structures_of(program)
    on_fragments = any(one.lanes == WARP_LANES for one in threads)
    tiles, rows = [], []
    for slot, decision in decisions.items():
        if not isinstance(decision, TileDecision):
            continue
        parts = decision.slots.stop - decision.slots.start
        structure = structures.get(slot, "")
        spatial = parts == structure.count("S")
        levels = ("",) * parts
        if spatial:
            levels = (
                _gpu_levels(parts, on_fragments)
                if isinstance(device, GpuDevice)
                else _cpu_levels(parts)
            )
        elif parts == structure.count("R") and isinstance(device, CpuDevice):
            levels = ("", *["l1"] * (parts - 1))
        tile = Tile(
            slots=range(decision.slots.start, decision.slots.stop),
            extent=decision.extent,
            levels=levels,
            primes=tuple(prime for prime, _ in prime_powers(decision.extent)),
            limit=decision.limit,
            least=decision.divisor,
        )
        tiles.append(tile)
        rows += [tile] if spatial else []
    others = tuple(slot for slot, one in decisions.items() if not isinstance(one, TileDecision))
    units, start, least = [], None, 1
    if isinstance(device, GpuDevice) and threads:
        bound = threads[0]
        size = math.prod(tile.extent for tile in tiles if set(tile.slots) & set(bound.slots))
        start = Unit(slots=bound.slots, size=math.gcd(size, device.warp_size // bound.lanes))
        least = -(-bound.low // bound.lanes)
    # fragments of a tensor core have lanes and lines of their own
    if rows and not on_fragments:
        row = rows[-1]  # the last spatial loop of a block runs along the rows of its result
        element_bytes = max(dtype_bytes(buffer.dtype) for buffer in program.tree.buffers)
        line = math.gcd(row.extent, max(1, device.transaction_bytes // element_bytes))
        inner = row.slots[1:] if isinstance(device, GpuDevice) else row.slots[2:]
        units.append(Unit(slots=tuple(inner), size=line))
        if isinstance(device, CpuDevice):
            lanes = math.gcd(row.extent, max(1, device.simd_bytes // element_bytes))
            start = Unit(slots=(row.slots[-1],), size=lanes)
    units += [start] if start is not None else []
    return Tiling(tiles=tuple(tiles), others=others, units=tuple(units), start=start, least=least)


def structures_of(program: TraceProgram) -> dict[int, str]:
    """Return the tiling structure of the block of each tile, by slot."""
    found, structure = {}, ""
    for i in program.instructions:
        if i.kind == "Annotate" and i.attrs[0] == _STRUCTURE:
            structure = str(i.inputs[1])
        elif i.slot >= 0:
            found[i.slot] = structure
    return found


def _cpu_levels(parts: int) -> tuple[str, ...]:
    """Return the levels of a spatial tile: one more loop outwards, one more cache."""
    inner = ("registers", "l1")[: parts - 1]
    return ("", *["l2"] * (parts - 1 - len(inner)), *reversed(inner))


def _gpu_levels(parts: int, on_fragments: bool) -> tuple[str, ...]:
    """Return the levels of a spatial tile: blocks, virtual threads, threads, registers."""
    levels = ["registers"] * parts
    levels[0] = ""
    levels[_THREAD] = "shared"
    if on_fragments:  # another axis of the grid
        levels[_VTHREAD] = ""
    return tuple(levels)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadRange:
    """A condition: ``low`` <= ``lanes`` * product of decisions at ``slots`` <= ``high``."""

    slots: tuple[int, ...]
    low: int
    high: int
    lanes: int = 1

    def holds(self, decisions: Decisions) -> NDArray[np.bool_]:
        """Check which rows may be legal, bool [N]."""
        threads = self.lanes * decisions[:, self.slots].prod(axis=1)
        return (self.low <= threads) & (threads <= self.high)


def thread_ranges(instructions: Sequence[Instruction]) -> list[ThreadRange]:
    """Find the ranges of blocks with a thread loop of sampled factors."""
    tiles = [i for i in instructions if i.kind in TILES]
    sampled = {out: i.slot + k for i in tiles for k, out in enumerate(i.outputs)}
    slots: dict[int, tuple[int, ...]] = {}  # whose product is the extent of a loop
    bound: tuple[int, ...] = ()
    low, lanes = 0, 1
    out: list[ThreadRange] = []
    for i in instructions:
        if i.kind == "Split":
            pairs = zip(i.outputs, i.inputs[1:], strict=True)
            known = ((loop, f.number) for loop, f in pairs if isinstance(f, Ref))
            slots |= {loop: (sampled[number],) for loop, number in known if number in sampled}
        # a fused loop counts only if every part is sampled: else its extent follows the shape
        elif i.kind == "Fuse" and all(loop.number in slots for loop in i.inputs):
            slots[i.outputs[0]] = sum((slots[loop.number] for loop in i.inputs), ())
        elif i.kind == "Bind" and i.attrs[0] in ("threadIdx.x", "threadIdx.y"):
            # MetaSchedule binds one thread axis before it annotates the limits; in tensor-core
            # spaces that is threadIdx.y, the warps, and threadIdx.x holds the 32 lanes
            bound = slots.get(i.inputs[0].number, ())
            lanes = WARP_LANES if i.attrs[0] == "threadIdx.y" else 1
        elif i.kind == "Annotate" and i.attrs[0] == THREADS_LOW:
            low = int(i.inputs[1])
        elif i.kind == "Annotate" and i.attrs[0] == THREADS_HIGH and bound:
            out.append(ThreadRange(slots=bound, low=low, high=int(i.inputs[1]), lanes=lanes))
    return out
