"""Synthetic decision vectors: each tile is that of some measured record."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pruner.data.quarantine import Quarantine
from pruner.data.tasks import TaskRecords, read_tasks
from pruner.program.te.skeleton import SkeletonGroup, Slot


def records_of(path: Path) -> TaskRecords:
    """The only task of a record file."""
    with Quarantine() as quarantine:
        return read_tasks(path, quarantine, duplicates="keep")[0]


def vectors(group: SkeletonGroup, num: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """``num`` vectors, int64 [num, d]: the lengths of one split stay together."""
    out = np.empty((num, group.decisions.shape[1]), np.int64)
    for step in group.skeleton:
        fields = step.fields[2] if step.tag == "SP" else step.fields
        slots = [field.number for field in fields if isinstance(field, Slot)]
        if slots:
            rows = rng.integers(0, len(group.decisions), num)
            out[:, slots] = group.decisions[rows][:, slots]
    return out


def as_steps(group: SkeletonGroup, template: list, values: NDArray[np.int64]) -> list[list]:
    """Step lists of decision vectors, by the pattern of a record's steps."""
    made = []
    for row in values.tolist():
        steps, place = [], 0
        for step in template:
            if step[0] == "SP":
                size = len(step[4])
                steps.append([*step[:4], row[place : place + size], step[5]])
                place += size
            elif step[0] == "PR":
                name = step[3].partition("$")[0]
                steps.append([*step[:3], f"{name}${row[place]}"])
                place += 1
            else:
                steps.append(step)
        made.append(steps)
    return made
