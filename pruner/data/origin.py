"""Read how schedules were found, from records or a side file.

Ansor refuses records with unknown keys, so ``<root>/origin/<platform>/<task>.json`` may hold a JSON
list with one text a record line, such as "random" or "evolved".
"""

from pathlib import Path

import numpy as np
from jaxtyping import Bool

from pruner.data.tasks import TaskRecords
from pruner.errors import DataError
from pruner.files import read_json


def found_by(root: Path, records: TaskRecords, origin: str) -> Bool[np.ndarray, " program"]:
    """Return which programs of a task have the origin `origin`.

    bool [N]. Raises `DataError` where neither the records nor a file beside them have origins, or
    the file has fewer lines.
    """
    marks: list[str | None] = records.origin
    if None in marks:
        path = root / "origin" / records.key.platform / f"{records.key.task}.json"
        if not path.is_file():
            raise DataError(
                f"{records.file}: its records have no origin, and there is no {path}; "
                "leave out the choice by origin"
            )
        beside = read_json(path, list)
        if len(beside) <= int(records.line.max(initial=-1)):
            raise DataError(f"{path}: expected a list with one text for every line of the records")
        marks = [beside[line] for line in records.line]
    return np.array([mark == origin for mark in marks], bool)
