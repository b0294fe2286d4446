"""Encode schedule primitives as tokens, the input of TLP (ASPLOS'23).

A row is a step: ``[one-hot kind (14) | fields (8)]``, at most 40 rows; fields as Ansor logs them.
Differs from the release (scripts/tlp_make_dataset.py): 14 kinds instead of the 11 of one target,
``log2(1 + x)`` instead of raw integers, no loop extents (stale for fetch loops).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pruner.program.te.skeleton import ANNOTATIONS, SkeletonGroup, Slot, Step

NUM_STEPS = 40
KINDS = (
    "SP", "FSP", "FFSP", "RE", "FU", "AN", "PR", "CA", "CI", "CR", "CHR", "CHW", "RF", "SA",
)  # fmt: skip
NUM_FIELDS = 8
NUM_COLUMNS = len(KINDS) + NUM_FIELDS
_SCOPES = ("local", "shared", "global")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrimitiveTokens:
    """Tokens of N programs over K skeletons.

    ``structure`` float32 [K, 40, 22]: the tokens, 0 where a decision belongs; ``place`` int64
    [K, D]: where decision d goes in the flattened 40 x 22 block, -1 where the skeleton has none
    there or it was cut off; ``skeleton`` int64 [N]; ``number`` float32 [N, D]: ``log2(1 + x)`` of
    the decisions, 0 where there is none.
    """

    structure: NDArray[np.float32]
    place: NDArray[np.int64]
    skeleton: NDArray[np.int64]
    number: NDArray[np.float32]

    @staticmethod
    def join(parts: Sequence[PrimitiveTokens]) -> PrimitiveTokens:
        """Join programs of several parts; equal skeletons are not merged."""
        most = max(part.number.shape[1] for part in parts)
        first = np.cumsum([0, *(len(part.structure) for part in parts[:-1])])
        skeleton = [part.skeleton + start for part, start in zip(parts, first, strict=True)]
        return PrimitiveTokens(
            structure=np.concatenate([part.structure for part in parts]),
            place=np.concatenate([_widen(part.place, most, -1) for part in parts]),
            skeleton=np.concatenate(skeleton),
            number=np.concatenate([_widen(part.number, most, 0) for part in parts]),
        )

    def select(self, rows: NDArray[np.bool_] | NDArray[np.int64]) -> PrimitiveTokens:
        """Return the given programs, over the same skeletons."""
        return replace(self, skeleton=self.skeleton[rows], number=self.number[rows])


def _widen(values: NDArray[Any], width: int, fill: float) -> NDArray[Any]:
    return np.pad(values, ((0, 0), (0, width - values.shape[1])), constant_values=fill)


def _fields(step: Step) -> list[int | Slot]:
    """Return one step's fields as Ansor logs them, without the extent of a split."""
    out: list[int | Slot] = []
    for field in step.fields:
        if isinstance(field, str):
            out.append(ANNOTATIONS.index(field) if step.tag == "AN" else _scope(field))
        else:
            out += field if isinstance(field, tuple) else (field,)
    return out


def _scope(name: str) -> int:
    """Return 1, 2, 3 as the release; 4 for any other scope."""
    return _SCOPES.index(name) + 1 if name in _SCOPES else len(_SCOPES) + 1


def skeleton_tokens(
    skeleton: Sequence[Step], num_slots: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return structure [40, 22] and places [num_slots] of one skeleton."""
    structure = np.zeros((NUM_STEPS, NUM_COLUMNS), np.float32)
    place = np.full(num_slots, -1, np.int64)
    # TLP cuts longer schedules off, too.
    for number, step in enumerate(skeleton[:NUM_STEPS]):
        structure[number, KINDS.index(step.tag)] = 1
        for column, field in enumerate(_fields(step)[:NUM_FIELDS], start=len(KINDS)):
            if isinstance(field, Slot):
                # The model puts a program's decisions there, so structures are stored once.
                place[field.number] = number * NUM_COLUMNS + column
            else:
                structure[number, column] = field
    return structure, place


def primitive_tokens(groups: Sequence[SkeletonGroup], num_programs: int) -> PrimitiveTokens:
    """Return tokens of grouped programs; other rows belong to a skeleton without steps."""
    groups = [group for group in groups if all(step.tag in KINDS for step in group.skeleton)]
    most = max((group.decisions.shape[1] for group in groups), default=0)
    # The last skeleton is the empty one.
    structure = np.zeros((len(groups) + 1, NUM_STEPS, NUM_COLUMNS), np.float32)
    place = np.full((len(groups) + 1, most), -1, np.int64)
    skeleton = np.full(num_programs, len(groups), np.int64)
    number = np.zeros((num_programs, most), np.float32)
    for k, group in enumerate(groups):
        slots = group.decisions.shape[1]
        structure[k], place[k, :slots] = skeleton_tokens(group.skeleton, slots)
        skeleton[group.rows] = k
        # Lengths span 1 to thousands: logarithms put them on the scale of the other fields.
        number[group.rows, :slots] = np.log2(1.0 + group.decisions)
    return PrimitiveTokens(structure=structure, place=place, skeleton=skeleton, number=number)
