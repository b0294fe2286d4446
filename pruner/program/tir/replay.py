"""Many programs of one trace: a tree for every structure that they need.

Where blocks are computed is decided last in a trace, and every location is a tree of its own. All
programs go together as far as they agree, and the instructions before are applied once: where
locations part them, each part goes on with a copy of the tree. A program that parts from the others
in the middle of an instruction begins anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from jaxtyping import Bool, Int64

from pruner.arrays import Decisions, Ints, Mask
from pruner.errors import ReplayFailed, UnsupportedProgram
from pruner.program.tir import locations as places
from pruner.program.tir.copies import Copy
from pruner.program.tir.trace import LOCATE, Instruction, State, TraceProgram, settled
from pruner.program.tir.tree import Diverges, Tree, uniform

logger = logging.getLogger(__name__)
Found = TypeVar("Found")


def apply(program: TraceProgram, decisions: Decisions) -> Tree:
    """The tree of N programs after all instructions and postprocessors.

    Raises:
        Diverges: candidates need different trees.
        UnsupportedProgram: an instruction that has no batched form.
    """
    return _applied(program, decisions).tree


def tile_extents(program: TraceProgram, decision: Int64[np.ndarray, " slot"]) -> dict[int, int]:
    """Extent of the loop that each perfect tile divides, by the slot where the tile starts.

    ``decision`` int64 [d]. Raises as :func:`apply`.
    """
    return {
        slot: uniform(extent) for slot, extent in _applied(program, decision[None]).tiled.items()
    }


def apply_groups(
    program: TraceProgram, decisions: Decisions
) -> tuple[list[tuple[Ints, Tree]], dict[int, str]]:
    """Trees of N decision vectors: (rows, tree) for every structure, and refusals by row."""

    def finished(state: State) -> Tree:
        state.finish(is_gpu=program.is_gpu)
        return state.tree

    return _structures(program, decisions, len(program.instructions), finished)


def location_options(
    program: TraceProgram, decisions: Decisions, slot: int
) -> tuple[Int64[np.ndarray, " location"], Bool[np.ndarray, "program location"]]:
    """Locations on offer at the ``sample_compute_location`` whose decision is ``slot``.

    Returns int64 [L] locations and bool [N, L] where each is on offer; no location is where the
    program cannot be replayed, which :func:`apply_groups` tells of.
    """
    until, instruction = next((n, i) for n, i in enumerate(program.instructions) if i.slot == slot)

    def offers(state: State) -> dict[int, Mask | np.bool_]:
        return places.allowed_locations(state.tree, state.get(instruction.inputs[0]))

    found, _ = _structures(program, decisions, until, offers)
    locations = np.array(sorted({place for _, offered in found for place in offered}), np.int64)
    allowed = np.zeros((len(decisions), len(locations)), bool)
    for rows, offered in found:
        for column, place in enumerate(locations.tolist()):
            if place in offered:
                allowed[rows, column] = offered[place]
    return locations, allowed


def _applied(program: TraceProgram, decisions: Decisions) -> State:
    state = _started(program, decisions)
    for instruction in program.instructions:
        state.take(instruction)
    state.finish(is_gpu=program.is_gpu)
    return state


def _started(program: TraceProgram, decisions: Decisions) -> State:
    state = State(Copy().tree(program.tree, len(decisions)), decisions)
    if program.known:
        nodes = list(state.tree.nodes())
        found = {number: nodes[place] for number, place in program.known.items()}
        state.results.update(
            {n: state.tree if node is nodes[0] else node for n, node in found.items()}
        )
    return state


@dataclass(frozen=True, slots=True, eq=False)
class _Branch:
    """Programs that share a tree so far; ``done``: instructions applied to it."""

    rows: Ints
    state: State
    done: int = 0

    def grown(self, instructions: Sequence[Instruction]) -> list[_Branch]:
        """With these instructions applied; several where locations part the programs before.

        Raises as :meth:`State.take`.
        """
        state = self.state
        for number in range(self.done, len(instructions)):
            instruction = instructions[number]
            if instruction.kind != LOCATE:
                state.take(instruction)
                continue
            taken = settled(state, instruction)
            found = np.unique(taken).tolist()
            if len(found) == 1:
                state.locate(instruction, found[0])
                continue
            parts = [np.flatnonzero(taken == location) for location in found]
            branches = [_Branch(self.rows[x], state.select(x), number + 1) for x in parts]
            for branch, location in zip(branches, found, strict=True):
                branch.state.locate(instruction, location)
            return branches
        return [_Branch(self.rows, state, len(instructions))]


def _structures(
    program: TraceProgram, decisions: Decisions, until: int, found_of: Callable[[State], Found]
) -> tuple[list[tuple[Ints, Found]], dict[int, str]]:
    """What ``found_of`` finds before instruction ``until``, by rows, and refusals by row."""
    instructions = program.instructions[:until]
    found: list[tuple[Ints, Found]] = []
    refused: dict[int, str] = {}
    pending: list[_Branch] = []

    def begin(rows: Ints) -> None:
        pending.append(_Branch(rows, _started(program, decisions[rows])))

    if len(decisions):
        begin(np.arange(len(decisions)))
    while pending:
        branch = pending.pop()
        rows = branch.rows
        try:
            if branch.done < until:
                pending += branch.grown(instructions)
            else:
                found.append((rows, found_of(branch.state)))
        except Diverges as parts:
            for value in np.unique(parts.values):
                begin(rows[parts.values == value])
        except UnsupportedProgram as error:
            refused |= dict.fromkeys(rows.tolist(), error.reason)
        except MemoryError:
            raise
        except Exception as error:  # programs cost themselves, whatever nobody foresaw of them
            refused |= dict.fromkeys(rows.tolist(), ReplayFailed.of(error).reason)
            logger.debug("%d programs refused: %r", len(rows), error)
    return found, refused
