"""Apply one trace to many programs: one tree for each structure.

Programs go together as far as they agree; locations in loops of one run share a tree
(:func:`pruner.program.tir.locations.shared`), else each part goes on with a copy. A program that
parts in the middle of an instruction, or that a shared tree cannot express, begins anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from jaxtyping import Bool, Int64

from pruner.arrays import Decisions, Ints, Mask
from pruner.errors import ReplayFailed, UnsupportedProgram
from pruner.program.tir import locations as places
from pruner.program.tir.copies import Copy
from pruner.program.tir.regions import buffer_scopes
from pruner.program.tir.trace import LOCATE, Instruction, TraceProgram, TraceState, settled
from pruner.program.tir.tree import Diverges, Tree, uniform

logger = logging.getLogger(__name__)
Found = TypeVar("Found")


def apply(program: TraceProgram, decisions: Decisions) -> Tree:
    """Return the finished tree; raise `Diverges`, or `UnsupportedProgram` without a form."""
    return _applied(program, decisions).tree


def tile_extents(program: TraceProgram, decision: Int64[np.ndarray, " slot"]) -> dict[int, int]:
    """Return the extent that each perfect tile divides, by slot; raises as :func:`apply`."""
    return {
        slot: uniform(extent) for slot, extent in _applied(program, decision[None]).tiled.items()
    }


def apply_groups(
    program: TraceProgram, decisions: Decisions, *, strict: bool = False
) -> tuple[list[tuple[Ints, Tree]], dict[int, str]]:
    """Return (rows, tree) of every structure of N programs, and reasons by refused row.

    With ``strict`` foreign decisions are refused where they are no factors of their loop, or no
    candidate; decisions that were drawn here always are.
    """

    def finished(state: TraceState) -> Tree:
        state.finish(is_gpu=program.is_gpu)
        if not program.is_gpu:
            buffer_scopes(state.tree)  # here, where an uncertain program may begin anew
        return state.tree

    until = len(program.instructions)
    return _structures(program, decisions, until, finished, strict=strict)


def location_options(
    program: TraceProgram, decisions: Decisions, slot: int
) -> tuple[Int64[np.ndarray, " location"], Bool[np.ndarray, "program location"]]:
    """Return locations of a ``slot`` [L], and bool [N, L] where each is offered.

    A program that cannot be replayed has none; :func:`apply_groups` gives its reason.
    """
    until, instruction = next((n, i) for n, i in enumerate(program.instructions) if i.slot == slot)

    def offers(state: TraceState) -> dict[int, Mask | np.bool_]:
        return places.allowed_locations(state.tree, state.get(instruction.inputs[0]))

    found, _ = _structures(program, decisions, until, offers)
    locations = np.array(sorted({place for _, offered in found for place in offered}), np.int64)
    allowed = np.zeros((len(decisions), len(locations)), bool)
    for rows, offered in found:
        for column, place in enumerate(locations.tolist()):
            if place in offered:
                allowed[rows, column] = offered[place]
    return locations, allowed


def _applied(program: TraceProgram, decisions: Decisions) -> TraceState:
    state = _started(program, decisions)
    for instruction in program.instructions:
        state.take(instruction)
    state.finish(is_gpu=program.is_gpu)
    return state


def _started(program: TraceProgram, decisions: Decisions, *, strict: bool = False) -> TraceState:
    state = TraceState(Copy().tree(program.tree, len(decisions)), decisions, strict)
    if program.known:
        nodes = list(state.tree.nodes())
        found = {number: nodes[place] for number, place in program.known.items()}
        state.results.update(
            {n: state.tree if node is nodes[0] else node for n, node in found.items()}
        )
    return state


@dataclass(frozen=True, slots=True, eq=False)
class _Branch:
    """Programs that share a tree so far; ``done`` counts applied instructions.

    ``apart``: every location has a tree of its own; ``mixed``: some locations share this tree.
    """

    rows: Ints
    state: TraceState
    done: int = 0
    apart: bool = False
    mixed: bool = False

    def grown(self, instructions: Sequence[Instruction]) -> list[_Branch]:
        """Return this branch after the instructions, or its parts by location."""
        for number in range(self.done, len(instructions)):
            if instructions[number].kind == LOCATE:
                return self._located(instructions[number], number + 1)
            self.state.take(instructions[number])
        return [replace(self, done=len(instructions))]

    def _located(self, instruction: Instruction, done: int) -> list[_Branch]:
        """Part the programs by location where they cannot share a tree."""
        state = self.state
        taken = settled(state, instruction)
        block = state.get(instruction.inputs[0])
        kinds = taken if self.apart else places.alike(state.tree, block, taken)
        found = np.unique(kinds)
        out = []
        for kind in found:
            rows = np.flatnonzero(kinds == kind)
            part = state if len(found) == 1 else state.select(rows)
            # After the split a part may lack loops, which shifts the numbers of its locations.
            here = settled(part, instruction)  # by its own loops, which may be fewer
            part.locate(instruction, here)
            mixed = self.mixed or len(np.unique(here)) > 1
            out.append(_Branch(self.rows[rows], part, done, self.apart, mixed))
        return out


def _structures(
    program: TraceProgram,
    decisions: Decisions,
    until: int,
    found_of: Callable[[TraceState], Found],
    *,
    strict: bool = False,
) -> tuple[list[tuple[Ints, Found]], dict[int, str]]:
    """Return ``found_of`` before instruction ``until``, by rows, and refusals."""
    instructions = program.instructions[:until]
    found: list[tuple[Ints, Found]] = []
    refused: dict[int, str] = {}
    pending: list[_Branch] = []

    def begin(rows: Ints, *, apart: bool = False) -> None:
        state = _started(program, decisions[rows], strict=strict)
        pending.append(_Branch(rows, state, apart=apart))

    # A shared tree is an optimisation: before refusing, try every location with its own tree.
    def refuse(branch: _Branch, error: UnsupportedProgram) -> None:
        if branch.mixed:
            begin(branch.rows, apart=True)
        else:
            refused.update(dict.fromkeys(branch.rows.tolist(), error.reason))

    if len(decisions):
        begin(np.arange(len(decisions)))
    while pending:
        branch = pending.pop()
        try:
            if branch.done < until:
                pending += branch.grown(instructions)
            else:
                found.append((branch.rows, found_of(branch.state)))
        except Diverges as parts:
            # The tree may be changed half-way: each kind starts again from the first instruction.
            for value in np.unique(parts.values):
                begin(branch.rows[parts.values == value], apart=branch.apart)
        except UnsupportedProgram as error:
            refuse(branch, error)
        except MemoryError:
            raise
        except Exception as error:  # an unforeseen error costs its programs only
            refuse(branch, ReplayFailed.of(error))
            logger.debug("%d programs not replayed: %r", len(branch.rows), error)
    return found, refused
